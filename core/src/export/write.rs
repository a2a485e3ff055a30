//! Files written by many threads, each piece at its place, and put in place when all is there.

use super::error::ExportError;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Elements of a piece of work: a few megabytes, so that workers hold little and calls cost nothing.
pub(super) const PIECE_ELEMS: usize = 1 << 20;

/// How far the writing is: (bytes of weights done, in all).
pub type Progress<'a> = dyn Fn(u64, u64) + Sync + 'a;

/// A file to be written.
pub(super) struct OutFile {
    /// Its name in the folder.
    pub(super) name: String,
    /// What stands before the data.
    pub(super) header: Vec<u8>,
    /// Bytes in all.
    pub(super) len: u64,
}

/// Where a tensor's data begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// Index of the file.
    pub(super) file: usize,
    /// Byte in the file.
    pub(super) at: u64,
}

/// The files being written.
pub(super) struct Sink {
    files: Vec<(PathBuf, File)>,
}

impl Sink {
    /// Writes `bytes` at byte `offset` of a tensor.
    pub(super) fn put(&self, slot: Slot, offset: u64, bytes: &[u8]) -> Result<(), ExportError> {
        let (path, file) = &self.files[slot.file];
        file.write_all_at(bytes, slot.at + offset).map_err(|error| ExportError::io(path, error))
    }
}

/// Work that can be done in pieces in any order.
pub(super) trait Work: Sync {
    /// Pieces.
    fn pieces(&self) -> usize;
    /// Bytes of weights a piece stands for, for progress.
    fn piece_bytes(&self, piece: usize) -> u64;
    /// Makes a piece and writes it.
    fn run(&self, piece: usize, sink: &Sink) -> Result<(), ExportError>;
}

impl<T: Work + ?Sized> Work for &T {
    fn pieces(&self) -> usize {
        (**self).pieces()
    }

    fn piece_bytes(&self, piece: usize) -> u64 {
        (**self).piece_bytes(piece)
    }

    fn run(&self, piece: usize, sink: &Sink) -> Result<(), ExportError> {
        (**self).run(piece, sink)
    }
}

/// A folder or file under a name of its own until it is whole.
pub(super) struct Draft {
    out: PathBuf,
    folder: PathBuf,
    kept: bool,
}

impl Draft {
    /// A place for what will be at `out`, in the same folder, so that it can be renamed.
    pub(super) fn new(out: &Path) -> Result<Self, ExportError> {
        if out.symlink_metadata().is_ok() {
            return Err(ExportError::Exists { path: out.into() });
        }
        let name = out.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(parent).map_err(|error| ExportError::io(parent, error))?;
        let folder = parent.join(format!(".{name}.part-{}", std::process::id()));
        std::fs::create_dir(&folder).map_err(|error| ExportError::io(&folder, error))?;
        Ok(Self { out: out.into(), folder, kept: false })
    }

    /// A file in it.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes a small file.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), ExportError> {
        let path = self.path(name);
        std::fs::write(&path, bytes).map_err(|error| ExportError::io(&path, error))
    }

    /// Waits until the files are on the disk, so that a name is never there without its bytes.
    pub(super) fn sync(&self, files: &[OutFile]) -> Result<(), ExportError> {
        for file in files {
            let path = self.path(&file.name);
            File::open(&path).and_then(|file| file.sync_all()).map_err(|error| ExportError::io(&path, error))?;
        }
        Ok(())
    }

    /// Puts the folder in place.
    pub(super) fn keep_folder(mut self) -> Result<(), ExportError> {
        std::fs::rename(&self.folder, &self.out).map_err(|error| ExportError::io(&self.out, error))?;
        self.kept = true;
        Ok(())
    }

    /// Puts `name` of it in place of `out`, and other files beside it.
    pub(super) fn keep_file(self, name: &str, beside: &[(&str, PathBuf)]) -> Result<(), ExportError> {
        for (name, to) in beside {
            std::fs::rename(self.path(name), to).map_err(|error| ExportError::io(to, error))?;
        }
        std::fs::rename(self.path(name), &self.out).map_err(|error| ExportError::io(&self.out, error))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.kept {
            // A leftover costs space and is under a name nobody opens.
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// Creates `files` in `draft` and does all of `work` on `threads` threads.
pub(super) fn write(
    draft: &Draft,
    files: &[OutFile],
    work: &[Box<dyn Work + '_>],
    threads: usize,
    progress: &Progress<'_>,
) -> Result<(), ExportError> {
    let mut open = Vec::with_capacity(files.len());
    for file in files {
        let path = draft.path(&file.name);
        let made = File::create_new(&path).and_then(|made| {
            made.set_len(file.len)?;
            made.write_all_at(&file.header, 0)?;
            Ok(made)
        });
        open.push((path.clone(), made.map_err(|error| ExportError::io(&path, error))?));
    }
    let sink = Sink { files: open };
    run(work, &sink, threads, progress)
}

fn run(work: &[Box<dyn Work + '_>], sink: &Sink, threads: usize, progress: &Progress<'_>) -> Result<(), ExportError> {
    let mut firsts = Vec::with_capacity(work.len());
    let mut count = 0;
    let mut total = 0u64;
    for one in work {
        firsts.push(count);
        count += one.pieces();
        total += (0..one.pieces()).map(|piece| one.piece_bytes(piece)).sum::<u64>();
    }
    let (next, done, failed) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let first_error: Mutex<Option<ExportError>> = Mutex::new(None);
    let worker = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count || failed.load(Ordering::Relaxed) {
                return;
            }
            // Works without pieces share their successor's first number: the last one that begins here has it.
            let which = firsts.partition_point(|first| *first <= at) - 1;
            let piece = at - firsts[which];
            match work[which].run(piece, sink) {
                Ok(()) => {
                    let bytes = work[which].piece_bytes(piece);
                    progress(done.fetch_add(bytes, Ordering::Relaxed) + bytes, total);
                }
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    if let Ok(mut slot) = first_error.lock() {
                        slot.get_or_insert(error);
                    }
                    return;
                }
            }
        }
    };
    let sound = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(worker)).collect();
        // Every one is waited for.
        handles.into_iter().filter_map(|handle| handle.join().err()).count() == 0
    });
    match first_error.into_inner().ok().flatten() {
        Some(error) => Err(error),
        None if !sound => Err(ExportError::Worker),
        None => Ok(()),
    }
}

/// Threads to use when nobody says: one a core.
pub(super) fn all_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
