//! Adding a record: lock, check, store, swap the ref, read back, and only then say it is there.
//!
//! Objects are durable before the ref moves, and the ref moves at once, so a crash or a full disk at any point leaves the run as
//! it was or with the whole record. What an interrupted write leaves behind is unreferenced and harmless.

use crate::canonical;
use crate::chain::{BLOBS, Chain, RECORDS, Stored, ref_name};
use crate::clock;
use crate::error::{RecordError, Result};
use crate::format::{BlobRef, Body, Kind, Link, Record, RecordId, RunBody, RunId, Subject};
use crate::lock::jitter;
use crate::merkle;
use crate::objects::{Objects, Tree};
use crate::refs::{self, Journal, Swap};
use crate::rules::History;
use crate::store::{Store, StoredBlob};
use crit_core::digest::Digest;
use git2::{ObjectType, Oid};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io::Read;

/// How often a writer starts anew because a tool outside crit moved the ref. Our own writers hold the lock.
const SWAP_ATTEMPTS: u32 = 20;

/// A record to be added; the store numbers, links, stamps and signs it off.
#[derive(Clone, Debug)]
pub struct Draft {
    /// What it says.
    pub kind: Kind,
    /// What it is about.
    pub subject: Vec<Subject>,
    /// Records it rests on.
    pub refs: Vec<Link>,
    /// What it attaches.
    pub blobs: Vec<Attachment>,
    /// Fields a reader must understand.
    pub critical: Vec<String>,
    /// The body; fields beyond the typed ones may be added.
    pub body: Value,
}

/// Something a record attaches.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// Its name within the record.
    pub name: String,
    /// Its media type.
    pub media: String,
    /// Its bytes.
    pub content: Content,
}

/// Where the bytes of an attachment are.
#[derive(Clone, Debug)]
pub enum Content {
    /// Here.
    Bytes(Vec<u8>),
    /// In the store already.
    Stored(StoredBlob),
}

impl Draft {
    /// A draft with `body`.
    pub fn new<B: Body>(body: &B) -> Result<Self> {
        let wrong = |e: serde_json::Error| RecordError::Body { kind: B::KIND, what: e.to_string() };
        let body = serde_json::to_value(body).map_err(wrong)?;
        Ok(Self { kind: B::KIND, subject: vec![], refs: vec![], blobs: vec![], critical: vec![], body })
    }

    /// Adds something the record is about.
    pub fn about(mut self, name: impl Into<String>, digest: Digest) -> Self {
        self.subject.push(Subject { name: name.into(), digest });
        self
    }

    /// Adds a reference to an earlier record.
    pub fn link(mut self, rel: impl Into<String>, id: RecordId) -> Self {
        self.refs.push(Link { rel: rel.into(), id });
        self
    }

    /// Attaches `bytes`.
    pub fn attach(mut self, name: impl Into<String>, media: impl Into<String>, bytes: Vec<u8>) -> Self {
        self.blobs.push(Attachment { name: name.into(), media: media.into(), content: Content::Bytes(bytes) });
        self
    }

    /// Attaches bytes that are in the store.
    pub fn attach_stored(mut self, name: impl Into<String>, media: impl Into<String>, blob: StoredBlob) -> Self {
        self.blobs.push(Attachment { name: name.into(), media: media.into(), content: Content::Stored(blob) });
        self
    }

    /// Adds a field to the body.
    pub fn field(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        if let Some(body) = self.body.as_object_mut() {
            body.insert(name.into(), value.into());
        }
        self
    }
}

impl Store {
    /// Begins a run. An empty nonce is filled with a random one.
    pub fn begin_run(&self, mut body: RunBody) -> Result<RunId> {
        if body.nonce.is_empty() {
            body.nonce = random_hex()?;
        }
        self.begin(Draft::new(&body)?)
    }

    /// Begins a run with a draft of kind `run`.
    pub fn begin(&self, draft: Draft) -> Result<RunId> {
        let _lock = self.lock()?;
        let blobs = self.store_blobs(&draft)?;
        let stored = self.compose(None, &draft, &blobs)?;
        self.check(History::default(), &stored, &blobs)?;
        let commit = self.write_commit(&self.objects(), None, &stored, &blobs)?;
        let name = ref_name(&stored.id);
        if self.refs().swap(&name, None, commit)? == Swap::Lost {
            return Err(RecordError::Rule { kind: Kind::Run, what: "this very run exists already".into() });
        }
        refs::write_journal(&self.refs().journal_path(&name), &[stored.step(None, commit)])?;
        self.confirm(&stored, &blobs, commit)
    }

