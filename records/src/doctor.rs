//! Rescue after damage: sweep what dead writers left, set damaged pieces aside, and bring each run back to its last good record.
//!
//! Nothing is deleted but leftovers of interrupted writes, and nothing is cut off silently: damaged files move to
//! `.crit/quarantine`, lost commits stay reachable under `refs/crit/quarantine`, and a `recovery` record names what was lost.
//! A damaged attachment cannot be mended; its run keeps failing `verify`, as it should.

use crate::audit::Audit;
use crate::chain::{Chain, ref_name, walk};
use crate::durable::{self, TEMPORARY};
use crate::error::{RecordError, Result};
use crate::format::{RecordId, RecoveryBody, RunId};
use crate::layout::{CONFIG, HEAD};
use crate::refs::{self, Journal, QUARANTINE, RUNS, Refs, Swap};
use crate::store::Store;
use crate::write::Draft;
use crit_core::digest::Digest;
use crit_core::error::Failure;
use git2::Oid;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use unicode_normalization::UnicodeNormalization;

/// What a rescue did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rescue {
    /// Leftovers of interrupted writes that were removed.
    pub swept: Vec<String>,
    /// Damaged files that were moved to the quarantine, with the reason.
    pub set_aside: Vec<String>,
    /// Runs that were brought back to an earlier record.
    pub recovered: Vec<Recovered>,
    /// What could not be mended.
    pub beyond_help: Vec<String>,
}

/// A run that was brought back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Recovered {
    /// The run.
    pub run: RunId,
    /// The record it was brought back to.
    pub last_good: RecordId,
    /// The record that names the loss.
    pub recovery: RecordId,
    /// What was lost.
    pub lost: Vec<String>,
}

/// A line of a journal, as far as it can be read.
struct Line {
    commit: Oid,
    message: String,
}

impl Store {
    /// Rescues what can be rescued. Without damage it changes nothing but leftovers.
    pub fn doctor(&self) -> Result<Rescue> {
        let _lock = self.lock()?;
        let mut rescue = Rescue::default();
        self.restore_fixed_files(&mut rescue)?;
        self.sweep(&mut rescue)?;
        for run in self.runs_by_ref_or_journal()? {
            if let Err(error) = self.rescue_run(&run, &mut rescue) {
                rescue.beyond_help.push(format!("run {}: {}", run.short(), Failure::from(error)));
            }
        }
        Ok(rescue)
    }

    fn restore_fixed_files(&self, rescue: &mut Rescue) -> Result<()> {
        for (name, content) in [("HEAD", HEAD), ("config", CONFIG)] {
            let path = self.layout.repo().join(name);
            if fs::read(&path).is_ok_and(|bytes| bytes == content.as_bytes()) {
                continue;
            }
            if path.exists() {
                self.set_aside(&path, "it was not as crit writes it", rescue)?;
            }
            durable::write_file(&path, content.as_bytes())?;
        }
        Ok(())
    }

    fn sweep(&self, rescue: &mut Rescue) -> Result<()> {
        let audit = Audit::of(&self.layout);
        for leftover in &audit.leftovers {
            let path = Path::new(leftover);
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            if name.starts_with(TEMPORARY) || name.ends_with(".lock") {
                fs::remove_file(path).map_err(RecordError::io("remove", path))?;
                rescue.swept.push(leftover.clone());
            }
        }
        for damage in &audit.damage {
            let path = Path::new(&damage.file);
            let pack = path.parent().is_some_and(|parent| parent.ends_with("objects/pack"));
            if pack || path.ends_with("packed-refs") || !path.is_file() {
                // Much else in it may be whole, so it stays where it is.
                rescue.beyond_help.push(format!("{}: {}; restore it from another copy", damage.file, damage.what));
            } else {
                self.set_aside(path, &damage.what, rescue)?;
            }
        }
        Ok(())
    }

    fn set_aside(&self, path: &Path, why: &str, rescue: &mut Rescue) -> Result<String> {
        let kept = durable::quarantine(path, &self.layout.quarantine())?;
        rescue.set_aside.push(format!("{}: {why}; kept as {}", path.display(), kept.display()));
        let name = kept.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(name)
    }

    fn runs_by_ref_or_journal(&self) -> Result<BTreeSet<RunId>> {
        let journals = Refs::new(&self.layout.repo().join("logs"));
        let names = [self.refs().list(RUNS)?, journals.list(RUNS)?].concat();
        Ok(names.iter().filter_map(|name| Digest::parse(name)).collect())
    }

