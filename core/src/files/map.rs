//! The bytes of a file, mapped where the system allows it and read into memory where it does not.
//!
//! Another process that truncates a file while it is mapped makes later reads of the lost pages fail with a signal.
//! Model files are not written while they are served, so that risk is taken; `Bytes::read` avoids it at the price of
//! a copy.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The bytes of a file.
#[derive(Debug)]
pub enum Bytes {
    /// A memory map, read on demand.
    Mapped(memmap2::Mmap),
    /// A copy in memory.
    Owned(Vec<u8>),
}

impl Bytes {
    /// Maps the file at `path`, or reads it where it cannot be mapped.
    ///
    /// # Errors
    /// A file that cannot be opened or read, or is no plain file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = plain_file(path)?;
        // SAFETY: the map is private to this value and only read; see the module text on truncation by others.
        match unsafe { memmap2::Mmap::map(&file) } {
            Ok(map) => Ok(Self::Mapped(map)),
            Err(_) => read_all(file),
        }
    }

    /// Reads the whole file at `path` into memory.
    ///
    /// # Errors
    /// A file that cannot be opened or read, or is no plain file.
    pub fn read(path: &Path) -> io::Result<Self> {
        read_all(plain_file(path)?)
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// Opens only plain files: opening a pipe would wait for a writer for ever.
fn plain_file(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a plain file"));
    }
    File::open(path)
}

fn read_all(mut file: File) -> io::Result<Bytes> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(Bytes::Owned(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_and_read_agree_and_folders_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for content in [&b"some bytes"[..], b""] {
            let path = folder.path().join("f");
            std::fs::write(&path, content).unwrap();
            assert_eq!(&*Bytes::open(&path).unwrap(), content);
            assert_eq!(&*Bytes::read(&path).unwrap(), content);
        }
        assert!(Bytes::open(folder.path()).is_err());
        assert!(Bytes::open(&folder.path().join("none")).is_err());
    }
}
