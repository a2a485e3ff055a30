//! Ceilings: the least time the passes an engine ran could have taken on this machine.
//!
//! The floor of a pass is the larger of two times: its bytes over the read limit of the level that holds its working
//! set, and its operations over the arithmetic limit of the format used; what every pass takes regardless (serial) is
//! added and shown apart. Bytes are counted as the engine stores them, so a smaller format is a higher ceiling, not a
//! better share. Tokens a second at the ceiling are passes a second times tokens accepted a pass, which is the same
//! as tokens over the summed floors.
//!
//! Every doubt is resolved towards a *lower* floor: positions are rounded down, a working set gets the limit of the
//! next smaller one measured, a pass of several rows the faster of the engine's two formats. So a share above 100 %
//! beyond the probe's own spread cannot be an honest measurement, and is called INVALID. Caches the floor does not
//! model (a weight that stays in L2 between passes because other sequences' passes touch less) are why the working
//! set, not the model's size, picks the level.

use crate::error::EvalError;
use crate::limits::{Limits, MemoryLevel};
use crit_core::model::program::{
    Axes, BlockUse, Cost, Precision, Program, StoredSizes, WeightId, entry_cost, node_costs,
};
use crit_core::protocol::PassCount;
use crit_core::runtime::ExecutorInfo;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Bytes as an engine says it stores them.
#[derive(Clone, Debug, Default)]
pub struct EngineSizes {
    stored_bytes: HashMap<String, u64>,
    kv_row_bytes: HashMap<usize, u64>,
}

impl EngineSizes {
    /// The sizes an executor reports.
    pub fn new(info: &ExecutorInfo) -> Self {
        Self {
            stored_bytes: info.stored_bytes.iter().cloned().collect(),
            kv_row_bytes: info.kv_row_bytes.iter().map(|(dim, bytes)| (*dim, *bytes as u64)).collect(),
        }
    }

    /// Weights of `program` whose size the engine does not report: they count as nothing, which lowers the ceiling's
    /// claim and the share with it.
    pub fn unreported(&self, program: &Program) -> Vec<String> {
        let mut missing: Vec<String> = program
            .step()
            .uses
            .iter()
            .flat_map(|place| weight_names(program, *place))
            .map(|(name, _)| name)
            .filter(|name| !self.stored_bytes.contains_key(name))
            .collect();
        missing.sort();
        missing.dedup();
        missing
    }
}

impl StoredSizes for EngineSizes {
    fn weight_bytes(&self, program: &Program, place: BlockUse, tensor: &str, rows: u64) -> u64 {
        let stored = self.stored_bytes.get(tensor).copied().unwrap_or(0);
        part_of_rows(stored, weight_shape(program, place, tensor), rows)
    }

    fn kv_row_bytes(&self, dim: usize) -> u64 {
        self.kv_row_bytes.get(&dim).copied().unwrap_or(0)
    }
}

/// The sizes at which a quality mode's fastest allowed format would store the same weights.
struct ModeSizes<'a> {
    engine: &'a EngineSizes,
    weight_bits_milli: u64,
}

impl StoredSizes for ModeSizes<'_> {
    fn weight_bytes(&self, program: &Program, place: BlockUse, tensor: &str, rows: u64) -> u64 {
        let as_stored = self.engine.weight_bytes(program, place, tensor, rows);
        let Some(shape) = weight_shape(program, place, tensor).filter(|shape| shape.len() > 1) else {
            return as_stored;
        };
        let row: u64 = shape[1..].iter().map(|n| *n as u64).product();
        let packed = rows.min(shape[0] as u64) * row * self.weight_bits_milli / 8_000;
        as_stored.min(packed)
    }

    fn kv_row_bytes(&self, dim: usize) -> u64 {
        // One byte a value: 8-bit keys and values are common and pass both modes.
        self.engine.kv_row_bytes(dim).min(dim as u64)
    }
}

