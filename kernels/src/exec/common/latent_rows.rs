//! Rows of states with one head as f32, and the two sums that everything over such rows is made of.

use crate::exec::base::lanes::per_isa;
use crate::exec::kv::KvStore;
use crate::exec::step::StateKey;
use crit_core::runtime::SeqStep;
use std::ops::Range;

/// Key rows of consecutive positions.
pub(super) fn run(kv: &KvStore, key: StateKey, seq: &SeqStep, positions: Range<usize>, out: &mut Vec<f32>) {
    read(kv, key, seq, positions, kv.shape(key).key_dim, KvStore::key_rows, out);
}

/// Key rows and value rows of consecutive positions.
pub(super) fn run_of(
    kv: &KvStore,
    key: StateKey,
    seq: &SeqStep,
    positions: Range<usize>,
    (keys, values): (&mut Vec<f32>, &mut Vec<f32>),
) {
    run(kv, key, seq, positions.clone(), keys);
    read(kv, key, seq, positions, kv.shape(key).value_dim, KvStore::value_rows, values);
}

fn read<'k>(
    kv: &'k KvStore,
    key: StateKey,
    seq: &SeqStep,
    positions: Range<usize>,
    dim: usize,
    rows: impl Fn(&'k KvStore, StateKey, u32, usize, usize) -> &'k [u8],
    out: &mut Vec<f32>,
) {
    let size = kv.block_tokens();
    let row_bytes = kv.format().row_bytes(dim);
    let mut position = positions.start;
    while position < positions.end {
        let offset = position % size;
        let count = (size - offset).min(positions.end - position);
        let bytes = rows(kv, key, seq.blocks[position / size], 0, offset + count);
        let at = out.len();
        out.resize(at + count * dim, 0.0);
        kv.format().read(&bytes[offset * row_bytes..], dim, &mut out[at..]);
        position += count;
    }
}

/// Key rows of these positions, runs of consecutive ones at once.
pub(super) fn gather(kv: &KvStore, key: StateKey, seq: &SeqStep, positions: &[usize], out: &mut Vec<f32>) {
    for chunk in positions.chunk_by(|a, b| a + 1 == *b) {
        run(kv, key, seq, chunk[0]..chunk[chunk.len() - 1] + 1, out);
    }
}

per_isa! {
    /// The sum of products, in sixteen partial sums.
    pub(super) fn dot = dot_body(a: &[f32], b: &[f32]) -> f32
}

#[inline(always)]
fn dot_body<const FMA: bool>(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let (a16, b16) = (a.chunks_exact(16), b.chunks_exact(16));
    let rest: f32 = a16.remainder().iter().zip(b16.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a16.zip(b16) {
        for i in 0..16 {
            sums[i] = if FMA { a[i].mul_add(b[i], sums[i]) } else { a[i] * b[i] + sums[i] };
        }
    }
    sums.iter().sum::<f32>() + rest
}

per_isa! {
    /// Adds `factor` times `row`.
    pub(super) fn add_times = add_times_body(to: &mut [f32], factor: f32, row: &[f32])
}

#[inline(always)]
fn add_times_body<const FMA: bool>(to: &mut [f32], factor: f32, row: &[f32]) {
    for (to, x) in to.iter_mut().zip(row) {
        *to = if FMA { factor.mul_add(*x, *to) } else { factor * x + *to };
    }
}
