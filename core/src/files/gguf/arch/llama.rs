//! llama and the models written as it (mistral among them). Rows of q and k are reordered for rotating neighbouring
//! pairs; llama3's scaling of the frequencies is no metadata but the tensor `rope_freqs.weight`.

use super::{Arch, bias_keys};

pub(super) const ARCH: Arch = Arch {
    name: "llama",
    model_type: "llama",
    rope_interleaved_qk: true,
    names: &[],
    extend: bias_keys,
    gather: super::as_stored,
};
