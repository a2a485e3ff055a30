//! GGUF files: the container, and what a model of Hugging Face form becomes in it.

pub(super) mod arch;
mod container;

pub(super) use container::{Entry, Pair, layout};
