//! A run as it is read back: its records in order, and the git objects that hold them.
//!
//! Reading trusts nothing: every object is hashed, every record must be canonical and name the one before it. A run that does
//! not read so is reported as damaged with the place, and `verify` and `doctor` take it from there.

use crate::canonical;
use crate::clock;
use crate::error::{RecordError, Result};
use crate::format::{Body, KNOWN_ENVELOPE, Kind, Record, RecordId, RunId};
use crate::objects::{Commit, Objects, Tree};
use crate::refs::{RUNS, Step};
use crit_core::digest::Digest;
use git2::{ObjectType, Oid};

/// The folder of a run's tree that holds its records.
pub(crate) const RECORDS: &str = "records";
/// The folder of a run's tree that holds its attachments.
pub(crate) const BLOBS: &str = "blobs";

/// A record as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// Its id.
    pub id: RecordId,
    /// What it says.
    pub kind: Kind,
    /// The record.
    pub record: Record,
    /// Its exact bytes.
    pub bytes: Vec<u8>,
}

impl Stored {
    /// Reads a record from its bytes, or says why not.
    pub fn parse(bytes: Vec<u8>) -> std::result::Result<Self, String> {
        let value = canonical::from_bytes(&bytes).map_err(|e| e.to_string())?;
        let record: Record = serde_json::from_value(value).map_err(|e| e.to_string())?;
        let kind = Kind::of_schema(&record.schema)?;
        for field in &record.critical {
            if !KNOWN_ENVELOPE.contains(&field.as_str()) && !kind.understands(&record.body, field) {
                return Err(format!("it declares `{field}` critical, and this crit does not know that field"));
            }
        }
        Ok(Self { id: canonical::record_id(&bytes), kind, record, bytes })
    }

    /// The typed body.
    pub fn body<B: Body>(&self) -> Result<B> {
        let wrong = |what: String| RecordError::Body { kind: self.kind, what };
        if self.kind != B::KIND {
            return Err(wrong(format!("it is not a {} record", B::KIND)));
        }
        let body: B = B::deserialize(&self.record.body).map_err(|e| wrong(e.to_string()))?;
        body.check().map_err(wrong)?;
        Ok(body)
    }

    /// The run it belongs to.
    pub fn run(&self) -> RunId {
        self.record.run.unwrap_or(self.id)
    }

    /// The name of its file in the run's tree.
    pub fn file_name(&self) -> String {
        file_name(self.record.seq, self.kind)
    }

    /// Its commit, on `tree` after `parent`.
    pub(crate) fn commit(&self, tree: Oid, parent: Option<Oid>) -> Commit {
        let (kind, seq) = (self.kind, self.record.seq);
        let message = format!("{kind} {seq}\n\nCrit-Run: {}\nCrit-Seq: {seq}\nCrit-Record: {}\n", self.run(), self.id);
        Commit::new(tree, parent, self.secs(), &message)
    }

    /// Its line in the journal.
    pub(crate) fn step(&self, old: Option<Oid>, new: Oid) -> Step {
        Step { old, new, secs: self.secs(), message: format!("{} {} {}", self.kind, self.record.seq, self.id) }
    }

    fn secs(&self) -> u64 {
        clock::parse_utc(&self.record.at).unwrap_or(0)
    }

    /// Why it is not the record that follows `previous` in `run`, if it is not.
    pub(crate) fn check_link(&self, run: &RunId, previous: Option<&Self>) -> Vec<String> {
        let mut broken = Vec::new();
        let seq = previous.map_or(0, |p| p.record.seq + 1);
        if self.record.seq != seq {
            broken.push(format!("its `seq` is {}, not {seq}", self.record.seq));
        }
        if self.record.prev != previous.map(|p| p.id) {
            broken.push("its `prev` is not the record before it".into());
        }
        let first = previous.is_none();
        if first != self.record.run.is_none() || self.run() != *run {
            broken.push("it belongs to another run".into());
        }
        if clock::parse_utc(&self.record.at).is_none() {
            broken.push(format!("its `at` is `{}`, not a UTC time", self.record.at));
        }
        if self.kind.schema() != self.record.schema {
            broken.push(format!("its `schema` is written `{}`", self.record.schema));
        }
        broken
    }
}

