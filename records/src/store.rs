//! The record store of a workspace, as the rest of crit uses it.
//!
//! `.crit/records.git` is a bare repository with one ref a run and one commit a record. A [`Store`] holds no handle open, so it
//! can be shared by threads; each call opens what it needs. Writing is in `write`, reading a run in `chain`.

use crate::chain::{Chain, Stored, ref_name, run_trees};
use crate::error::{RecordError, Result};
use crate::format::{Actor, BlobRef, Kind, RecordId, RunBody, RunId, Writer};
use crate::layout::Layout;
use crate::lock::StoreLock;
use crate::objects::Objects;
use crate::refs::{RUNS, Refs};
use crate::rules::History;
use crit_core::digest::Digest;
use git2::{ObjectType, Oid};
use std::fs::{self, File};
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// How long a writer waits for another one.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);
/// The fewest digits that an id is shown with.
const SHORT_DIGITS: usize = 8;

/// The record store of one workspace.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) layout: Layout,
    actor: Actor,
    session: Option<String>,
}

/// One run, in brief.
#[derive(Clone, Debug, PartialEq)]
pub struct RunInfo {
    /// Its id.
    pub id: RunId,
    /// The shortest text, of 8 digits or more, that names it among the runs.
    pub short: String,
    /// When it began, a UTC claim.
    pub at: String,
    /// What it is for.
    pub body: RunBody,
    /// How many records it has.
    pub records: u64,
    /// Its last record.
    pub tip: RecordId,
    /// The kind of its last record.
    pub last: Kind,
    /// The candidate it sealed, if it did.
    pub sealed: Option<Digest>,
}

/// Bytes in the store that a record may attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredBlob {
    /// Their digest.
    pub sha256: Digest,
    /// How many.
    pub size: u64,
    /// Their git object; none when they lie outside git.
    pub(crate) oid: Option<Oid>,
}

impl Store {
    /// Opens the store of `workspace`, which must have one.
    pub fn open(workspace: &Path) -> Result<Self> {
        let layout = Layout::of(workspace);
        if !layout.exists() {
            return Err(RecordError::NoStore { workspace: workspace.into() });
        }
        Ok(Self { layout, actor: Actor::Human, session: None })
    }

    /// Opens the store of `workspace`, making it if there is none.
    pub fn create(workspace: &Path) -> Result<Self> {
        let store = Self { layout: Layout::of(workspace), actor: Actor::Human, session: None };
        crate::durable::create_folder(&store.layout.root)?;
        if !store.layout.exists() {
            let _lock = store.lock()?;
            // Another process may have made it while this one waited.
            if !store.layout.exists() {
                store.layout.create()?;
            }
        }
        Ok(store)
    }

    /// The same store, writing on behalf of `actor` in `session`.
    pub fn on_behalf_of(mut self, actor: Actor, session: Option<String>) -> Self {
        self.actor = actor;
        self.session = session;
        self
    }

    /// All runs, oldest first. A run that cannot be read is left out here; [`Store::damaged_runs`] has it.
    pub fn runs(&self) -> Result<Vec<RunInfo>> {
        let ids = self.run_ids()?;
        let mut runs: Vec<RunInfo> = ids.iter().filter_map(|id| self.run_info(id, &ids).ok()).collect();
        runs.sort_by(|a, b| (&a.at, a.id).cmp(&(&b.at, b.id)));
        Ok(runs)
    }

    /// The runs that cannot be read, each with the reason.
    pub fn damaged_runs(&self) -> Result<Vec<(RunId, RecordError)>> {
        let ids = self.run_ids()?;
        Ok(ids.iter().filter_map(|id| self.run_info(id, &ids).err().map(|error| (*id, error))).collect())
    }

    /// The run that `text` names: an id, an unambiguous beginning of one, or `latest`.
    pub fn find_run(&self, text: &str) -> Result<RunId> {
        let ids = self.run_ids()?;
        let latest = (text == "latest").then(|| self.runs()).transpose()?;
        if let Some(run) = latest.as_ref().and_then(|runs| runs.last()) {
            return Ok(run.id);
        }
        let known = || ids.iter().map(|id| unique_prefix(id, &ids)).collect();
        let matches: Vec<RunId> = matching(text, ids.iter().copied());
        match matches[..] {
            [run] => Ok(run),
            [] => Err(RecordError::NoSuchRun { wanted: text.into(), known: known() }),
            _ => Err(ambiguous(text, &matches)),
        }
    }

    /// The records of `run`, in order.
    pub fn records(&self, run: &RunId) -> Result<Vec<Stored>> {
        Ok(self.load(run)?.records)
    }

    /// The latest record of `kind` in `run`.
    pub fn latest(&self, run: &RunId, kind: Kind) -> Result<Option<Stored>> {
        Ok(self.load(run)?.records.into_iter().rev().find(|stored| stored.kind == kind))
    }

