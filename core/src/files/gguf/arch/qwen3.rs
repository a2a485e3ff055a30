//! qwen3: norms on each head's q and k, no biases.

use super::Arch;

pub(super) const ARCH: Arch = Arch {
    name: "qwen3",
    model_type: "qwen3",
    rope_interleaved_qk: false,
    names: &[],
    extend: |_, _| {},
    gather: super::as_stored,
};
