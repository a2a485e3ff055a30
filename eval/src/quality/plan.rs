//! The ways to reach a logit, as scoring plans.
//!
//! A path is named by what the engine is made to do, and built from token ids, chunk sizes, batch mates, prefixes and
//! forced drafts alone: nothing in a plan tells the engine what it is for. Every path scores the same texts, so their
//! divergences compare.

use super::texts::Text;
use crate::rng::Rng;
use crit_core::protocol::{EngineInfo, ScoreItem, ScorePlan, ScoreRow, ScoreSequence};
use serde::{Deserialize, Serialize};

/// A way to reach a logit. One line here, one arm in [`PathKind::name`], [`PathKind::what`] and [`PathKind::build`].
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
    /// Steps that end at a KV block's edge, one before it and one after.
    ChunkEdges,
    /// Steps of random sizes.
    ChunksUneven,
    /// Half of the text as prompt, the other half in one wide step that reads the stored keys and values.
    KvCache,
    /// Half of the text as prompt, then one token a step.
    Decode,
    /// A prompt about as long as the context, then one token a step.
    DecodeDepth,
    /// All texts in one batch, of different lengths, some still reading prompt while others decode.
    Batch,
    /// So many sequences decoding side by side.
    Width(u32),
    /// One sequence decodes while another reads its prompt in the same steps.
    Mixed,
    /// Each text again, its beginning taken from the prefix cache.
    PrefixCache,
    /// A text in the slot and the blocks another one has just left.
    SlotReuse,
    /// Drafted tokens verified: every width and every number accepted, with rollback.
    Verify,
}

/// Paths every engine is asked for, in the order they are run: the cheapest first, so that a broken engine is known early.
const PATHS: &[PathKind] = &[
    PathKind::Prompt,
    PathKind::Chunks64,
    PathKind::KvCache,
    PathKind::Batch,
    PathKind::Mixed,
    PathKind::PrefixCache,
    PathKind::SlotReuse,
    PathKind::ChunksUneven,
    PathKind::ChunkEdges,
    PathKind::Chunks7,
    PathKind::Verify,
    PathKind::Decode,
    PathKind::Chunks1,
    PathKind::DecodeDepth,
];

/// Widths a batch is tried at: every one to 16, where kernels change over, then some.
const WIDTHS: &[u32] = &[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 32, 48, 64];

