//! `gated_delta` in f32, one token after the other.
//!
//! With the decay e of each row, Sᵀk after the decay is Sᵀ(e k), and what the query sees of the new state is
//! Sᵀ(e q) + (k·q) d: so the state is read once for both sums and once more to be updated.

use super::recurrence::{Cut, Piece};
use crate::cpu::Isa;
use crate::cpu::shared::Shared;
use crate::exec::base::lanes::{dot, fma, per_isa};
use crate::exec::step::{Kernel, Lowering, StateKey, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::gated_delta::{GatedDelta, UNIT_EPS};
use crit_core::runtime::EngineError;
use std::hint::black_box;

struct Delta {
    op: GatedDelta,
    isa: Isa,
    cut: Cut,
    rates: Vec<f32>,
    bias: Vec<f32>,
    reads: [ValueId; 5],
    out: ValueId,
    state: StateKey,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let op: GatedDelta = node.op::<GatedDelta>().clone();
    let n = node.view.node;
    Ok(Box::new(Delta {
        isa: node.isa,
        cut: Cut::new(op.value_heads, op.key_dim, op.value_dim),
        rates: op.rates(&node.weights[0].to_f32()),
        bias: node.weights[1].to_f32(),
        reads: [0, 1, 2, 3, 4].map(|i| n.reads[i]),
        out: n.writes[0],
        state: node.state(),
        op,
    }))
}

impl Kernel for Delta {
    fn name(&self) -> &str {
        "gated_delta"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let n = cx.values.len(self.out);
        let [q, k, v, a, b] = self.reads.map(|id| cx.values.get(id));
        let inputs = Inputs { q, k, v, a, b, out: Shared::new(&mut out[..n]) };
        let states = cx.recurrent.slots_of(self.state);
        let done = self.cut.run(cx.pool, cx.batch, states, "gated_delta", |piece| self.piece(piece, &inputs));
        cx.values.put(self.out, out);
        done
    }
}

struct Inputs<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    a: &'a [f32],
    b: &'a [f32],
    out: Shared<'a, f32>,
}

/// What the tokens' keys and queries become before they meet the state: `[key_dim]` each.
#[derive(Default)]
struct Rows {
    key: Vec<f32>,
    decay: Vec<f32>,
    decayed_key: Vec<f32>,
    decayed_query: Vec<f32>,
}

impl Delta {
    fn piece(&self, mut piece: Piece<'_>, inputs: &Inputs<'_>) {
        let (op, width) = (&self.op, self.cut.block);
        let mut rows = Rows::default();
        for t in 0..piece.seq.tokens as usize {
            piece.save_before(t);
            let token = piece.seq.first as usize + t;
            let head = token * op.value_heads + piece.head;
            let overlap = self.rows(token, piece.head, inputs, &mut rows);
            let at = head * op.value_dim + piece.column;
            let beta = 1.0 / (1.0 + (-inputs.b[head]).exp());
            // SAFETY: columns of one head belong to one piece.
            let out = unsafe { inputs.out.part(at, width) };
            let v = &inputs.v[at..at + width];
            match width {
                32 => advance32(self.isa, piece.now, &rows, v, beta, overlap, out),
                16 => advance16(self.isa, piece.now, &rows, v, beta, overlap, out),
                8 => advance8(self.isa, piece.now, &rows, v, beta, overlap, out),
                4 => advance4(self.isa, piece.now, &rows, v, beta, overlap, out),
                2 => advance2(self.isa, piece.now, &rows, v, beta, overlap, out),
                _ => advance1(self.isa, piece.now, &rows, v, beta, overlap, out),
            }
        }
    }

    /// Fills `rows` for a token and returns k·q.
    fn rows(&self, token: usize, head: usize, inputs: &Inputs<'_>, rows: &mut Rows) -> f32 {
        let (op, dk) = (&self.op, self.op.key_dim);
        let at = (token * op.key_heads + op.key_head(head)) * dk;
        let decays = if op.by_channel { dk } else { 1 };
        let gates = &inputs.a[(token * op.value_heads + head) * decays..][..decays];
        let bias = &self.bias[head * decays..][..decays];
        let decay = gates.iter().zip(bias).map(|(a, bias)| (self.rates[head] * softplus(a + bias)).exp());
        rows.decay.clear();
        rows.decay.extend(decay);
        if !op.by_channel {
            rows.decay.resize(dk, rows.decay[0]);
        }
        for to in [&mut rows.key, &mut rows.decayed_key, &mut rows.decayed_query] {
            to.resize(dk, 0.0);
        }
        let scale = (dk as f32).powf(-0.5);
        prepare(self.isa, &inputs.q[at..at + dk], &inputs.k[at..at + dk], scale, rows)
    }
}

fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

per_isa! {
    /// Unit key and query, and both decayed; returns the product of the two.
    fn prepare = prepare_body(q: &[f32], k: &[f32], scale: f32, rows: &mut Rows) -> f32
}

