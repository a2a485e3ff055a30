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
use std::hint::black_box;

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
    let (state, _) = now.as_chunks_mut::<W>();
    if W == 32 {
        // One register's columns at a time, so that all sums stay in registers.
        columns::<FMA, W, 16>(state, 0, token, out);
        columns::<FMA, W, 16>(state, 16, token, out);
    } else {
        columns::<FMA, W, W>(state, 0, token, out);
    }
}

/// Columns `at .. at + L` of a block.
#[inline(always)]
fn columns<const FMA: bool, const W: usize, const L: usize>(
    state: &mut [[f32; W]],
    at: usize,
    token: &Token<'_>,
    out: &mut [f32],
) {
    let (x, out): (&[f32; L], &mut [f32; L]) =
        (token.x[at..].first_chunk().expect("as many inputs"), out[at..].first_chunk_mut().expect("as many outputs"));
    let (mut input, mut s0, mut s1) = ([0.0f32; L], [0.0f32; L], [0.0f32; L]);
    for i in 0..L {
        input[i] = token.step * x[i];
        s0[i] = token.skip * x[i];
    }
    // Rows in turn go to two sums: one chain of additions would wait for itself.
    let (pairs, last) = state.as_chunks_mut::<2>();
    let ((bs, last_b), (cs, last_c)) = (token.b.as_chunks::<2>(), token.c.as_chunks::<2>());
    for (([r0, r1], [b0, b1]), [c0, c1]) in pairs.iter_mut().zip(bs).zip(cs) {
        step::<FMA, W, L>(r0, at, (*b0, *c0, token.decay), &input, &mut s0);
        step::<FMA, W, L>(r1, at, (*b1, *c1, token.decay), &input, &mut s1);
    }
    for ((row, b), c) in last.iter_mut().zip(last_b).zip(last_c) {
        step::<FMA, W, L>(row, at, (*b, *c, token.decay), &input, &mut s0);
    }
    for i in 0..L {
        out[i] = s0[i] + s1[i];
    }
}

/// One row: decays it, adds its input, and adds it to the sum.
#[inline(always)]
fn step<const FMA: bool, const W: usize, const L: usize>(
    row: &mut [f32; W],
    at: usize,
    (b, c, decay): (f32, f32, f32),
    input: &[f32; L],
    sum: &mut [f32; L],
) {
    // Where the row lies is hidden, or the compiler would take one column of many rows at a time.
    let row: &mut [f32; L] = black_box(row)[at..].first_chunk_mut().expect("a block's columns");
    for i in 0..L {
        row[i] = fma::<FMA>(b, input[i], row[i] * decay);
        sum[i] = fma::<FMA>(c, row[i], sum[i]);
    }
}
