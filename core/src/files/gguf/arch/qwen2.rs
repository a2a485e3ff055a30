//! qwen2: biases on q, k and v, which its keys do not mention.

use super::Arch;

pub(super) const ARCH: Arch = Arch {
    name: "qwen2",
    model_type: "qwen2",
    rope_interleaved_qk: false,
    names: &[],
    extend: |_, _| {},
    gather: super::as_stored,
};