fn weight_names(program: &Program, place: BlockUse) -> impl Iterator<Item = (String, &[usize])> {
    let weights = program.blocks[place.block].weights.iter().enumerate();
    weights.map(move |(i, weight)| (program.tensor_name(place, WeightId(i as u32)), weight.shape.as_slice()))
}

fn weight_shape<'a>(program: &'a Program, place: BlockUse, tensor: &str) -> Option<&'a [usize]> {
    weight_names(program, place).find(|(name, _)| name == tensor).map(|(_, shape)| shape)
}

fn part_of_rows(stored: u64, shape: Option<&[usize]>, rows: u64) -> u64 {
    match shape {
        Some([all, _, ..]) if *all > 0 => {
            let part = u128::from(stored) * u128::from(rows.min(*all as u64)) / (*all as u128);
            u64::try_from(part).unwrap_or(u64::MAX)
        }
        _ => stored,
    }
}

/// Weight bits and number format of the fastest engine that a quality mode is known to accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FastestAllowed {
    /// Thousandths of a bit a weight, scales included.
    pub weight_bits_milli: u32,
    /// Format of the products, if the machine has it.
    pub precision: Precision,
}

/// What binds a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Reading weights and state.
    Memory,
    /// Arithmetic.
    Arithmetic,
}

/// The least time one pass can take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PassFloor {
    /// What it must move and compute.
    pub cost: Cost,
    /// The level that holds its working set.
    pub level: MemoryLevel,
    /// Seconds to move its bytes.
    pub memory_s: f64,
    /// Seconds to compute it.
    pub arithmetic_s: f64,
    /// Seconds every pass takes.
    pub serial_s: f64,
    /// How far above its median the limit that binds was seen, as a share.
    pub above_share: f64,
}

impl PassFloor {
    /// The floor: memory and arithmetic at once, then the serial part.
    pub fn floor_s(&self) -> f64 {
        self.memory_s.max(self.arithmetic_s) + self.serial_s
    }

    /// What binds it.
    pub fn bound(&self) -> Bound {
        if self.memory_s >= self.arithmetic_s { Bound::Memory } else { Bound::Arithmetic }
    }
}

/// The least time the passes of a phase can take together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PhaseFloor {
    /// Passes run.
    pub passes: u64,
    /// Summed floors, seconds.
    pub floor_s: f64,
    /// Seconds of it that memory binds.
    pub memory_bound_s: f64,
    /// Seconds of it that arithmetic binds.
    pub arithmetic_bound_s: f64,
    /// Seconds of it that are serial.
    pub serial_s: f64,
    /// Weight bytes read.
    pub weight_bytes: u64,
    /// State bytes read and written.
    pub state_bytes: u64,
    /// Operations.
    pub flops: u64,
    /// The level that holds the working set of most of the floor's time.
    pub level: Option<MemoryLevel>,
    /// How far above their medians the limits were seen, as a share; the largest of the passes.
    pub above_share: f64,
}

impl PhaseFloor {
    /// What binds most of the phase.
    pub fn bound(&self) -> Bound {
        if self.memory_bound_s >= self.arithmetic_bound_s { Bound::Memory } else { Bound::Arithmetic }
    }

    fn add(&mut self, pass: &PassFloor, count: u64) {
        let n = count as f64;
        self.passes += count;
        self.floor_s += n * pass.floor_s();
        self.serial_s += n * pass.serial_s;
        match pass.bound() {
            Bound::Memory => self.memory_bound_s += n * pass.memory_s,
            Bound::Arithmetic => self.arithmetic_bound_s += n * pass.arithmetic_s,
        }
        self.weight_bytes = self.weight_bytes.saturating_add(pass.cost.weight_bytes.saturating_mul(count));
        let state = pass.cost.state_read_bytes + pass.cost.state_write_bytes;
        self.state_bytes = self.state_bytes.saturating_add(state.saturating_mul(count));
        self.flops = self.flops.saturating_add((pass.cost.linear_flops + pass.cost.other_flops).saturating_mul(count));
        self.above_share = self.above_share.max(pass.above_share);
    }
}

