//! What a run may say next, and what it must not contradict.
//!
//! One set of rules serves both ends: the store refuses a record that breaks one, and `verify` reports a record that does. They
//! look at the records in order and never at the clock or the machine, so they answer the same everywhere and for ever.

use crate::chain::Stored;
use crate::error::RecordError;
use crate::format::{
    AblationBody, AnchorBody, Body, BuildBody, CandidateBody, DecisionBody, EvalBody, EvalKind, EvalStatus, Kind,
    Outcome, REL_AMENDS, REL_INTENT, REL_PLAN, RecordId, RecoveryBody, Samples, SealBody, SelectionBody, SignatureBody,
    SmokeBody,
};
use crate::merkle;
use crit_core::digest::Digest;
use std::collections::{HashMap, HashSet};

/// How the rules read an attachment.
pub(crate) type ReadBlob<'a> = &'a dyn Fn(&Digest) -> Result<Vec<u8>, RecordError>;

/// What checking one record found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// How many rules were looked at.
    pub(crate) checks: u64,
    /// The rules broken, in words.
    pub(crate) broken: Vec<String>,
}

impl Findings {
    fn hold(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        self.checks += 1;
        if !holds {
            self.broken.push(otherwise());
        }
    }

    fn body<B: Body>(&mut self, stored: &Stored) -> Option<B> {
        let body = stored.body::<B>();
        self.hold(body.is_ok(), || body.as_ref().err().map(ToString::to_string).unwrap_or_default());
        body.ok()
    }
}

struct Built {
    executable: Digest,
}

/// What the records so far established.
#[derive(Default)]
pub(crate) struct History {
    ids: Vec<RecordId>,
    kinds: HashMap<RecordId, Kind>,
    boots: HashMap<RecordId, String>,
    sources: HashMap<RecordId, Digest>,
    checkpoint: Option<Digest>,
    built: HashMap<Digest, Built>,
    smoked: HashSet<Digest>,
    open: HashMap<RecordId, (Digest, EvalKind)>,
    sealed: bool,
}

impl History {
    /// The intents that no result has closed.
    pub(crate) fn open_intents(&self) -> Vec<RecordId> {
        self.ids.iter().filter(|id| self.open.contains_key(id)).copied().collect()
    }

    /// Checks `stored` against the records before it, and takes it in.
    pub(crate) fn admit(&mut self, stored: &Stored, read: ReadBlob<'_>) -> Findings {
        let mut findings = Findings::default();
        self.check_place(stored, &mut findings);
        self.check_kind(stored, read, &mut findings);
        self.ids.push(stored.id);
        self.kinds.insert(stored.id, stored.kind);
        findings
    }

    fn check_place(&self, stored: &Stored, f: &mut Findings) {
        let first = self.ids.is_empty();
        f.hold(first == (stored.kind == Kind::Run), || match first {
            true => "a run begins with a `run` record".into(),
            false => "a run has one `run` record only".into(),
        });
        f.hold(!self.sealed || stored.kind.may_follow_seal(), || {
            "the run is sealed; start a new run that refers to it by `amends`".into()
        });
        for link in stored.record.refs.iter().filter(|link| link.rel != REL_AMENDS) {
            f.hold(self.kinds.contains_key(&link.id), || {
                format!("its reference `{}` to {} names no earlier record of the run", link.rel, link.id.short())
            });
        }
        let mut names = HashSet::new();
        for blob in &stored.record.blobs {
            f.hold(names.insert(&blob.name), || format!("two attachments are called `{}`", blob.name));
        }
    }