#[inline(always)]
fn prepare_body<const FMA: bool>(q: &[f32], k: &[f32], scale: f32, rows: &mut Rows) -> f32 {
    let q_scale = scale / (dot::<FMA>(q, q) + UNIT_EPS).sqrt();
    let k_scale = 1.0 / (dot::<FMA>(k, k) + UNIT_EPS).sqrt();
    let Rows { key, decay, decayed_key, decayed_query } = rows;
    for i in 0..q.len().min(key.len()) {
        key[i] = k[i] * k_scale;
        decayed_key[i] = key[i] * decay[i];
        decayed_query[i] = q[i] * q_scale * decay[i];
    }
    dot::<FMA>(q, key) * q_scale
}

macro_rules! advance {
    ($name:ident, $body:ident, $width:literal) => {
        per_isa! {
            /// One token: reads and updates the state of a block of columns, writes what the query sees.
            fn $name = $body(now: &mut [f32], rows: &Rows, v: &[f32], beta: f32, overlap: f32, out: &mut [f32])
        }

        #[inline(always)]
        fn $body<const FMA: bool>(now: &mut [f32], rows: &Rows, v: &[f32], beta: f32, overlap: f32, out: &mut [f32]) {
            advance_body::<FMA, $width>(now, rows, v, beta, overlap, out);
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
fn advance_body<const FMA: bool, const W: usize>(
    now: &mut [f32],
    rows: &Rows,
    v: &[f32],
    beta: f32,
    overlap: f32,
    out: &mut [f32],
) {
    let (state, _) = now.as_chunks_mut::<W>();
    if W == 32 {
        // One register's columns at a time, so that all sums stay in registers.
        columns::<FMA, W, 16>(state, 0, rows, v, (beta, overlap), out);
        columns::<FMA, W, 16>(state, 16, rows, v, (beta, overlap), out);
    } else {
        columns::<FMA, W, W>(state, 0, rows, v, (beta, overlap), out);
    }
}

/// Columns `at .. at + L` of a block.
#[inline(always)]
fn columns<const FMA: bool, const W: usize, const L: usize>(
    state: &mut [[f32; W]],
    at: usize,
    rows: &Rows,
    v: &[f32],
    (beta, overlap): (f32, f32),
    out: &mut [f32],
) {
    // Rows in turn go to two sums: one chain of additions would wait for itself.
    let (mut s0, mut s1, mut a0, mut a1) = ([0.0f32; L], [0.0f32; L], [0.0f32; L], [0.0f32; L]);
    let (pairs, last) = state.as_chunks::<2>();
    let ((keys, last_key), (queries, last_query)) =
        (rows.decayed_key.as_chunks::<2>(), rows.decayed_query.as_chunks::<2>());
    for (([r0, r1], [k0, k1]), [q0, q1]) in pairs.iter().zip(keys).zip(queries) {
        look::<FMA, W, L>(r0, at, (*k0, *q0), &mut s0, &mut a0);
        look::<FMA, W, L>(r1, at, (*k1, *q1), &mut s1, &mut a1);
    }
    for ((row, k), q) in last.iter().zip(last_key).zip(last_query) {
        look::<FMA, W, L>(row, at, (*k, *q), &mut s0, &mut a0);
    }
    let (v, out): (&[f32; L], &mut [f32; L]) =
        (v[at..].first_chunk().expect("as many values"), out[at..].first_chunk_mut().expect("as many outputs"));
    let mut change = [0.0f32; L];
    for i in 0..L {
        change[i] = beta * (v[i] - (s0[i] + s1[i]));
        out[i] = fma::<FMA>(overlap, change[i], a0[i] + a1[i]);
    }
    for ((row, k), decay) in state.iter_mut().zip(&rows.key).zip(&rows.decay) {
        update::<FMA, W, L>(row, at, (*k, *decay), &change);
    }
}

/// What a key and a query see of one row.
#[inline(always)]
fn look<const FMA: bool, const W: usize, const L: usize>(
    row: &[f32; W],
    at: usize,
    (k, q): (f32, f32),
    seen: &mut [f32; L],
    answer: &mut [f32; L],
) {
    let row: &[f32; L] = row[at..].first_chunk().expect("a block's columns");
    for i in 0..L {
        seen[i] = fma::<FMA>(row[i], k, seen[i]);
        answer[i] = fma::<FMA>(row[i], q, answer[i]);
    }
}

/// One row: decays it and adds its share of the change.
#[inline(always)]
fn update<const FMA: bool, const W: usize, const L: usize>(
    row: &mut [f32; W],
    at: usize,
    (k, decay): (f32, f32),
    change: &[f32; L],
) {
    // Where the row lies is hidden, or the compiler would take one column of many rows at a time.
    let row: &mut [f32; L] = black_box(row)[at..].first_chunk_mut().expect("a block's columns");
    for i in 0..L {
        row[i] = fma::<FMA>(k, change[i], row[i] * decay);
    }
}
