//! A model on the GPU against the bytes it must read: `cargo run --release -p crit-kernels --example cuda_bench -- MODEL [options]`.
//!
//! Prints load time, decode rates at depths (straight through the executor, logits on the host), prefill rates, and where a step's
//! time goes by unit. `--off NAME` leaves a strategy out; `--depth`, `--prefill`, `--batch` may be given several times.
#![allow(clippy::print_stdout)]

use crit_core::model::Model;
use crit_core::runtime::{Executor, StepBatch};
use crit_kernels::backend::cuda::probe::{Probe, median};
use crit_kernels::backend::cuda::unit::gemv::{Spec, Way};
use crit_kernels::backend::cuda::weights::Form;
use crit_kernels::backend::cuda::{CudaExecutor, CudaOptions, build};
use std::time::Instant;

struct Args {
    model: String,
    depths: Vec<usize>,
    prefills: Vec<usize>,
    batches: Vec<usize>,
    off: Vec<String>,
    profile: bool,
}

fn args() -> Args {
    let mut out =
        Args { model: String::new(), depths: vec![], prefills: vec![], batches: vec![], off: vec![], profile: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|w| w.parse().ok()).unwrap_or(0);
        match word.as_str() {
            "--depth" => out.depths.push(number()),
            "--prefill" => out.prefills.push(number()),
            "--batch" => out.batches.push(number()),
            "--off" => out.off.extend(words.next()),
            "--profile" => out.profile = true,
            _ => out.model = word,
        }
    }
    out
}

/// Limits, and products of few activations in a chain, cut in several ways.
fn kernels() {
    let probe = Probe::open(0).unwrap_or_else(|e| panic!("{e}"));
    let read = median(&probe.read_bytes_s(8 << 30, 10).unwrap_or_default());
    println!(
        "read {:.3} TB/s, copy {:.3} TB/s",
        read / 1e12,
        median(&probe.copy_bytes_s(4 << 30, 10).unwrap_or_default()) / 1e12
    );
    for early in [false, true] {
        println!("node {:.2} us, early {early}", median(&probe.node_s(early, 10).unwrap_or_default()) * 1e6);
    }
    for form in [Form::Bf16, Form::Q8, Form::Q4K, Form::Q6K] {
        for (rows, k, gated) in [
            (4096, 4096, false),
            (6144, 4096, false),
            (24576, 4096, true),
            (4096, 12288, false),
            (151_936, 4096, false),
        ] {
            let mut line = format!("{:5} {rows:6}x{k:5}", form.name());
            let Some(spec) = Spec::choose(form, k, 1, true, gated) else { continue };
            let mut ways = vec![spec];
            let row_bytes = form.row_bytes(k);
            match spec.way {
                Way::Diagonal { rows: step, .. } => {
                    let more = [(step, 2), (step, 3), (2 * step, 2), (2 * step, 3)];
                    let fits = more.into_iter().filter(|(rows, stages)| rows * stages * row_bytes <= 190 << 10);
                    ways.extend(fits.map(|(rows, stages)| Spec { way: Way::Diagonal { rows, stages }, ..spec }));
                }
                Way::Stream { rows: step, .. } => {
                    let more = [(step, 3), (2 * step, 2), (2 * step, 3), (2 * step, 5)];
                    let fits = more.into_iter().filter(|(rows, stages)| rows * stages * row_bytes <= 190 << 10);
                    ways.extend(fits.map(|(rows, stages)| Spec { way: Way::Stream { rows, stages }, ..spec }));
                    if spec.threads == 512 {
                        ways.push(Spec { threads: 256, way: Way::Stream { rows: step, stages: 3 }, ..spec });
                    }
                }
                Way::Plain => {}
            }
            for way in ways {
                for early in [false, true] {
                    let rate = probe.gemv_bytes_s(way, (rows, k), (gated, k == 4096, early), 5);
                    let rate = rate.map_or(f64::NAN, |rates| median(&rates));
                    let name = way.name().split_once('_').map(|(_, rest)| rest.to_string()).unwrap_or_default();
                    line += &format!(" {name}{}:{:.1}%", if early { "e" } else { "" }, rate / read * 100.0);
                }
            }
            println!("{line}");
        }
    }
}

fn main() {
    let args = args();
    if args.model == "kernels" {
        return kernels();
    }
    let start = Instant::now();
    let model = Model::open(args.model.as_ref()).unwrap_or_else(|e| panic!("{e}")).without_draft();
    let longest = args.depths.iter().chain(&args.prefills).max().copied().unwrap_or(0) + 256;
    let batch = args.batches.iter().max().copied().unwrap_or(1);
    let mut options = CudaOptions::new(longest.next_multiple_of(64).max(1280), batch);
    options.strategies.retain(|strategy| !args.off.iter().any(|name| name == strategy.name()));
    options.profile = args.profile;
    let mut engine = build(&model, &options).unwrap_or_else(|e| panic!("{e}"));
    println!("loaded in {:.2} s, memory {:?}", start.elapsed().as_secs_f64(), engine.info().memory);
    for depth in &args.depths {
        decode(&mut engine, *depth, 1, args.profile);
    }
    for batch in &args.batches {
        decode(&mut engine, 1000, *batch, args.profile);
    }
    for tokens in &args.prefills {
        prefill(&mut engine, *tokens, args.profile);
    }
}

fn ids(n: usize, vocab: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 7) % vocab as u32).collect()
}

fn blocks(engine: &CudaExecutor, slot: usize) -> Vec<u32> {
    let per = engine.info().max_context / 16;
    (0..per).map(|i| (slot * per + i) as u32).collect()
}

fn fill(engine: &mut CudaExecutor, depth: usize, slot: usize) {
    let ids = ids(depth, engine.info().vocab);
    let (most, mut past, mut logits) = (engine.info().max_step_tokens, 0, Vec::new());
    while past < depth {
        let n = most.min(depth - past);
        let mut batch = StepBatch::default();
        batch.push(&ids[past..past + n], past as u32, blocks(engine, slot), slot as u32, [n as u32 - 1]);
        engine.step(&batch, &mut logits).unwrap_or_else(|e| panic!("{e}"));
        past += n;
    }
}

fn decode(engine: &mut CudaExecutor, depth: usize, width: usize, profile: bool) {
    (0..width).for_each(|slot| fill(engine, depth, slot));
    let (mut logits, mut times) = (Vec::new(), Vec::new());
    for step in 0..128 {
        let mut batch = StepBatch::default();
        for slot in 0..width {
            batch.push(&[7], (depth + step) as u32, blocks(engine, slot), slot as u32, [0]);
        }
        let start = Instant::now();
        engine.step(&batch, &mut logits).unwrap_or_else(|e| panic!("{e}"));
        times.push(start.elapsed().as_secs_f64());
    }
    let time = median(&times.split_off(8));
    println!("decode depth {depth} batch {width}: {:.1} tok/s, {:.0} us a step", width as f64 / time, time * 1e6);
    if profile {
        engine.last_step_times().iter().for_each(|t| println!("    {:24} {:8} us", t.op, t.time_us));
    }
}

fn prefill(engine: &mut CudaExecutor, tokens: usize, profile: bool) {
    let mut times = Vec::new();
    for _ in 0..6 {
        let start = Instant::now();
        fill(engine, tokens, 0);
        times.push(start.elapsed().as_secs_f64());
    }
    let time = median(&times.split_off(1));
    println!("prefill {tokens}: {:.0} tok/s, {:.2} ms", tokens as f64 / time, time * 1e3);
    if profile {
        engine.last_step_times().iter().for_each(|t| println!("    {:24} {:8} us", t.op, t.time_us));
    }
}
