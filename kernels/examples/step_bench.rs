//! Prefill and decode of a model on the bare executor, with the time of each op:
//! `cargo run --release -p crit-kernels --example step_bench -- MODEL [THREADS] [exact]`.
//!
//! Times are medians over steps. No server, no sampling: what is left is kernels and tables.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use crit_core::model::Model;
use crit_core::runtime::{Executor, OpTime, StepBatch};
use crit_kernels::exec::{CpuExecutor, ExecOptions, Style, build};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

const PROMPT: usize = 512;
const OUTPUT: usize = 64;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(path) = args.first() else {
        eprintln!("step_bench MODEL [THREADS] [exact]");
        return ExitCode::from(2);
    };
    match bench(Path::new(path), args.get(1).and_then(|n| n.parse().ok()), args.iter().any(|a| a == "exact")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(path: &Path, threads: Option<usize>, exact: bool) -> Result<(), Box<dyn std::error::Error>> {
    let model = Model::open(path)?;
    let mut options = ExecOptions::new(if exact { Style::Exact } else { Style::Base }, PROMPT + OUTPUT, 1);
    if let Some(threads) = threads {
        options.threads = threads;
    }
    println!("{} threads, {}", options.threads, options.isa.name());
    let begun = Instant::now();
    let mut executor = build(&model, options)?;
    println!("ready in {:?}; {:?}", begun.elapsed(), executor.info().memory);
    let vocab = executor.info().vocab;
    let tokens: Vec<u32> = (0..PROMPT + OUTPUT).map(|i| (i * 7919 % vocab) as u32).collect();
    let blocks: Vec<u32> = (0..executor.info().blocks as u32).collect();
    let mut logits = Vec::new();
    let mut step = |executor: &mut CpuExecutor, past: usize, count: usize| {
        let mut batch = StepBatch::default();
        batch.push(&tokens[past..past + count], past as u32, blocks.clone(), 0, [count as u32 - 1]);
        let begun = Instant::now();
        executor.step(&batch, &mut logits).map(|()| begun.elapsed().as_secs_f64())
    };
    let mut prefill = Vec::new();
    for _ in 0..5 {
        let seconds = step(&mut executor, 0, PROMPT)?;
        prefill.push((seconds, executor.last_step_times()));
    }
    report("prefill", PROMPT, prefill);
    let mut decode = Vec::new();
    for i in 0..OUTPUT {
        let seconds = step(&mut executor, PROMPT + i, 1)?;
        decode.push((seconds, executor.last_step_times()));
    }
    report("decode", 1, decode);
    Ok(())
}

fn report(phase: &str, tokens: usize, mut steps: Vec<(f64, Vec<OpTime>)>) {
    steps.sort_by(|a, b| a.0.total_cmp(&b.0));
    let show = |name: &str, (seconds, times): &(f64, Vec<OpTime>)| {
        println!("{phase} {name}: {:.1} tok/s, {:.2} ms a step", tokens as f64 / seconds, seconds * 1e3);
        for time in times {
            println!("  {:12} {:9} us {:3.0} %", time.op, time.time_us, time.time_us as f64 / seconds / 1e4);
        }
    };
    show("median", &steps[steps.len() / 2]);
    show("best", &steps[0]);
}
