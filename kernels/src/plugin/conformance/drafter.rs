//! The contract of a drafter: never more than asked, distributions that are ones, requests apart from each other, and
//! a request that is forgotten starts anew.
//!
//! Whether a draft is right is not its contract: a wrong one costs time, never output, because every token is
//! verified.

use super::{Numbers, Verdict, require};
use crit_core::plugin::{Draft, Drafter};

const VOCAB: u64 = 50;
/// Probabilities are f32; a sum over a vocabulary may be off by some ulps of each term.
const SUM_TOLERANCE: f32 = 1e-3;

pub(super) fn check(drafter: &mut dyn Drafter) -> Verdict {
    edges(drafter)?;
    limits_and_distributions(drafter)?;
    forgotten_starts_anew(drafter)
}

fn edges(drafter: &mut dyn Drafter) -> Verdict {
    for tokens in [&[][..], &[1], &[1, 1, 1, 1, 1, 1]] {
        let draft = drafter.propose(1, tokens, 0);
        require(draft.tokens.is_empty(), || "it proposes tokens although none are wanted".into())?;
        let draft = drafter.propose(1, tokens, 4);
        well_formed(&draft, 4)?;
        drafter.accepted(1, draft.tokens.len(), 0);
        drafter.forget(1);
    }
    // Told of requests it never saw, it must carry on.
    drafter.accepted(99, 3, 1);
    drafter.forget(98);
    Ok(())
}

fn limits_and_distributions(drafter: &mut dyn Drafter) -> Verdict {
    let mut numbers = Numbers(7);
    let mut sequences: Vec<Vec<u32>> = (0..4).map(|_| text(&mut numbers, 40)).collect();
    for step in 0..200u64 {
        let key = numbers.below(4);
        let sequence = &mut sequences[key as usize];
        let limit = numbers.below(12) as usize;
        let draft = drafter.propose(key, sequence, limit);
        well_formed(&draft, limit)?;
        let accepted = numbers.below(draft.tokens.len() as u64 + 1) as usize;
        drafter.accepted(key, draft.tokens.len(), accepted);
        sequence.extend_from_slice(&draft.tokens[..accepted]);
        sequence.push((step % VOCAB) as u32);
    }
    (0..4).for_each(|key| drafter.forget(key));
    Ok(())
}

/// Two requests with one history get one draft, whatever other requests did in between.
fn forgotten_starts_anew(drafter: &mut dyn Drafter) -> Verdict {
    let history = text(&mut Numbers(11), 60);
    let first = drafter.propose(5, &history, 8);
    drafter.accepted(5, first.tokens.len(), 0);
    drafter.forget(5);
    let second = drafter.propose(5, &history, 8);
    drafter.forget(5);
    require(first == second, || {
        format!("after `forget` the same request got another draft: {:?}, then {:?}", first.tokens, second.tokens)
    })
}

fn well_formed(draft: &Draft, limit: usize) -> Verdict {
    let count = draft.tokens.len();
    require(count <= limit, || format!("{count} tokens proposed, at most {limit} wanted"))?;
    let Some(probs) = &draft.probs else { return Ok(()) };
    require(probs.len() == count, || format!("{count} tokens proposed with {} distributions", probs.len()))?;
    for (token, row) in draft.tokens.iter().zip(probs) {
        let sum: f32 = row.iter().map(|(_, p)| p).sum();
        require((sum - 1.0).abs() < SUM_TOLERANCE, || format!("a distribution sums to {sum}"))?;
        require(row.iter().all(|(_, p)| *p >= 0.0), || "a probability is negative".into())?;
        let drawn = row.iter().any(|(t, p)| t == token && *p > 0.0);
        require(drawn, || format!("token {token} was proposed with probability 0"))?;
    }
    Ok(())
}

/// Tokens with repeats, so that a drafter that copies has something to copy.
fn text(numbers: &mut Numbers, len: usize) -> Vec<u32> {
    let phrase: Vec<u32> = (0..6).map(|_| numbers.below(VOCAB) as u32).collect();
    let mut out = Vec::new();
    while out.len() < len {
        out.extend_from_slice(&phrase);
        out.push(numbers.below(VOCAB) as u32);
    }
    out
}
