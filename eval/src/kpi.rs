//! What the machine allows, figure by figure: the ceilings of every way an engine is used, from the costs of the program
//! as the engine stores it, and at the fastest format the quality mode allows.
//!
//! A ceiling is a floor turned over: the least time of the passes a use needs. None is a promise, all are bounds.

use crate::ceiling::{Bound, CeilingModel, FastestAllowed};
use crit_core::model::program::{Axes, SeqAxes};
use serde::{Deserialize, Serialize};

/// A use of an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Kpi {
    /// Its name.
    pub name: String,
    /// What it is, in a sentence.
    pub what: String,
    /// Tokens a second at most, all requests together; absent for a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tok_s: Option<f64>,
    /// Milliseconds at least; absent for a speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_ms: Option<f64>,
    /// The same at the fastest format the quality mode allows.
    pub fastest_allowed: f64,
    /// What binds it.
    pub bound: Bound,
    /// Bytes a pass must move.
    pub bytes: u64,
    /// Operations of a pass.
    pub flops: u64,
}

/// What an engine holds and is measured to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Uses {
    /// Longest sequence.
    pub context: u32,
    /// Most requests at once.
    pub batch: u32,
    /// Tokens a pass, measured, if drafts are verified: above 1 when some are accepted.
    pub tokens_a_pass: Option<f64>,
    /// Most drafted tokens a pass.
    pub drafted: u32,
}

/// The ceilings of every use.
pub fn kpis(model: &CeilingModel<'_>, best: FastestAllowed, uses: Uses) -> Vec<Kpi> {
    let builder = Builder { model, fastest: model.at_fastest(best) };
    let mut found = vec![builder.speed("decode", "one request, short context", 1.0, &[decode(64)])];
    for depth in [1_024, 4_096, 16_384, 65_536].into_iter().filter(|depth| *depth < uses.context) {
        found.push(builder.speed(&format!("decode_at_{depth}"), "one request at this depth", 1.0, &[decode(depth)]));
    }
    let full = uses.context.saturating_sub(1);
    found.push(builder.speed("decode_full_context", "one request, the context full", 1.0, &[decode(full)]));
    for width in [2, 4, 8, 16, 32, 64].into_iter().filter(|width| *width <= uses.batch) {
        let name = format!("decode_batch_{width}");
        let seqs = vec![decode(64); width as usize];
        found.push(builder.speed(&name, "so many requests together", f64::from(width), &seqs));
    }
    for tokens in [512u32, 4_096].into_iter().filter(|tokens| *tokens < uses.context) {
        let prompt = SeqAxes { tokens, past: 0, rows: 1 };
        found.push(builder.speed(
            &format!("prefill_{tokens}"),
            "a prompt of so many tokens",
            f64::from(tokens),
            &[prompt],
        ));
    }
    let prompt = SeqAxes { tokens: 512.min(full.max(1)), past: 0, rows: 1 };
    found.push(builder.time("first_token_512", "from a prompt of 512 tokens to its first token", &[prompt]));
    if let Some(accepted) = uses.tokens_a_pass.filter(|_| uses.drafted > 0) {
        let verify = SeqAxes { tokens: uses.drafted + 1, past: 64, rows: uses.drafted + 1 };
        found.push(builder.speed(
            "decode_speculative",
            "drafts verified, at the acceptance measured",
            accepted,
            &[verify],
        ));
        let all = f64::from(uses.drafted + 1);
        found.push(builder.speed("decode_speculative_oracle", "every draft accepted", all, &[verify]));
    }
    found
}

fn decode(past: u32) -> SeqAxes {
    SeqAxes { tokens: 1, past, rows: 1 }
}

struct Builder<'a> {
    model: &'a CeilingModel<'a>,
    fastest: CeilingModel<'a>,
}

impl Builder<'_> {
    fn speed(&self, name: &str, what: &str, tokens: f64, seqs: &[SeqAxes]) -> Kpi {
        let (kpi, floor_s, fastest_s) = self.of(name, what, seqs);
        Kpi { tok_s: Some(tokens / floor_s), fastest_allowed: tokens / fastest_s, ..kpi }
    }

    fn time(&self, name: &str, what: &str, seqs: &[SeqAxes]) -> Kpi {
        let (kpi, floor_s, fastest_s) = self.of(name, what, seqs);
        Kpi { time_ms: Some(floor_s * 1e3), fastest_allowed: fastest_s * 1e3, ..kpi }
    }

    fn of(&self, name: &str, what: &str, seqs: &[SeqAxes]) -> (Kpi, f64, f64) {
        let axes = Axes { seqs: seqs.to_vec() };
        let (pass, fastest) = (self.model.pass(&axes), self.fastest.pass(&axes));
        let kpi = Kpi {
            name: name.into(),
            what: what.into(),
            tok_s: None,
            time_ms: None,
            fastest_allowed: 0.0,
            bound: pass.bound(),
            bytes: pass.cost.bytes(),
            flops: pass.cost.linear_flops + pass.cost.other_flops,
        };
        (kpi, pass.floor_s(), fastest.floor_s())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ceiling::tests::{engine, toy};
    use crate::limits::tests::round_limits;
    use crit_core::model::program::Precision;

    fn all(uses: Uses) -> Vec<Kpi> {
        let (program, info, limits) = (toy(), engine((Precision::F32, Precision::F32)), round_limits());
        let model = CeilingModel::new(&program, &info, &limits).unwrap();
        kpis(&model, FastestAllowed { weight_bits_milli: 4_500, precision: Precision::Int8 }, uses)
    }

    #[test]
    fn every_use_has_its_ceiling_and_they_stand_as_physics_has_them() {
        let uses = Uses { context: 8_192, batch: 8, tokens_a_pass: Some(2.0), drafted: 3 };
        let found = all(uses);
        let speed = |name: &str| found.iter().find(|kpi| kpi.name == name).and_then(|kpi| kpi.tok_s).expect(name);
        assert!(speed("decode") > speed("decode_at_1024") && speed("decode_at_1024") > speed("decode_at_4096"));
        assert!(speed("decode_at_4096") > speed("decode_full_context"));
        // The toy's weights are so few that requests together gain nothing; they must not lose either.
        assert!(speed("decode_batch_8") >= 0.999 * speed("decode_batch_2"));
        assert!(speed("decode_batch_2") >= 0.999 * speed("decode"));
        assert!(speed("decode_speculative_oracle") == 2.0 * speed("decode_speculative"));
        let first = found.iter().find(|kpi| kpi.name == "first_token_512").unwrap();
        assert!((first.time_ms.unwrap() - 512e3 / speed("prefill_512")).abs() < 1e-9);
        for kpi in &found {
            let better = kpi.tok_s.is_none_or(|speed| kpi.fastest_allowed >= speed * 0.999_999);
            assert!(better && kpi.bytes > 0, "{kpi:?}");
        }
    }

    #[test]
    fn what_an_engine_does_not_do_has_no_ceiling() {
        let found = all(Uses { context: 600, batch: 1, tokens_a_pass: None, drafted: 0 });
        let has = |part: &str| found.iter().any(|kpi| kpi.name.contains(part));
        assert!(!has("batch") && !has("speculative") && !has("at_1024") && !has("prefill_4096") && has("prefill_512"));
    }
}
