//! The messages. Everything an engine in another language must understand stands in this file.

use crate::error::Failure;
use crate::runtime::ExecutorInfo;
use crate::sampling::SamplingParams;
use serde::{Deserialize, Serialize};

/// From client to engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Request {
    /// First message of a connection. Answer: `opened`.
    Open {
        /// Protocol version of the client.
        protocol: u32,
        /// Who calls, for logs.
        client: String,
    },
    /// What the engine is. Answer: `info`.
    Info {
        /// Request id, chosen by the client.
        id: u64,
    },
    /// Generate. Answers: `tokens` any number of times, then one of `finished` or `error`.
    Submit {
        /// Request id, unique among the live ones of the connection.
        id: u64,
        /// What to generate.
        #[serde(flatten)]
        generate: Generate,
    },
    /// Stop a generation, which ends with `finished` and reason `cancelled`, or a score, which ends with `error`. An id
    /// that is not live is passed over.
    Cancel {
        /// Id of the `submit` or `score`.
        id: u64,
    },
    /// Run a scoring plan; answers: `score_chunk`s (each to be acknowledged), then `score_done` or `error`.
    Score {
        /// Request id.
        id: u64,
        /// What to run.
        plan: ScorePlan,
        /// Path of the ring file, made and sized by the client: `slots` areas of `slot_bytes` each.
        ring: String,
        /// Areas in the ring.
        slots: u32,
        /// Bytes of an area, a multiple of 4, at most 64 MiB.
        slot_bytes: u64,
    },
    /// Frees the ring area of a chunk.
    ScoreAck {
        /// Id of the `score`.
        id: u64,
        /// The chunk read.
        chunk: u64,
    },
    /// Counters since start. Answer: `stats`.
    Stats {
        /// Request id.
        id: u64,
        /// Leave out passes and op times, which may be long: for whoever asks often.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        brief: bool,
    },
    /// Finish what runs and exit. Answer: `closed`.
    Close,
}

/// What a `submit` asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Generate {
    /// Prompt token ids, at least one.
    pub prompt: Vec<u32>,
    /// How to choose tokens.
    #[serde(default)]
    pub sampling: SamplingParams,
    /// Most tokens to generate, at least one.
    pub max_tokens: u32,
    /// Token ids that end the generation; the id itself is reported.
    #[serde(default)]
    pub stop_ids: Vec<u32>,
    /// Report the chosen token's log-prob and this many alternatives; absent: no log-probs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<u32>,
}

/// From engine to client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Reply {
    /// The connection is open.
    Opened {
        /// Protocol version of the engine.
        protocol: u32,
        /// Engine name and version, for logs.
        engine: String,
    },
    /// Answer to `info`.
    Info {
        /// Request id.
        id: u64,
        /// What the engine is.
        info: Box<EngineInfo>,
    },
    /// Some tokens of a generation.
    Tokens {
        /// Id of the `submit`.
        id: u64,
        /// Token ids, in order.
        tokens: Vec<u32>,
        /// One entry a token if log-probs were asked for, else empty.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        logprobs: Vec<TokenLogprobs>,
    },
    /// A generation ended.
    Finished {
        /// Id of the `submit`.
        id: u64,
        /// Why.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// Rows of a scoring plan are in the ring.
    ScoreChunk {
        /// Id of the `score`.
        id: u64,
        /// Chunk number, from 0.
        chunk: u64,
        /// Ring area that holds it: f32 little-endian natural log-probs, `[rows, vocab]`.
        slot: u32,
        /// What each row is, in order.
        rows: Vec<ScoreRow>,
    },
    /// A scoring plan ended.
    ScoreDone {
        /// Id of the `score`.
        id: u64,
        /// Positions taken from the prefix cache, by sequence of the plan.
        #[serde(default)]
        prefix_hits: Vec<u32>,
    },
    /// Answer to `stats`.
    Stats {
        /// Request id.
        id: u64,
        /// Counters.
        stats: Box<EngineStats>,
    },
    /// Answer to `close`, the last message.
    Closed,
    /// A request failed (with its id), or the connection did (without).
    Error {
        /// Request id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<u64>,
        /// What failed, and the next step.
        error: Failure,
    },
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// A stop id was generated.
    Stop,
    /// `max_tokens` or the context is full.
    Length,
    /// The client cancelled.
    Cancelled,
}

