//! A scripted engine for tests: a model whose next-token distribution is a hash of what it has seen, and the faults
//! real engines were seen to have.

use crate::link::{EngineLink, Generation, OnRow, OnTokens};
use crate::rng::Rng;
use crit_core::error::{ErrorKind, Failure};
use crit_core::model::program::SeqAxes;
use crit_core::protocol::{EngineInfo, EngineStats, FinishReason, PassCount, ScorePlan, ScoreRow, Usage};
use std::collections::HashMap;

/// What is wrong with a scripted engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    None,
    /// Forgets older context in steps of one token.
    SingleTokenSteps,
    /// Leaves rejected drafts in its state.
    Rollback,
    /// Sees the context of the sequence before it in the batch.
    BatchMates,
    /// Loses the last position of a prefix taken from the cache.
    CachedPrefix,
    /// Wrong in steps of this many tokens.
    ChunkEdges(u32),
    /// Random noise on its logits.
    Noise(f64),
    /// NaN in one row.
    NotANumber,
    DropsLastRow,
    RepeatsRows,
    NoPrefixCache,
    /// Predicts the token after next.
    Shifted,
}

pub(crate) struct Scripted {
    fault: Fault,
    stats: EngineStats,
    delay: std::time::Duration,
}

impl Scripted {
    pub(crate) const VOCAB: u32 = 50;

    pub(crate) fn new(fault: Fault) -> Self {
        Self { fault, stats: EngineStats::default(), delay: std::time::Duration::ZERO }
    }

    /// An engine whose passes take this long.
    pub(crate) fn slow(delay: std::time::Duration) -> Self {
        Self { delay, ..Self::new(Fault::None) }
    }

    /// Text whose every token is the scripted model's first or second choice.
    pub(crate) fn likely_text(seed: u32, n: usize) -> Vec<u32> {
        let mut ids = vec![seed];
        while ids.len() < n {
            let row = Self::row(&ids, 0.0);
            let mut order: Vec<usize> = (0..row.len()).collect();
            order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
            ids.push(order[ids.len() % 2] as u32);
        }
        ids
    }

    fn row(context: &[u32], noise: f64) -> Vec<f32> {
        let recent = &context[context.len().saturating_sub(3)..];
        let seed = recent.iter().fold(17u64, |h, id| h.wrapping_mul(31).wrapping_add(u64::from(*id) + 1));
        let mut rng = Rng::new(seed.wrapping_add(context.len() as u64));
        let mut drift = Rng::new(seed ^ 0xABCD);
        let logits: Vec<f64> = (0..Self::VOCAB).map(|_| 2.5 * rng.normal() + noise * drift.normal()).collect();
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum = max + logits.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
        logits.iter().map(|x| (x - sum) as f32).collect()
    }

    fn emit(&self, row: ScoreRow, context: &[u32], ids: &[u32], on_row: OnRow<'_>) {
        let mut values = match self.fault {
            Fault::Noise(noise) => Self::row(context, noise),
            Fault::Shifted if row.position as usize + 1 < ids.len() => {
                Self::row(&ids[..row.position as usize + 2], 0.0)
            }
            _ => Self::row(context, 0.0),
        };
        if self.fault == Fault::NotANumber && row.position == 5 {
            values[3] = f32::NAN;
        }
        on_row(row, &values);
        if self.fault == Fault::RepeatsRows {
            on_row(row, &values);
        }
    }
}

impl EngineLink for Scripted {
    fn info(&mut self) -> Result<EngineInfo, Failure> {
        Ok(EngineInfo {
            engine: "scripted 1".into(),
            arch: "scripted".into(),
            target: "cpu".into(),
            max_context: 4096,
            max_batch: 4,
            vocab: Self::VOCAB,
            plugins: vec![],
            executor: None,
        })
    }

    fn stats(&mut self) -> Result<EngineStats, Failure> {
        Ok(self.stats.clone())
    }

    fn generate(&mut self, generation: &Generation, on_tokens: OnTokens<'_>) -> Result<(FinishReason, Usage), Failure> {
        let mut context = generation.prompt.clone();
        let prompt = context.len() as u32;
        for i in 0..generation.max_tokens {
            std::thread::sleep(self.delay);
            let (tokens, past) = if i == 0 { (prompt, 0) } else { (1, (prompt + i - 1) / 64 * 64) };
            let seqs = vec![SeqAxes { tokens, past, rows: 1 }];
            match self.stats.passes.iter_mut().find(|pass| pass.seqs == seqs) {
                Some(pass) => pass.count += 1,
                None => self.stats.passes.push(PassCount { seqs, count: 1, time_us: 0 }),
            }
            let row = Self::row(&context, 0.0);
            let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap_or(0) as u32;
            context.push(best);
            on_tokens(&[best], &[]);
            if generation.stop_ids.contains(&best) {
                break;
            }
        }
        let generated_tokens = context.len() as u32 - prompt;
        Ok((FinishReason::Length, Usage { prompt_tokens: prompt, generated_tokens, ..Usage::default() }))
    }

    fn score(&mut self, plan: &ScorePlan, on_row: OnRow<'_>) -> Result<Vec<u32>, Failure> {
        let mut kept: HashMap<u32, bool> = HashMap::new();
        let mut hits = vec![0u32; plan.sequences.len()];
        let mut states: Vec<Vec<u32>> = vec![Vec::new(); plan.sequences.len()];
        let mut position = vec![0usize; plan.sequences.len()];
        let items: usize = plan.steps.iter().map(Vec::len).sum();
        let mut index = 0;
        for step in &plan.steps {
            for (k, item) in step.iter().enumerate() {
                index += 1;
                let seq = item.seq as usize;
                let sequence = &plan.sequences[seq];
                if position[seq] == 0 && sequence.prefix > 0 && self.fault != Fault::NoPrefixCache {
                    if kept.is_empty() {
                        return Err(Failure::new(ErrorKind::Internal, "a prefix before anything was kept"));
                    }
                    hits[seq] = sequence.prefix / 16 * 16;
                }
                for i in 0..item.take + item.accept {
                    let at = position[seq];
                    position[seq] += 1;
                    let cached = (at as u32) < hits[seq];
                    let lost = self.fault == Fault::CachedPrefix && at as u32 + 1 == hits[seq];
                    states[seq].push(if lost { 0 } else { sequence.ids[at] });
                    let mut context = states[seq].clone();
                    match self.fault {
                        Fault::SingleTokenSteps if item.take == 1 => drop(context.drain(..context.len() - 1)),
                        Fault::ChunkEdges(n) if item.take == n => context.push(1),
                        Fault::BatchMates if k > 0 => context.push(states[step[k - 1].seq as usize][0]),
                        _ => {}
                    }
                    let last = index == items && i + 1 == item.take + item.accept;
                    if item.rows && !cached && !(last && self.fault == Fault::DropsLastRow) {
                        let row = ScoreRow { seq: item.seq, position: at as u32 };
                        self.emit(row, &context, &sequence.ids, on_row);
                    }
                }
                if self.fault == Fault::Rollback && item.draft.len() as u32 > item.accept {
                    states[seq].extend(&item.draft[item.accept as usize..]);
                }
                if sequence.keep && position[seq] == sequence.ids.len() {
                    kept.insert(item.seq, true);
                }
            }
        }
        Ok(hits)
    }
}
