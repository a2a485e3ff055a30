//! Where the last tokens occurred before: a chain of places per n-gram, as in Lempel-Ziv matchers.

use std::collections::HashMap;

/// Places tried for one proposal: bounds its time on text that repeats one n-gram everywhere.
const MAX_PLACES: usize = 64;
const NONE: u32 = u32::MAX;

/// Earlier places of every n-gram of one text. A place is the position after the n-gram.
pub(super) struct Index {
    ngram: usize,
    /// Newest place by hash of the n-gram that ends there.
    newest: HashMap<u64, u32>,
    /// For each place the next older one with the same hash.
    older: Vec<u32>,
}

impl Index {
    pub(super) fn new(ngram: usize) -> Self {
        Self { ngram, newest: HashMap::new(), older: vec![NONE] }
    }

    /// Takes in what `tokens` has more than before. The last token is left out: a place needs a token that follows.
    pub(super) fn extend(&mut self, tokens: &[u32]) {
        if tokens.len() < self.older.len() {
            // Shorter than known: another text under the same key.
            *self = Self::new(self.ngram);
        }
        for place in self.older.len()..tokens.len() {
            let older = match self.hash(&tokens[..place]) {
                Some(hash) => self.newest.insert(hash, place as u32).unwrap_or(NONE),
                None => NONE,
            };
            self.older.push(older);
        }
    }

    /// The place whose text before it agrees with the end of `tokens` the longest, at least `ngram` tokens, counting
    /// no further than `longest`; the newest among equals.
    pub(super) fn longest(&self, tokens: &[u32], longest: usize) -> Option<usize> {
        let mut place = *self.newest.get(&self.hash(tokens)?)?;
        let mut best = None;
        let mut best_len = self.ngram - 1;
        for _ in 0..MAX_PLACES {
            if place == NONE || best_len >= longest {
                break;
            }
            let len = agreement(tokens, place as usize, longest);
            if len > best_len {
                (best, best_len) = (Some(place as usize), len);
            }
            place = self.older[place as usize];
        }
        best
    }

    fn hash(&self, tokens: &[u32]) -> Option<u64> {
        let from = tokens.len().checked_sub(self.ngram)?;
        // FNV-1a over whole tokens; a collision only costs a look, agreement is checked on the tokens.
        Some(tokens[from..].iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, token| {
            (hash ^ u64::from(*token)).wrapping_mul(0x0000_0100_0000_01b3)
        }))
    }
}

/// How many tokens before `place` equal those before the end.
fn agreement(tokens: &[u32], place: usize, longest: usize) -> usize {
    tokens[..place].iter().rev().zip(tokens.iter().rev()).take(longest).take_while(|(a, b)| a == b).count()
}
