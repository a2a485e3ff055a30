//! The refs of runs, and the journal beside each.
//!
//! A ref moves only by compare-and-swap: libgit2 takes the ref's lock and compares under it. A forced update loses records when
//! two processes write, so it is nowhere in this crate (a test looks). Refs are read here, strictly, because a lenient reader
//! would hide a damaged one.
//!
//! The journal is a git reflog that this crate writes itself: libgit2 would stamp it with the clock, and then its bytes could not
//! be checked. Ours follow from the records, so any change shows.

use crate::durable;
use crate::error::{RecordError, Result};
use crate::lock::jitter;
use crate::objects::IDENTITY;
use crit_core::digest::Digest;
use git2::{ErrorCode, Oid};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where the refs of runs are.
pub(crate) const RUNS: &str = "refs/crit/runs";
/// Where refs that turned out bad are kept.
pub(crate) const QUARANTINE: &str = "refs/crit/quarantine";

/// A lock file on a ref that stays unchanged so long, while the store's own lock is ours, was left by a dead process.
const STALE_REF_LOCK: Duration = Duration::from_secs(1);
/// How long a ref may stay locked before the writer gives up.
const REF_PATIENCE: Duration = Duration::from_secs(20);

/// How a compare-and-swap ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Swap {
    /// The ref moved.
    Done,
    /// Somebody else moved it first.
    Lost,
}

/// The refs of the bare repository.
pub(crate) struct Refs {
    repo: PathBuf,
}

impl Refs {
    pub(crate) fn new(repo: &Path) -> Self {
        Self { repo: repo.into() }
    }

    /// The commit that `name` points to, if there is such a ref.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Oid>> {
        let path = self.repo.join(name);
        match fs::read(&path) {
            Ok(bytes) => match parse_ref(&bytes) {
                Some(oid) => Ok(Some(oid)),
                None => Err(RecordError::damaged(path.display().to_string(), "it is not a commit id and a line end")),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Ok(self.packed()?.into_iter().find(|(packed, _)| packed == name).map(|(_, oid)| oid))
            }
            Err(error) => Err(RecordError::io("read", &path)(error)),
        }
    }

    /// The last parts of the names of all refs in `folder`, sorted.
    pub(crate) fn list(&self, folder: &str) -> Result<Vec<String>> {
        let prefix = format!("{folder}/");
        let mut names: BTreeSet<String> =
            self.packed()?.into_iter().filter_map(|(name, _)| name.strip_prefix(&prefix).map(String::from)).collect();
        let path = self.repo.join(folder);
        match fs::read_dir(&path) {
            Ok(entries) => {
                for entry in entries {
                    let entry = entry.map_err(RecordError::io("list", &path))?;
                    names.insert(entry.file_name().to_string_lossy().into_owned());
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(RecordError::io("list", &path)(error)),
        }
        names.retain(|name| !name.ends_with(".lock"));
        Ok(names.into_iter().collect())
    }

    /// Moves `name` from `old` (none: it must not exist) to `new`, unless somebody else moved it. Call with the store locked.
    pub(crate) fn swap(&self, name: &str, old: Option<Oid>, new: Oid) -> Result<Swap> {
        let repo = git2::Repository::open_bare(&self.repo).map_err(RecordError::git("open the record store"))?;
        let start = Instant::now();
        loop {
            let moved = match old {
                Some(old) => repo.reference_matching(name, new, true, old, "").map(drop),
                None => repo.reference(name, new, false, "").map(drop),
            };
            match moved.map_err(|e| (e.code(), e)) {
                Ok(()) => return Ok(Swap::Done),
                Err((ErrorCode::Modified | ErrorCode::Exists | ErrorCode::NotFound, _)) => return Ok(Swap::Lost),
                Err((ErrorCode::Locked, error)) => {
                    if start.elapsed() > REF_PATIENCE {
                        return Err(RecordError::git("move the run's ref")(error));
                    }
                    self.clear_stale_lock(name);
                    std::thread::sleep(jitter(1, 8));
                }
                Err((_, error)) => return Err(RecordError::git("move the run's ref")(error)),
            }
        }
    }

    /// The journal of the ref `name`.
    pub(crate) fn journal_path(&self, name: &str) -> PathBuf {
        self.repo.join("logs").join(name)
    }

    fn clear_stale_lock(&self, name: &str) {
        let lock = self.repo.join(format!("{name}.lock"));
        let age = fs::metadata(&lock).and_then(|m| m.modified()).ok().and_then(|at| at.elapsed().ok());
        if age.is_some_and(|age| age > STALE_REF_LOCK) {
            // If it vanished meanwhile, all the better; if it cannot go, the caller runs out of patience and says so.
            let _ = fs::remove_file(&lock);
        }
    }

    fn packed(&self) -> Result<Vec<(String, Oid)>> {
        let path = self.repo.join("packed-refs");
        match fs::read(&path) {
            Ok(bytes) => parse_packed(&bytes)
                .ok_or_else(|| RecordError::damaged(path.display().to_string(), "it is not as git packs refs")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(RecordError::io("read", &path)(error)),
        }
    }
}

fn parse_ref(bytes: &[u8]) -> Option<Oid> {
    let hex = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    parse_oid(hex)
}

fn parse_oid(hex: &str) -> Option<Oid> {
    let lower = hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if hex.len() == 40 && lower { Oid::from_str(hex).ok() } else { None }
}

fn parse_packed(bytes: &[u8]) -> Option<Vec<(String, Oid)>> {
    const HEADER: &str = "# pack-refs with: peeled fully-peeled sorted ";
    let text = std::str::from_utf8(bytes).ok()?;
    if !text.ends_with('\n') {
        return None;
    }
    let mut refs = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if i == 0 && line == HEADER {
            continue;
        }
        let (hex, name) = line.split_once(' ')?;
        // Runs and quarantined refs are all that this repository has, so any other name is a damaged one.
        let run = name.strip_prefix(RUNS).and_then(|rest| Digest::parse(rest.strip_prefix('/')?));
        if run.is_none() && !name.starts_with(QUARANTINE) {
            return None;
        }
        refs.push((name.to_string(), parse_oid(hex)?));
    }
    Some(refs)
}

/// One step of a run, as its journal line tells it.
pub(crate) struct Step {
    pub(crate) old: Option<Oid>,
    pub(crate) new: Oid,
    pub(crate) secs: u64,
    pub(crate) message: String,
}

/// The journal of a run with these steps.
pub(crate) fn journal_bytes(steps: &[Step]) -> Vec<u8> {
    let line = |step: &Step| {
        let old = step.old.unwrap_or(Oid::ZERO_SHA1);
        format!("{old} {} {IDENTITY} {} +0000\t{}\n", step.new, step.secs, step.message)
    };
    steps.iter().map(line).collect::<String>().into_bytes()
}

/// How a journal compares with the run it is beside.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Journal {
    /// It tells the run.
    Whole,
    /// There is none, as after a clone.
    Absent,
    /// Its last line is missing or torn: a crash between moving the ref and writing the line.
    Behind,
    /// It tells something else.
    Different(String),
}