/// All paths of an engine.
pub fn paths(limits: PlanLimits) -> Vec<PathKind> {
    let widths = WIDTHS.iter().filter(|width| **width <= limits.batch).map(|width| PathKind::Width(*width));
    PATHS.iter().copied().chain(widths).collect()
}

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
    pub fn name(self) -> String {
        match self {
            Self::Prompt => "prompt",
            Self::Chunks1 => "chunks_1",
            Self::Chunks7 => "chunks_7",
            Self::Chunks64 => "chunks_64",
            Self::ChunkEdges => "chunk_edges",
            Self::ChunksUneven => "chunks_uneven",
            Self::KvCache => "kv_cache",
            Self::Decode => "decode",
            Self::DecodeDepth => "decode_depth",
            Self::Batch => "batch",
            Self::Width(width) => return format!("batch_{width}"),
            Self::Mixed => "mixed",
            Self::PrefixCache => "prefix_cache",
            Self::SlotReuse => "slot_reuse",
            Self::Verify => "verify",
        }
        .into()
    }

    /// What it does, in a sentence.
    pub fn what(self) -> String {
        match self {
            Self::Prompt => "the whole text in as few steps as the engine allows",
            Self::Chunks1 => "one token a step from the first on",
            Self::Chunks7 => "steps of 7 tokens",
            Self::Chunks64 => "steps of 64 tokens",
            Self::ChunkEdges => "steps that end at a KV block's edge, one before it and one after",
            Self::ChunksUneven => "steps of random sizes",
            Self::KvCache => {
                "half of the text as prompt, the other half in a step that reads the stored keys and values"
            }
            Self::Decode => "half of the text as prompt, then one token a step",
            Self::DecodeDepth => "a long prompt, then one token a step",
            Self::Batch => "all texts in one batch, ragged, prompts and decoding in the same steps",
            Self::Width(width) => return format!("{width} sequences decoding side by side"),
            Self::Mixed => "one sequence decodes while another reads its prompt in the same steps",
            Self::PrefixCache => "texts again, their beginnings taken from the prefix cache",
            Self::SlotReuse => "a text in the slot and blocks another one has just left",
            Self::Verify => "drafts verified: every width and every number accepted, with rollback",
        }
        .into()
    }

    /// The plans of this path over `texts` (index and text), none if the engine's limits rule the path out.
    pub fn build(self, texts: &[Text], limits: PlanLimits, vocab: u32, seed: u64) -> Vec<PathPlan> {
        if self == Self::DecodeDepth {
            return self.each(texts, |text| text.from > 0, &|text| Some(deep(text, limits)));
        }
        let whole = |text: &Text| text.from == 0;
        let each = |plan: &dyn Fn(&[u32]) -> Option<ScorePlan>| self.each(texts, whole, &|text| plan(&text.ids));
        let mut rng = Rng::new(self.name().bytes().fold(seed, |hash, byte| hash.rotate_left(8) ^ u64::from(byte)));
        let repeat = |size: u32| each(&|ids| Some(chunked(ids, &mut std::iter::repeat(size), limits)));
        match self {
            Self::Prompt => repeat(u32::MAX),
            // Only the start: from then on it is the decode path.
            Self::Chunks1 => each(&|ids| Some(chunked(&ids[..ids.len().min(32)], &mut std::iter::repeat(1), limits))),
            Self::Chunks7 => repeat(7),
            Self::Chunks64 => repeat(64),
            Self::ChunkEdges => {
                let edge = limits.block_tokens.max(2);
                // Behind B−1 tokens comes B+1 to the second edge, one short of the third, one past it, and so on.
                let sizes = [edge - 1, edge + 1, edge - 1, 2, edge - 1, edge];
                each(&|ids| Some(chunked(ids, &mut sizes.iter().copied().cycle(), limits)))
            }
            Self::ChunksUneven => {
                let sizes: Vec<u32> = (0..4096).map(|_| 1 + rng.below(97) as u32).collect();
                each(&|ids| Some(chunked(ids, &mut sizes.iter().copied().cycle(), limits)))
            }
            Self::KvCache => each(&|ids| kv_cache(ids, limits)),
            Self::Decode => each(&|ids| Some(decode(ids, limits))),
            Self::Batch => self.batches(texts, limits),
            Self::Width(width) => self.width(texts, limits, width),
            Self::Mixed => self.mixed(texts, limits),
            Self::PrefixCache => each(&|ids| prefixes(ids, limits)).into_iter().map(spread_over_sequences).collect(),
            Self::SlotReuse => self.reuse(texts, limits),
            Self::Verify => {
                let noise: Vec<u32> = (0..4096).map(|_| rng.below(vocab.max(1) as usize) as u32).collect();
                each(&|ids| Some(verify(ids, limits, &noise)))
            }
            Self::DecodeDepth => Vec::new(),
        }
    }

    fn each(
        self,
        texts: &[Text],
        wanted: impl Fn(&Text) -> bool,
        plan: &dyn Fn(&Text) -> Option<ScorePlan>,
    ) -> Vec<PathPlan> {
        let plans = texts.iter().enumerate().filter(|(_, text)| text.ids.len() > 1 && wanted(text));
        plans.filter_map(|(i, text)| Some(self.path(plan(text)?, vec![i]))).collect()
    }

    /// `width` sequences: short prompts of different lengths, then all decode.
    fn width(self, texts: &[Text], limits: PlanLimits, width: u32) -> Vec<PathPlan> {
        let whole = whole(texts);
        if width > limits.batch.min(limits.step_tokens) || whole.is_empty() {
            return Vec::new();
        }
        let members: Vec<usize> = (0..width as usize).map(|i| whole[i % whole.len()]).collect();
        let (mut sequences, mut steps) = (Vec::new(), Vec::new());
        let mut shortest = WIDTH_STEPS;
        for (i, text) in members.iter().enumerate() {
            let ids = &texts[*text].ids;
            let prompt = (4 + i % 7).min(ids.len() - 1);
            let end = (prompt + WIDTH_STEPS).min(ids.len());
            shortest = shortest.min(end - prompt);
            sequences.push(sequence(&ids[..end]));
            steps.extend(chunks(i, prompt, &mut std::iter::repeat(u32::MAX), limits, false));
        }
        steps.extend((0..shortest).map(|_| (0..members.len()).map(|i| item(i, 1, true)).collect::<Vec<_>>()));
        sequences.iter_mut().zip(0..).for_each(|(sequence, i)| {
            let taken: u32 = steps.iter().flatten().filter(|item| item.seq == i).map(|item| item.take).sum();
            sequence.ids.truncate(taken as usize);
        });
        vec![self.path(ScorePlan { sequences, steps }, members)]
    }

    /// The first text decodes from its middle on while the others read their prompts in pieces of 16.
    fn mixed(self, texts: &[Text], limits: PlanLimits) -> Vec<PathPlan> {
        let whole = whole(texts);
        let Some((first, others)) = whole.split_first() else { return Vec::new() };
        if limits.batch < 2 || limits.step_tokens < 3 {
            return Vec::new();
        }
        let reader = *others.first().unwrap_or(first);
        let (decoding, reading) = (&texts[*first].ids, &texts[reader].ids);
        let prompt = decoding.len() / 2;
        let mut steps = chunks(0, prompt, &mut std::iter::repeat(u32::MAX), limits, false);
        let piece = 16.min(limits.step_tokens - 1);
        let (mut at, mut read) = (prompt, 0);
        while at < decoding.len() && read < reading.len() {
            let take = (piece as usize).min(reading.len() - read);
            steps.push(vec![item(0, 1, true), item(1, take as u32, true)]);
            (at, read) = (at + 1, read + take);
        }
        let sequences = vec![sequence(&decoding[..at]), sequence(&reading[..read])];
        vec![self.path(ScorePlan { sequences, steps }, vec![*first, reader])]
    }

    /// Each text twice after another one that is over: read at once, and with its second half decoded.
    fn reuse(self, texts: &[Text], limits: PlanLimits) -> Vec<PathPlan> {
        let whole = whole(texts);
        let plans = whole.iter().enumerate().map(|(i, text)| {
            let (before, ids) = (&texts[whole[(i + 1) % whole.len()]].ids, &texts[*text].ids);
            // Backwards, so that what is left behind differs even where there is only one text.
            let before: Vec<u32> = before.iter().rev().copied().collect();
            let mut steps = chunks(0, before.len(), &mut std::iter::repeat(u32::MAX), limits, false);
            steps.extend(chunks(1, ids.len(), &mut std::iter::repeat(u32::MAX), limits, true));
            let half = ids.len() / 2;
            steps.extend(chunks(2, half, &mut std::iter::repeat(u32::MAX), limits, true));
            let end = (half + REUSE_STEPS).min(ids.len());
            steps.extend((half..end).map(|_| vec![item(2, 1, true)]));
            let sequences = vec![sequence(&before), sequence(ids), sequence(&ids[..end])];
            self.path(ScorePlan { sequences, steps }, vec![*text; 3])
        });
        plans.collect()
    }

    fn path(self, plan: ScorePlan, texts: Vec<usize>) -> PathPlan {
        PathPlan { kind: self, plan, texts }
    }

    fn batches(self, texts: &[Text], limits: PlanLimits) -> Vec<PathPlan> {
        let long_enough = whole(texts);
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

/// Steps all sequences of a batch decode together: enough to pass a block's edge.
const WIDTH_STEPS: usize = 20;
/// Steps decoded in a slot used before.
const REUSE_STEPS: usize = 24;

/// Texts scored from their start.
fn whole(texts: &[Text]) -> Vec<usize> {
    (0..texts.len()).filter(|i| texts[*i].ids.len() > 1 && texts[*i].from == 0).collect()
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

/// Everything before the scored part as prompt, then one token a step.
fn deep(text: &Text, limits: PlanLimits) -> ScorePlan {
    let mut steps = chunks(0, text.from, &mut std::iter::repeat(u32::MAX), limits, false);
    steps.extend((text.from..text.ids.len()).map(|_| vec![item(0, 1, true)]));
    ScorePlan { sequences: vec![sequence(&text.ids)], steps }
}

/// Half as prompt, then the rest in steps as wide as the engine allows: every row reads stored keys and values.
fn kv_cache(ids: &[u32], limits: PlanLimits) -> Option<ScorePlan> {
    let half = ids.len() / 2;
    if half == 0 || ids.len() - half < 2 {
        return None;
    }
    let mut steps = chunks(0, half, &mut std::iter::repeat(u32::MAX), limits, false);
    steps.extend(chunks(0, ids.len() - half, &mut std::iter::repeat(u32::MAX), limits, true));
    Some(ScorePlan { sequences: vec![sequence(ids)], steps })
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
    // The longest again and again: the third hit must be as good as the first.
    asked.extend(asked.last().copied().into_iter().cycle().take(2));
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

/// A third as prompt, then one token and a draft a step: every draft of 1 to 4 with every number of them accepted.
fn verify(ids: &[u32], limits: PlanLimits, noise: &[u32]) -> ScorePlan {
    let prompt = (ids.len() / 3).max(1);
    let mut steps = chunks(0, prompt, &mut std::iter::repeat(u32::MAX), limits, false);
    let (mut at, mut turn) = (prompt, 0usize);
    let script: Vec<(usize, usize)> =
        (1..=4).flat_map(|width| (0..=width).map(move |accept| (width, accept))).collect();
    while at < ids.len() {
        let following = &ids[at + 1..];
        let (width, accept) = script[turn % script.len()];
        let width = width.min(limits.step_tokens.saturating_sub(1) as usize);
        let accept = accept.min(width).min(following.len());
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
