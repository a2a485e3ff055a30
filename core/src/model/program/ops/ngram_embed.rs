//! `ngram_embed`: rows of hashed tables for the n-grams that end with a token, side by side.
//!
//! Reads the step's token ids; writes out `[T, heads * n]`. Weights: the table's parts, one after the other, `[rows, n]`
//! each. State: the tokens before, newest first, as id + 1; 0 where there is none.
//!
//! For each n-gram of 2 .. `multipliers.len()` tokens and each of its heads: row = offset + (xor over its tokens p back
//! of id * multipliers[p], wrapping) mod size, not negative. A token before the sequence's start, or at or before the
//! last `eos` that precedes the n-gram's end, counts as `eos`.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StateDecl, StoredSizes};
use std::any::Any;
use std::sync::Arc;

/// Hashed n-gram embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct NgramEmbed {
    /// A factor for each token of an n-gram, the last first.
    pub multipliers: Arc<[i64]>,
    /// Rows of each head's own part of the table, n-gram by n-gram.
    pub sizes: Arc<[i64]>,
    /// Where each head's part begins.
    pub offsets: Arc<[i64]>,
    /// The token that ends a text.
    pub eos: u32,
}

impl NgramEmbed {
    /// The state such an op needs.
    pub fn state(&self) -> StateDecl {
        StateDecl::recurrent("tokens", &[self.multipliers.len() - 1])
    }

    /// Rows of the table for a token, one a head; `before` as the state holds it.
    pub fn rows(&self, token: u32, before: &[f32]) -> Vec<i64> {
        let ngrams = self.multipliers.len() - 1;
        let heads = self.sizes.len() / ngrams;
        let eos = i64::from(self.eos);
        let (mut mixed, mut ended) = (i64::from(token).wrapping_mul(self.multipliers[0]), false);
        let mut rows = Vec::with_capacity(self.sizes.len());
        for (ngram, earlier) in before.iter().enumerate().take(ngrams) {
            let earlier = *earlier as i64 - 1;
            ended = ended || earlier < 0 || earlier == eos;
            mixed ^= (if ended { eos } else { earlier }).wrapping_mul(self.multipliers[ngram + 1]);
            let own = ngram * heads..(ngram + 1) * heads;
            rows.extend(own.map(|head| self.offsets[head] + mixed.rem_euclid(self.sizes[head].max(1))));
        }
        rows
    }

    /// Puts a token before those the state holds.
    pub fn remember(token: u32, before: &mut [f32]) {
        before.rotate_right(1);
        if let Some(newest) = before.first_mut() {
            // Exact in f32 up to 2^24 tokens.
            *newest = (token + 1) as f32;
        }
    }
}

impl Op for NgramEmbed {
    fn name(&self) -> &'static str {
        "ngram_embed"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        let rows = axes.tokens() * self.sizes.len() as u64;
        let weight_bytes = sizes.weight_bytes(view.program, view.place, &view.tensor(0), rows);
        NodeCost { weight_bytes, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let parts: Vec<Vec<Vec<f32>>> =
            (0..cx.view.node.weights.len()).map(|i| cx.weight(i)).collect::<Result<_, _>>()?;
        let table = parts.concat();
        let tokens = cx.tokens.to_vec();
        let state = cx.elements(0);
        let mut out = Vec::new();
        for token in tokens {
            for row in self.rows(token, state) {
                out.extend_from_slice(&table[row as usize]);
            }
            Self::remember(token, state);
        }
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
