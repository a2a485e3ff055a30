//! Is a run what was recorded.
//!
//! Three levels, all offline and deterministic: V0 the chain of records (bytes, ids, order, schema), V1 closure (every digest
//! resolves, git holds exactly what the records name, every file of the store is whole), V2 the rules of a run, with everything
//! recomputed that the records suffice for. Nothing is printed and nothing is mended.
//!
//! A chain proves only that a store agrees with itself: whoever holds it can rewrite all of it. Give [`Options::held`] a tip
//! that was kept elsewhere to rule that out.

use crate::audit::{Audit, seconds_ahead};
use crate::chain::{BLOBS, RECORDS, Stored, ref_name, run_trees};
use crate::clock;
use crate::error::{RecordError, Result};
use crate::format::{CandidateBody, Kind, RecordId, RunId};
use crate::layout::{INLINE_BYTES, Layout};
use crate::merkle;
use crate::objects::{Commit, Objects, Tree};
use crate::refs::{self, Journal, QUARANTINE, Refs};
use crate::rules::History;
use crate::store::{Store, unique_prefix};
use crate::tree::Manifest;
use crit_core::digest::Digest;
use crit_core::error::Failure;
use git2::{ObjectType, Oid};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

/// A clock may jump back so far, in seconds, before it is worth a warning.
const BACK_SECONDS: u64 = 5;
/// A record may be so far ahead of the verifier's clock, in seconds.
const AHEAD_SECONDS: u64 = 300;

/// What kind of check failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The chain of records.
    V0,
    /// Closure: all that is named is there and whole, and nothing else.
    V1,
    /// The rules of a run.
    V2,
}

/// One check that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Broken {
    /// What is damaged: a record, an attachment, or a file of the store.
    pub record: String,
    /// At which level.
    pub level: Level,
    /// What is wrong.
    pub what: String,
}

/// One run, as far as it could be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunReport {
    /// The run.
    pub run: RunId,
    /// How many records were read.
    pub records: u64,
    /// The last of them. Keep it elsewhere to detect a rewritten store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tip: Option<RecordId>,
    /// The Merkle root over their ids.
    pub merkle_root: Digest,
    /// Whether one of them is a seal.
    pub sealed: bool,
}

/// What verifying found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// How many checks were made.
    pub checks: u64,
    /// Those that failed.
    pub failures: Vec<Broken>,
    /// What is odd but proves nothing.
    pub warnings: Vec<String>,
    /// The runs looked at.
    pub runs: Vec<RunReport>,
}

impl Report {
    /// Whether all is as recorded. A report of no checks has not passed.
    pub fn passed(&self) -> bool {
        self.checks > 0 && self.failures.is_empty()
    }
}

/// What to verify.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// One run only; the files of the store are looked at in any case.
    pub run: Option<RunId>,
    /// Record ids kept elsewhere, each of which must still be in a verified run.
    pub held: Vec<RecordId>,
}

/// Verifies the record store of `workspace`.
pub fn verify(workspace: &Path, options: &Options) -> Result<Report> {
    let store = Store::open(workspace)?;
    let mut verifier = Verifier::new(&store.layout);
    verifier.runs(options);
    verifier.orphans();
    verifier.held(&options.held);
    Ok(verifier.finish())
}

struct Verifier {
    layout: Layout,
    audit: Audit,
    objects: Objects,
    refs: Refs,
    report: Report,
    reached: HashSet<Oid>,
    ids: HashSet<RecordId>,
}

impl Verifier {
    fn new(layout: &Layout) -> Self {
        let audit = Audit::of(layout);
        let mut objects = Objects::new(&layout.repo(), &layout.quarantine());
        if audit.packs_damaged {
            // libgit2 must not see them.
            objects = objects.without_packs();
        }
        let mut report = Report { checks: audit.checks, ..Report::default() };
        for damage in &audit.damage {
            report.failures.push(Broken { record: damage.file.clone(), level: Level::V1, what: damage.what.clone() });
        }
        let refs = Refs::new(&layout.repo());
        Self { layout: layout.clone(), audit, objects, refs, report, reached: HashSet::new(), ids: HashSet::new() }
    }