    fn check_kind(&mut self, stored: &Stored, read: ReadBlob<'_>, f: &mut Findings) {
        match stored.kind {
            Kind::Run => self.checkpoint = f.body::<crate::format::RunBody>(stored).map(|b| b.checkpoint),
            Kind::Recon => {
                f.body::<crate::format::ReconBody>(stored);
                self.boots.insert(stored.id, stored.record.boot.clone());
            }
            Kind::Plan => drop(f.body::<crate::format::PlanBody>(stored)),
            Kind::Cost => drop(f.body::<crate::format::CostBody>(stored)),
            Kind::Candidate => self.check_candidate(stored, f),
            Kind::Build => self.check_build(stored, f),
            Kind::Smoke => self.check_smoke(stored, f),
            Kind::Ablation => self.check_ablation(stored, f),
            Kind::Eval => self.check_eval(stored, read, f),
            Kind::Decision => self.check_decision(stored, f),
            Kind::Selection => self.check_selection(stored, f),
            Kind::Seal => self.check_seal(stored, f),
            Kind::Recovery => {
                if let Some(body) = f.body::<RecoveryBody>(stored) {
                    f.hold(self.ids.last() == Some(&body.last_good), || {
                        "`last_good` is not the record before it".into()
                    });
                }
            }
            Kind::Signature => {
                if let Some(body) = f.body::<SignatureBody>(stored) {
                    f.hold(self.kinds.get(&body.seal) == Some(&Kind::Seal), || {
                        "`seal` names no seal of the run".into()
                    });
                }
            }
            Kind::Anchor => {
                if let Some(body) = f.body::<AnchorBody>(stored) {
                    f.hold(self.kinds.contains_key(&body.tip), || "`tip` names no record of the run".into());
                }
            }
        }
    }

    fn is(&self, id: &RecordId, kind: Kind) -> bool {
        self.kinds.get(id) == Some(&kind)
    }

    fn check_candidate(&mut self, stored: &Stored, f: &mut Findings) {
        let Some(body) = f.body::<CandidateBody>(stored) else { return };
        let plan = stored.record.refs.iter().find(|link| link.rel == REL_PLAN);
        f.hold(plan.is_some_and(|link| self.is(&link.id, Kind::Plan)), || {
            "it does not refer to an earlier plan of the run by `plan`; record the plan first".into()
        });
        for parent in &body.parents {
            f.hold(self.is(parent, Kind::Candidate), || {
                format!("its parent {} is no earlier candidate of the run", parent.short())
            });
        }
        f.hold(stored.record.blobs.iter().any(|blob| blob.sha256 == body.source), || {
            format!("the manifest {} of its source tree is not attached", body.source.short())
        });
        self.sources.insert(stored.id, body.source);
    }

    fn check_build(&mut self, stored: &Stored, f: &mut Findings) {
        let Some(body) = f.body::<BuildBody>(stored) else { return };
        let source = self.sources.get(&body.candidate);
        f.hold(source.is_some(), || format!("{} is no earlier candidate of the run", body.candidate.short()));
        let (Some(package), Some(inputs)) = (body.package, body.inputs) else { return };
        f.hold(source == Some(&inputs.source), || "its `inputs.source` is not the source tree of its candidate".into());
        f.hold(self.checkpoint == Some(inputs.checkpoint), || {
            "its `inputs.checkpoint` is not the checkpoint of the run".into()
        });
        self.built.insert(package, Built { executable: inputs.executable });
    }

    fn check_built(&self, candidate: &Digest, f: &mut Findings) {
        f.hold(self.built.contains_key(candidate), || {
            format!("the candidate {} was not built in this run; record its build first", candidate.short())
        });
    }

    fn check_smoked(&self, candidate: &Digest, f: &mut Findings) {
        self.check_built(candidate, f);
        f.hold(self.smoked.contains(candidate), || {
            format!("the candidate {} has not passed smoke; run smoke first", candidate.short())
        });
    }

    fn check_smoke(&mut self, stored: &Stored, f: &mut Findings) {
        let Some(body) = f.body::<SmokeBody>(stored) else { return };
        self.check_built(&body.candidate, f);
        if body.status == Outcome::Passed {
            self.smoked.insert(body.candidate);
        } else {
            // The latest word counts: a candidate that fails now is not fit to be measured.
            self.smoked.remove(&body.candidate);
        }
    }

    fn check_ablation(&mut self, stored: &Stored, f: &mut Findings) {
        let Some(body) = f.body::<AblationBody>(stored) else { return };
        self.check_smoked(&body.candidate, f);
    }

    fn check_eval(&mut self, stored: &Stored, read: ReadBlob<'_>, f: &mut Findings) {
        let Some(body) = f.body::<EvalBody>(stored) else { return };
        self.check_smoked(&body.candidate, f);
        let boot = self.boots.get(&body.recon);
        f.hold(boot.is_some(), || format!("{} is no earlier recon of the run", body.recon.short()));
        if body.kind == EvalKind::Speed && body.status == EvalStatus::Finished {
            f.hold(boot == Some(&stored.record.boot), || {
                "the machine has booted since its recon, so the limits may differ; run recon again".into()
            });
        }
        self.close_intent(stored, &body, f);
        if body.status == EvalStatus::Started {
            self.open.insert(stored.id, (body.candidate, body.kind));
        }
        check_summary(stored, &body, read, f);
    }