/// Computes floors for one engine of one model on one machine.
pub struct CeilingModel<'a> {
    program: &'a Program,
    sizes: EngineSizes,
    precision: (Precision, Precision),
    limits: &'a Limits,
    best: Option<FastestAllowed>,
}

impl<'a> CeilingModel<'a> {
    /// For `program` as the engine behind `info` stores and computes it, within `limits`.
    ///
    /// # Errors
    /// The limits hold no read or no arithmetic limit.
    pub fn new(program: &'a Program, info: &ExecutorInfo, limits: &'a Limits) -> Result<Self, EvalError> {
        if limits.read.is_empty() || limits.arithmetic_limit(Precision::F32).is_none() {
            return Err(EvalError::Request {
                what: "the machine's limits hold no read or no f32 limit, so there is no ceiling".into(),
                hint: "run `crit probe` again and pass its result".into(),
            });
        }
        Ok(Self { program, sizes: EngineSizes::new(info), precision: info.precision, limits, best: None })
    }

    /// The same at the fastest format a quality mode allows.
    pub fn at_fastest(&self, best: FastestAllowed) -> Self {
        let (program, limits) = (self.program, self.limits);
        Self { program, sizes: self.sizes.clone(), precision: self.precision, limits, best: Some(best) }
    }

    /// Weights whose size the engine does not report.
    pub fn unreported(&self) -> Vec<String> {
        self.sizes.unreported(self.program)
    }

    /// What a pass of these axes must move and compute.
    pub fn cost(&self, axes: &Axes) -> Cost {
        match self.best {
            None => entry_cost(self.program, self.program.step(), axes, &self.sizes),
            Some(best) => {
                let sizes = ModeSizes { engine: &self.sizes, weight_bits_milli: u64::from(best.weight_bits_milli) };
                entry_cost(self.program, self.program.step(), axes, &sizes)
            }
        }
    }

    /// Cost and least time of each kind of op in a pass, all layers together.
    pub fn by_op(&self, axes: &Axes) -> Vec<(&'static str, Cost, f64)> {
        let mut found: Vec<(&'static str, Cost, f64)> = Vec::new();
        let nodes = node_costs(self.program, self.program.step(), axes, &self.sizes);
        // What a pass reads between two uses of a weight decides where it lies: the whole pass's working set.
        let whole: u64 = nodes.iter().map(|(_, cost)| cost.bytes()).sum();
        for (name, cost) in nodes {
            let seconds = self.least_s(&cost, whole, axes);
            match found.iter_mut().find(|(known, ..)| *known == name) {
                Some((_, sum, total_s)) => {
                    *sum += cost;
                    *total_s += seconds;
                }
                None => found.push((name, cost, seconds)),
            }
        }
        found
    }

    fn least_s(&self, cost: &Cost, working_set: u64, axes: &Axes) -> f64 {
        let formats = self.formats(axes);
        let read = self.limits.read_limit(working_set).expect("checked by `new`");
        let linear = self.limits.fastest(&formats).expect("checked by `new`");
        let other = self.limits.fastest(&[&formats[..], &[Precision::F32]].concat()).expect("checked by `new`");
        let arithmetic_s = cost.linear_flops as f64 / linear.ops_s + cost.other_flops as f64 / other.ops_s;
        (cost.bytes() as f64 / read.bytes_s).max(arithmetic_s)
    }

    /// The floor of a pass of these axes.
    pub fn pass(&self, axes: &Axes) -> PassFloor {
        let cost = self.cost(axes);
        let read = self.limits.read_limit(cost.bytes()).expect("checked by `new`");
        let formats = self.formats(axes);
        let linear = self.limits.fastest(&formats).expect("checked by `new`");
        // Attention may use the products' format or f32, whichever is faster here: towards the lower floor.
        let other = self.limits.fastest(&[&formats[..], &[Precision::F32]].concat()).expect("checked by `new`");
        let memory_s = cost.bytes() as f64 / read.bytes_s;
        let arithmetic_s = cost.linear_flops as f64 / linear.ops_s + cost.other_flops as f64 / other.ops_s;
        PassFloor {
            cost,
            level: read.level,
            memory_s,
            arithmetic_s,
            serial_s: self.limits.serial_s,
            above_share: if memory_s >= arithmetic_s { read.above_share } else { linear.above_share },
        }
    }

    /// The floor of all `passes`.
    pub fn phase(&self, passes: &[PassCount]) -> PhaseFloor {
        let mut phase = PhaseFloor::default();
        let mut by_level: HashMap<MemoryLevel, f64> = HashMap::new();
        for group in passes.iter().filter(|group| group.count > 0) {
            let floor = self.pass(&Axes { seqs: group.seqs.clone() });
            phase.add(&floor, group.count);
            *by_level.entry(floor.level).or_default() += floor.floor_s() * group.count as f64;
        }
        phase.level = by_level.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(level, _)| level);
        phase
    }

