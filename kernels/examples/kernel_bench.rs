//! Kernels against the limits of this machine, one thread: `cargo run --release -p crit-kernels --example kernel_bench`.
//!
//! Times are the best of many short runs, so that a neighbour on the core does not enter them. Weights rotate through
//! far more memory than the last-level cache holds in the rows marked `memory`; the limit beside them is the best read
//! bandwidth over memory as large, in the same run. Products of many tokens stand beside the best rate of the
//! instruction they use, in the same run.
#![allow(clippy::print_stdout, unsafe_code)]

use crit_kernels::cpu::linear::{ActBuf, FORMATS, Matrix, Product, StoredFormat, multiply};
use crit_kernels::cpu::shared::Scratch;
use crit_kernels::cpu::{Isa, Pool};
use crit_kernels::exact::gemm::gemm;
use std::hint::black_box;
use std::time::Instant;

/// Memory that weights rotate through.
const ARENA_BYTES: usize = 256 << 20;

fn main() {
    let isa = Isa::detect();
    let arena: Vec<u8> = (0..ARENA_BYTES / 8).flat_map(|i| noise(i as u64).to_le_bytes()).collect();
    let read_gb_s = read_limit(&arena);
    println!("{}; read limit of one thread {read_gb_s:.1} GB/s", isa.name());
    for format in FORMATS {
        gemv(isa, format, &arena[..512 << 10], 512 << 10, f64::INFINITY);
        gemv(isa, format, &arena, 4 << 20, read_gb_s);
    }
    if std::env::args().nth(1).is_some_and(|arg| arg == "gemv") {
        return;
    }
    let limits = Limits::measure(isa);
    println!("limits: int8 {:.0}, bf16 {:.0}, f32 {:.0} Gop/s", limits.int8, limits.bf16, limits.f32);
    for (n, k) in [(512, 768), (2048, 2048)] {
        for format in FORMATS {
            for tokens in [4, 16, 64, 512] {
                many(isa, format, &arena, (tokens, n, k), &limits);
            }
        }
        exact(isa, (512, n, k), &limits);
    }
}

fn noise(i: u64) -> u64 {
    let z = (i ^ i >> 30).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    // Exponents of half-precision fields stay small enough for sums to stay finite.
    (z ^ z >> 27) & 0xbfff_bfff_bfff_bfff
}

fn best_seconds(runs: usize, mut run: impl FnMut(usize)) -> f64 {
    let mut best = f64::INFINITY;
    for i in 0..runs {
        let begun = Instant::now();
        run(i);
        best = best.min(begun.elapsed().as_secs_f64());
    }
    best
}

fn read_limit(arena: &[u8]) -> f64 {
    let piece = 4 << 20;
    let pieces: Vec<&[u8]> = arena.chunks_exact(piece).collect();
    let seconds = best_seconds(512, |i| {
        let words = pieces[(i * 17) % pieces.len()].as_chunks::<64>().0;
        let mut lanes = [0u64; 64];
        for line in words.as_chunks::<8>().0 {
            for (j, part) in line.as_flattened().as_chunks::<8>().0.iter().enumerate() {
                lanes[j] ^= u64::from_le_bytes(*part);
            }
        }
        black_box(lanes);
    });
    piece as f64 / seconds / 1e9
}

