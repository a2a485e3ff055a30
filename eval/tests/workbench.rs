//! The kernel workbench against kernels that are right, wrong and dishonest; C kernels through the compiler where there is
//! one.
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

use crit_eval::EvalError;
use crit_eval::clock::MachineClock;
use crit_eval::workbench::process::ProcessKernel;
use crit_eval::workbench::{BenchOptions, CheckOptions, Declared, Kernel, bench, check, problem};
use std::path::Path;

fn options(shapes: &[&[usize]]) -> CheckOptions {
    let shapes = shapes.iter().map(|shape| shape.to_vec()).collect();
    CheckOptions { shapes, declared: Declared::F32, seed: 11, most_flops: 2_000_000 }
}

fn compiled(dir: &Path, name: &str, body: &str) -> Option<Result<ProcessKernel, EvalError>> {
    if std::process::Command::new("cc").arg("--version").output().is_err() {
        eprintln!("skipped: no C compiler");
        return None;
    }
    let source = dir.join(format!("{name}.c"));
    let text =
        format!("#include <math.h>\nvoid kernel(const long *s, const float *const *x, float *y) {{\n{body}\n}}\n");
    std::fs::write(&source, text).expect("written");
    Some(ProcessKernel::compile(name, &source, dir))
}

const LINEAR: &str = "for (long m = 0; m < s[0]; m++) for (long n = 0; n < s[1]; n++) {
    float sum = 0; for (long k = 0; k < s[2]; k++) sum += x[0][m * s[2] + k] * x[1][n * s[2] + k];
    y[m * s[1] + n] = sum; }";

#[test]
fn c_kernels_are_compiled_checked_and_timed_in_a_process_of_their_own() {
    let dir = tempfile::tempdir().expect("a folder");
    let linear = problem("linear").expect("it is there");
    let Some(kernel) = compiled(dir.path(), "right", LINEAR) else { return };
    let mut kernel = kernel.expect("it compiles");
    let checked = check(linear, &mut kernel, &options(&[&[3, 40, 96], &[1, 64, 64]])).expect("it runs");
    assert_eq!(checked.complaints, Vec::<String>::new(), "{checked:?}");
    assert!(checked.shapes.len() > 10 && checked.calls > 60);

    let timing = BenchOptions { shape: vec![4, 256, 256], declared: Declared::F32, calls: 12, flush: false, seed: 3 };
    let mut yardsticks: Vec<Box<dyn Kernel>> = Vec::new();
    match ProcessKernel::library("openblas", dir.path()) {
        Ok(library) => yardsticks.push(Box::new(library)),
        Err(error) => eprintln!("skipped: openblas ({error})"),
    }
    let result = bench(linear, &mut kernel, &mut yardsticks, None, &MachineClock::start(), &timing).expect("it runs");
    let bits = result.doubts.iter().any(|doubt| doubt.contains("bits") || doubt.contains("wrong"));
    assert!(!bits && result.kernel.cold_us.median > 0.0, "{result:?}");
    assert_eq!(result.yardsticks.len(), yardsticks.len());
}

#[test]
fn c_kernels_that_are_wrong_crash_or_do_not_compile_say_so() {
    let dir = tempfile::tempdir().expect("a folder");
    let linear = problem("linear").expect("it is there");
    let Some(broken) = compiled(dir.path(), "broken", "this is no C;") else { return };
    assert!(broken.expect_err("it does not compile").to_string().contains("does not compile"));
    let edge = LINEAR.replace("k < s[2]", "k + 1 < s[2] + s[2] % 2");
    let mut edge = compiled(dir.path(), "edge", &edge).expect("cc").expect("it compiles");
    let checked = check(linear, &mut edge, &options(&[&[2, 16, 33]])).expect("it runs");
    assert!(checked.complaints.iter().any(|complaint| complaint.contains("errors of")), "{checked:?}");
    let mut crash = compiled(dir.path(), "crash", "*(volatile int *)0 = 1;").expect("cc").expect("it compiles");
    let error = check(linear, &mut crash, &options(&[&[1, 1, 1]])).expect_err("it crashes").to_string();
    assert!(error.contains("ended by itself"), "{error}");
}

#[test]
fn the_other_problems_have_right_kernels_too() {
    let dir = tempfile::tempdir().expect("a folder");
    let norm = "for (long t = 0; t < s[0]; t++) { float sum = 0; const float *r = x[0] + t * s[1];
        for (long i = 0; i < s[1]; i++) sum += r[i] * r[i];
        float scale = 1.0f / sqrtf(sum / s[1] + 1e-6f);
        for (long i = 0; i < s[1]; i++) y[t * s[1] + i] = r[i] * scale * x[1][i]; }";
    let silu = "for (long i = 0; i < s[0]; i++) y[i] = x[0][i] / (1.0f + expf(-x[0][i])) * x[1][i];";
    for (name, body, shape) in [("rms_norm", norm, &[5usize, 200][..]), ("gated_silu", silu, &[999][..])] {
        let Some(kernel) = compiled(dir.path(), name, body) else { return };
        let found = check(problem(name).expect("it is there"), &mut kernel.expect("it compiles"), &options(&[shape]));
        let found = found.expect("it runs");
        assert_eq!(found.complaints, Vec::<String>::new(), "{found:?}");
    }
}
