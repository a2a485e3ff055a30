//! The readers of containers over bytes in memory: what a file is before anything is made of it.

use super::error::FileError;
use super::map::Bytes;
use super::tensor::StoredTensor;
use super::{gguf, onnx, pytorch, safetensors};
use std::path::Path;
use std::sync::Arc;

/// A reader.
pub struct Reader {
    /// The container's name.
    pub name: &'static str,
    read: fn(&Path, Arc<Bytes>) -> Result<Vec<StoredTensor>, FileError>,
}

/// All readers, sorted by name.
pub const READERS: &[Reader] = &[
    Reader { name: "gguf", read: |path, file| gguf::tensors(path, file) },
    Reader { name: "onnx", read: |path, file| onnx::read(path, file).map(|(tensors, _)| tensors) },
    Reader { name: "pytorch", read: pytorch::read },
    Reader { name: "safetensors", read: safetensors::read },
];

impl Reader {
    /// The reader of the container `name`.
    pub fn find(name: &str) -> Option<&'static Self> {
        READERS.iter().find(|reader| reader.name == name)
    }

    /// The tensors of a file of these bytes. Data outside it are looked for beside `path`, which need not be there.
    ///
    /// # Errors
    /// Bytes that break the container's rules.
    pub fn read(&self, path: &Path, bytes: Vec<u8>) -> Result<Vec<StoredTensor>, FileError> {
        (self.read)(path, Arc::new(Bytes::Owned(bytes)))
    }
}