    fn formats(&self, axes: &Axes) -> Vec<Precision> {
        let (few, many) = self.precision;
        match (self.best, axes.tokens()) {
            (Some(best), _) => vec![best.precision, few, many],
            (None, 0..=1) => vec![few],
            // Where an engine changes over is its own affair: the faster of the two is the lower floor.
            (None, _) => vec![few, many],
        }
    }
}

/// The passes run between two looks at an engine's counters.
pub fn passes_between(before: &[PassCount], after: &[PassCount]) -> Vec<PassCount> {
    after
        .iter()
        .map(|group| {
            let earlier = before.iter().find(|old| old.seqs == group.seqs);
            PassCount {
                seqs: group.seqs.clone(),
                count: group.count.saturating_sub(earlier.map_or(0, |old| old.count)),
                time_us: group.time_us.saturating_sub(earlier.map_or(0, |old| old.time_us)),
            }
        })
        .filter(|group| group.count > 0)
        .collect()
}

/// Splits passes into those that read prompt (some token's logits are not wanted) and those that decode or verify.
pub fn split_passes(passes: &[PassCount]) -> (Vec<PassCount>, Vec<PassCount>) {
    passes.iter().cloned().partition(|group| group.seqs.iter().any(|seq| seq.rows < seq.tokens))
}

/// How sure a share is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ShareState {
    /// The machine was steady and the share is possible.
    Valid,
    /// The machine was not steady: the share is a hint, whatever its size.
    Unstable,
    /// Faster than the machine can be: something in the measurement or the engine is not what it says.
    Invalid,
}

/// A phase's speed beside its ceiling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Share {
    /// Tokens a second measured.
    pub tok_s: f64,
    /// Tokens a second of the same passes at the floor.
    pub ceiling_tok_s: f64,
    /// `tok_s / ceiling_tok_s`: 1 is the machine's limit.
    pub share: f64,
    /// The largest share that the probe's spread explains.
    pub share_limit: f64,
    /// How sure it is.
    pub state: ShareState,
    /// Why, for `unstable` and `invalid`.
    pub reason: Option<String>,
    /// What binds most of the phase.
    pub bound: Bound,
    /// The level that holds the working set.
    pub level: Option<MemoryLevel>,
    /// Tokens a second at the floor of the fastest format the quality mode allows.
    pub fastest_allowed_tok_s: Option<f64>,
}

/// Compares `tokens` made in `measured_s` with the floor of the passes that made them.
///
/// `None` when no pass was counted or no time measured: there is no share of nothing.
pub fn share(tokens: u64, measured_s: f64, floor: &PhaseFloor, limits: &Limits) -> Option<Share> {
    if floor.passes == 0 || floor.floor_s <= 0.0 || measured_s <= 0.0 || tokens == 0 {
        return None;
    }
    let tok_s = tokens as f64 / measured_s;
    let ceiling_tok_s = tokens as f64 / floor.floor_s;
    let share = tok_s / ceiling_tok_s;
    let share_limit = 1.0 + floor.above_share;
    let (state, reason) = judge(share, share_limit, limits);
    let (bound, level) = (floor.bound(), floor.level);
    let fastest_allowed_tok_s = None;
    Some(Share { tok_s, ceiling_tok_s, share, share_limit, state, reason, bound, level, fastest_allowed_tok_s })
}