/// Compares the journal at `path` with `steps`.
pub(crate) fn compare_journal(path: &Path, steps: &[Step]) -> Result<Journal> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Journal::Absent),
        Err(error) => return Err(RecordError::io("read", path)(error)),
    };
    let expected = journal_bytes(steps);
    if bytes == expected {
        return Ok(Journal::Whole);
    }
    let without_last = journal_bytes(&steps[..steps.len().saturating_sub(1)]);
    if bytes.len() >= without_last.len() && expected.starts_with(&bytes) {
        return Ok(Journal::Behind);
    }
    let common = bytes.iter().zip(&expected).take_while(|(a, b)| a == b).count();
    let line = 1 + bytes[..common].iter().filter(|b| **b == b'\n').count();
    let what = match () {
        () if common == expected.len() => format!("it tells of records after the run's last (line {line})"),
        () if common == bytes.len() => format!("it ends early, at line {line}"),
        () => format!("line {line} does not tell what the run's records tell"),
    };
    Ok(Journal::Different(what))
}

/// Rewrites the journal at `path` to tell `steps`.
pub(crate) fn write_journal(path: &Path, steps: &[Step]) -> Result<()> {
    durable::write_file(path, &journal_bytes(steps))
}

/// Adds one line to the journal at `path`.
pub(crate) fn append_journal(path: &Path, step: Step) -> Result<()> {
    use std::io::Write;
    let write = || {
        let mut file = fs::File::options().append(true).open(path)?;
        file.write_all(&journal_bytes(&[step]))?;
        file.sync_all()
    };
    write().map_err(RecordError::io("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_swap_is_lost_and_never_moves_the_ref_back() {
        let folder = tempfile::tempdir().unwrap();
        let repo = git2::Repository::init_bare(folder.path()).unwrap();
        let who = git2::Signature::now("t", "t@localhost").unwrap();
        let tree = repo.find_tree(repo.treebuilder(None).unwrap().write().unwrap()).unwrap();
        let commit = |message| repo.commit(None, &who, &who, message, &tree, &[]).unwrap();
        let (one, two, three) = (commit("1"), commit("2"), commit("3"));
        let refs = Refs::new(folder.path());
        let name = "refs/crit/runs/a";
        assert_eq!(refs.swap(name, Some(one), two).unwrap(), Swap::Lost);
        assert_eq!(refs.swap(name, None, one).unwrap(), Swap::Done);
        assert_eq!(refs.swap(name, None, two).unwrap(), Swap::Lost);
        assert_eq!(refs.swap(name, Some(one), two).unwrap(), Swap::Done);
        assert_eq!(refs.swap(name, Some(one), three).unwrap(), Swap::Lost);
        assert_eq!(refs.read(name).unwrap(), Some(two));
        assert_eq!(refs.list(RUNS).unwrap(), ["a"]);

        // A lock file that a dead process left is cleared once it is old enough to be dead.
        fs::write(folder.path().join("refs/crit/runs/a.lock"), b"").unwrap();
        assert_eq!(refs.swap(name, Some(two), three).unwrap(), Swap::Done);
    }

    #[test]
    fn damaged_refs_are_refused() {
        let hex = "0123456789abcdef0123456789abcdef01234567";
        assert!(parse_ref(format!("{hex}\n").as_bytes()).is_some());
        for bad in [
            hex.into(),
            format!("{hex}\n\n"),
            format!("{}\n", hex.to_uppercase()),
            format!("{}\n", &hex[1..]),
            String::new(),
        ] {
            assert!(parse_ref(bad.as_bytes()).is_none(), "{bad:?}");
        }
        let run = Digest::of(b"a run");
        assert!(parse_packed(format!("{hex} refs/crit/runs/{run}\n").as_bytes()).is_some());
        assert!(parse_packed(format!("{hex} refs/crit/runz/{run}\n").as_bytes()).is_none());
        assert!(parse_packed(format!("{hex} refs/crit/runs/{run}0\n").as_bytes()).is_none());
        assert!(parse_packed(b"# pack-refs with: peeled fully-peeled sorteD \n").is_none());
    }
}