    /// Adds a record to `run` and answers its id once it is durable and was read back.
    pub fn append(&self, run: &RunId, draft: Draft) -> Result<RecordId> {
        let _lock = self.lock()?;
        self.append_locked(run, &draft)
    }

    /// [`Store::append`] for a caller that holds the lock.
    pub(crate) fn append_locked(&self, run: &RunId, draft: &Draft) -> Result<RecordId> {
        let blobs = self.store_blobs(draft)?;
        for _ in 0..SWAP_ATTEMPTS {
            let chain = self.load(run)?;
            let stored = self.compose(Some(&chain), draft, &blobs)?;
            self.check(self.history(&chain), &stored, &blobs)?;
            self.mend_journal(run, &chain)?;
            let commit = self.write_commit(&self.objects(), Some(&chain), &stored, &blobs)?;
            let name = ref_name(run);
            if self.refs().swap(&name, Some(chain.tip), commit)? == Swap::Lost {
                std::thread::sleep(jitter(1, 20));
                continue;
            }
            refs::append_journal(&self.refs().journal_path(&name), stored.step(Some(chain.tip), commit))?;
            return self.confirm(&stored, &blobs, commit);
        }
        let what = "the run's ref keeps moving; another program writes to the record store".to_string();
        Err(RecordError::Rule { kind: draft.kind, what })
    }

    fn store_blobs(&self, draft: &Draft) -> Result<Vec<(BlobRef, StoredBlob)>> {
        let store = |attachment: &Attachment| {
            let blob = match &attachment.content {
                Content::Bytes(bytes) => self.put_blob(bytes)?,
                Content::Stored(blob) => *blob,
            };
            Ok((blob.as_ref(&attachment.name, &attachment.media), blob))
        };
        draft.blobs.iter().map(store).collect()
    }

    fn compose(&self, chain: Option<&Chain>, draft: &Draft, blobs: &[(BlobRef, StoredBlob)]) -> Result<Stored> {
        let last = chain.and_then(Chain::last);
        let mut body = draft.body.clone();
        if let (Kind::Seal, Some(chain)) = (draft.kind, chain) {
            fill_seal(&mut body, chain);
        }
        let record = Record {
            schema: draft.kind.schema(),
            run: last.map(Stored::run),
            seq: last.map_or(0, |last| last.record.seq + 1),
            prev: last.map(|last| last.id),
            at: clock::utc_text(clock::now_secs()),
            mono: clock::monotonic(),
            boot: clock::boot_id(),
            writer: self.writer()?,
            subject: draft.subject.clone(),
            refs: draft.refs.clone(),
            blobs: blobs.iter().map(|(named, _)| named.clone()).collect(),
            critical: draft.critical.clone(),
            body,
        };
        let kind = draft.kind;
        kind.check_body(&record.body).map_err(|what| RecordError::Body { kind, what })?;
        let value = serde_json::to_value(&record).map_err(|e| RecordError::Body { kind, what: e.to_string() })?;
        let bytes = canonical::to_bytes(&value).map_err(|source| RecordError::Canonical { kind, source })?;
        Stored::parse(bytes).map_err(|what| RecordError::Body { kind, what })
    }

    fn history(&self, chain: &Chain) -> History {
        let mut history = History::default();
        for stored in &chain.records {
            // What was accepted once stays; only the new record is judged here, so old attachments need not be read again.
            history.admit(stored, &|sha256| Err(RecordError::NoSuchBlob { sha256: sha256.to_string() }));
        }
        history
    }

    fn check(&self, mut history: History, stored: &Stored, blobs: &[(BlobRef, StoredBlob)]) -> Result<()> {
        // The attachments are stored but in no tree yet, so they are read by their handles.
        let read = |sha256: &Digest| {
            let handle = blobs.iter().find(|(named, _)| named.sha256 == *sha256).map(|(_, blob)| blob);
            let mut bytes = Vec::new();
            let mut reader = handle.map_or_else(|| self.blob_reader(sha256), |blob| self.stored_reader(blob))?;
            reader.read_to_end(&mut bytes).map_err(RecordError::io("read", &self.layout.repo()))?;
            Ok(bytes)
        };
        match history.admit(stored, &read).broken.into_iter().next() {
            Some(what) => Err(RecordError::Rule { kind: stored.kind, what }),
            None => Ok(()),
        }
    }

