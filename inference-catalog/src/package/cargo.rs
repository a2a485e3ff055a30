//! Cargo, called on the engine package.
//!
//! It gets no stdin and its output goes to a log in `.crit/logs/`; what is wrong is taken from there. It runs offline
//! first: whoever built crit has all crates. Only if one is missing does it run again with the network.

use super::check::check_files;
use super::folder::OwnPlugin;
use super::{PackageError, root};
use crate::host::Described;
use crit_core::digest::Digest;
use serde_json::Value;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Lines of errors shown in an answer; the log has them all.
const ERROR_LINES: usize = 60;

/// A built engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Built {
    /// The executable, `.crit/built/<digest>/engine`.
    pub executable: PathBuf,
    /// SHA-256 of the executable.
    pub digest: Digest,
    /// The plugins in it that are its own, by name.
    pub plugins: Vec<OwnPlugin>,
    /// Milliseconds Cargo took.
    pub compile_ms: u64,
    /// Cargo's output.
    pub log: PathBuf,
}

/// A package whose tests passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tested {
    /// Tests that ran.
    pub tests: u64,
    /// Milliseconds Cargo took.
    pub wall_ms: u64,
    /// Cargo's output.
    pub log: PathBuf,
}

/// Builds the package's executable, and proves that it holds the plugins as they lie in their folders.
///
/// # Errors
/// The package breaks a rule or does not compile, or Cargo is not there.
pub fn build(workspace: &Path) -> Result<Built, PackageError> {
    let plugins = check_files(workspace)?;
    let run = run(workspace, "build", &["--message-format", "json-render-diagnostics"])?;
    let executable = executable_in(&run.stdout, &root(workspace)).ok_or_else(|| PackageError::Cargo {
        what: "cargo build".into(),
        log: run.log.clone(),
        errors: "it made no executable".into(),
        hint: "the package needs a src/main.rs".into(),
    })?;
    compare(&executable, &plugins)?;
    let (executable, digest) = keep(workspace, &executable)?;
    Ok(Built { executable, digest, plugins, compile_ms: run.wall_ms, log: run.log })
}

/// Runs the package's tests, the contract of every plugin's slot among them.
///
/// # Errors
/// A test fails, the package breaks a rule, or Cargo is not there.
pub fn test(workspace: &Path) -> Result<Tested, PackageError> {
    check_files(workspace)?;
    let run = run(workspace, "test", &[])?;
    let tests = run.stdout.lines().filter_map(passed).sum();
    Ok(Tested { tests, wall_ms: run.wall_ms, log: run.log })
}

/// `N` of `test result: ok. N passed; …`.
fn passed(line: &str) -> Option<u64> {
    line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse().ok()
}

/// A run of Cargo that went well.
pub(super) struct Run {
    pub(super) stdout: String,
    pub(super) wall_ms: u64,
    pub(super) log: PathBuf,
}

/// Runs `cargo VERB --release` on the package.
pub(super) fn run(workspace: &Path, verb: &str, args: &[&str]) -> Result<Run, PackageError> {
    let start = Instant::now();
    let first = attempt(workspace, verb, args, true)?;
    let done = if !first.ok && wants_network(&first.text) { attempt(workspace, verb, args, false)? } else { first };
    if done.ok {
        let wall_ms = start.elapsed().as_millis() as u64;
        return Ok(Run { stdout: done.stdout, wall_ms, log: done.log });
    }
    let hint = match verb {
        "test" => "mend the plugin, then run `crit plugins test` again",
        _ => "mend the code, then run `crit plugins check` again",
    };
    Err(PackageError::Cargo {
        what: format!("cargo {verb}"),
        log: done.log,
        errors: errors_in(&done.text),
        hint: hint.into(),
    })
}

struct Attempt {
    ok: bool,
    stdout: String,
    /// Both outputs.
    text: String,
    log: PathBuf,
}

