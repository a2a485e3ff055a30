//! Model files: containers, element types, and the checkpoint made of them.
//!
//! [`Checkpoint::open`] takes any path a person may hand in and gives the configuration, the token ids that matter
//! and the tensors under the names of Hugging Face checkpoints, whatever the container. It never copies a weight and
//! never changes a value: where a container stores values in another form, [`StorageFacts`] says so. What a model
//! makes of the configuration is left to `model`, and text to `text`.

mod checkpoint;
mod dtype;
mod error;
mod gguf;
mod index;
mod load;
mod map;
mod onnx;
mod open;
mod open_gguf;
mod packed;
mod plain_order;
mod pytorch;
mod quant;
mod readers;
mod safetensors;
mod strided;
mod tensor;

pub use checkpoint::{Checkpoint, Container, FileEntry, Generation, Head, Manifest, StorageFacts};
pub use dtype::{DType, Format};
pub use error::FileError;
pub use gguf::Metadata;
pub(crate) use gguf::arch as gguf_arch;
pub(crate) use load::load;
pub use map::Bytes;
pub(crate) use open::token_text;
pub use packed::{FORMATS as WEIGHT_FORMATS, Packed, WeightFormat};
pub(crate) use packed::{e4m3, e8m0};
pub use readers::{READERS, Reader};
pub use tensor::{StoredTensor, TensorFacts};

/// The architectures of GGUF files that are read, sorted.
pub fn gguf_architectures() -> impl Iterator<Item = &'static str> {
    gguf_arch::ARCHS.iter().map(|arch| arch.name)
}
