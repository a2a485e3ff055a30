//! Recurrent kernels against their ops' plain loops: odd sizes, every instruction set, two sequences in pieces of several
//! lengths, slots used before, and trial tokens taken back.

use super::{gated_delta, mamba2, short_conv};
use crate::cpu::{Isa, Pool};
use crate::exec::common::Lower;
use crate::exec::{KvF32, KvStore, Lowering, RecurrentStore, StepCx, Values};
use crit_core::files::StoredTensor;
use crit_core::model::program::op::{NodeView, PlainState};
use crit_core::model::program::ops::gated_act::Activation;
use crit_core::model::program::ops::gated_delta::{GatedDelta, HeadOrder};
use crit_core::model::program::ops::mamba2::Mamba2;
use crit_core::model::program::ops::short_conv::ShortConv;
use crit_core::model::program::{
    Axis, Block, BlockUse, Entry, NodeRef, Op, OpNode, PlainCx, Program, StateDecl, StateId, ValueDecl, ValueId,
    WeightDecl, WeightId,
};
use crit_core::runtime::StepBatch;
use std::sync::Arc;

/// Most tokens of a step.
const MOST: usize = 16;

fn noise(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i + seed * 31) * 7919 % 1013) as f32 / 506.0 - 1.0).collect()
}

/// An op alone, with its weights.
struct Case {
    program: Program,
    weights: Vec<StoredTensor>,
    lower: Lower,
}

fn case(op: impl Op, state: StateDecl, reads: &[usize], writes: usize, weights: &[Vec<usize>], lower: Lower) -> Case {
    let value = |name, width| ValueDecl { name, axis: Axis::Tokens, width };
    let mut values: Vec<ValueDecl> = reads.iter().map(|width| value("in", *width)).collect();
    values.push(value("out", writes));
    let out = ValueId(reads.len() as u32);
    let tensor = |(i, shape): (usize, &Vec<usize>)| {
        let values = noise(50 + i, shape.iter().product());
        StoredTensor::from_f32(&format!("weight{i}"), shape, &values).expect("sizes fit")
    };
    let weights: Vec<StoredTensor> = weights.iter().enumerate().map(tensor).collect();
    let node = OpNode {
        op: Arc::new(op),
        reads: (0..reads.len() as u32).map(ValueId).collect(),
        writes: vec![out],
        weights: (0..weights.len() as u32).map(WeightId).collect(),
        states: vec![StateId(0)],
    };
    let decls = weights.iter().map(|tensor| WeightDecl {
        role: "weight",
        tensor: tensor.name().into(),
        shape: tensor.shape().to_vec(),
        shard_axis: None,
        view: None,
    });
    let block = Block { kind: "layer", weights: decls.collect(), states: vec![state], ops: vec![node] };
    let program = Program {
        arch: "recurrence",
        vocab: 1,
        hidden: reads[0],
        layers: 1,
        max_context: 64,
        values,
        blocks: vec![block],
        entries: vec![Entry { name: "step", uses: vec![BlockUse { block: 0, layer: Some(0) }] }],
        logits: out,
        skips: Vec::new(),
    };
    Case { program, weights, lower }
}

