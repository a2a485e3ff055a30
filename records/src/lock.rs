//! One writer at a time: an advisory lock on a file beside the store.
//!
//! The kernel drops it when its holder dies, so it cannot go stale. Its text (process id and boot) is only for messages.

use crate::clock;
use crate::error::{RecordError, Result};
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Held while a process changes the store.
pub(crate) struct StoreLock {
    _file: File,
}

impl StoreLock {
    /// Waits up to `patience` for the lock at `path`.
    pub(crate) fn acquire(path: &Path, patience: Duration) -> Result<Self> {
        let open = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = open.map_err(RecordError::io("open the lock", path))?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => return Err(RecordError::io("lock", path)(error)),
                Err(TryLockError::WouldBlock) if start.elapsed() >= patience => {
                    return Err(RecordError::Busy { holder: holder(&mut file), waited_s: patience.as_secs() });
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(jitter(1, 10)),
            }
        }
        let text = format!("process {} of boot {}\n", std::process::id(), clock::boot_id());
        // The lock is held whatever becomes of its text: a full disk must not stop a writer here already.
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes()));
        Ok(Self { _file: file })
    }
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let _ = file.rewind().and_then(|()| file.read_to_string(&mut text));
    let text = text.trim();
    if text.is_empty() { "an unnamed process".into() } else { text.into() }
}

/// A random pause between `low_ms` and `high_ms`, so that waiting processes do not step in time.
pub(crate) fn jitter(low_ms: u64, high_ms: u64) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one(Instant::now());
    Duration::from_micros(low_ms * 1000 + random % (1 + (high_ms - low_ms) * 1000))
}
