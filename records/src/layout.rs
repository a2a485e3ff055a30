//! Which files the record store consists of, and how it is made.

use crate::durable;
use crate::error::{RecordError, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The exact bytes of `HEAD`. It names a branch that never exists: runs are not branches.
pub(crate) const HEAD: &str = "ref: refs/heads/main\n";

/// The exact bytes of `config`. Objects and refs are synced, nothing is collected behind our back, and a push can only add.
/// libgit2 writes no reflogs: the journal of a run is our own (see `refs`).
pub(crate) const CONFIG: &str = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n\tlogAllRefUpdates = false\n\tfsyncObjectFiles = true\n[gc]\n\tauto = 0\n[receive]\n\tautogc = false\n\tdenyNonFastForwards = true\n\tdenyDeletes = true\n";

/// Attachments larger than this stay outside git, which handles huge files badly.
pub const INLINE_BYTES: u64 = 8 << 20;

/// The folders of a store in a workspace.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// `<workspace>/.crit`.
    pub(crate) root: PathBuf,
}

impl Layout {
    pub(crate) fn of(workspace: &Path) -> Self {
        Self { root: workspace.join(".crit") }
    }

    /// The bare repository.
    pub(crate) fn repo(&self) -> PathBuf {
        self.root.join("records.git")
    }

    /// Attachments too large for git.
    pub(crate) fn blobs(&self) -> PathBuf {
        self.root.join("blobs")
    }

    /// The writers' lock.
    pub(crate) fn lock(&self) -> PathBuf {
        self.root.join("records.lock")
    }

    /// Damaged pieces that were set aside.
    pub(crate) fn quarantine(&self) -> PathBuf {
        self.root.join("quarantine")
    }

    /// Where an attachment outside git lies.
    pub(crate) fn blob(&self, sha256: &str) -> PathBuf {
        self.blobs().join(&sha256[..2]).join(sha256)
    }

    /// Whether the workspace has a store.
    pub(crate) fn exists(&self) -> bool {
        self.repo().is_dir()
    }

    /// Makes the repository. Call with the store locked. No template is used, so no hook or sample file gets in.
    pub(crate) fn create(&self) -> Result<()> {
        let temporary = durable::temporary_path(&self.root);
        let made = self.lay_out(&temporary);
        if made.is_err() {
            // Best effort: why it could not be made is what to report.
            let _ = fs::remove_dir_all(&temporary);
        }
        made
    }

    fn lay_out(&self, temporary: &Path) -> Result<()> {
        let repo = self.repo();
        for folder in ["objects/info", "objects/pack", "refs/heads", "refs/tags"] {
            let folder = temporary.join(folder);
            fs::create_dir_all(&folder).map_err(RecordError::io("create the folder", &folder))?;
        }
        durable::write_file(&temporary.join("HEAD"), HEAD.as_bytes())?;
        durable::write_file(&temporary.join("config"), CONFIG.as_bytes())?;
        fs::rename(temporary, &repo).map_err(RecordError::io("create the record store", &repo))?;
        durable::sync_folder(&self.root)
    }
}