    /// The record that `text` names by its id or an unambiguous beginning of it, in any run.
    pub fn show(&self, text: &str) -> Result<Stored> {
        let mut all: Vec<Stored> = Vec::new();
        let mut unreadable = None;
        for run in self.run_ids()? {
            match self.load(&run) {
                Ok(chain) => all.extend(chain.records),
                Err(error) => unreadable = Some(error),
            }
        }
        let matches = matching(text, all.iter().map(|stored| stored.id));
        match matches[..] {
            [id] => all.into_iter().find(|stored| stored.id == id).ok_or_else(|| no_such_record(text, &[])),
            // It may well be in the run that cannot be read, so that is the thing to tell.
            [] => Err(unreadable.unwrap_or_else(|| no_such_record(text, &all))),
            _ => Err(ambiguous(text, &matches)),
        }
    }

    /// The evals of `run` that were started and that no result has closed, oldest first.
    pub fn open_intents(&self, run: &RunId) -> Result<Vec<Stored>> {
        let records = self.load(run)?.records;
        let mut history = History::default();
        for stored in &records {
            history.admit(stored, &|sha256| self.blob(sha256));
        }
        let open = history.open_intents();
        Ok(records.into_iter().filter(|stored| open.contains(&stored.id)).collect())
    }

    /// The attachment of `stored` called `name`.
    pub fn attachment(&self, stored: &Stored, name: &str) -> Result<Vec<u8>> {
        let blob = stored.record.blobs.iter().find(|blob| blob.name == name);
        let blob = blob.ok_or_else(|| RecordError::NoSuchRecord {
            wanted: format!("{}/{name}", stored.id.short()),
            known: stored.record.blobs.iter().map(|blob| blob.name.clone()).collect(),
        })?;
        self.blob(&blob.sha256)
    }

    /// The stored bytes with the digest `sha256`, checked.
    pub fn blob(&self, sha256: &Digest) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let source = self.layout.blob(&sha256.to_string());
        self.blob_reader(sha256)?.read_to_end(&mut bytes).map_err(RecordError::io("read", &source))?;
        if Digest::of(&bytes) != *sha256 {
            return Err(RecordError::damaged(format!("attachment {sha256}"), "its bytes do not have its digest"));
        }
        Ok(bytes)
    }

    /// A reader over the stored bytes with the digest `sha256`. What it yields is not checked against the digest.
    pub fn blob_reader(&self, sha256: &Digest) -> Result<Box<dyn Read>> {
        let outside = self.layout.blob(&sha256.to_string());
        match File::open(&outside) {
            Ok(file) => return Ok(Box::new(file)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(RecordError::io("open", &outside)(error)),
        }
        let objects = self.objects();
        for run in self.run_ids()? {
            let Ok(Some(tip)) = self.refs().read(&ref_name(&run)) else { continue };
            let trees = objects.read_commit(tip).and_then(|commit| run_trees(&objects, commit.tree));
            let Ok((_, blobs)) = trees else { continue };
            if let Some(oid) = crate::chain::find_blob(&objects, &blobs, sha256)? {
                return self.read_git_blob(&objects, oid);
            }
        }
        Err(RecordError::NoSuchBlob { sha256: sha256.to_string() })
    }

    /// A reader over `blob`, which need not be attached to a record yet.
    pub fn stored_reader(&self, blob: &StoredBlob) -> Result<Box<dyn Read>> {
        match blob.oid {
            Some(oid) => self.read_git_blob(&self.objects(), oid),
            None => self.blob_reader(&blob.sha256),
        }
    }

    fn read_git_blob(&self, objects: &Objects, oid: Oid) -> Result<Box<dyn Read>> {
        Ok(Box::new(Cursor::new(objects.read_as(oid, ObjectType::Blob)?)))
    }

    /// Stores `bytes` for a later record to attach.
    pub fn put_blob(&self, bytes: &[u8]) -> Result<StoredBlob> {
        let (sha256, size) = (Digest::of(bytes), bytes.len() as u64);
        if size > INLINE {
            self.put_outside(&sha256, &mut &bytes[..])?;
            return Ok(StoredBlob { sha256, size, oid: None });
        }
        let oid = self.objects().write(ObjectType::Blob, bytes)?;
        Ok(StoredBlob { sha256, size, oid: Some(oid) })
    }

    /// Stores all that `path` holds for a later record to attach, in little memory.
    pub fn put_file(&self, path: &Path) -> Result<StoredBlob> {
        let size = fs::metadata(path).map_err(RecordError::io("read", path))?.len();
        if size <= INLINE {
            return self.put_blob(&fs::read(path).map_err(RecordError::io("read", path))?);
        }
        let open = || File::open(path).map_err(RecordError::io("open", path));
        // Read twice: once for the name, once for the bytes. Should the file change meanwhile, the copy fails its check.
        let sha256 = Digest::of_reader(open()?).map_err(RecordError::io("read", path))?;
        let copied = self.put_outside(&sha256, &mut open()?)?;
        Ok(StoredBlob { sha256, size: copied, oid: None })
    }

    fn put_outside(&self, sha256: &Digest, reader: &mut dyn Read) -> Result<u64> {
        let path = self.layout.blob(&sha256.to_string());
        let stored = |path: &Path| File::open(path).and_then(Digest::of_reader).ok() == Some(*sha256);
        let length = |path: &Path| fs::metadata(path).map(|m| m.len()).map_err(RecordError::io("read", path));
        if path.exists() {
            if stored(&path) {
                return length(&path);
            }
            crate::durable::quarantine(&path, &self.layout.quarantine().join("blobs"))?;
        }
        crate::durable::copy_file(&path, reader)?;
        if !stored(&path) {
            crate::durable::quarantine(&path, &self.layout.quarantine().join("blobs"))?;
            return Err(RecordError::damaged(path.display().to_string(), "its source changed while it was copied"));
        }
        length(&path)
    }

    /// The folder that holds the store.
    pub fn folder(&self) -> &Path {
        &self.layout.root
    }

    pub(crate) fn objects(&self) -> Objects {
        Objects::new(&self.layout.repo(), &self.layout.quarantine())
    }

    pub(crate) fn refs(&self) -> Refs {
        Refs::new(&self.layout.repo())
    }

    pub(crate) fn lock(&self) -> Result<StoreLock> {
        StoreLock::acquire(&self.layout.lock(), LOCK_PATIENCE)
    }

    pub(crate) fn load(&self, run: &RunId) -> Result<Chain> {
        let tip = self.refs().read(&ref_name(run))?.ok_or_else(|| self.no_such_run(run))?;
        Chain::load(&self.objects(), run, tip)
    }

    pub(crate) fn run_ids(&self) -> Result<Vec<RunId>> {
        Ok(self.refs().list(RUNS)?.iter().filter_map(|name| Digest::parse(name)).collect())
    }

    pub(crate) fn writer(&self) -> Result<Writer> {
        let executable = own_digest()?;
        Ok(Writer {
            crit: env!("CARGO_PKG_VERSION").into(),
            executable,
            actor: self.actor,
            session: self.session.clone(),
        })
    }

    fn no_such_run(&self, run: &RunId) -> RecordError {
        let ids = self.run_ids().unwrap_or_default();
        RecordError::NoSuchRun { wanted: run.short(), known: ids.iter().map(|id| unique_prefix(id, &ids)).collect() }
    }

    fn run_info(&self, run: &RunId, all: &[RunId]) -> Result<RunInfo> {
        let chain = self.load(run)?;
        let damaged = || RecordError::damaged(format!("run {}", run.short()), "it does not begin with a `run` record");
        let (first, last) = (chain.records.first().ok_or_else(damaged)?, chain.last().ok_or_else(damaged)?);
        let seal = chain.records.iter().find(|stored| stored.kind == Kind::Seal);
        Ok(RunInfo {
            id: *run,
            short: unique_prefix(run, all),
            at: first.record.at.clone(),
            body: first.body()?,
            records: chain.records.len() as u64,
            tip: last.id,
            last: last.kind,
            sealed: seal.and_then(|stored| stored.body::<crate::format::SealBody>().ok()).map(|body| body.candidate),
        })
    }
}

