//! Every file of the store, looked at by itself: does it belong there, and are its bytes whole.
//!
//! Runs before anything hands a file to libgit2, which does not survive every damage. It knows nothing of runs; `verify` does.

use crate::clock;
use crate::durable::TEMPORARY;
use crate::error::{RecordError, Result};
use crate::layout::{CONFIG, HEAD, Layout};
use crate::objects::{Commit, read_loose, sha1};
use crate::refs::Refs;
use crit_core::digest::Digest;
use git2::{ObjectType, Oid};
use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;

/// A file that is not as it was written.
pub(crate) struct Damage {
    pub(crate) file: String,
    pub(crate) what: String,
}

/// What looking at all files found.
#[derive(Default)]
pub(crate) struct Audit {
    /// How many files were looked at.
    pub(crate) checks: u64,
    /// Files that are damaged or do not belong.
    pub(crate) damage: Vec<Damage>,
    /// Files that an interrupted write left behind.
    pub(crate) leftovers: Vec<String>,
    /// All sound loose commits with their parents.
    pub(crate) commits: HashMap<Oid, Option<Oid>>,
    /// Sound attachments outside git, with their sizes.
    pub(crate) outside: HashMap<Digest, u64>,
    /// Whether there are packs.
    pub(crate) packs: bool,
    /// Whether a pack or an index of one is damaged.
    pub(crate) packs_damaged: bool,
}

impl Audit {
    /// Looks at all files of the store at `layout`.
    pub(crate) fn of(layout: &Layout) -> Self {
        let mut audit = Self::default();
        let repo = layout.repo();
        for required in ["HEAD", "config"] {
            if !repo.join(required).is_file() {
                audit.damage(&repo.join(required), "it is missing");
            }
        }
        audit.folder(&repo, "", Self::repo_file);
        if layout.blobs().exists() {
            audit.folder(&layout.blobs(), "", Self::blob_file);
        }
        audit
    }

    fn damage(&mut self, path: &Path, what: impl Into<String>) {
        self.damage.push(Damage { file: path.display().to_string(), what: what.into() });
    }

