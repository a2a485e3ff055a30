//! `moe_route` by the op's own choice, in f64: a choice is a cliff, and rounding must not decide it.

use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::moe_route::{MoeRoute, named_experts};
use crit_core::runtime::EngineError;

struct Route {
    op: MoeRoute,
    bias: Vec<f32>,
    factors: Vec<f32>,
    /// Experts by token id, `[vocab][k]`, if a table chooses.
    table: Vec<Vec<usize>>,
    experts: usize,
    logits: ValueId,
    ids: ValueId,
    weights: ValueId,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let op = node.op::<MoeRoute>().clone();
    let vector = |has: bool, i: usize| if has { node.weights[i].to_f32() } else { Vec::new() };
    let (bias, factors) = (vector(op.biased, 0), vector(op.expert_factors, usize::from(op.biased)));
    let (n, experts) = (node.view.node, node.view.read_width(0));
    let table = match op.by_token {
        true => node.weights[0].to_f32().chunks(op.top_k).map(|row| named_experts(row, experts)).collect(),
        false => Vec::new(),
    };
    Ok(Box::new(Route {
        op,
        bias,
        factors,
        table,
        experts,
        logits: n.reads[0],
        ids: n.writes[0],
        weights: n.writes[1],
    }))
}

impl Kernel for Route {
    fn name(&self) -> &str {
        "moe_route"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let (mut ids, mut weights) = (cx.values.take(self.ids), cx.values.take(self.weights));
        let k = self.op.top_k;
        for (t, logits) in cx.values.get(self.logits).chunks(self.experts).enumerate() {
            let put = |rank, expert, weight| {
                (ids[t * k + rank], weights[t * k + rank]) = (expert as f32, weight);
            };
            match self.table.get(cx.batch.tokens[t] as usize) {
                Some(named) => self.op.weigh_named(logits, named, put),
                None => self.op.choose(logits, &self.bias, &self.factors, put),
            }
        }
        cx.values.put(self.ids, ids);
        cx.values.put(self.weights, weights);
        Ok(())
    }
}