fn judge(share: f64, share_limit: f64, limits: &Limits) -> (ShareState, Option<String>) {
    if !limits.is_stable() {
        return (ShareState::Unstable, Some(limits.unstable.join("; ")));
    }
    if share > share_limit {
        let reason = format!(
            "{:.1} % of what the machine can do, at most {:.1} % is explained by the probe's spread",
            share * 100.0,
            share_limit * 100.0
        );
        return (ShareState::Invalid, Some(reason));
    }
    (ShareState::Valid, None)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::limits::tests::round_limits;
    use crit_core::model::program::ops::{attention::Attention, embed::Embed, kv_write::KvWrite, linear::Linear};
    use crit_core::model::program::{
        Axis, Block, Entry, OpNode, Rollback, SeqAxes, StateDecl, StateId, StateKind, ValueDecl, ValueId, WeightDecl,
        WeightId,
    };
    use std::sync::Arc;

    /// One layer: embed `[1000, 64]`, a 64 x 64 projection, attention of 2 heads of 32, and the embedding as head.
    pub(crate) fn toy() -> Program {
        let value = |name, axis, width| ValueDecl { name, axis, width };
        let weight = |role, tensor: &str, shape: &[usize]| WeightDecl {
            role,
            tensor: tensor.into(),
            shape: shape.to_vec(),
            shard_axis: None,
            view: None,
        };
        let node =
            |op: Arc<dyn crit_core::model::program::Op>, reads: &[u32], writes: &[u32], weights, states| OpNode {
                op,
                reads: reads.iter().map(|i| ValueId(*i)).collect(),
                writes: writes.iter().map(|i| ValueId(*i)).collect(),
                weights,
                states,
            };
        let kv = StateDecl {
            role: "kv",
            kind: StateKind::Kv { heads: 2, key_dim: 32, value_dim: 32, window: None },
            rollback: Rollback::Truncate,
            owner: None,
        };
        let attention = Attention {
            heads: 2,
            kv_heads: 2,
            key_dim: 32,
            value_dim: 32,
            scale: 1.0,
            window: None,
            softcap: None,
            chunk: None,
            sinks: false,
        };
        let blocks = vec![
            Block {
                kind: "prologue",
                weights: vec![weight("embed", "embed", &[1000, 64])],
                states: vec![],
                ops: vec![node(Arc::new(Embed::scaled(1.0)), &[], &[0], vec![WeightId(0)], vec![])],
            },
            Block {
                kind: "layer",
                weights: vec![weight("q_proj", "layers.{layer}.q", &[64, 64])],
                states: vec![kv],
                ops: vec![
                    node(Arc::new(Linear { bias: false }), &[0], &[1], vec![WeightId(0)], vec![]),
                    node(
                        Arc::new(KvWrite { heads: 2, key_dim: 32, value_dim: 32 }),
                        &[1, 1],
                        &[],
                        vec![],
                        vec![StateId(0)],
                    ),
                    node(Arc::new(attention), &[1], &[1], vec![], vec![StateId(0)]),
                ],
            },
            Block {
                kind: "epilogue",
                weights: vec![weight("head", "embed", &[1000, 64])],
                states: vec![],
                ops: vec![node(Arc::new(Linear { bias: false }), &[1], &[2], vec![WeightId(0)], vec![])],
            },
        ];
        let uses = [(0, None), (1, Some(0)), (2, None)].map(|(block, layer)| BlockUse { block, layer }).to_vec();
        Program {
            arch: "toy",
            vocab: 1000,
            hidden: 64,
            layers: 1,
            max_context: 4096,
            values: vec![
                value("hidden", Axis::Tokens, 64),
                value("q", Axis::Tokens, 64),
                value("logits", Axis::Rows, 1000),
            ],
            blocks,
            entries: vec![Entry { name: "step", uses }],
            logits: ValueId(2),
            skips: vec![],
        }
    }

    /// 8-bit table, 16-bit projection, 8-bit keys and values.
    /// An engine of the toy.
    pub(crate) fn engine(precision: (Precision, Precision)) -> ExecutorInfo {
        ExecutorInfo {
            name: "toy".into(),
            vocab: 1000,
            block_tokens: 16,
            blocks: 1,
            slots: 1,
            max_context: 4096,
            max_step_tokens: 512,
            max_step_rows: 512,
            slot_bytes: 0,
            drafts: false,
            long_above: None,
            kv_row_bytes: vec![(32, 32)],
            stored_bytes: vec![("embed".into(), 64_000), ("layers.0.q".into(), 8_192)],
            precision,
            memory: Default::default(),
        }
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-12 * b.abs()
    }

    fn passes(tokens: u32, past: u32, rows: u32, count: u64) -> PassCount {
        PassCount { seqs: vec![SeqAxes { tokens, past, rows }], count, time_us: 0 }
    }

    #[test]
    fn decode_pass_by_hand() {
        let (program, limits) = (toy(), round_limits());
        let model = CeilingModel::new(&program, &engine((Precision::Int8, Precision::Bf16)), &limits).unwrap();
        let pass = model.pass(&Axes::single(1, 99));
        // Weights: one embedding row 64, projection 8,192, head 64,000. State: 100 positions of 2 heads of 32 + 32 bytes
        // read, one written.
        assert_eq!(pass.cost.weight_bytes, 64 + 8_192 + 64_000);
        assert_eq!((pass.cost.state_read_bytes, pass.cost.state_write_bytes), (12_800, 128));
        assert_eq!(pass.level, MemoryLevel::L2);
        assert!(close(pass.memory_s, 85_184.0 / 80e9));
        // 2·64·64 + 2·64·1000 in products, 2·100·2·64 in attention, all at the int8 limit.
        assert!(close(pass.arithmetic_s, (136_192.0 + 25_600.0) / 400e9));
        assert_eq!(pass.bound(), Bound::Memory);
        assert_eq!(pass.floor_s(), pass.memory_s);
    }

    #[test]
    fn prefill_pass_by_hand() {
        let (program, limits) = (toy(), round_limits());
        let model = CeilingModel::new(&program, &engine((Precision::F32, Precision::Bf16)), &limits).unwrap();
        let pass = model.pass(&Axes::single(64, 0));
        assert_eq!(pass.cost.bytes(), 4_096 + 8_192 + 64_000 + 8_192 + 8_192);
        assert!(close(pass.arithmetic_s, (652_288.0 + 532_480.0) / 200e9));
        assert_eq!(pass.bound(), Bound::Arithmetic);
    }

    #[test]
    fn a_pass_of_one_token_uses_the_format_of_few_rows() {
        let (program, limits) = (toy(), round_limits());
        let model = CeilingModel::new(&program, &engine((Precision::F32, Precision::Int8)), &limits).unwrap();
        let pass = model.pass(&Axes::single(1, 0));
        assert!(close(pass.arithmetic_s, (136_192.0 + 256.0) / 100e9));
    }

    #[test]
    fn tokens_at_the_ceiling_are_tokens_over_the_summed_floors() {
        let (program, mut limits) = (toy(), round_limits());
        limits.serial_s = 1e-6;
        let model = CeilingModel::new(&program, &engine((Precision::Int8, Precision::Bf16)), &limits).unwrap();
        let floor = model.phase(&[passes(1, 64, 1, 10), passes(4, 64, 4, 5)]);
        let by_hand = 10.0 * model.pass(&Axes::single(1, 64)).floor_s() + 5.0 * model.pass(&axes(4, 64, 4)).floor_s();
        assert!(close(floor.floor_s, by_hand));
        assert!(close(floor.serial_s, 15e-6));
        assert_eq!(floor.passes, 15);
        // 25 tokens came out of those 15 passes: half the ceiling when they took twice the floor.
        let share = share(25, 2.0 * floor.floor_s, &floor, &limits).unwrap();
        assert!(close(share.share, 0.5) && close(share.ceiling_tok_s, 25.0 / floor.floor_s));
        assert_eq!(share.state, ShareState::Valid);
    }

    fn axes(tokens: u32, past: u32, rows: u32) -> Axes {
        Axes { seqs: vec![SeqAxes { tokens, past, rows }] }
    }

    #[test]
    fn above_physics_is_invalid_and_on_an_unsteady_machine_unstable() {
        let (program, mut limits) = (toy(), round_limits());
        let model = CeilingModel::new(&program, &engine((Precision::Int8, Precision::Bf16)), &limits).unwrap();
        let floor = model.phase(&[passes(1, 64, 1, 100)]);
        let state = |time: f64, limits: &Limits| share(100, time * floor.floor_s, &floor, limits).unwrap().state;
        // The read limit's samples reached 2 % above their median.
        assert_eq!(state(1.0 / 1.019, &limits), ShareState::Valid);
        assert_eq!(state(1.0 / 1.021, &limits), ShareState::Invalid);
        assert_eq!(state(0.5, &limits), ShareState::Invalid);
        drop(model);
        limits.unstable.push("3 % steal time".into());
        assert_eq!(state(0.5, &limits), ShareState::Unstable);
        assert_eq!(state(2.0, &limits), ShareState::Unstable);
    }

    #[test]
    fn nothing_measured_has_no_share() {
        let floor = PhaseFloor { passes: 1, floor_s: 1.0, ..PhaseFloor::default() };
        let limits = round_limits();
        assert_eq!(share(0, 1.0, &floor, &limits), None);
        assert_eq!(share(1, 0.0, &floor, &limits), None);
        assert_eq!(share(1, 1.0, &PhaseFloor::default(), &limits), None);
    }

    #[test]
    fn the_fastest_allowed_format_never_lowers_the_ceiling() {
        let (program, limits) = (toy(), round_limits());
        let model = CeilingModel::new(&program, &engine((Precision::F32, Precision::F32)), &limits).unwrap();
        let best = FastestAllowed { weight_bits_milli: 4_500, precision: Precision::Int8 };
        let cost = model.at_fastest(best).cost(&Axes::single(1, 0));
        // 4.5 bits: an embedding row of 36 bytes, a projection of 2,304, a head of 36,000.
        assert_eq!(cost.weight_bytes, 36 + 2_304 + 36_000);
        assert!(model.at_fastest(best).pass(&Axes::single(1, 0)).floor_s() < model.pass(&Axes::single(1, 0)).floor_s());
        let wide = FastestAllowed { weight_bits_milli: 64_000, precision: Precision::F32 };
        assert_eq!(model.at_fastest(wide).cost(&Axes::single(1, 0)), model.cost(&Axes::single(1, 0)));
    }

    #[test]
    fn weights_the_engine_does_not_report_are_named() {
        let (program, limits) = (toy(), round_limits());
        let mut info = engine((Precision::F32, Precision::F32));
        info.stored_bytes.truncate(1);
        let model = CeilingModel::new(&program, &info, &limits).unwrap();
        assert_eq!(model.unreported(), vec!["layers.0.q".to_string()]);
    }

    #[test]
    fn no_limits_no_ceiling() {
        let (program, limits) = (toy(), Limits::default());
        assert!(CeilingModel::new(&program, &engine((Precision::F32, Precision::F32)), &limits).is_err());
    }

    #[test]
    fn counters_are_compared_shape_by_shape() {
        let before = [passes(1, 64, 1, 5), passes(512, 0, 1, 1)];
        let after = [passes(1, 64, 1, 9), passes(512, 0, 1, 1), passes(1, 128, 1, 2)];
        assert_eq!(passes_between(&before, &after), vec![passes(1, 64, 1, 4), passes(1, 128, 1, 2)]);
        let (prefill, decode) = split_passes(&after);
        assert_eq!((prefill.len(), decode.len()), (1, 2));
    }
}
