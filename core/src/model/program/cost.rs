//! What a pass must move and compute: the numbers behind every ceiling.

use super::op::NodeView;
use super::{BlockUse, Program};
use serde::{Deserialize, Serialize};

/// The number format in which an op's arithmetic is done, so that a ceiling knows which limit applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32-bit float multiply-add.
    F32,
    /// bf16 products, f32 sums.
    Bf16,
    /// f16 products, f32 sums.
    F16,
    /// 8-bit float products.
    Fp8,
    /// 8-bit integer products, i32 sums.
    Int8,
}

/// One sequence in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SeqAxes {
    /// Tokens of this pass.
    pub tokens: u32,
    /// Positions already in the state.
    pub past: u32,
    /// Rows whose logits are wanted.
    pub rows: u32,
}

/// The axes of one pass: its sequences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Axes {
    /// Sequences in the pass.
    pub seqs: Vec<SeqAxes>,
}

impl Axes {
    /// One sequence, logits wanted at its last token.
    pub fn single(tokens: u32, past: u32) -> Self {
        Self { seqs: vec![SeqAxes { tokens, past, rows: 1 }] }
    }

    /// T: tokens of the pass.
    pub fn tokens(&self) -> u64 {
        self.seqs.iter().map(|s| u64::from(s.tokens)).sum()
    }

    /// R: rows whose logits are wanted.
    pub fn rows(&self) -> u64 {
        self.seqs.iter().map(|s| u64::from(s.rows)).sum()
    }

    /// Query-key pairs of causal attention, given the first position a query sees: what its arithmetic is proportional to.
    pub fn pairs(&self, first_visible: impl Fn(usize) -> usize) -> u64 {
        let seen = |p: u32| u64::from(p) + 1 - first_visible(p as usize) as u64;
        self.seqs.iter().map(|s| (s.past..s.past + s.tokens).map(seen).sum::<u64>()).sum()
    }

    /// Positions whose keys and values must be read at least once, given the first position a query sees (which never
    /// moves back): what attention's traffic is proportional to.
    pub fn positions_read(&self, first_visible: impl Fn(usize) -> usize) -> u64 {
        self.seqs.iter().map(|s| u64::from(s.past + s.tokens) - first_visible(s.past as usize) as u64).sum()
    }
}

/// What one op must do in one pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCost {
    /// Weight bytes read, as stored.
    pub weight_bytes: u64,
    /// State bytes read.
    pub state_read_bytes: u64,
    /// State bytes written.
    pub state_write_bytes: u64,
    /// Multiply-adds count as two operations.
    pub flops: u64,
}

/// What a whole pass must do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Cost {
    /// Weight bytes read, as stored; a tensor read by two ops of a pass counts twice.
    pub weight_bytes: u64,
    /// State bytes read.
    pub state_read_bytes: u64,
    /// State bytes written.
    pub state_write_bytes: u64,
    /// Operations in matrix products with weights.
    pub linear_flops: u64,
    /// Operations in attention and everything else.
    pub other_flops: u64,
}

impl Cost {
    /// All bytes that must cross the memory level that holds them.
    pub const fn bytes(&self) -> u64 {
        self.weight_bytes + self.state_read_bytes + self.state_write_bytes
    }
}

/// How many bytes things take as an engine stores them.
pub trait StoredSizes {
    /// Bytes of `rows` rows of a weight.
    fn weight_bytes(&self, program: &Program, place: BlockUse, tensor: &str, rows: u64) -> u64;
    /// Bytes of a key or value row of one head.
    fn kv_row_bytes(&self, dim: usize) -> u64;
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.weight_bytes += other.weight_bytes;
        self.state_read_bytes += other.state_read_bytes;
        self.state_write_bytes += other.state_write_bytes;
        self.linear_flops += other.linear_flops;
        self.other_flops += other.other_flops;
    }
}

/// The cost of each node of one pass of `entry`, with its op's name, in order.
pub fn node_costs(
    program: &Program,
    entry: &super::Entry,
    axes: &Axes,
    sizes: &dyn StoredSizes,
) -> Vec<(&'static str, Cost)> {
    let nodes = program.nodes(entry).map(|(at, node)| {
        let view = NodeView { program, block: &program.blocks[at.place.block], place: at.place, node };
        let cost = node.op.cost(&view, axes, sizes);
        let name = node.op.name();
        let (linear_flops, other_flops) = match name {
            "head_linear" | "linear" | "moe_experts" => (cost.flops, 0),
            _ => (0, cost.flops),
        };
        let moved = Cost {
            weight_bytes: cost.weight_bytes,
            state_read_bytes: cost.state_read_bytes,
            state_write_bytes: cost.state_write_bytes,
            linear_flops,
            other_flops,
        };
        (name, moved)
    });
    nodes.collect()
}

/// The cost of one pass of `entry`.
pub fn entry_cost(program: &Program, entry: &super::Entry, axes: &Axes, sizes: &dyn StoredSizes) -> Cost {
    node_costs(program, entry, axes, sizes).into_iter().fold(Cost::default(), |mut total, (_, cost)| {
        total += cost;
        total
    })
}
