//! `add_positions`: out[t] = x[t] + table[p], a learned embedding of the token's absolute position p.
//!
//! Reads x `[T, n]`; writes out `[T, n]` (may be x). Weight: table `[positions, n]`. A position past the table's end has no
//! embedding: an architecture with this op limits the context to the table.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Learned positions.
#[derive(Clone, Debug, PartialEq)]
pub struct AddPositions;

impl Op for AddPositions {
    fn name(&self) -> &'static str {
        "add_positions"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        NodeCost {
            weight_bytes: sizes.weight_bytes(view.program, view.place, &view.tensor(0), axes.tokens()),
            flops: axes.tokens() * view.write_width(0) as u64,
            ..NodeCost::default()
        }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let table = (cx.tensor)(cx.view.node.weights[0]);
        let mut out = cx.read(0);
        let mut row = vec![0.0; table.row_len()];
        for (t, x) in out.chunks_mut(table.row_len()).enumerate() {
            let position = cx.past + t;
            table
                .dequant_rows(position..position + 1, &mut row)
                .map_err(|source| PlainError::Tensor { name: table.name().to_string(), source: source.into() })?;
            x.iter_mut().zip(&row).for_each(|(x, p)| *x += p);
        }
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
