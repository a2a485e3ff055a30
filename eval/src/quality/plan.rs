//! The ways to reach a logit, as scoring plans.
//!
//! A path is named by what the engine is made to do, and built from token ids, chunk sizes, batch mates, prefixes and
//! forced drafts alone: nothing in a plan tells the engine what it is for. Every path scores the same texts, so their
//! divergences compare.

use super::texts::Text;
use crate::rng::Rng;
use crit_core::protocol::{EngineInfo, ScoreItem, ScorePlan, ScoreRow, ScoreSequence};
use serde::{Deserialize, Serialize};

/// A way to reach a logit. One line here, one arm in [`PathKind::build`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PathKind {
    /// The whole text in as few steps as the engine allows.
    Prompt,
    /// One token a step from the first on.
    Chunks1,
    /// Steps of 7 tokens.
    Chunks7,
    /// Steps of 64 tokens.
    Chunks64,
    /// Steps of random sizes.
    ChunksUneven,
    /// Half of the text as prompt, then one token a step.
    Decode,
    /// All texts in one batch, of different lengths, some still reading prompt while others decode.
    Batch,
    /// Each text again, its beginning taken from the prefix cache.
    PrefixCache,
    /// Drafted tokens verified: all right, half right, all wrong, with rollback.
    Verify,
}

/// All paths, in the order they are run: the cheapest first, so that a broken engine is known early.
pub const PATHS: &[PathKind] = &[
    PathKind::Prompt,
    PathKind::Chunks64,
    PathKind::Batch,
    PathKind::PrefixCache,
    PathKind::ChunksUneven,
    PathKind::Chunks7,
    PathKind::Verify,
    PathKind::Decode,
    PathKind::Chunks1,
];

/// What an engine can take in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanLimits {
    /// Most tokens of one step.
    pub step_tokens: u32,
    /// Most sequences of one step.
    pub batch: u32,
    /// Longest sequence.
    pub context: u32,
    /// Positions of a KV block, where prefix caches have their edges.
    pub block_tokens: u32,
}

impl PlanLimits {
    /// Of the engine behind `info`. An engine that does not describe its executor gets steps of at most 256 tokens
    /// and is taken to have blocks of 16.
    pub fn of(info: &EngineInfo) -> Self {
        let or =
            |value: Option<usize>, otherwise: u32| value.map_or(otherwise, |v| u32::try_from(v).unwrap_or(u32::MAX));
        let executor = info.executor.as_ref();
        let rows = or(executor.map(|e| e.max_step_rows), 256);
        Self {
            step_tokens: or(executor.map(|e| e.max_step_tokens), 256).min(rows).max(1),
            batch: info.max_batch.max(1),
            context: info.max_context,
            block_tokens: or(executor.map(|e| e.block_tokens), 16).max(1),
        }
    }
}

/// A path made concrete for some texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPlan {
    /// Which path.
    pub kind: PathKind,
    /// What the engine is to run.
    pub plan: ScorePlan,
    /// Which text each sequence of the plan is.
    pub texts: Vec<usize>,
}