    fn write_commit(
        &self,
        objects: &Objects,
        chain: Option<&Chain>,
        stored: &Stored,
        blobs: &[(BlobRef, StoredBlob)],
    ) -> Result<Oid> {
        let mut records = chain.map(|chain| chain.records_tree.clone()).unwrap_or_default();
        let mut folders = chain.map(|chain| chain.blobs_tree.clone()).unwrap_or_default();
        let mut changed: BTreeMap<String, Tree> = BTreeMap::new();
        for (_, blob) in blobs {
            let Some(oid) = blob.oid else { continue };
            let name = blob.sha256.to_string();
            let folder = match changed.entry(name[..2].to_string()) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    let stored = folders.get(entry.key(), true);
                    entry.insert(stored.map_or_else(|| Ok(Tree::default()), |oid| objects.read_tree(oid))?)
                }
            };
            folder.add(name.as_str(), false, oid);
        }
        for (name, folder) in &changed {
            folders.add(name.as_str(), true, objects.write_tree(folder)?);
        }
        records.add(stored.file_name(), false, objects.write(ObjectType::Blob, &stored.bytes)?);
        let mut root = Tree::default();
        root.add(RECORDS, true, objects.write_tree(&records)?);
        if !folders.entries.is_empty() {
            root.add(BLOBS, true, objects.write_tree(&folders)?);
        }
        let commit = stored.commit(objects.write_tree(&root)?, chain.map(|chain| chain.tip));
        objects.write(ObjectType::Commit, &commit.bytes)
    }

    /// Completes a journal whose last line a crash cut off, and refuses to write over one that tells something else.
    fn mend_journal(&self, run: &RunId, chain: &Chain) -> Result<()> {
        let path = self.refs().journal_path(&ref_name(run));
        // The usual case without walking all commits: the last line ends at the tip.
        let ends_at_tip = |bytes: Vec<u8>| {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let last = text.lines().next_back().unwrap_or_default().to_string();
            text.ends_with('\n') && last.split(' ').nth(1) == Some(&chain.tip.to_string())
        };
        if fs::read(&path).is_ok_and(ends_at_tip) {
            return Ok(());
        }
        let steps = chain.steps(&self.objects())?;
        match refs::compare_journal(&path, &steps)? {
            Journal::Whole => Ok(()),
            Journal::Absent | Journal::Behind => refs::write_journal(&path, &steps),
            Journal::Different(what) => Err(RecordError::damaged(path.display().to_string(), what)),
        }
    }

    /// Reads the record back through fresh handles, as another process would.
    fn confirm(&self, stored: &Stored, blobs: &[(BlobRef, StoredBlob)], commit: Oid) -> Result<RecordId> {
        let place = || format!("the new {} record", stored.kind);
        let objects = self.objects();
        let tip = self.refs().read(&ref_name(&stored.run()))?;
        if tip != Some(commit) {
            return Err(RecordError::damaged(place(), "the run's ref is not where it was just moved"));
        }
        let (records, folders) = crate::chain::run_trees(&objects, objects.read_commit(commit)?.tree)?;
        let oid = records
            .get(&stored.file_name(), false)
            .ok_or_else(|| RecordError::damaged(place(), "it is not in its tree"))?;
        let bytes = objects.read_as(oid, ObjectType::Blob)?;
        if bytes != stored.bytes || canonical::record_id(&bytes) != stored.id {
            return Err(RecordError::damaged(place(), "it reads back differently"));
        }
        for (named, blob) in blobs {
            if blob.oid.is_some() && crate::chain::find_blob(&objects, &folders, &named.sha256)? != blob.oid {
                return Err(RecordError::damaged(
                    place(),
                    format!("its attachment `{}` is not in its tree", named.name),
                ));
            }
            let read = self
                .stored_reader(blob)
                .and_then(|reader| Digest::of_reader(reader).map_err(RecordError::io("read", &self.layout.repo())))?;
            if read != named.sha256 {
                return Err(RecordError::damaged(
                    place(),
                    format!("its attachment `{}` reads back differently", named.name),
                ));
            }
        }
        Ok(stored.id)
    }
}

fn fill_seal(body: &mut Value, chain: &Chain) {
    let Some(body) = body.as_object_mut() else { return };
    let ids: Vec<Digest> = chain.records.iter().map(|stored| stored.id).collect();
    body.insert("tip".into(), json!(chain.last().map(|last| last.id)));
    body.insert("count".into(), json!(ids.len()));
    body.insert("merkle_root".into(), json!(merkle::root(&ids)));
}

fn random_hex() -> Result<String> {
    let path = std::path::Path::new("/dev/urandom");
    let mut bytes = [0u8; 16];
    fs::File::open(path).and_then(|mut file| file.read_exact(&mut bytes)).map_err(RecordError::io("read", path))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
