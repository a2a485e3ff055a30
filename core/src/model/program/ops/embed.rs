//! `embed`: out[t] = table[token t] * scale.
//!
//! Reads the step's token ids; writes out `[T, hidden]`. Weight: table `[vocab, hidden]`.
//! Gemma scales by sqrt(hidden) rounded to bf16, which the architecture puts into `scale`.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Token embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Embed {
    /// Factor on every element.
    pub scale: f32,
    /// The row of tokens past the end of the table, for tables that leave some out.
    pub past_end: Option<u32>,
}

impl Embed {
    /// Of a table with a row for every token.
    pub fn scaled(scale: f32) -> Self {
        Self { scale, past_end: None }
    }
}

impl Op for Embed {
    fn name(&self) -> &'static str {
        "embed"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        let weight_bytes = sizes.weight_bytes(view.program, view.place, &view.tensor(0), axes.tokens());
        NodeCost { weight_bytes, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let table = (cx.tensor)(cx.view.node.weights[0]);
        let mut out = Vec::new();
        for &token in cx.tokens {
            let past = token as usize >= table.rows();
            let row = self.past_end.filter(|_| past).unwrap_or(token) as usize;
            if row >= table.rows() {
                return Err(PlainError::Token { token, vocab: table.rows() });
            }
            let mut values = vec![0.0; table.row_len()];
            table
                .dequant_rows(row..row + 1, &mut values)
                .map_err(|source| PlainError::Tensor { name: table.name().to_string(), source: source.into() })?;
            out.extend(values.iter().map(|v| v * self.scale));
        }
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
