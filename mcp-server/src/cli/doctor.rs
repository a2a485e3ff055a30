//! `crit doctor`: what of this machine and workspace would get in the way.

use super::printer::Printer;
use crit_core::error::ErrorKind;
use crit_kernels::backend::cuda;
use crit_tools::{Context, ToolError};
use serde_json::{Value, json};
use std::process::{Command, ExitCode, Stdio};

/// Arguments: only the global ones.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command: exit 4 if something needed is missing.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(_: &Args, context: &Context, printer: &Printer) -> Result<ExitCode, ToolError> {
    let checks = [workspace(context), jobs(context), compiler("cargo"), compiler("cc"), memory()];
    let checks: Vec<Value> = checks.into_iter().chain(gpu()).collect();
    let missing = checks.iter().any(|check| check["ok"] == false && check["needed"] == true);
    printer.output(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "program": context.program.display().to_string(),
        "checks": checks,
    }))?;
    Ok(if missing { ExitCode::from(ErrorKind::Environment.exit_code()) } else { ExitCode::SUCCESS })
}

fn check(name: &str, ok: bool, needed: bool, says: String) -> Value {
    json!({"name": name, "ok": ok, "needed": needed, "says": says})
}

fn workspace(context: &Context) -> Value {
    match context.workspace().and_then(|workspace| workspace.prepare().map(|()| workspace)) {
        Ok(workspace) => check("workspace", true, true, workspace.root().display().to_string()),
        Err(error) => {
            check("workspace", false, true, format!("{error}; {}", error.hint.as_deref().unwrap_or_default()))
        }
    }
}

fn jobs(context: &Context) -> Value {
    let Some(workspace) = context.try_workspace() else { return check("jobs", true, false, "none".into()) };
    let all = crit_tools::jobs::Store::of(workspace).list();
    let live = all.iter().filter(|job| !job.state.state.is_final()).count();
    check("jobs", true, false, format!("{} in all, {live} live", all.len()))
}

fn compiler(name: &str) -> Value {
    let ran = Command::new(name).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    match ran {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            check(name, true, false, crit_tools::text::clean(text.lines().next().unwrap_or_default(), 100))
        }
        Err(_) => check(name, false, false, "not found: engines with own Rust code cannot be built".into()),
    }
}

fn memory() -> Value {
    match crit_catalog::host::free_bytes() {
        Some(bytes) => check("memory", true, true, format!("{} MiB free", bytes >> 20)),
        None => check("memory", true, true, "the system does not say".into()),
    }
}

/// Driver and devices, then the libraries engines on them need.
fn gpu() -> Vec<Value> {
    let found = match cuda::devices() {
        Ok(found) => found,
        Err(absent) => return vec![check("gpu", true, false, absent.to_string())],
    };
    let device = |facts: &cuda::DeviceFacts| {
        let (major, minor) = facts.capability;
        let driver = facts.driver_version;
        let says = format!(
            "cuda:{}: {}, compute capability {major}.{minor}, {} MiB, driver interface {}.{}",
            facts.ordinal,
            facts.name,
            facts.memory_bytes >> 20,
            driver / 1000,
            driver % 1000 / 10
        );
        check("gpu", facts.capability >= (8, 0), false, says)
    };
    let mut checks: Vec<Value> = found.iter().map(device).collect();
    checks.push(match cuda::compile::nvrtc_version() {
        Ok((major, minor)) => check("nvrtc", true, false, format!("{major}.{minor}")),
        Err(error) => check("nvrtc", false, false, error.to_string()),
    });
    checks.push(match cuda::blas::Blas::version() {
        Some(version) => check("cublaslt", true, false, version.to_string()),
        None => check("cublaslt", false, false, cuda::Absent::NoLibrary("cuBLASLt (libcublasLt)").to_string()),
    });
    checks
}
