//! The report: one typed [`Evaluation`], read as Markdown by agents and as a page by people.
//!
//! Both renderings are pure functions of the struct: the same evaluation gives the same bytes. A figure that is absent
//! is shown as a dash, never as zero.

mod format;
mod html;
mod markdown;
mod plots;

pub use html::html;
pub use markdown::markdown;

use crate::ceiling::ShareState;
use crate::kpi::Kpi;
use crate::probe::Probe;
use crate::profile::Profile;
use crate::quality::{Quality, Verdict, gate};
use crate::speed::{DirectSpeed, Honesty, ServedSpeed};
use serde::{Deserialize, Serialize};

/// What was evaluated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Subject {
    /// Name of the model.
    pub model: String,
    /// Name of the candidate.
    pub candidate: String,
    /// Digest of the candidate.
    pub candidate_digest: Option<String>,
    /// Digest of the checkpoint.
    pub checkpoint_digest: Option<String>,
    /// Name and version of the engine.
    pub engine: String,
    /// Architecture family.
    pub arch: String,
    /// Where it runs.
    pub target: String,
    /// Threads it may use.
    pub threads: u32,
    /// Longest sequence it holds.
    pub max_context: u32,
    /// Plugins that are on.
    pub plugins: Vec<String>,
    /// Memory it holds.
    pub memory_bytes: Option<u64>,
    /// Bytes one decode pass reads and writes at the start of a sequence.
    pub decode_pass_bytes: Option<u64>,
}

/// Everything measured of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Evaluation {
    /// Version of what is measured and how.
    pub eval_version: String,
    /// What was evaluated.
    pub subject: Subject,
    /// What the machine can do.
    pub probe: Option<Probe>,
    /// Speed through the running server.
    pub served: Option<ServedSpeed>,
    /// Speed straight through the engine protocol.
    pub direct: Option<DirectSpeed>,
    /// Distance from the model.
    pub quality: Option<Quality>,
    /// What the machine allows, use by use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kpis: Vec<Kpi>,
    /// Where the time of a decode step goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// Speed that is not what it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub honesty: Option<Honesty>,
    /// Files of the evaluator or the candidate that were changed while it was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tampered: Vec<String>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

/// The word over an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overall {
    /// Quality holds and the speed is possible and steady.
    Pass,
    /// Quality does not hold.
    Fail,
    /// Quality holds; the machine was not steady, so speed is a hint.
    Unstable,
    /// A figure cannot be right.
    Invalid,
    /// Quality or speed was not measured.
    Incomplete,
}

impl Overall {
    /// As people read it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Unstable => "UNSTABLE",
            Self::Invalid => "INVALID",
            Self::Incomplete => "INCOMPLETE",
        }
    }
}

impl Evaluation {
    /// The word over it, and why.
    pub fn verdict(&self) -> (Overall, Vec<String>) {
        let states = self.share_states();
        let of = |state: ShareState| -> Vec<String> {
            states.iter().filter(|(s, _)| *s == state).map(|(_, reason)| reason.clone()).collect()
        };
        let mut invalid = self.tampered.clone();
        invalid.extend(self.honesty.iter().flat_map(|honesty| honesty.doubts.clone()));
        invalid.extend(of(ShareState::Invalid));
        let quality = self.quality.as_ref();
        match quality.map(|q| q.verdict) {
            Some(Verdict::Invalid) => return (Overall::Invalid, quality.map_or_else(Vec::new, |q| q.reasons.clone())),
            _ if !invalid.is_empty() => return (Overall::Invalid, invalid),
            Some(Verdict::Fail) => return (Overall::Fail, quality.map_or_else(Vec::new, |q| q.reasons.clone())),
            None => return (Overall::Incomplete, vec!["quality was not measured: no verdict on speed alone".into()]),
            Some(Verdict::Pass) => {}
        }
        if self.served.is_none() && self.direct.is_none() {
            return (Overall::Incomplete, vec!["speed was not measured".into()]);
        }
        let mut unstable = of(ShareState::Unstable);
        unstable.dedup();
        if states.is_empty() {
            return (Overall::Incomplete, vec!["no ceiling: the machine or the engine's passes are not known".into()]);
        }
        if unstable.is_empty() { (Overall::Pass, Vec::new()) } else { (Overall::Unstable, unstable) }
    }

