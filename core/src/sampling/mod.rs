//! Sampling: from a logits row to a token, alike with and without drafts.
//!
//! Order of the transforms: logit bias and penalties change logits; temperature divides them; then top-k, top-p (over
//! what top-k kept) and min-p (a share of the likeliest) drop tokens; one token is drawn from the rest. Greedy
//! (temperature 0) takes the highest changed logit and, among equals, the lowest id; no filter can alter that choice.
//!
//! Invariants: a choice depends on the row, the request's own history, its seed and the index of the token, never on
//! batch mates or on how often a step was repeated. A row with NaN or +inf, or without any finite logit, is an error.

mod distribution;
mod exp;
mod logprob;
mod params;
mod random;
mod sampler;
mod verify;

pub use distribution::{Distribution, distribution};
pub use logprob::{log_softmax, log_sum_exp, top_logprobs};
pub use params::{ParamsError, SamplingParams};
pub use random::{Lane, RandomStream};
pub use sampler::{Sampler, SamplingError};
pub use verify::Verified;