impl Case {
    fn view(&self) -> NodeView<'_> {
        let block = &self.program.blocks[0];
        NodeView { program: &self.program, block, place: self.program.entries[0].uses[0], node: &block.ops[0] }
    }

    fn width(&self, id: usize) -> usize {
        self.program.values[id].width
    }

    /// A sequence's inputs, `[tokens, width]` each.
    fn inputs(&self, seed: usize, tokens: usize) -> Vec<Vec<f32>> {
        (0..self.program.logits.at()).map(|id| noise(seed + id, tokens * self.width(id))).collect()
    }

    /// A sequence in one go by the op's own loops.
    fn plain(&self, inputs: &[Vec<f32>], tokens: usize) -> Vec<f32> {
        let elements = vec![0.0; self.program.blocks[0].states[0].kind.recurrent_elements()];
        let mut values = [inputs, &[Vec::new()]].concat();
        let mut cx = PlainCx {
            view: self.view(),
            tokens: &vec![0; tokens],
            carried: &[],
            past: 0,
            length: tokens,
            rows: &[],
            values: &mut values,
            states: &mut [PlainState { elements, ..PlainState::default() }],
            tensor: &|weight: WeightId| self.weights[weight.at()].clone(),
        };
        self.view().node.op.plain(&mut cx).expect("plain loops run");
        values.swap_remove(self.program.logits.at())
    }

    /// Two sequences by the kernel, in steps of (tokens of one, tokens of the other); with `trial`, each step runs wrong
    /// tokens behind the right ones and takes them back.
    fn kernel(&self, isa: Isa, all: [&[Vec<f32>]; 2], steps: &[(usize, usize)], trial: bool) -> [Vec<f32>; 2] {
        let (program, pool) = (&self.program, Pool::new(2).expect("threads start"));
        let lowering = Lowering {
            turns: Default::default(),
            products: Default::default(),
            threads: pool.threads(),
            view: self.view(),
            at: NodeRef { use_index: 0, op_index: 0, place: self.view().place },
            weights: self.weights.clone(),
            isa,
            kv: Arc::new(KvF32),
        };
        let mut kernel = (self.lower)(lowering).expect("it lowers");
        kernel.prepare(MOST, MOST).expect("memory suffices");
        let mut kv = KvStore::new(program, Arc::new(KvF32), 16, 1);
        let mut recurrent = RecurrentStore::new(program, 3);
        let mut outs = [Vec::new(), Vec::new()];
        let mut past = [0usize; 2];
        let extra = if trial { 2 } else { 0 };
        for (a, b) in steps {
            let mut batch = StepBatch::default();
            let mut rows: Vec<Vec<f32>> = vec![Vec::new(); program.logits.at()];
            // The slots are not in the sequences' order.
            for (seq, (tokens, slot)) in [(*a, 2), (*b, 0)].into_iter().enumerate().filter(|(_, part)| part.0 > 0) {
                batch.push(&vec![0; tokens + extra], past[seq] as u32, vec![0], slot, 0..0);
                batch.on_trial(extra as u32);
                for (id, rows) in rows.iter_mut().enumerate() {
                    let width = self.width(id);
                    rows.extend_from_slice(&all[seq][id][past[seq] * width..(past[seq] + tokens) * width]);
                    rows.extend(noise(99, extra * width));
                }
                past[seq] += tokens;
            }
            recurrent.begin(&batch);
            let mut values = Values::new(program, MOST, MOST);
            values.begin(batch.tokens.len(), 0);
            for (id, rows) in rows.iter().enumerate() {
                let id = ValueId(id as u32);
                let mut buffer = values.take(id);
                buffer[..rows.len()].copy_from_slice(rows);
                values.put(id, buffer);
            }
            let mut cx =
                StepCx { batch: &batch, values: &mut values, kv: &mut kv, recurrent: &mut recurrent, pool: &pool };
            kernel.enqueue(&mut cx).expect("it runs");
            self.take(&values, &batch, &mut outs);
            batch.seqs.iter().filter(|_| trial).for_each(|seq| recurrent.roll_back(seq.slot as usize));
        }
        outs
    }

    /// Appends what a step gave for tokens that are not on trial.
    fn take(&self, values: &Values, batch: &StepBatch, outs: &mut [Vec<f32>; 2]) {
        let (out, width) = (values.get(self.program.logits), self.width(self.program.logits.at()));
        for seq in &batch.seqs {
            let sure = (seq.tokens - seq.trial) as usize;
            let first = seq.first as usize;
            outs[usize::from(seq.slot == 0)].extend_from_slice(&out[first * width..(first + sure) * width]);
        }
    }

    fn check(&self, name: &str) {
        let (tokens, other) = (23, 11);
        let (one, two) = (self.inputs(1, tokens), self.inputs(20, other));
        let expected = [self.plain(&one, tokens), self.plain(&two, other)];
        let steps = [(5, 0), (1, 4), (7, 1), (1, 0), (3, 6), (6, 0)];
        for isa in Isa::testable() {
            for trial in [false, true] {
                let got = self.kernel(isa, [&one, &two], &steps, trial);
                for (got, expected) in got.iter().zip(&expected) {
                    assert_eq!(got.len(), expected.len());
                    let largest = expected.iter().fold(1.0f32, |m, v| m.max(v.abs()));
                    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
                        // Two dozen steps of a state of order one, each rounded a few times: 2^-24 * 300.
                        let limit = 2e-5 * largest;
                        assert!((g - e).abs() <= limit, "{name} {} trial {trial} {i}: {g} {e}", isa.name());
                    }
                }
            }
        }
    }
}

#[test]
fn gated_delta_follows_its_definition() {
    for (key_heads, value_heads, key_dim, value_dim, by_channel, order) in [
        (1, 1, 16, 32, false, HeadOrder::Grouped),
        (2, 6, 12, 20, false, HeadOrder::Grouped),
        (2, 6, 12, 20, false, HeadOrder::Tiled),
        (3, 3, 7, 7, true, HeadOrder::Grouped),
        (2, 2, 24, 96, true, HeadOrder::Grouped),
        (1, 2, 5, 6, false, HeadOrder::Tiled),
    ] {
        let op = GatedDelta { key_heads, value_heads, key_dim, value_dim, by_channel, order, a_is_rate: false };
        let (key, value) = (key_heads * key_dim, value_heads * value_dim);
        let decays = if by_channel { value_heads * key_dim } else { value_heads };
        let reads = [key, key, value, decays, value_heads];
        let weights = [vec![value_heads], vec![decays]];
        let name = format!("{op:?}");
        case(op.clone(), op.state(), &reads, value, &weights, gated_delta::lower).check(&name);
    }
}

#[test]
fn mamba2_follows_its_definition() {
    for (heads, head_dim, groups, state_dim) in [(1, 32, 1, 16), (6, 8, 2, 12), (4, 7, 4, 5), (3, 96, 1, 20)] {
        let op = Mamba2 { heads, head_dim, groups, state_dim, dt_min: 0.01, dt_max: f32::INFINITY, a_is_rate: false };
        let reads = [op.inner(), op.shared(), op.shared(), heads];
        let weights = [vec![heads], vec![heads], vec![heads]];
        let (name, inner) = (format!("{op:?}"), op.inner());
        case(op.clone(), op.state(), &reads, inner, &weights, mamba2::lower).check(&name);
    }
}

#[test]
fn short_conv_follows_its_definition() {
    for (channels, kernel, dilation, bias, activation) in [
        (300, 4, 1, true, Some(Activation::Silu)),
        (7, 3, 1, false, None),
        (33, 4, 3, false, Some(Activation::Silu)),
        (16, 1, 1, true, None),
    ] {
        let op = ShortConv { kernel, dilation, bias, activation };
        let mut weights = vec![vec![channels, 1, kernel]];
        if bias {
            weights.push(vec![channels]);
        }
        let state = StateDecl::recurrent("conv", &[op.reach(), channels]);
        let name = format!("{op:?} over {channels}");
        case(op, state, &[channels], channels, &weights, short_conv::lower).check(&name);
    }
}
