//! `short_conv` in f32, threaded over sequences and blocks of channels.

use crate::cpu::Isa;
use crate::cpu::shared::Shared;
use crate::exec::base::lanes::{fma, gelu_tanh, per_isa, sigmoid, silu};
use crate::exec::step::{Kernel, Lowering, StateKey, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::gated_act::Activation;
use crit_core::model::program::ops::short_conv::ShortConv;
use crit_core::runtime::{EngineError, SeqStep};

/// Channels of a task: a few cache lines of every row.
const BLOCK: usize = 256;

struct Conv {
    op: ShortConv,
    isa: Isa,
    channels: usize,
    /// `[kernel][channels]`.
    taps: Vec<f32>,
    bias: Option<Vec<f32>>,
    from: ValueId,
    out: ValueId,
    state: StateKey,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let op: ShortConv = node.op::<ShortConv>().clone();
    let (n, channels) = (node.view.node, node.view.write_width(0));
    let weight = node.weights[0].to_f32();
    let taps = (0..op.kernel * channels).map(|i| weight[i % channels * op.kernel + i / channels]).collect();
    let bias = op.bias.then(|| node.weights[1].to_f32());
    let state = node.state();
    Ok(Box::new(Conv { isa: node.isa, channels, taps, bias, from: n.reads[0], out: n.writes[0], state, op }))
}

impl Kernel for Conv {
    fn name(&self) -> &str {
        "short_conv"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let n = cx.values.len(self.out);
        let x = cx.values.get(self.from);
        let states = cx.recurrent.slots_of(self.state);
        let elements = states.elements;
        let (out_parts, now, saved) = (Shared::new(&mut out[..n]), Shared::new(states.now), Shared::new(states.saved));
        let blocks = self.channels.div_ceil(BLOCK);
        let done = cx.pool.run(cx.batch.seqs.len() * blocks, &|task, _| {
            let seq = &cx.batch.seqs[task / blocks];
            let start = task % blocks * BLOCK;
            let lane = Lane { channels: self.channels, start, len: BLOCK.min(self.channels - start) };
            let window = Window { now: &now, saved: &saved, base: seq.slot as usize * elements };
            self.sequence(seq, lane, x, &out_parts, &window);
        });
        cx.values.put(self.out, out);
        done.map_err(|e| EngineError::Kernel { op: "short_conv".into(), message: e.to_string() })
    }
}

/// A block of channels.
#[derive(Clone, Copy)]
struct Lane {
    channels: usize,
    start: usize,
    len: usize,
}

impl Lane {
    /// Where the block lies in a row.
    fn at(self, row: usize) -> usize {
        row * self.channels + self.start
    }
}

/// The rows a slot remembers, as they are and as they are saved.
struct Window<'a> {
    now: &'a Shared<'a, f32>,
    saved: &'a Shared<'a, f32>,
    base: usize,
}

impl Conv {
    fn sequence(&self, seq: &SeqStep, lane: Lane, x: &[f32], out: &Shared<'_, f32>, window: &Window<'_>) {
        let (first, tokens, reach) = (seq.first as usize, seq.tokens as usize, self.op.reach());
        // Row r of the state and the step together; the state is the first `reach` of them.
        let row = |r: usize| -> &[f32] {
            match r.checked_sub(reach) {
                Some(t) => &x[lane.at(first + t)..][..lane.len],
                // SAFETY: these channels of this slot belong to this task, which does not write them meanwhile.
                None => unsafe { window.now.part(window.base + lane.at(r), lane.len) },
            }
        };
        for t in 0..tokens {
            // SAFETY: these channels of this sequence's rows belong to this task.
            let to = unsafe { out.part(lane.at(first + t), lane.len) };
            match &self.bias {
                Some(bias) => to.copy_from_slice(&bias[lane.start..lane.start + lane.len]),
                None => to.fill(0.0),
            }
            for j in 0..self.op.kernel {
                add_tap(self.isa, to, row(t + j * self.op.dilation), &self.taps[lane.at(j)..][..lane.len]);
            }
            if let Some(activation) = self.op.activation {
                activate(self.isa, to, activation);
            }
        }
        if seq.trial > 0 {
            let sure = tokens - seq.trial as usize;
            for r in 0..reach {
                // SAFETY: saved rows of this slot's channels belong to this task.
                let to = unsafe { window.saved.part(window.base + lane.at(r), lane.len) };
                to.copy_from_slice(row(sure + r));
            }
        }
        for r in 0..reach {
            // SAFETY: row r belongs to this task, and the row copied from is another one, since tokens > 0.
            let to = unsafe { window.now.part(window.base + lane.at(r), lane.len) };
            to.copy_from_slice(row(tokens + r));
        }
    }
}

per_isa! {
    /// to += row * taps.
    fn add_tap = add_tap_body(to: &mut [f32], row: &[f32], taps: &[f32])
}

#[inline(always)]
fn add_tap_body<const FMA: bool>(to: &mut [f32], row: &[f32], taps: &[f32]) {
    to.iter_mut().zip(row.iter().zip(taps)).for_each(|(o, (x, w))| *o = fma::<FMA>(*x, *w, *o));
}

per_isa! {
    /// The activation, in place.
    fn activate = activate_body(values: &mut [f32], activation: Activation)
}

#[inline(always)]
fn activate_body<const FMA: bool>(values: &mut [f32], activation: Activation) {
    match activation {
        Activation::Silu => values.iter_mut().for_each(|v| *v = silu::<FMA>(*v)),
        Activation::GeluTanh => values.iter_mut().for_each(|v| *v = gelu_tanh::<FMA>(*v)),
        Activation::Sigmoid => values.iter_mut().for_each(|v| *v = sigmoid::<FMA>(*v)),
        Activation::Tanh => values.iter_mut().for_each(|v| *v = v.tanh()),
        Activation::Relu2 => values.iter_mut().for_each(|v| *v = v.max(0.0) * v.max(0.0)),
    }
}