fn attempt(workspace: &Path, verb: &str, args: &[&str], offline: bool) -> Result<Attempt, PackageError> {
    let logs = workspace.join(".crit/logs");
    let log = logs.join(format!("engine-{verb}.log"));
    let out = logs.join(format!("engine-{verb}.out"));
    fs::create_dir_all(&logs).map_err(|source| PackageError::io(&logs, source))?;
    let create = |path: &Path| File::create(path).map_err(|source| PackageError::io(path, source));
    // Cargo sets CARGO for what it runs; elsewhere the one on the path is meant.
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.current_dir(root(workspace)).arg(verb).arg("--release").args(args);
    if offline {
        command.arg("--offline");
    }
    command.env("CARGO_TARGET_DIR", absolute(workspace).join(".crit/built/target")).env("CARGO_TERM_COLOR", "never");
    command.stdin(Stdio::null()).stdout(create(&out)?).stderr(create(&log)?);
    let status = command.status().map_err(|source| PackageError::NoCargo { source })?;
    let read = |path: &Path| {
        fs::read(path).map(|b| String::from_utf8_lossy(&b).into_owned()).map_err(|e| PackageError::io(path, e))
    };
    let (stdout, stderr) = (read(&out)?, read(&log)?);
    let text = format!("{stderr}\n{stdout}");
    if verb == "test" {
        // The tests' own words go to stdout; they belong in the log.
        fs::write(&log, &text).map_err(|source| PackageError::io(&log, source))?;
    }
    let _ = fs::remove_file(&out);
    Ok(Attempt { ok: status.success(), stdout, text, log })
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

/// Whether Cargo says that only the missing network was in the way.
fn wants_network(text: &str) -> bool {
    text.contains("--offline") || text.contains("offline mode")
}

/// The parts of a log that say what is wrong, from the first on.
fn errors_in(text: &str) -> String {
    let starts = |line: &&str| {
        line.starts_with("error")
            || line.contains("panicked at")
            || (line.starts_with("test ") && line.ends_with("FAILED"))
    };
    let mut out = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        inside = starts(&line) || (inside && !line.starts_with("warning"));
        if inside {
            out.push(line);
        }
        if out.len() == ERROR_LINES {
            out.push("… more in the log");
            break;
        }
    }
    out.join("\n").trim().to_string()
}

/// The executable that Cargo's messages name for the package in `root`.
fn executable_in(messages: &str, root: &Path) -> Option<PathBuf> {
    let manifest = absolute(root).join("Cargo.toml").canonicalize().ok()?;
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| {
            let at = message.get("manifest_path").and_then(Value::as_str).map(PathBuf::from);
            at.and_then(|path| path.canonicalize().ok()).is_some_and(|path| path == manifest)
        })
        .filter_map(|message| Some(PathBuf::from(message.get("executable")?.as_str()?)))
        .next_back()
}

/// Asks the executable for its plugins; they must be those of the folders, byte for byte.
fn compare(executable: &Path, plugins: &[OwnPlugin]) -> Result<(), PackageError> {
    let differs = |why: String| PackageError::Differs { why };
    let output = Command::new(executable)
        .arg("--describe")
        .stdin(Stdio::null())
        .output()
        .map_err(|source| PackageError::io(executable, source))?;
    let described: Vec<Described> = serde_json::from_slice(&output.stdout)
        .map_err(|error| differs(format!("`--describe` does not answer with its plugins: {error}")))?;
    for plugin in plugins {
        let name = &plugin.folder;
        let Some(built) = described.iter().find(|d| d.manifest.name == *name) else {
            return Err(differs(format!("plugin `{name}` is not in it")));
        };
        if built.code_digest != plugin.code_digest {
            return Err(differs(format!("the files of plugin `{name}` are not those it was built from")));
        }
    }
    match described.iter().find(|d| plugins.iter().all(|plugin| plugin.folder != d.manifest.name)) {
        Some(extra) => Err(differs(format!("it has a plugin `{}` without a folder", extra.manifest.name))),
        None => Ok(()),
    }
}

/// Copies the executable to a place named by its digest, where later builds leave it alone.
fn keep(workspace: &Path, executable: &Path) -> Result<(PathBuf, Digest), PackageError> {
    let io = |source| PackageError::io(executable, source);
    let digest = Digest::of_reader(File::open(executable).map_err(io)?).map_err(io)?;
    let home = workspace.join(".crit/built").join(digest.to_string());
    let kept = home.join("engine");
    let whole = |path: &Path| File::open(path).and_then(Digest::of_reader).is_ok_and(|found| found == digest);
    if !whole(&kept) {
        let fresh = home.join(format!(".new-{}", std::process::id()));
        fs::create_dir_all(&home)
            .and_then(|()| fs::copy(executable, &fresh))
            .and_then(|_| fs::rename(&fresh, &kept))
            .map_err(|source| PackageError::io(&kept, source))?;
    }
    Ok((absolute(&kept), digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_found_and_warnings_left_out() {
        let log = "warning: unused\n --> a.rs\n\nerror[E0308]: mismatched types\n --> b.rs:3:5\n\nwarning: other\nerror: aborting";
        assert_eq!(errors_in(log), "error[E0308]: mismatched types\n --> b.rs:3:5\n\nerror: aborting");
        assert_eq!(passed("test result: ok. 12 passed; 0 failed; 0 ignored"), Some(12));
        assert_eq!(passed("test result: FAILED. 1 passed; 1 failed"), None);
    }
}