    fn check(&mut self, level: Level, record: &str, holds: bool, otherwise: impl FnOnce() -> String) -> bool {
        self.report.checks += 1;
        if !holds {
            self.report.failures.push(Broken { record: record.into(), level, what: otherwise() });
        }
        holds
    }

    /// Counts a check, and notes its failure.
    fn try_check<T>(&mut self, level: Level, record: &str, result: Result<T>) -> Option<T> {
        self.report.checks += 1;
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let what = match error {
                    RecordError::Damaged { place, what } => format!("{place}: {what}"),
                    other => Failure::from(other).message,
                };
                self.report.failures.push(Broken { record: record.into(), level, what });
                None
            }
        }
    }

    fn runs(&mut self, options: &Options) {
        let listed = self.refs.list(refs::RUNS);
        let Some(names) = self.try_check(Level::V1, "refs of runs", listed) else { return };
        let all: Vec<RunId> = names.iter().filter_map(|name| Digest::parse(name)).collect();
        for run in &all {
            if options.run.is_none_or(|only| only == *run) {
                self.run(run, &unique_prefix(run, &all));
            } else {
                self.reach(&ref_name(run));
            }
        }
        let journals = Refs::new(&self.layout.repo().join("logs")).list(refs::RUNS).unwrap_or_default();
        for name in journals.iter().filter(|name| !names.contains(name)) {
            let ref_name = format!("{}/{name}", refs::RUNS);
            self.check(Level::V1, &ref_name, false, || "the run has a journal, and its ref is gone".into());
        }
        let quarantined = self.refs.list(QUARANTINE).unwrap_or_default();
        for name in quarantined {
            self.reach(&format!("{QUARANTINE}/{name}"));
        }
        let found = options.run.is_none_or(|run| all.contains(&run));
        self.check(Level::V1, "run", found, || "there is no such run".into());
        if all.is_empty() {
            self.report.failures.push(Broken {
                record: "store".into(),
                level: Level::V1,
                what: "there are no runs to verify".into(),
            });
        }
    }

    /// Notes which commits a ref leads to, without judging them.
    fn reach(&mut self, name: &str) {
        let mut next = self.refs.read(name).ok().flatten();
        while let Some(oid) = next {
            self.reached.insert(oid);
            next = self.objects.read_commit(oid).ok().and_then(|commit| commit.parent);
        }
    }

    fn run(&mut self, run: &RunId, short: &str) {
        let place = format!("run {short}");
        let tip = self.refs.read(&ref_name(run));
        let Some(Some(tip)) = self.try_check(Level::V1, &place, tip) else { return };
        let trees = self.objects.read_commit(tip).and_then(|commit| run_trees(&self.objects, commit.tree));
        self.reach(&ref_name(run));
        let by_ref = format!("{place} (its ref, in {} or in packed-refs, or the commit it names)", ref_name(run));
        let Some((records_tree, blobs_tree)) = self.try_check(Level::V1, &by_ref, trees) else { return };
        let records = self.records(run, short, &records_tree);
        let kept: Vec<&Stored> = records.iter().flatten().collect();
        self.ids.extend(kept.iter().map(|stored| stored.id));
        let ids: Vec<RecordId> = kept.iter().map(|stored| stored.id).collect();
        self.report.runs.push(RunReport {
            run: *run,
            records: ids.len() as u64,
            tip: ids.last().copied(),
            merkle_root: merkle::root(&ids),
            sealed: kept.iter().any(|stored| stored.kind == Kind::Seal),
        });
        let whole = kept.len() == records.len();
        let kept: Vec<Stored> = records.into_iter().flatten().collect();
        let blobs = self.blobs(short, &kept, &blobs_tree, whole);
        if whole {
            self.commits(run, short, tip, &kept, &records_tree, &blobs);
            self.rules(short, &kept, &blobs);
        }
        self.clocks(short, &kept);
    }

    /// V0: every record file by itself and after the one before it.
    fn records(&mut self, run: &RunId, short: &str, tree: &Tree) -> Vec<Option<Stored>> {
        let mut records: Vec<Option<Stored>> = Vec::new();
        // Judged by the run they say they are of, so that a ref under a wrong name fails once and not at every record.
        let mut whose = *run;
        for (name, entry) in &tree.entries {
            let place = format!("{RECORDS}/{name} of run {short}");
            let bytes = self.objects.read_as(entry.oid, ObjectType::Blob);
            let stored = self.try_check(Level::V1, &place, bytes).and_then(|bytes| {
                let parsed =
                    Stored::parse(bytes).map_err(|what| RecordError::Unreadable { place: place.clone(), what });
                self.try_check(Level::V0, &place, parsed)
            });
            if let Some(stored) = &stored {
                self.check(Level::V0, &place, *name == stored.file_name(), || {
                    format!("it is {} inside", stored.file_name())
                });
                // After a record that cannot be read the link cannot be judged; that record has failed already.
                let previous = records.last().map(Option::as_ref);
                if previous.is_none() {
                    let of_ref = format!("{} (in its own file or in packed-refs)", ref_name(run));
                    self.check(Level::V0, &of_ref, stored.id == *run, || format!("it leads to the run {}", stored.id));
                    whose = stored.run();
                }
                if previous != Some(None) {
                    let broken = stored.check_link(&whose, previous.flatten());
                    self.check(Level::V0, &place, broken.is_empty(), || broken.join("; "));
                }
            }
            records.push(stored);
        }
        self.check(Level::V0, &format!("run {short}"), !records.is_empty(), || "it has no records".into());
        records
    }

    /// V1: every attachment that is named is there and whole, and no other is in the tree.
    fn blobs(&mut self, short: &str, records: &[Stored], tree: &Tree, whole: bool) -> HashMap<Digest, Oid> {
        let mut in_git: HashMap<Digest, (Oid, u64)> = HashMap::new();
        for (name, entry) in &tree.entries {
            let place = format!("{BLOBS}/{name} of run {short}");
            let folder = self.objects.read_tree(entry.oid);
            let Some(folder) = self.try_check(Level::V1, &place, folder) else { continue };
            for (file, inner) in &folder.entries {
                let place = format!("{place}/{file}");
                let digest = Digest::parse(file).filter(|_| file.starts_with(name) && entry.folder && !inner.folder);
                self.check(Level::V1, &place, digest.is_some(), || "it is not named by a digest".into());
                let bytes = self.objects.read_as(inner.oid, ObjectType::Blob);
                let Some(bytes) = self.try_check(Level::V1, &place, bytes) else { continue };
                let Some(digest) = digest else { continue };
                self.check(Level::V1, &place, Digest::of(&bytes) == digest, || {
                    "its bytes do not have its digest".into()
                });
                in_git.insert(digest, (inner.oid, bytes.len() as u64));
            }
        }
        let mut named: HashSet<Digest> = HashSet::new();
        for stored in records {
            for blob in &stored.record.blobs {
                named.insert(blob.sha256);
                let place = format!("attachment `{}` of {RECORDS}/{} of run {short}", blob.name, stored.file_name());
                let inside = blob.size <= INLINE_BYTES;
                let size = if inside {
                    in_git.get(&blob.sha256).map(|b| b.1)
                } else {
                    self.audit.outside.get(&blob.sha256).copied()
                };
                self.check(Level::V1, &place, size.is_some(), || format!("no whole copy of {} is stored", blob.sha256));
                self.check(Level::V1, &place, size.is_none_or(|size| size == blob.size), || {
                    "it has another size than recorded".into()
                });
            }
        }
        if whole {
            for digest in in_git.keys() {
                let place = format!("{BLOBS}/{digest} of run {short}");
                self.check(Level::V1, &place, named.contains(digest), || "no record names it".into());
            }
        }
        in_git.into_iter().map(|(digest, (oid, _))| (digest, oid)).collect()
    }

    /// V1: the commits and trees of git are exactly those that the records make.
    fn commits(
        &mut self,
        run: &RunId,
        short: &str,
        tip: Oid,
        records: &[Stored],
        tree: &Tree,
        blobs: &HashMap<Digest, Oid>,
    ) {
        let place = format!("run {short}");
        let walked = crate::chain::walk(&self.objects, tip);
        let Some(commits) = self.try_check(Level::V1, &place, walked) else { return };
        let counts = || format!("it has {} commits for {} records", commits.len(), records.len());
        if !self.check(Level::V1, &place, commits.len() == records.len(), counts) {
            return;
        }
        let (mut files, mut folders): (Tree, BTreeMap<String, Tree>) = Default::default();
        let mut previous: Option<Oid> = None;
        for (stored, (oid, commit)) in records.iter().zip(&commits) {
            let place = format!("{RECORDS}/{} of run {short}", stored.file_name());
            if let Some(blob) = tree.get(&stored.file_name(), false) {
                files.add(stored.file_name(), false, blob);
            }
            let attached: Vec<(String, Oid)> = stored
                .record
                .blobs
                .iter()
                .filter_map(|b| Some((b.sha256.to_string(), *blobs.get(&b.sha256)?)))
                .collect();
            for (name, blob) in &attached {
                folders.entry(name[..2].to_string()).or_default().add(name.as_str(), false, *blob);
            }
            let root = self.expected_root(&files, &folders, &attached);
            let Some(root) = self.try_check(Level::V1, &place, root) else { return };
            let expected: Commit = stored.commit(root, previous);
            self.check(Level::V1, &place, commit.tree == root, || {
                "its git tree holds more, less or other than the records name".into()
            });
            self.check(Level::V1, &place, commit.bytes == expected.bytes, || {
                "its git commit is not as crit writes it".into()
            });
            previous = Some(*oid);
        }
        self.journal(run, short, records, &commits);
    }

    /// The id of the root tree over `files` and `folders`. The trees that changed last must be in the store.
    fn expected_root(&self, files: &Tree, folders: &BTreeMap<String, Tree>, attached: &[(String, Oid)]) -> Result<Oid> {
        let mut root = Tree::default();
        let records = files.id()?;
        self.objects.read(records)?;
        root.add(RECORDS, true, records);
        if !folders.is_empty() {
            let mut blobs = Tree::default();
            for (name, folder) in folders {
                let id = folder.id()?;
                if attached.iter().any(|(file, _)| file.starts_with(name)) {
                    self.objects.read(id)?;
                }
                blobs.add(name.as_str(), true, id);
            }
            let id = blobs.id()?;
            self.objects.read(id)?;
            root.add(BLOBS, true, id);
        }
        let id = root.id()?;
        self.objects.read(id)?;
        Ok(id)
    }

    fn journal(&mut self, run: &RunId, short: &str, records: &[Stored], commits: &[(Oid, Commit)]) {
        let old = |i: usize| i.checked_sub(1).map(|i| commits[i].0);
        let steps: Vec<_> = records.iter().enumerate().map(|(i, stored)| stored.step(old(i), commits[i].0)).collect();
        let path = self.refs.journal_path(&ref_name(run));
        let place = format!("journal of run {short} ({})", path.display());
        let compared = refs::compare_journal(&path, &steps);
        match self.try_check(Level::V1, &place, compared) {
            Some(Journal::Different(what)) => {
                self.report.failures.push(Broken { record: place, level: Level::V1, what })
            }
            Some(Journal::Behind) => {
                self.report.warnings.push(format!("{place} lacks its last line; the next append adds it"))
            }
            Some(Journal::Absent) => self.report.warnings.push(format!("{place} is absent, as after a clone")),
            Some(Journal::Whole) | None => {}
        }
    }

    /// V2: what the records say of each other.
    fn rules(&mut self, short: &str, records: &[Stored], blobs: &HashMap<Digest, Oid>) {
        let mut history = History::default();
        for stored in records {
            let place = format!("{RECORDS}/{} of run {short}", stored.file_name());
            let findings = history.admit(stored, &|sha256| self.attachment(blobs, sha256));
            self.report.checks += findings.checks;
            let failed =
                findings.broken.into_iter().map(|what| Broken { record: place.clone(), level: Level::V2, what });
            self.report.failures.extend(failed);
            if stored.kind == Kind::Candidate {
                let closed = self.source_tree(stored, blobs);
                self.try_check(Level::V1, &place, closed);
            }
        }
        for id in history.open_intents() {
            self.report.warnings.push(format!("the eval {} of run {short} was started and has no result", id.short()));
        }
    }

    fn attachment(&self, blobs: &HashMap<Digest, Oid>, sha256: &Digest) -> Result<Vec<u8>> {
        match blobs.get(sha256) {
            Some(oid) => self.objects.read_as(*oid, ObjectType::Blob),
            None => {
                let path = self.layout.blob(&sha256.to_string());
                std::fs::read(&path).map_err(RecordError::io("read", &path))
            }
        }
    }

    /// Every file of a candidate's manifest is attached to it, in its size.
    fn source_tree(&self, stored: &Stored, blobs: &HashMap<Digest, Oid>) -> Result<()> {
        let body: CandidateBody = stored.body()?;
        let manifest = Manifest::from_bytes(&self.attachment(blobs, &body.source)?)?;
        let attached: HashSet<(Digest, u64)> =
            stored.record.blobs.iter().map(|blob| (blob.sha256, blob.size)).collect();
        match manifest.files.iter().find(|file| !attached.contains(&(file.sha256, file.size))) {
            Some(file) => Err(RecordError::damaged(
                format!("source tree {}", body.source.short()),
                format!("`{}` is not attached", file.path),
            )),
            None => Ok(()),
        }
    }

    fn clocks(&mut self, short: &str, records: &[Stored]) {
        let mut latest = 0;
        for stored in records {
            let name = format!("{RECORDS}/{} of run {short}", stored.file_name());
            let secs = clock::parse_utc(&stored.record.at).unwrap_or(0);
            if secs + BACK_SECONDS < latest {
                self.report.warnings.push(format!("{name} says it was written before an earlier record"));
            }
            if seconds_ahead(&stored.record.at) > AHEAD_SECONDS {
                self.report.warnings.push(format!("{name} says it was written in the future"));
            }
            latest = latest.max(secs);
        }
    }

    /// Commits that no ref leads to. An interrupted write leaves one on a commit that is reached; two in a row were on a ref once.
    fn orphans(&mut self) {
        let mut commits = std::mem::take(&mut self.audit.commits);
        if self.audit.packs && !self.audit.packs_damaged {
            for oid in self.objects.packed_ids().unwrap_or_default() {
                if let Ok(commit) = self.objects.read_commit(oid) {
                    commits.insert(oid, commit.parent);
                }
            }
        }
        let orphan = |oid: &Oid| !self.reached.contains(oid);
        let mut single = 0u64;
        let mut lost: Vec<Oid> = Vec::new();
        for (oid, parent) in commits.iter().filter(|(oid, _)| orphan(oid)) {
            match parent {
                Some(parent) if commits.contains_key(parent) && orphan(parent) => lost.push(*oid),
                _ => single += 1,
            }
        }
        self.report.checks += 1;
        if !lost.is_empty() {
            lost.sort_unstable();
            let what =
                format!("{} commits hold records that no run leads to: a run was cut short or removed", lost.len() + 1);
            self.report.failures.push(Broken { record: format!("commit {}", lost[0]), level: Level::V1, what });
        } else if single > 0 {
            self.report
                .warnings
                .push(format!("{single} interrupted writes left unreferenced objects; they harm nothing"));
        }
    }

    fn held(&mut self, held: &[RecordId]) {
        for id in held {
            let holds = self.ids.contains(id);
            self.check(Level::V0, &format!("record {id}"), holds, || {
                "it was held elsewhere and is in no verified run: records were rewritten or removed".into()
            });
        }
    }

    fn finish(mut self) -> Report {
        if !self.audit.leftovers.is_empty() {
            let count = self.audit.leftovers.len();
            let first = &self.audit.leftovers[0];
            self.report
                .warnings
                .push(format!("{count} files of interrupted writes or of other tools, such as {first}"));
        }
        if self.report.checks == 0 {
            self.report.failures.push(Broken {
                record: "store".into(),
                level: Level::V1,
                what: "nothing was checked".into(),
            });
        }
        self.report
    }
}
