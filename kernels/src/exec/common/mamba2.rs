//! `mamba2` in f32, one token after the other; a head's state lies `[state_dim][head_dim]`, so that sums run down
//! columns and need no lanes folded.

use super::recurrence::{Cut, Piece};
use crate::cpu::Isa;
use crate::cpu::shared::Shared;
use crate::exec::base::lanes::{fma, per_isa};
use crate::exec::step::{Kernel, Lowering, StateKey, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::mamba2::Mamba2;
use crit_core::runtime::EngineError;

struct Scan {
    op: Mamba2,
    isa: Isa,
    cut: Cut,
    rates: Vec<f32>,
    bias: Vec<f32>,
    skip: Vec<f32>,
    reads: [ValueId; 4],
    out: ValueId,
    state: StateKey,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let op: Mamba2 = node.op::<Mamba2>().clone();
    let n = node.view.node;
    Ok(Box::new(Scan {
        isa: node.isa,
        cut: Cut::new(op.heads, op.state_dim, op.head_dim),
        rates: op.rates(&node.weights[0].to_f32()),
        bias: node.weights[1].to_f32(),
        skip: node.weights[2].to_f32(),
        reads: [0, 1, 2, 3].map(|i| n.reads[i]),
        out: n.writes[0],
        state: node.state(),
        op,
    }))
}

impl Kernel for Scan {
    fn name(&self) -> &str {
        "mamba2"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let n = cx.values.len(self.out);
        let [x, b, c, dt] = self.reads.map(|id| cx.values.get(id));
        let inputs = Inputs { x, b, c, dt, out: Shared::new(&mut out[..n]) };
        let states = cx.recurrent.slots_of(self.state);
        let done = self.cut.run(cx.pool, cx.batch, states, "mamba2", |piece| self.piece(piece, &inputs));
        cx.values.put(self.out, out);
        done
    }
}

struct Inputs<'a> {
    x: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
    dt: &'a [f32],
    out: Shared<'a, f32>,
}

/// One token of a block of columns.
struct Token<'a> {
    x: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
    decay: f32,
    step: f32,
    skip: f32,
}

impl Scan {
    fn piece(&self, mut piece: Piece<'_>, inputs: &Inputs<'_>) {
        let (op, width, head) = (&self.op, self.cut.block, piece.head);
        let group = head / (op.heads / op.groups) * op.state_dim;
        for t in 0..piece.seq.tokens as usize {
            piece.save_before(t);
            let token = piece.seq.first as usize + t;
            let step = softplus(inputs.dt[token * op.heads + head] + self.bias[head]).clamp(op.dt_min, op.dt_max);
            let at = token * op.inner() + head * op.head_dim + piece.column;
            let shared = token * op.shared() + group;
            let parts = Token {
                x: &inputs.x[at..at + width],
                b: &inputs.b[shared..shared + op.state_dim],
                c: &inputs.c[shared..shared + op.state_dim],
                decay: (self.rates[head] * step).exp(),
                step,
                skip: self.skip[head],
            };
            // SAFETY: columns of one head belong to one piece.
            let out = unsafe { inputs.out.part(at, width) };
            match width {
                32 => advance32(self.isa, piece.now, &parts, out),
                16 => advance16(self.isa, piece.now, &parts, out),
                8 => advance8(self.isa, piece.now, &parts, out),
                4 => advance4(self.isa, piece.now, &parts, out),
                2 => advance2(self.isa, piece.now, &parts, out),
                _ => advance1(self.isa, piece.now, &parts, out),
            }
        }
    }
}

fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

macro_rules! advance {
    ($name:ident, $body:ident, $width:literal) => {
        per_isa! {
            /// One token: updates the state of a block of columns and reads it.
            fn $name = $body(now: &mut [f32], token: &Token<'_>, out: &mut [f32])
        }

        #[inline(always)]
        fn $body<const FMA: bool>(now: &mut [f32], token: &Token<'_>, out: &mut [f32]) {
            advance_body::<FMA, $width>(now, token, out);
        }
    };
}

advance!(advance32, body32, 32);
advance!(advance16, body16, 16);
advance!(advance8, body8, 8);
advance!(advance4, body4, 4);
advance!(advance2, body2, 2);
advance!(advance1, body1, 1);

#[inline(always)]
fn advance_body<const FMA: bool, const W: usize>(now: &mut [f32], token: &Token<'_>, out: &mut [f32]) {
    let (mut input, mut sum) = ([0.0f32; W], [0.0f32; W]);
    for j in 0..W {
        input[j] = token.step * token.x[j];
        sum[j] = token.skip * token.x[j];
    }
    let (state, _) = now.as_chunks_mut::<W>();
    for ((row, b), c) in state.iter_mut().zip(token.b).zip(token.c) {
        for j in 0..W {
            row[j] = fma::<FMA>(*b, input[j], row[j] * token.decay);
            sum[j] = fma::<FMA>(*c, row[j], sum[j]);
        }
    }
    out.copy_from_slice(&sum);
}
