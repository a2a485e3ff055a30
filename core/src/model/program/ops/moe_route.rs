//! `moe_route`: for each token the experts that work on it, and their weights (Shazeer et al. 2017, arXiv:1701.06538).
//!
//! Reads router logits `[T, E]`; writes ids `[T, k]` (expert numbers, exact in f32) and weights `[T, k]`, best first, the
//! lower number first among equals. Weights, as the fields say: a bias of the choice `[E]`, then a factor of each
//! expert's weight `[E]`.
//!
//! Scores come from logits by `score`. Experts are chosen by score plus bias. With groups, E is cut into equal runs; only
//! the best `kept` groups take part, a group being as good as its two best experts together (DeepSeek-AI 2024,
//! arXiv:2412.19437). Weights are the chosen scores without bias, divided by their sum (plus 1e-20) if `normalised`,
//! times `factor`, times the expert's own factor. With `by_token` a table `[vocab, k]` in the bias's place names the experts of
//! each token id instead, in its order.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// How a logit becomes a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// Softmax over all experts.
    Softmax,
    /// Each on its own.
    Sigmoid,
    /// sqrt(ln(1 + e^x)), each on its own.
    SqrtSoftplus,
}

/// Groups of experts of which only some take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Groups there are.
    pub count: usize,
    /// Groups that take part.
    pub kept: usize,
}

/// Choice of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeRoute {
    /// Experts a token gets.
    pub top_k: usize,
    /// How logits become scores.
    pub score: Score,
    /// Groups, if the choice is limited by them.
    pub groups: Option<Groups>,
    /// Whether weights are divided by their sum.
    pub normalised: bool,
    /// Factor on all weights.
    pub factor: f32,
    /// Whether there is a bias of the choice.
    pub biased: bool,
    /// Whether each expert has a factor of its own.
    pub expert_factors: bool,
    /// Whether a table by token ids chooses.
    pub by_token: bool,
}

impl MoeRoute {
    /// Softmax over all experts, the best `top_k` of them.
    pub fn softmax(top_k: usize, normalised: bool) -> Self {
        let score = Score::Softmax;
        Self {
            top_k,
            score,
            groups: None,
            normalised,
            factor: 1.0,
            biased: false,
            expert_factors: false,
            by_token: false,
        }
    }

    /// Chooses for one token: calls `put` with rank, expert and weight.
    pub fn choose(&self, logits: &[f32], bias: &[f32], factors: &[f32], put: impl FnMut(usize, usize, f32)) {
        let scores = self.scores(logits);
        let mut choice: Vec<f64> = scores.clone();
        choice.iter_mut().zip(bias).for_each(|(c, b)| *c += f64::from(*b));
        if let Some(groups) = self.groups {
            keep_groups(&mut choice, groups);
        }
        let mut order: Vec<usize> = (0..choice.len()).collect();
        order.sort_by(|a, b| choice[*b].total_cmp(&choice[*a]).then(a.cmp(b)));
        order.truncate(self.top_k);
        self.weigh(&scores, &order, factors, put);
    }

    /// Weighs the experts a table names for one token: calls `put` with rank, expert and weight.
    pub fn weigh_named(&self, logits: &[f32], named: &[usize], put: impl FnMut(usize, usize, f32)) {
        self.weigh(&self.scores(logits), named, &[], put);
    }

    fn weigh(&self, scores: &[f64], order: &[usize], factors: &[f32], mut put: impl FnMut(usize, usize, f32)) {
        let sum: f64 = order.iter().map(|e| scores[*e]).sum();
        let divisor = if self.normalised { sum + 1e-20 } else { 1.0 };
        for (rank, &expert) in order.iter().enumerate() {
            let own = factors.get(expert).map_or(1.0, |f| f64::from(*f));
            put(rank, expert, (scores[expert] / divisor * f64::from(self.factor) * own) as f32);
        }
    }

    fn scores(&self, logits: &[f32]) -> Vec<f64> {
        let logits = logits.iter().map(|x| f64::from(*x));
        match self.score {
            Score::Sigmoid => logits.map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
            Score::SqrtSoftplus => logits.map(|x| (x.max(0.0) + (-x.abs()).exp().ln_1p()).sqrt()).collect(),
            Score::Softmax => {
                let max = logits.clone().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = logits.map(|x| (x - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                weights.iter().map(|w| w / sum).collect()
            }
        }
    }
}

/// The experts a row of a table names; what names none that is there becomes the last.
pub fn named_experts(row: &[f32], experts: usize) -> Vec<usize> {
    row.iter().map(|expert| (*expert as usize).min(experts - 1)).collect()
}

/// Puts experts of all but the best groups out of the choice.
fn keep_groups(choice: &mut [f64], groups: Groups) {
    let size = (choice.len() / groups.count.max(1)).max(1);
    let worth = |group: &[f64]| {
        let mut best = group.to_vec();
        best.sort_by(|a, b| b.total_cmp(a));
        best.iter().take(2).sum::<f64>()
    };
    let worths: Vec<f64> = choice.chunks(size).map(worth).collect();
    let mut order: Vec<usize> = (0..worths.len()).collect();
    order.sort_by(|a, b| worths[*b].total_cmp(&worths[*a]).then(a.cmp(b)));
    for group in order.into_iter().skip(groups.kept) {
        choice[group * size..(group + 1) * size].fill(f64::NEG_INFINITY);
    }
}

impl Op for MoeRoute {
    fn name(&self) -> &'static str {
        "moe_route"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        let bytes = |i| sizes.weight_bytes(view.program, view.place, &view.tensor(i), 1);
        let table = |i| sizes.weight_bytes(view.program, view.place, &view.tensor(i), axes.tokens());
        NodeCost {
            weight_bytes: match self.by_token {
                true => table(0),
                false => (0..view.node.weights.len()).map(bytes).sum(),
            },
            flops: 8 * axes.tokens() * view.read_width(0) as u64,
            ..NodeCost::default()
        }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let bias = if self.biased { cx.vector(0)? } else { Vec::new() };
        let factors = if self.expert_factors { cx.vector(usize::from(self.biased))? } else { Vec::new() };
        let (logits, experts, k) = (cx.read(0), cx.view.read_width(0), self.top_k);
        let count = logits.len() / experts * k;
        let (mut ids, mut weights) = (vec![0.0; count], vec![0.0; count]);
        let table = if self.by_token { cx.weight(0)? } else { Vec::new() };
        for (t, logits) in logits.chunks(experts).enumerate() {
            let put = |rank, expert, weight| {
                (ids[t * k + rank], weights[t * k + rank]) = (expert as f32, weight);
            };
            if self.by_token {
                let named: Vec<usize> = named_experts(&table[cx.tokens[t] as usize], experts);
                self.weigh_named(logits, &named, put);
            } else {
                self.choose(logits, &bias, &factors, put);
            }
        }
        cx.write(0, ids);
        cx.write(1, weights);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