fn gemv(isa: Isa, format: &'static StoredFormat, arena: &[u8], bytes: usize, limit_gb_s: f64) {
    let k = 2048;
    let row = format.row_bytes(k);
    let n = bytes / row;
    let pool = Pool::new(1).expect("one thread is the caller");
    let mut scratch = Scratch::new(1, format.scratch_bytes(k, isa));
    let mut buf = ActBuf::default();
    for tokens in [1, 2, 3] {
        let x: Vec<f32> = (0..k * tokens).map(|i| (i % 17) as f32 - 8.0).collect();
        let act = buf.fill((format.act)(isa), &x, k, isa, &pool).expect("runs");
        let mut out = vec![0.0; n * tokens];
        let matrices: Vec<Matrix<'_>> =
            arena.chunks_exact(n * row).filter_map(|data| Matrix::new(format, n, k, data)).collect();
        let seconds = best_seconds(200, |i| {
            let weight = matrices[(i * 17) % matrices.len()];
            multiply(isa, &pool, &mut scratch, act, &mut [Product { weight, bias: None, out: &mut out }])
                .expect("runs");
            black_box(&out);
        });
        let gb_s = (n * row) as f64 / seconds / 1e9;
        let place = if limit_gb_s.is_finite() { "memory" } else { "cached" };
        println!(
            "{place} {:5} {n}x{k} T{tokens}: {gb_s:6.1} GB/s, {:3.0} % of read",
            format.name,
            100.0 * gb_s / limit_gb_s
        );
    }
}

fn many(isa: Isa, format: &'static StoredFormat, arena: &[u8], (tokens, n, k): (usize, usize, usize), limits: &Limits) {
    let pool = Pool::new(1).expect("one thread is the caller");
    let mut scratch = Scratch::new(1, format.scratch_bytes(k, isa));
    let mut buf = ActBuf::default();
    let x: Vec<f32> = (0..k * tokens).map(|i| (i % 17) as f32 - 8.0).collect();
    let act = buf.fill((format.act)(isa), &x, k, isa, &pool).expect("runs");
    let mut out = vec![0.0; n * tokens];
    let weight = Matrix::new(format, n, k, &arena[..n * format.row_bytes(k)]).expect("sizes fit");
    let flops = 2.0 * (tokens * n * k) as f64;
    let seconds = best_seconds(if flops > 1e9 { 12 } else { 60 }, |_| {
        multiply(isa, &pool, &mut scratch, act, &mut [Product { weight, bias: None, out: &mut out }]).expect("runs");
        black_box(&out);
    });
    let gops = flops / seconds / 1e9;
    let (name, limit) = match format.name {
        "BF16" => ("bf16", limits.bf16),
        "F16" | "F32" => ("f32", limits.f32),
        _ => ("int8", limits.int8),
    };
    println!("many {:5} T{tokens} {n}x{k}: {gops:6.0} Gop/s, {:3.0} % of {name}", format.name, 100.0 * gops / limit);
}

fn exact(isa: Isa, (t, n, k): (usize, usize, usize), limits: &Limits) {
    let w: Vec<f32> = (0..n * k).map(|i| (i % 13) as f32 - 6.0).collect();
    let x: Vec<f32> = (0..t * k).map(|i| (i % 17) as f32 - 8.0).collect();
    let pool = Pool::new(1).expect("one thread is the caller");
    let mut y = vec![0.0; t * n];
    let read = |rows: std::ops::Range<usize>, out: &mut [f32]| out.copy_from_slice(&w[rows.start * k..rows.end * k]);
    let seconds = best_seconds(12, |_| {
        gemm(&pool, isa, (t, n, k), &x, &read, &mut y).expect("runs");
        black_box(&y);
    });
    let gops = 2.0 * (t * n * k) as f64 / seconds / 1e9;
    println!("exact f32  T{t} {n}x{k}: {gops:6.0} Gop/s, {:3.0} % of f32", 100.0 * gops / limits.f32);
}

/// Best rates of one thread, in 10⁹ operations a second, a multiply-add being two.
struct Limits {
    int8: f64,
    bf16: f64,
    f32: f64,
}

impl Limits {
    fn measure(isa: Isa) -> Self {
        let mut probe = crit_kernels::probe::MachineProbe::with_isa(isa);
        let mut best = |precision| {
            let time = std::time::Duration::from_millis(2);
            let rates = (0..60).filter_map(|_| probe.ops_s(precision, 1, time));
            rates.fold(0.0, f64::max) / 1e9
        };
        use crit_core::model::program::Precision;
        Self { int8: best(Precision::Int8), bf16: best(Precision::Bf16), f32: best(Precision::F32) }
    }
}