impl PathKind {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Chunks1 => "chunks_1",
            Self::Chunks7 => "chunks_7",
            Self::Chunks64 => "chunks_64",
            Self::ChunksUneven => "chunks_uneven",
            Self::Decode => "decode",
            Self::Batch => "batch",
            Self::PrefixCache => "prefix_cache",
            Self::Verify => "verify",
        }
    }

    /// What it does, in a sentence.
    pub const fn what(self) -> &'static str {
        match self {
            Self::Prompt => "the whole text in as few steps as the engine allows",
            Self::Chunks1 => "one token a step from the first on",
            Self::Chunks7 => "steps of 7 tokens",
            Self::Chunks64 => "steps of 64 tokens",
            Self::ChunksUneven => "steps of random sizes",
            Self::Decode => "half of the text as prompt, then one token a step",
            Self::Batch => "all texts in one batch, ragged, prompts and decoding in the same steps",
            Self::PrefixCache => "texts again, their beginnings taken from the prefix cache",
            Self::Verify => "drafts verified: all right, half right and all wrong, with rollback",
        }
    }

    /// The plans of this path over `texts` (index and text), none if the engine's limits rule the path out.
    pub fn build(self, texts: &[Text], limits: PlanLimits, vocab: u32, seed: u64) -> Vec<PathPlan> {
        let each = |plan: &dyn Fn(&[u32]) -> Option<ScorePlan>| {
            let plans = texts.iter().enumerate().filter(|(_, text)| text.ids.len() > 1);
            plans.filter_map(|(i, text)| Some(self.path(plan(&text.ids)?, vec![i]))).collect()
        };
        let mut rng = Rng::new(seed ^ self as u64);
        match self {
            Self::Prompt => each(&|ids| Some(chunked(ids, &mut std::iter::repeat(u32::MAX), limits))),
            // Only the start: from then on it is the decode path.
            Self::Chunks1 => each(&|ids| Some(chunked(&ids[..ids.len().min(32)], &mut std::iter::repeat(1), limits))),
            Self::Chunks7 => each(&|ids| Some(chunked(ids, &mut std::iter::repeat(7), limits))),
            Self::Chunks64 => each(&|ids| Some(chunked(ids, &mut std::iter::repeat(64), limits))),
            Self::ChunksUneven => {
                let sizes: Vec<u32> = (0..4096).map(|_| 1 + rng.below(97) as u32).collect();
                each(&|ids| Some(chunked(ids, &mut sizes.iter().copied().cycle(), limits)))
            }
            Self::Decode => each(&|ids| Some(decode(ids, limits))),
            Self::Batch => self.batches(texts, limits),
            Self::PrefixCache => each(&|ids| prefixes(ids, limits)).into_iter().map(spread_over_sequences).collect(),
            Self::Verify => {
                let noise: Vec<u32> = (0..4096).map(|_| rng.below(vocab.max(1) as usize) as u32).collect();
                each(&|ids| Some(verify(ids, limits, &noise)))
            }
        }
    }

    fn path(self, plan: ScorePlan, texts: Vec<usize>) -> PathPlan {
        PathPlan { kind: self, plan, texts }
    }

    fn batches(self, texts: &[Text], limits: PlanLimits) -> Vec<PathPlan> {
        let long_enough: Vec<usize> = (0..texts.len()).filter(|i| texts[*i].ids.len() > 1).collect();
        if limits.batch < 2 || long_enough.is_empty() {
            return Vec::new();
        }
        // Every text twice, so that two texts already make a batch of four, and one a batch of two.
        let members: Vec<usize> = long_enough.iter().chain(&long_enough).copied().collect();
        members
            .chunks(limits.batch.min(limits.step_tokens) as usize)
            .map(|group| {
                let ids: Vec<&[u32]> = group.iter().map(|i| texts[*i].ids.as_slice()).collect();
                self.path(batch(&ids, limits), group.to_vec())
            })
            .collect()
    }
}

fn spread_over_sequences(mut path: PathPlan) -> PathPlan {
    path.texts = vec![path.texts[0]; path.plan.sequences.len()];
    path
}

fn sequence(ids: &[u32]) -> ScoreSequence {
    ScoreSequence { ids: ids.to_vec(), ..ScoreSequence::default() }
}

fn item(seq: usize, take: u32, rows: bool) -> ScoreItem {
    ScoreItem { seq: seq as u32, take, rows, ..ScoreItem::default() }
}

/// Steps of the given sizes until the text is through.
fn chunked(ids: &[u32], sizes: &mut dyn Iterator<Item = u32>, limits: PlanLimits) -> ScorePlan {
    ScorePlan { sequences: vec![sequence(ids)], steps: chunks(0, ids.len(), sizes, limits, true) }
}

fn chunks(
    seq: usize,
    tokens: usize,
    sizes: &mut dyn Iterator<Item = u32>,
    limits: PlanLimits,
    rows: bool,
) -> Vec<Vec<ScoreItem>> {
    let mut left = u32::try_from(tokens).unwrap_or(u32::MAX);
    let mut steps = Vec::new();
    while left > 0 {
        let take = sizes.next().unwrap_or(u32::MAX).min(limits.step_tokens).min(left);
        steps.push(vec![item(seq, take, rows)]);
        left -= take;
    }
    steps
}

fn decode(ids: &[u32], limits: PlanLimits) -> ScorePlan {
    let prompt = ids.len() / 2;
    let mut steps = chunks(0, prompt, &mut std::iter::repeat(u32::MAX), limits, false);
    steps.extend((prompt..ids.len()).map(|_| vec![item(0, 1, true)]));
    ScorePlan { sequences: vec![sequence(ids)], steps }
}

