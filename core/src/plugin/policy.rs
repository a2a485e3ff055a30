//! What policy plugins decide, as traits the runtime calls. Each has a base that is simply absent: no drafter, no
//! prefix cache.

/// Tokens a drafter proposes to follow a sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// Proposed tokens, in order; may be empty.
    pub tokens: Vec<u32>,
    /// For each proposed token, the distribution it was drawn from as (token, probability) pairs; `None` for a drafter
    /// that is certain (all probability on the proposed token). Needed by rejection sampling.
    pub probs: Option<Vec<Vec<(u32, f32)>>>,
}

/// Proposes tokens. One instance serves all sequences of an engine.
pub trait Drafter: Send {
    /// Proposes at most `limit` tokens to follow `tokens` (prompt and output so far) of request `key`.
    fn propose(&mut self, key: u64, tokens: &[u32], limit: usize) -> Draft;

    /// Tells how many of the last proposal for `key` were accepted.
    fn accepted(&mut self, key: u64, proposed: usize, accepted: usize);

    /// Forgets a request.
    fn forget(&mut self, key: u64);
}

/// What a prefix cache found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixHit {
    /// KV blocks that hold the first `blocks.len() * block_tokens` positions. Whole blocks only.
    pub blocks: Vec<u32>,
}

/// Remembers which KV blocks hold which beginnings. It owns no memory: the runtime counts references, and holds one
/// for every block the cache remembers.
pub trait PrefixCache: Send {
    /// The longest remembered beginning of `tokens`, in whole blocks of `block_tokens`.
    fn lookup(&mut self, tokens: &[u32], block_tokens: usize) -> PrefixHit;

    /// Offers a finished sequence: `blocks[i]` holds positions `i * block_tokens ..`, full blocks only. Returns the
    /// blocks it now remembers on top of those it remembered before (the runtime takes a reference on each).
    fn insert(&mut self, tokens: &[u32], blocks: &[u32], block_tokens: usize) -> Vec<u32>;

    /// Gives up remembered blocks, least useful first, until `wanted` of those for which `unused` holds are given up or
    /// none is left; returns them.
    fn evict(&mut self, wanted: usize, unused: &dyn Fn(u32) -> bool) -> Vec<u32>;

    /// Blocks remembered.
    fn len(&self) -> usize;

    /// Whether nothing is remembered.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