/// What a generation took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Of those, taken from the prefix cache.
    pub cached_tokens: u32,
    /// Tokens generated.
    pub generated_tokens: u32,
    /// Tokens a drafter proposed.
    #[serde(default)]
    pub drafted_tokens: u32,
    /// Of those, accepted.
    #[serde(default)]
    pub accepted_tokens: u32,
    /// Microseconds from admission to the first token.
    #[serde(default)]
    pub first_token_us: u64,
    /// Microseconds from the first token to the last.
    #[serde(default)]
    pub decode_us: u64,
}

/// Log-probs of one generated token, of the model's own distribution (before temperature and filters).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TokenLogprobs {
    /// Natural log-prob of the chosen token.
    pub logprob: f32,
    /// The most likely tokens with theirs, best first.
    pub top: Vec<(u32, f32)>,
}

/// What an engine is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct EngineInfo {
    /// Name and version.
    pub engine: String,
    /// Architecture family of the model, if the engine says.
    #[serde(default)]
    pub arch: String,
    /// Where it runs: `cpu`, `cuda:0`.
    #[serde(default)]
    pub target: String,
    /// Longest sequence.
    pub max_context: u32,
    /// Most sequences at once.
    pub max_batch: u32,
    /// Width of a log-prob row.
    pub vocab: u32,
    /// Plugins that are on, `name@version`.
    #[serde(default)]
    pub plugins: Vec<String>,
    /// The executor's own description; absent for an engine that is not crit's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<ExecutorInfo>,
}

/// One kind of pass the engine ran, and how often: what ceilings are computed from.
///
/// Positions are rounded down, so a floor computed from them is never too high. An engine keeps a bounded number of
/// kinds; passes beyond them are summed in one entry without sequences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PassCount {
    /// Sequences in the pass, positions before it rounded down to a multiple of 64, in ascending order.
    pub seqs: Vec<crate::model::program::SeqAxes>,
    /// How often.
    pub count: u64,
    /// Microseconds in the executor, summed.
    pub time_us: u64,
}

/// Counters of an engine since start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct EngineStats {
    /// Requests waiting.
    pub waiting: u32,
    /// Requests running.
    pub running: u32,
    /// Prompt tokens computed (cached ones not counted).
    pub prompt_tokens: u64,
    /// Prompt tokens taken from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Tokens drafted.
    pub drafted_tokens: u64,
    /// Drafted tokens accepted.
    pub accepted_tokens: u64,
    /// Steps run.
    pub steps: u64,
    /// Requests whose blocks were taken back and that started over.
    pub preemptions: u64,
    /// KV blocks in use, of all.
    pub blocks_used: u32,
    /// Of those, blocks the prefix cache remembers; they are given up when others are needed.
    #[serde(default)]
    pub blocks_remembered: u32,
    /// KV blocks there are.
    pub blocks: u32,
    /// Passes by shape.
    pub passes: Vec<PassCount>,
    /// Time by op over all steps, if measured.
    pub op_times: Vec<crate::runtime::OpTime>,
}

/// A scoring plan: which tokens run in which steps, chosen by the evaluator.
///
/// A step runs all its items as one batch, and nothing else runs in it. An item covers the next `take` ids of its
/// sequence and then its `draft`; ids that came from the prefix cache are not run again, and an item left without ids
/// is skipped. After the item its sequence stands behind the taken ids and the accepted drafts. A sequence's state is
/// freed when its last item has run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ScorePlan {
    /// The sequences.
    pub sequences: Vec<ScoreSequence>,
    /// The steps, in order.
    pub steps: Vec<Vec<ScoreItem>>,
}

/// A sequence of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ScoreSequence {
    /// Its token ids.
    pub ids: Vec<u32>,
    /// Ask the engine's prefix cache first: up to this many leading ids may come from it. Their rows are not reported.
    #[serde(default)]
    pub prefix: u32,
    /// Put the sequence into the prefix cache when its last item has run.
    #[serde(default)]
    pub keep: bool,
}

/// One sequence's part in a step of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ScoreItem {
    /// Index into the plan's sequences.
    pub seq: u32,
    /// How many of its next ids to run.
    pub take: u32,
    /// Tokens to run after those as a drafter would propose them.
    #[serde(default)]
    pub draft: Vec<u32>,
    /// How many of the draft to accept; the rest is rolled back. Accepted ones must equal the sequence's next ids.
    #[serde(default)]
    pub accept: u32,
    /// Whether rows are reported (for the taken ids and the accepted drafts); without, the state advances only.
    #[serde(default = "yes")]
    pub rows: bool,
}

fn yes() -> bool {
    true
}

/// What a reported row is: the log-probs of the token after `position` of `seq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ScoreRow {
    /// Index into the plan's sequences.
    pub seq: u32,
    /// Position of the last id the row has seen.
    pub position: u32,
}
