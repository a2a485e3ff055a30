//! Writing checkpoints: random ones of a configuration's shapes, and quantised copies.
//!
//! Everything is streamed: the layout of the files is computed first, then many threads make pieces of a few megabytes
//! and write each where it belongs, so memory does not grow with the model. A checkpoint is written under another name
//! and renamed when it is whole. Reading is left to `files`; what a configuration means to `model`.

mod convert;
mod encode;
mod error;
mod gguf;
mod quantize;
mod quantize_safetensors;
mod random;
mod record;
mod rows;
mod safetensors;
mod scheme;
mod synth;
mod vocabulary;
mod write;

pub use error::ExportError;
pub use quantize::{Made, QuantizeOptions, quantize};
pub use record::TensorNote;
pub use scheme::{SCHEMES, Scheme};
pub use synth::{Number, SYNTHETIC_CONFIG_KEY, SYNTHETIC_METADATA_KEY, SynthOptions, Target, Written, synth};
pub use write::Progress;
