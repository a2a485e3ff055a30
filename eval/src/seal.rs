//! Files nobody may touch while an engine is measured: the evaluator's own, the kept rows, the frozen candidate.

use crate::error::{EvalError, file_error};
use crit_core::digest::Digest;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Files with their digests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSeal(Vec<(PathBuf, Digest)>);

impl FileSeal {
    /// Seals files and, through all their folders, what lies in folders.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn of(paths: &[&Path]) -> Result<Self, EvalError> {
        let mut files = Vec::new();
        paths.iter().try_for_each(|path| gather(path, &mut files))?;
        files.sort();
        let sealed = files.into_iter().map(|path| Ok((path.clone(), digest(&path)?)));
        Ok(Self(sealed.collect::<Result<_, EvalError>>()?))
    }

    /// Files that are no longer what they were.
    pub fn broken(&self) -> Vec<String> {
        let changed = self.0.iter().filter(|(path, then)| digest(path).ok() != Some(*then));
        changed.map(|(path, _)| format!("{} was changed while the engine was measured", path.display())).collect()
    }
}

fn digest(path: &Path) -> Result<Digest, EvalError> {
    File::open(path).and_then(Digest::of_reader).map_err(file_error(path))
}

fn gather(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), EvalError> {
    if !path.is_dir() {
        files.push(path.to_path_buf());
        return Ok(());
    }
    let entries = std::fs::read_dir(path).map_err(file_error(path))?;
    entries.flatten().try_for_each(|entry| gather(&entry.path(), files))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_and_a_missing_file_break_the_seal() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("sub/b"));
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(&a, "1").unwrap();
        std::fs::write(&b, "2").unwrap();
        let seal = FileSeal::of(&[dir.path()]).unwrap();
        assert!(seal.broken().is_empty());
        std::fs::write(&a, "3").unwrap();
        std::fs::remove_file(&b).unwrap();
        assert_eq!(seal.broken().len(), 2);
        assert!(FileSeal::of(&[&b]).is_err());
    }
}
