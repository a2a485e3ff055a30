//! Files that are whole or absent: write beside the target, sync, rename, sync the folder.

use crate::error::{RecordError, Result};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Prefix of files that a crash may leave behind; git's own tools sweep the same prefix among objects.
pub(crate) const TEMPORARY: &str = "tmp_obj_";

static COUNTER: AtomicU64 = AtomicU64::new(0);

/// A name in `folder` that no other live writer uses.
pub(crate) fn temporary_path(folder: &Path) -> PathBuf {
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    folder.join(format!("{TEMPORARY}{}_{count}", std::process::id()))
}

/// Creates `folder` and its parents, durably.
pub(crate) fn create_folder(folder: &Path) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(folder).map_err(RecordError::io("create the folder", folder))?;
    folder.parent().map_or(Ok(()), sync_folder)
}

/// Makes renames within `folder` durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder).and_then(|f| f.sync_all()).map_err(RecordError::io("sync the folder", folder))
}

/// Writes `bytes` to `path`, replacing what is there at once and durably.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    copy_file(path, &mut &bytes[..]).map(drop)
}

/// Writes all that `reader` yields to `path`, as [`write_file`]; answers the number of bytes.
pub(crate) fn copy_file(path: &Path, reader: &mut dyn Read) -> Result<u64> {
    let folder = path.parent().unwrap_or(Path::new("."));
    create_folder(folder)?;
    let temporary = temporary_path(folder);
    let written = fill(&temporary, reader).and_then(|n| fs::rename(&temporary, path).map(|()| n));
    if written.is_err() {
        // Best effort: the write error is the one to report, and leftovers are swept later.
        let _ = fs::remove_file(&temporary);
    }
    let written = written.map_err(RecordError::io("write", path))?;
    sync_folder(folder)?;
    Ok(written)
}

fn fill(path: &Path, reader: &mut dyn Read) -> io::Result<u64> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    let written = io::copy(reader, &mut file)?;
    file.flush()?;
    file.sync_all()?;
    Ok(written)
}

/// Moves `path` into `quarantine`, keeping its bytes for a later look.
pub(crate) fn quarantine(path: &Path, quarantine: &Path) -> Result<PathBuf> {
    create_folder(quarantine)?;
    let name = path.file_name().map_or_else(|| "unnamed".into(), |n| n.to_string_lossy().into_owned());
    let free = |n: &u32| !quarantine.join(format!("{name}.{n}")).exists();
    let target = quarantine.join(format!("{name}.{}", (0..).find(free).unwrap_or(u32::MAX)));
    fs::rename(path, &target).map_err(RecordError::io("set aside", path))?;
    sync_folder(quarantine)?;
    Ok(target)
}
