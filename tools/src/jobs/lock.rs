//! One measurement at a time on a machine: two would slow each other and both be wrong.
//!
//! The lock is an advisory lock on one file outside any workspace. The kernel gives it back when its holder ends, in
//! whatever way. The file's text names the holder for those who wait.

use super::Holder;
use crate::context::Context;
use crate::error::ToolError;
use crit_core::error::ErrorKind;
use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

/// Pause between two looks at the lock.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Keeps other measurements out while it lives.
pub struct MeasureLock {
    _file: File,
}

impl MeasureLock {
    /// Waits for the lock, telling `context` whom it waits for.
    ///
    /// # Errors
    /// The lock file cannot be made or locked, or the caller no longer waits.
    pub fn acquire(context: &Context, what: &str) -> Result<Self, ToolError> {
        let path = path();
        let mut file = open(&path).map_err(|error| ToolError::io("open the measuring lock", &path, &error))?;
        let mut waited = false;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    waited = true;
                    context.report().waiting(Some(&holder(&mut file)));
                    if context.is_cancelled() {
                        return Err(ToolError::new(ErrorKind::Environment, "gave up waiting for the machine"));
                    }
                    std::thread::sleep(LOOK_EVERY);
                }
                Err(TryLockError::Error(error)) => return Err(ToolError::io("lock", &path, &error)),
            }
        }
        if waited {
            context.report().waiting(None);
        }
        // Naming the holder is a courtesy; a file of another user cannot be written and still locks.
        let _ = sign(&mut file, context, what);
        Ok(Self { _file: file })
    }
}

/// The lock file: `CRIT_LOCK_DIR`, else the folder for temporary files.
fn path() -> PathBuf {
    let folder = std::env::var_os("CRIT_LOCK_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    folder.join("crit-measure.lock")
}

fn open(path: &std::path::Path) -> std::io::Result<File> {
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
    if let Ok(file) = File::options().read(true).write(true).open(path) {
        return Ok(file);
    }
    match File::options().read(true).write(true).create_new(true).mode(0o666).open(path) {
        Ok(file) => {
            // The mode at creation is cut by the umask; other users must be able to name themselves too.
            let _ = file.set_permissions(std::fs::Permissions::from_mode(0o666));
            Ok(file)
        }
        Err(_) => File::open(path),
    }
}

fn sign(file: &mut File, context: &Context, what: &str) -> std::io::Result<()> {
    let holder = Holder {
        job_id: context.report().job_id().unwrap_or_else(|| format!("process {}", std::process::id())),
        what: what.to_string(),
        workspace: context.try_workspace().map(|w| w.root().display().to_string()).unwrap_or_default(),
    };
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(&serde_json::to_vec(&holder)?)
}

fn holder(file: &mut File) -> Holder {
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
    read.ok().and_then(|_| serde_json::from_str(&text).ok()).unwrap_or_else(|| Holder {
        job_id: "unknown".into(),
        what: "a measurement".into(),
        workspace: String::new(),
    })
}