    fn share_states(&self) -> Vec<(ShareState, String)> {
        let served = self.served.iter().flat_map(|served| {
            let of = |name: &str, phase: &str, share: &Option<crate::ceiling::Share>| {
                share.as_ref().map(|s| (s.state, explain(&format!("{name}, {phase}"), s)))
            };
            served
                .prompts
                .iter()
                .flat_map(move |p| [of(&p.name, "decode", &p.decode), of(&p.name, "prefill", &p.prefill)])
        });
        let direct = self.direct.iter().flat_map(|direct| {
            let of = |phase: &str, share: &Option<crate::ceiling::Share>| {
                share.as_ref().map(|s| (s.state, explain(&format!("engine protocol, {phase}"), s)))
            };
            [of("decode", &direct.decode_detail), of("prefill", &direct.prefill_detail)]
        });
        // A whole suite can be invalid without a share: token counts that are not believed.
        let whole = self.served.iter().filter(|served| served.state == Some(ShareState::Invalid)).map(|served| {
            let reason = served.reason.clone();
            Some((ShareState::Invalid, reason.unwrap_or_else(|| "the speed suite".into())))
        });
        let mut states: Vec<(ShareState, String)> = served.chain(direct).flatten().collect();
        if states.iter().all(|(state, _)| *state != ShareState::Invalid) {
            states.extend(whole.flatten());
        }
        states
    }

    /// Decode and prefill as the report leads with: through the server if measured, else through the protocol.
    fn lead(&self) -> Option<Lead> {
        let figures = |decode, prefill, decode_share, prefill_share, way| Lead {
            decode: Phase { tok_s: decode, share: decode_share, ..Phase::default() },
            prefill: Phase { tok_s: prefill, share: prefill_share, ..Phase::default() },
            way,
        };
        if let Some(s) = &self.served {
            let mut lead =
                figures(s.decode_tok_s, s.prefill_tok_s, s.decode_share, s.prefill_share, "through the running server");
            lead.decode.explain(s.prompts.iter().find_map(|p| p.decode.as_ref()));
            lead.prefill.explain(s.prompts.iter().find_map(|p| p.prefill.as_ref()));
            return Some(lead);
        }
        let d = self.direct.as_ref()?;
        let mut lead =
            figures(d.decode_tok_s, d.prefill_tok_s, d.decode_share, d.prefill_share, "through the engine protocol");
        lead.decode.explain(d.decode_detail.as_ref());
        lead.prefill.explain(d.prefill_detail.as_ref());
        Some(lead)
    }

    /// One sentence for people.
    pub fn headline(&self) -> String {
        let speed = self.lead().and_then(|lead| {
            let tok_s = format::rate(lead.decode.tok_s?);
            let share = lead.decode.share.map(|s| format!(", {} of what this machine allows", format::percent(s)));
            Some(format!("Decodes {tok_s} tokens a second{}", share.unwrap_or_default()))
        });
        let quality = self.quality.as_ref().and_then(|q| {
            let worst = gate::worst(&q.paths)?;
            Some(match worst.kld {
                Some(kld) => format!(
                    "on its worst path ({}) it stands {} nats from the model",
                    worst.path,
                    format::kld(kld.mean)
                ),
                None => format!("on its path {} no row could be compared with the model", worst.path),
            })
        });
        match (speed, quality) {
            (Some(speed), Some(quality)) => format!("{speed}; {quality}."),
            (Some(speed), None) => format!("{speed}; its distance from the model was not measured."),
            (None, Some(quality)) => format!("Speed was not measured; {quality}."),
            (None, None) => "Nothing was measured.".into(),
        }
    }
}

fn explain(what: &str, share: &crate::ceiling::Share) -> String {
    match &share.reason {
        Some(reason) if share.state == ShareState::Invalid => format!("{what}: {reason}"),
        Some(reason) => reason.clone(),
        None => what.to_string(),
    }
}

/// The figures a report leads with.
struct Lead {
    decode: Phase,
    prefill: Phase,
    way: &'static str,
}

#[derive(Clone, Debug, Default)]
struct Phase {
    tok_s: Option<f64>,
    share: Option<f64>,
    bound: Option<String>,
    fastest_over_ceiling: Option<f64>,
}

impl Phase {
    fn explain(&mut self, share: Option<&crate::ceiling::Share>) {
        let Some(share) = share else { return };
        self.bound = Some(format::bound(share.bound, share.level));
        self.fastest_over_ceiling = share.fastest_allowed_tok_s.map(|fastest| fastest / share.ceiling_tok_s);
    }

    fn ceiling_tok_s(&self) -> Option<f64> {
        Some(self.tok_s? / self.share?)
    }

    /// Ceiling at the fastest format the mode allows, if that is higher by more than a hair.
    fn fastest_tok_s(&self) -> Option<f64> {
        self.ceiling_tok_s().zip(self.fastest_over_ceiling).filter(|(_, over)| *over > 1.02).map(|(c, over)| c * over)
    }
}

#[cfg(test)]
mod tests;