    fn close_intent(&mut self, stored: &Stored, body: &EvalBody, f: &mut Findings) {
        let Some(link) = stored.record.refs.iter().find(|link| link.rel == REL_INTENT) else { return };
        let open = self.open.remove(&link.id);
        f.hold(body.status != EvalStatus::Started, || "an intent cannot close another".into());
        f.hold(open.is_some(), || format!("{} is no open intent of the run", link.id.short()));
        f.hold(open.is_none_or(|o| o == (body.candidate, body.kind)), || {
            "it measures another candidate, or another thing, than its intent said".into()
        });
    }

    fn check_decision(&mut self, stored: &Stored, f: &mut Findings) {
        let Some(body) = f.body::<DecisionBody>(stored) else { return };
        for input in &body.inputs {
            f.hold(self.kinds.contains_key(input), || {
                format!("its input {} is no earlier record of the run", input.short())
            });
        }
    }

    fn check_selection(&mut self, stored: &Stored, f: &mut Findings) {
        let Some(body) = f.body::<SelectionBody>(stored) else { return };
        let mut named: HashSet<Digest> = body.considered.iter().copied().collect();
        f.hold(named.len() == body.considered.len(), || "a candidate is considered twice".into());
        for exclusion in &body.excluded {
            f.hold(named.insert(exclusion.candidate), || {
                format!("{} is both in and out, or out twice", exclusion.candidate.short())
            });
        }
        for candidate in &named {
            self.check_built(candidate, f);
        }
        for candidate in self.built.keys() {
            f.hold(named.contains(candidate), || {
                format!("the candidate {} is neither considered nor excluded with a reason", candidate.short())
            });
        }
        for id in &body.holdout {
            f.hold(self.is(id, Kind::Eval), || format!("its holdout {} is no earlier eval of the run", id.short()));
        }
        f.hold(self.smoked.contains(&body.winner), || "its winner has not passed smoke".into());
    }

    fn check_seal(&mut self, stored: &Stored, f: &mut Findings) {
        self.sealed = true;
        let Some(body) = f.body::<SealBody>(stored) else { return };
        f.hold(body.tip.as_ref() == self.ids.last(), || "its `tip` is not the record before it".into());
        f.hold(body.count == self.ids.len() as u64, || {
            format!("its `count` is {}, not {}", body.count, self.ids.len())
        });
        let root = merkle::root(&self.ids);
        f.hold(body.merkle_root == Some(root), || {
            "its `merkle_root` is not the root over the records before it".into()
        });
        self.check_smoked(&body.candidate, f);
        let executable = self.built.get(&body.candidate).map(|b| b.executable);
        f.hold(executable.is_none_or(|e| e == body.executable), || {
            "its `executable` is not the one that was built".into()
        });
        f.hold(self.open.is_empty(), || {
            let open: Vec<String> = self.open_intents().iter().map(Digest::short).collect();
            format!("evals were started and never closed: {}", open.join(", "))
        });
    }
}

fn check_summary(stored: &Stored, body: &EvalBody, read: ReadBlob<'_>, f: &mut Findings) {
    let Some(name) = &body.samples else { return };
    let blob = stored.record.blobs.iter().find(|blob| blob.name == *name);
    f.hold(blob.is_some(), || format!("its samples `{name}` are not attached"));
    let Some(blob) = blob else { return };
    let samples = read(&blob.sha256).map_err(|e| e.to_string()).and_then(|bytes| Samples::from_bytes(&bytes));
    f.hold(samples.is_ok(), || {
        format!("its samples `{name}` cannot be read: {}", samples.as_ref().err().map_or("", |e| e))
    });
    let Ok(samples) = samples else { return };
    for row in &body.summary {
        let again = samples.summarise(&row.series, row.statistic, row.value.digits());
        f.hold(again.as_ref() == Ok(row), || match &again {
            Ok(again) => {
                format!("its summary says {} for `{}`; the samples say {}", row.value, row.series, again.value)
            }
            Err(error) => format!("its summary of `{}` cannot be recomputed: {error}", row.series),
        });
    }
}