    fn rescue_run(&self, run: &RunId, rescue: &mut Rescue) -> Result<()> {
        let name = ref_name(run);
        let journal = self.refs().journal_path(&name);
        let broken = match self.refs().read(&name).and_then(|tip| self.sound(run, tip)) {
            Ok(chain) => return self.mend(&journal, &chain, rescue),
            Err(error) => error,
        };
        let lines = read_journal(&journal);
        let good = lines.iter().rposition(|line| self.sound(run, Some(line.commit)).is_ok());
        let Some(at) = good else { return Err(broken) };
        let chain = self.sound(run, Some(lines[at].commit))?;
        let reason = Failure::from(broken).message;
        let mut quarantined = self.keep_lost(run, &lines[at + 1..])?;
        let path = self.layout.repo().join(&name);
        if path.exists() {
            quarantined.push(self.set_aside(&path, "its run cannot be read", rescue)?);
        }
        // A packed ref may show once the file is gone; the swap names whatever is there now.
        if self.refs().swap(&name, self.refs().read(&name)?, chain.tip)? == Swap::Lost {
            return Err(RecordError::damaged(name, "another program moves it"));
        }
        quarantined.push(self.set_aside(&journal, "it tells of records that are lost", rescue)?);
        refs::write_journal(&journal, &chain.steps(&self.objects())?)?;
        let last_good = chain.last().map_or(*run, |stored| stored.id);
        let lost: Vec<String> = lines[at + 1..].iter().map(|line| line.message.clone()).collect();
        let body = RecoveryBody { reason, last_good, lost: lost.clone(), quarantined };
        let recovery = self.append_locked(run, &Draft::new(&body)?)?;
        rescue.recovered.push(Recovered { run: *run, last_good, recovery, lost });
        Ok(())
    }

    /// The run at `tip` if its records and commits can all be read.
    fn sound(&self, run: &RunId, tip: Option<Oid>) -> Result<Chain> {
        let tip = tip.ok_or_else(|| RecordError::damaged(ref_name(run), "it is missing"))?;
        let chain = Chain::load(&self.objects(), run, tip)?;
        let commits = walk(&self.objects(), tip)?;
        if commits.len() != chain.records.len() {
            return Err(RecordError::damaged(ref_name(run), "it has more or fewer commits than records"));
        }
        Ok(chain)
    }

    /// Brings the journal of a sound run up to date.
    fn mend(&self, journal: &Path, chain: &Chain, rescue: &mut Rescue) -> Result<()> {
        let steps = chain.steps(&self.objects())?;
        match refs::compare_journal(journal, &steps)? {
            Journal::Whole => return Ok(()),
            Journal::Absent | Journal::Behind => {}
            Journal::Different(what) => {
                // A journal that tells of more than the run has may be all that is left of a run cut short.
                let known: BTreeSet<Oid> = steps.iter().map(|step| step.new).collect();
                let beyond: Vec<Line> =
                    read_journal(journal).into_iter().filter(|line| !known.contains(&line.commit)).collect();
                let run = chain.records[0].run();
                self.keep_lost(&run, &beyond)?;
                for line in beyond {
                    rescue.beyond_help.push(format!(
                        "run {} does not lead to its record `{}` any more",
                        run.short(),
                        line.message
                    ));
                }
                self.set_aside(journal, &what, rescue)?;
            }
        }
        refs::write_journal(journal, &steps)
    }

    /// Keeps the commits of lost records reachable; answers the names of the refs.
    fn keep_lost(&self, run: &RunId, lines: &[Line]) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for line in lines {
            let name = format!("{QUARANTINE}/{}-{}", run.short(), line.commit);
            // Written as a file: libgit2 refuses refs to commits that are damaged, and these may be.
            durable::write_file(&self.layout.repo().join(&name), format!("{}\n", line.commit).as_bytes())?;
            names.push(name);
        }
        Ok(names)
    }
}

fn read_journal(path: &Path) -> Vec<Line> {
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let line = |line: &str| {
        let commit = Oid::from_str(line.split(' ').nth(1)?).ok()?;
        let message = line.split_once('\t').map_or("a record", |(_, message)| message);
        Some(Line { commit, message: message.nfc().collect() })
    };
    text.lines().filter_map(line).collect()
}