/// Sequences of different lengths that start one after the other; each reads a third of its ids as prompt in chunks
/// of 13 and decodes the rest, so that steps mix widths.
fn batch(texts: &[&[u32]], limits: PlanLimits) -> ScorePlan {
    let sequences: Vec<ScoreSequence> = texts
        .iter()
        .enumerate()
        .map(|(i, ids)| sequence(&ids[..(ids.len() - (i * 5) % (ids.len() / 2 + 1)).max(2)]))
        .collect();
    let mut done = vec![0usize; sequences.len()];
    let mut steps = Vec::new();
    while done.iter().zip(&sequences).any(|(done, seq)| *done < seq.ids.len()) {
        let (mut step, mut room) = (Vec::new(), limits.step_tokens);
        for (i, seq) in sequences.iter().enumerate() {
            let left = seq.ids.len() - done[i];
            // Two steps later each: a late sequence reads prompt while the earlier ones decode.
            if left == 0 || steps.len() < 2 * i || room == 0 {
                continue;
            }
            let wanted = if done[i] < seq.ids.len() / 3 { 13 } else { 1 };
            let take = wanted.min(room).min(left as u32);
            step.push(item(i, take, true));
            done[i] += take as usize;
            room -= take;
        }
        steps.push(step);
    }
    steps.retain(|step| !step.is_empty());
    ScorePlan { sequences, steps }
}

/// The text once, kept; then again with prefixes at a block's edge, one before and one after, and all but one token.
fn prefixes(ids: &[u32], limits: PlanLimits) -> Option<ScorePlan> {
    let len = u32::try_from(ids.len()).ok()?;
    let edge = limits.block_tokens * (len / limits.block_tokens / 2).max(1);
    let mut asked: Vec<u32> =
        [edge, edge - 1, edge + 1, len - 1].into_iter().filter(|n| (1..len).contains(n)).collect();
    asked.sort_unstable();
    asked.dedup();
    if asked.is_empty() {
        return None;
    }
    let mut sequences = vec![ScoreSequence { keep: true, ..sequence(ids) }];
    let mut steps = chunks(0, ids.len(), &mut std::iter::repeat(u32::MAX), limits, false);
    for prefix in asked {
        let seq = sequences.len();
        sequences.push(ScoreSequence { prefix, ..sequence(ids) });
        // The engine takes from its cache what it has; `take` counts from there, so the whole text is asked for.
        steps.extend(chunks(seq, ids.len(), &mut std::iter::repeat(u32::MAX), limits, true));
    }
    Some(ScorePlan { sequences, steps })
}

/// A third as prompt, then one token and a draft a step: drafts of 1 to 4, accepted whole, by half and not at all.
fn verify(ids: &[u32], limits: PlanLimits, noise: &[u32]) -> ScorePlan {
    let prompt = (ids.len() / 3).max(1);
    let mut steps = chunks(0, prompt, &mut std::iter::repeat(u32::MAX), limits, false);
    let (mut at, mut turn) = (prompt, 0usize);
    while at < ids.len() {
        let following = &ids[at + 1..];
        let width = (1 + turn % 4).min(limits.step_tokens.saturating_sub(1) as usize);
        let accept = match turn % 3 {
            0 => width,
            1 => width / 2,
            _ => 0,
        }
        .min(following.len());
        let mut draft = following[..accept].to_vec();
        draft.extend((accept..width).map(|i| noise[(turn * 7 + i) % noise.len()]));
        // A draft past the engine's context cannot be run.
        draft.truncate((limits.context as usize).saturating_sub(at + 1).max(accept));
        steps.push(vec![ScoreItem { seq: 0, take: 1, draft, accept: accept as u32, rows: true }]);
        at += 1 + accept;
        turn += 1;
    }
    ScorePlan { sequences: vec![sequence(ids)], steps }
}

/// The rows a plan reports if `hits` positions of each sequence came from the prefix cache.
pub fn expected_rows(plan: &ScorePlan, hits: &[u32]) -> Vec<ScoreRow> {
    let mut next: Vec<u32> = vec![0; plan.sequences.len()];
    let mut rows = Vec::new();
    for item in plan.steps.iter().flatten() {
        let seq = item.seq as usize;
        let hit = hits.get(seq).copied().unwrap_or(0);
        let end = next[seq] + item.take + item.accept;
        if item.rows {
            rows.extend((next[seq].max(hit)..end).map(|position| ScoreRow { seq: item.seq, position }));
        }
        next[seq] = end;
    }
    rows
}