/// The name of a record's file.
pub(crate) fn file_name(seq: u64, kind: Kind) -> String {
    format!("{seq:08}-{kind}.json")
}

/// The ref of `run`.
pub(crate) fn ref_name(run: &RunId) -> String {
    format!("{RUNS}/{run}")
}

/// A run, read whole.
pub(crate) struct Chain {
    /// The commit of its last record.
    pub(crate) tip: Oid,
    /// The tree of record files.
    pub(crate) records_tree: Tree,
    /// The tree of attachment folders.
    pub(crate) blobs_tree: Tree,
    /// The records in order.
    pub(crate) records: Vec<Stored>,
}

impl Chain {
    /// Reads `run` at commit `tip`.
    pub(crate) fn load(objects: &Objects, run: &RunId, tip: Oid) -> Result<Self> {
        let commit = objects.read_commit(tip)?;
        let (records_tree, blobs_tree) = run_trees(objects, commit.tree)?;
        let mut records: Vec<Stored> = Vec::with_capacity(records_tree.entries.len());
        for (name, entry) in &records_tree.entries {
            let place = || format!("{RECORDS}/{name} of run {}", run.short());
            let bytes = objects.read_as(entry.oid, ObjectType::Blob).map_err(|e| within(place(), e))?;
            let stored = Stored::parse(bytes).map_err(|what| RecordError::Unreadable { place: place(), what })?;
            let mut broken = stored.check_link(run, records.last());
            if *name != stored.file_name() {
                broken.push(format!("it is {} inside", stored.file_name()));
            }
            if let Some(what) = broken.into_iter().next() {
                return Err(RecordError::damaged(place(), what));
            }
            records.push(stored);
        }
        if records.is_empty() {
            return Err(RecordError::damaged(format!("run {}", run.short()), "it has no records"));
        }
        Ok(Self { tip, records_tree, blobs_tree, records })
    }

    /// The last record.
    pub(crate) fn last(&self) -> Option<&Stored> {
        self.records.last()
    }

    /// The steps of the run, for its journal.
    pub(crate) fn steps(&self, objects: &Objects) -> Result<Vec<Step>> {
        let commits = walk(objects, self.tip)?;
        let old = |i: usize| i.checked_sub(1).map(|i| commits[i].0);
        Ok(self
            .records
            .iter()
            .zip(&commits)
            .enumerate()
            .map(|(i, (record, (oid, _)))| record.step(old(i), *oid))
            .collect())
    }
}

/// The record tree and the attachment tree of a run's root tree.
pub(crate) fn run_trees(objects: &Objects, root: Oid) -> Result<(Tree, Tree)> {
    let tree = objects.read_tree(root)?;
    let records =
        tree.get(RECORDS, true).ok_or_else(|| RecordError::damaged(format!("tree {root}"), "it has no records"))?;
    let blobs = tree.get(BLOBS, true).map_or_else(|| Ok(Tree::default()), |oid| objects.read_tree(oid))?;
    Ok((objects.read_tree(records)?, blobs))
}

/// The git id of the attachment `sha256` in `blobs_tree`.
pub(crate) fn find_blob(objects: &Objects, blobs_tree: &Tree, sha256: &Digest) -> Result<Option<Oid>> {
    let name = sha256.to_string();
    let Some(folder) = blobs_tree.get(&name[..2], true) else { return Ok(None) };
    Ok(objects.read_tree(folder)?.get(&name, false))
}

/// The commits that lead to `tip`, first to last.
pub(crate) fn walk(objects: &Objects, tip: Oid) -> Result<Vec<(Oid, Commit)>> {
    let mut commits = Vec::new();
    let mut next = Some(tip);
    while let Some(oid) = next {
        let commit = objects.read_commit(oid)?;
        next = commit.parent;
        commits.push((oid, commit));
    }
    commits.reverse();
    Ok(commits)
}

/// Names the record that a damaged object belongs to.
pub(crate) fn within(place: String, error: RecordError) -> RecordError {
    match error {
        RecordError::Damaged { place: inner, what } => RecordError::Damaged { place, what: format!("{inner}: {what}") },
        other => other,
    }
}