const INLINE: u64 = crate::layout::INLINE_BYTES;

impl StoredBlob {
    /// How a record names it.
    pub fn as_ref(&self, name: &str, media: &str) -> BlobRef {
        BlobRef { name: name.into(), sha256: self.sha256, size: self.size, media: media.into() }
    }
}

/// The shortest beginning of `id`, of 8 digits or more, that no other of `all` has.
pub fn unique_prefix(id: &Digest, all: &[Digest]) -> String {
    let text = id.to_string();
    let others: Vec<String> = all.iter().filter(|other| *other != id).map(Digest::to_string).collect();
    let alone = |n: &usize| !others.iter().any(|other| other[..*n] == text[..*n]);
    text[..(SHORT_DIGITS..64).find(alone).unwrap_or(64)].into()
}

fn matching(text: &str, ids: impl Iterator<Item = Digest>) -> Vec<Digest> {
    let mut found: Vec<Digest> = ids.filter(|id| !text.is_empty() && id.to_string().starts_with(text)).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn ambiguous(text: &str, matches: &[Digest]) -> RecordError {
    RecordError::Ambiguous {
        wanted: text.into(),
        matches: matches.iter().map(|id| unique_prefix(id, matches)).collect(),
    }
}

fn no_such_record(text: &str, all: &[Stored]) -> RecordError {
    let known = all.iter().rev().take(5).map(|stored| format!("{} {}", stored.id.short(), stored.kind)).collect();
    RecordError::NoSuchRecord { wanted: text.into(), known }
}

/// The digest of the executable of this process, computed once.
fn own_digest() -> Result<Digest> {
    static DIGEST: OnceLock<Digest> = OnceLock::new();
    if let Some(digest) = DIGEST.get() {
        return Ok(*digest);
    }
    // On Linux this link still reads the running image when the file on disk has been replaced.
    let link = Path::new("/proc/self/exe");
    let path = if link.exists() { Ok(PathBuf::from(link)) } else { std::env::current_exe() };
    let path = path.map_err(RecordError::io("find", Path::new("the own executable")))?;
    let digest = File::open(&path).and_then(Digest::of_reader).map_err(RecordError::io("read", &path))?;
    Ok(*DIGEST.get_or_init(|| digest))
}