    fn folder(&mut self, root: &Path, within: &str, look: fn(&mut Self, &Path, &str) -> Result<()>) {
        let folder = root.join(within);
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) => return self.damage(&folder, format!("it cannot be listed: {error}")),
        };
        for entry in entries {
            let Ok(entry) = entry else { return self.damage(&folder, "it cannot be listed") };
            let Ok(name) = entry.file_name().into_string() else {
                self.damage(&entry.path(), "it does not belong in the store");
                continue;
            };
            let inside = if within.is_empty() { name } else { format!("{within}/{name}") };
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => self.folder(root, &inside, look),
                Ok(kind) if kind.is_file() => {
                    self.checks += 1;
                    self.file(&entry.path(), &inside, look);
                }
                _ => self.damage(&entry.path(), "it is neither file nor folder"),
            }
        }
    }

    fn file(&mut self, path: &Path, inside: &str, look: fn(&mut Self, &Path, &str) -> Result<()>) {
        let name = inside.rsplit('/').next().unwrap_or(inside);
        if name.starts_with(TEMPORARY) || (inside.starts_with("refs/") && name.ends_with(".lock")) {
            return self.leftovers.push(path.display().to_string());
        }
        match look(self, path, inside) {
            Ok(()) => {}
            Err(RecordError::Damaged { what, .. }) => self.damage(path, what),
            Err(error) => self.damage(path, crit_core::error::Failure::from(error).message),
        }
    }

    fn repo_file(&mut self, path: &Path, inside: &str) -> Result<()> {
        let parts: Vec<&str> = inside.split('/').collect();
        match parts[..] {
            ["HEAD"] => same(path, HEAD),
            ["config"] => same(path, CONFIG),
            ["packed-refs"] => {
                let repo = path.parent().unwrap_or(path);
                Refs::new(repo).list(crate::refs::RUNS).map(drop)
            }
            ["objects", "pack", name] => self.pack_file(path, name),
            ["objects", "info", "commit-graph"] => trailer(path).map(drop),
            // Derived by `git update-server-info` for plain web servers; nothing here reads it.
            ["objects", "info", "packs"] | ["info", "refs"] => {
                self.leftovers.push(path.display().to_string());
                Ok(())
            }
            ["objects", folder, name] => self.loose_file(path, folder, name),
            ["refs", "crit", "runs", name] if Digest::parse(name).is_some() => Ok(()),
            ["logs", "refs", "crit", "runs", name] if Digest::parse(name).is_some() => Ok(()),
            ["refs", "crit", "quarantine", _] => Ok(()),
            _ => Err(foreign(path)),
        }
    }

    fn loose_file(&mut self, path: &Path, folder: &str, name: &str) -> Result<()> {
        let hex = format!("{folder}{name}");
        let lower = hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let oid = Oid::from_str(&hex).ok().filter(|_| lower && folder.len() == 2 && hex.len() == 40);
        let oid = oid.ok_or_else(|| foreign(path))?;
        let object = read_loose(path, oid)?.ok_or_else(|| RecordError::damaged("", "it vanished"))?;
        if object.kind == ObjectType::Commit {
            let commit = Commit::parse(object.bytes)
                .ok_or_else(|| RecordError::damaged("", "it is not as crit writes commits"))?;
            self.commits.insert(oid, commit.parent);
        }
        Ok(())
    }

    fn pack_file(&mut self, path: &Path, name: &str) -> Result<()> {
        let known = ["pack", "idx", "rev", "bitmap", "mtimes"];
        let extension = name.rsplit_once('.').map(|(_, extension)| extension);
        if name != "multi-pack-index" && !extension.is_some_and(|e| known.contains(&e)) {
            return Err(foreign(path));
        }
        self.packs = true;
        let checked = self.check_pack(path, extension);
        self.packs_damaged |= checked.is_err();
        checked
    }

    fn check_pack(&self, path: &Path, extension: Option<&str>) -> Result<()> {
        let bytes = trailer(path)?;
        if extension != Some("idx") && extension != Some("rev") {
            return Ok(());
        }
        // An index names its pack by the pack's own trailer.
        let of_pack = trailer(&path.with_extension("pack"))?;
        let named = &bytes[bytes.len().saturating_sub(40)..bytes.len().saturating_sub(20)];
        if named != &of_pack[of_pack.len() - 20..] {
            return Err(RecordError::damaged("", "it is the index of another pack"));
        }
        Ok(())
    }

    fn blob_file(&mut self, path: &Path, inside: &str) -> Result<()> {
        let parts: Vec<&str> = inside.split('/').collect();
        let [folder, name] = parts[..] else { return Err(foreign(path)) };
        let digest = Digest::parse(name)
            .filter(|_| name.starts_with(folder) && folder.len() == 2)
            .ok_or_else(|| foreign(path))?;
        let file = File::open(path).map_err(RecordError::io("open", path))?;
        let size = file.metadata().map_err(RecordError::io("read", path))?.len();
        if Digest::of_reader(file).map_err(RecordError::io("read", path))? != digest {
            return Err(RecordError::damaged("", "its bytes do not have its digest"));
        }
        self.outside.insert(digest, size);
        Ok(())
    }
}

fn foreign(path: &Path) -> RecordError {
    RecordError::damaged(path.display().to_string(), "it does not belong in the store")
}

fn same(path: &Path, expected: &str) -> Result<()> {
    let bytes = fs::read(path).map_err(RecordError::io("read", path))?;
    if bytes == expected.as_bytes() {
        return Ok(());
    }
    Err(RecordError::damaged(path.display().to_string(), "it is not as crit writes it"))
}

/// The bytes of a file that ends in the SHA-1 of all before, checked.
fn trailer(path: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(path).map_err(RecordError::io("read", path))?;
    let sound = bytes.len() >= 40 && sha1(&bytes[..bytes.len() - 20]) == bytes[bytes.len() - 20..];
    if sound {
        Ok(bytes)
    } else {
        Err(RecordError::damaged(path.display().to_string(), "its checksum does not fit its bytes"))
    }
}

/// How far `at` lies ahead of this machine's clock, in seconds.
pub(crate) fn seconds_ahead(at: &str) -> u64 {
    clock::parse_utc(at).map_or(0, |secs| secs.saturating_sub(clock::now_secs()))
}
