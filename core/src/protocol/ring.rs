//! The ring: a file in shared memory through which log-prob rows pass, area by area.
//!
//! The client makes the file, `slots` areas of `slot_bytes`; the engine fills an area, names it in a message, and leaves
//! it alone until the client acknowledges it. Both sides read and write the file at offsets instead of mapping it: on
//! one machine that is coherent with a mapping, costs one copy, and can neither be cut short under a reader nor end a
//! process with a bus error when the memory file system is full. So nothing here is unsafe, and an engine that prefers to
//! map the file may.

use crate::error::{Diagnose, ErrorKind};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Largest area of a ring.
pub const MAX_SLOT_BYTES: u64 = 64 << 20;

/// Most areas of a ring.
pub const MAX_SLOTS: u32 = 64;

const _: () = assert!(cfg!(target_endian = "little"), "rows are passed as little-endian f32");

/// Why a ring cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// Areas that cannot be.
    #[error("a ring of {slots} areas of {slot_bytes} bytes: {problem}")]
    Shape {
        /// Areas.
        slots: u32,
        /// Bytes of one.
        slot_bytes: u64,
        /// What is wrong.
        problem: &'static str,
    },
    /// The file cannot be used.
    #[error("ring file {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An area or a part of it that is not there.
    #[error("area {slot} with {bytes} bytes is outside the ring")]
    Outside {
        /// The area.
        slot: u32,
        /// Bytes wanted.
        bytes: u64,
    },
}

impl Diagnose for RingError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::File { .. } => ErrorKind::Environment,
            _ => ErrorKind::Engine,
        }
    }
}

/// One side of a ring.
#[derive(Debug)]
pub struct Ring {
    file: File,
    path: PathBuf,
    slots: u32,
    slot_bytes: u64,
    /// This side made the file and removes it.
    owner: bool,
}

impl Ring {
    /// Makes a ring file with its memory reserved, in shared memory or, if that is too small, in the temporary folder.
    ///
    /// # Errors
    /// Impossible sizes, or no place for the file.
    pub fn create(slots: u32, slot_bytes: u64) -> Result<Self, RingError> {
        check_shape(slots, slot_bytes)?;
        let name = unique_name();
        let shared = Path::new("/dev/shm");
        let places = [Some(shared.to_path_buf()).filter(|path| path.is_dir()), Some(std::env::temp_dir())];
        let mut last = None;
        for place in places.into_iter().flatten() {
            match Self::create_at(&place.join(&name), slots, slot_bytes) {
                Ok(ring) => return Ok(ring),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or(RingError::Shape { slots, slot_bytes, problem: "there is no folder for it" }))
    }

    fn create_at(path: &Path, slots: u32, slot_bytes: u64) -> Result<Self, RingError> {
        let file_error = |source| RingError::File { path: path.to_path_buf(), source };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(path).map_err(file_error)?;
        let ring = Self { file, path: path.to_path_buf(), slots, slot_bytes, owner: true };
        // Zeros written now are memory that cannot be missing later.
        let zeros = vec![0; slot_bytes.min(1 << 20) as usize];
        let total = u64::from(slots) * slot_bytes;
        let mut at = 0;
        while at < total {
            let n = zeros.len().min((total - at) as usize);
            ring.file.write_all_at(&zeros[..n], at).map_err(file_error)?;
            at += n as u64;
        }
        Ok(ring)
    }

    /// Opens the ring file another side made.
    ///
    /// # Errors
    /// Impossible sizes, or a file that is not there or smaller than the ring.
    pub fn open(path: &Path, slots: u32, slot_bytes: u64) -> Result<Self, RingError> {
        check_shape(slots, slot_bytes)?;
        let file_error = |source| RingError::File { path: path.to_path_buf(), source };
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(file_error)?;
        let length = file.metadata().map_err(file_error)?.len();
        if length < u64::from(slots) * slot_bytes {
            return Err(RingError::Shape { slots, slot_bytes, problem: "the file is smaller" });
        }
        Ok(Self { file, path: path.to_path_buf(), slots, slot_bytes, owner: false })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Areas.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of an area.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Removes the file's name; both sides that have it open go on using it.
    pub fn unlink(&mut self) {
        if std::mem::take(&mut self.owner) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Writes values to the beginning of an area.
    ///
    /// # Errors
    /// They do not fit, or the file failed.
    pub fn write(&self, slot: u32, values: &[f32]) -> Result<(), RingError> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let at = self.offset(slot, bytes.len() as u64)?;
        self.file.write_all_at(bytes, at).map_err(|source| RingError::File { path: self.path.clone(), source })
    }

    /// Reads values from the beginning of an area.
    ///
    /// # Errors
    /// The area holds fewer, or the file failed.
    pub fn read(&self, slot: u32, values: &mut [f32]) -> Result<(), RingError> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(values);
        let at = self.offset(slot, bytes.len() as u64)?;
        self.file.read_exact_at(bytes, at).map_err(|source| RingError::File { path: self.path.clone(), source })
    }

    fn offset(&self, slot: u32, bytes: u64) -> Result<u64, RingError> {
        match slot < self.slots && bytes <= self.slot_bytes {
            true => Ok(u64::from(slot) * self.slot_bytes),
            false => Err(RingError::Outside { slot, bytes }),
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.unlink();
    }
}

fn check_shape(slots: u32, slot_bytes: u64) -> Result<(), RingError> {
    let problem = if slots == 0 || slots > MAX_SLOTS {
        "1 to 64 areas are allowed"
    } else if slot_bytes == 0 || slot_bytes > MAX_SLOT_BYTES || !slot_bytes.is_multiple_of(4) {
        "an area has a multiple of 4 bytes, up to 64 MiB"
    } else {
        return Ok(());
    };
    Err(RingError::Shape { slots, slot_bytes, problem })
}

fn unique_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    format!("crit-ring-{}-{}-{since:x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_side_writes_the_other_reads() {
        let mut made = Ring::create(2, 16).expect("room for 32 bytes");
        let opened = Ring::open(made.path(), 2, 16).expect("it is there");
        opened.write(1, &[1.5, f32::NEG_INFINITY]).expect("fits");
        made.unlink();
        opened.write(0, &[f32::NAN]).expect("fits");
        let mut values = [0.0; 3];
        made.read(1, &mut values).expect("there");
        assert_eq!(values, [1.5, f32::NEG_INFINITY, 0.0]);
        assert!(!made.path().exists());
    }

    #[test]
    fn wrong_areas_and_sizes_are_refused() {
        let ring = Ring::create(2, 16).expect("room for 32 bytes");
        assert!(matches!(ring.write(2, &[0.0]), Err(RingError::Outside { .. })));
        assert!(matches!(ring.write(0, &[0.0; 5]), Err(RingError::Outside { .. })));
        assert!(matches!(Ring::open(ring.path(), 3, 16), Err(RingError::Shape { .. })));
        assert!(matches!(Ring::create(1, 6), Err(RingError::Shape { .. })));
        assert!(matches!(Ring::create(1, MAX_SLOT_BYTES + 4), Err(RingError::Shape { .. })));
        let path = ring.path().to_path_buf();
        drop(ring);
        assert!(matches!(Ring::open(&path, 2, 16), Err(RingError::File { .. })));
    }
}
