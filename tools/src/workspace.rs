//! The folder an agent works in: `engine/` is the next candidate's source, `.crit/` is crit's own.

use crate::error::ToolError;
use crit_core::error::ErrorKind;
use std::path::{Path, PathBuf};

/// A workspace folder. `.crit/` inside it is made when something is first written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workspace {
    root: PathBuf,
}

/// Folders of `.crit/`.
const FOLDERS: [&str; 4] = ["jobs", "cache", "built", "logs"];

impl Workspace {
    /// The workspace at `root`.
    ///
    /// # Errors
    /// `root` is not a folder.
    pub fn at(root: &Path) -> Result<Self, ToolError> {
        let root = root.canonicalize().map_err(|error| {
            ToolError::io("open the workspace", root, &error).with_hint("create the folder, or name another workspace")
        })?;
        if !root.is_dir() {
            return Err(ToolError::new(ErrorKind::Input, format!("{} is not a folder", root.display()))
                .with_hint("name a folder as workspace"));
        }
        Ok(Self { root })
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The source tree of the next candidate.
    pub fn engine(&self) -> PathBuf {
        self.root.join("engine")
    }

    /// crit's own folder.
    pub fn state(&self) -> PathBuf {
        self.root.join(".crit")
    }

    /// The bare repository of the records.
    pub fn records(&self) -> PathBuf {
        self.state().join("records.git")
    }

    /// One folder a job.
    pub fn jobs(&self) -> PathBuf {
        self.state().join("jobs")
    }

    /// What can be computed again.
    pub fn cache(&self) -> PathBuf {
        self.state().join("cache")
    }

    /// Frozen candidates by digest.
    pub fn built(&self) -> PathBuf {
        self.state().join("built")
    }

    /// Logs that belong to no job.
    pub fn logs(&self) -> PathBuf {
        self.state().join("logs")
    }

    /// Makes `.crit/` and its folders.
    ///
    /// # Errors
    /// A folder cannot be made.
    pub fn prepare(&self) -> Result<(), ToolError> {
        for folder in FOLDERS {
            let path = self.state().join(folder);
            std::fs::create_dir_all(&path).map_err(|error| {
                ToolError::io("create", &path, &error)
                    .with_hint("name a folder that can be written with `--workspace DIR`")
            })?;
        }
        // The state folder keeps itself out of the user's own repository.
        let ignore = self.state().join(".gitignore");
        if !ignore.exists() {
            std::fs::write(&ignore, "*\n").map_err(|error| ToolError::io("write", &ignore, &error))?;
        }
        Ok(())
    }

    /// `path` as seen from the workspace if it lies inside, else as it is.
    pub fn relative(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }
}
