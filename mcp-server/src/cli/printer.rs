//! The one place that prints.

use super::Global;
use crit_tools::jobs::Holder;
use crit_tools::{Reporter, ToolError};
use serde_json::Value;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

/// Prints for a person or for a program.
pub struct Printer {
    /// Machine output.
    pub json: bool,
    quiet: bool,
    progress: bool,
}

impl Printer {
    /// As asked for by `global`.
    pub fn new(global: &Global) -> Self {
        let progress = !global.json && !global.quiet && std::io::stderr().is_terminal();
        Self { json: global.json, quiet: global.quiet, progress }
    }

    /// The same, without the log lines of jobs.
    pub fn calm(&self) -> Self {
        Self { quiet: true, ..*self }
    }

    /// Prints data.
    ///
    /// # Errors
    /// Standard output cannot be written. A reader that hung up has what it wanted and is no error.
    pub fn out(&self, text: &str) -> Result<(), ToolError> {
        match text.ends_with('\n') {
            true => self.bytes(text.as_bytes()),
            false => self.bytes(format!("{text}\n").as_bytes()),
        }
    }

    /// Writes bytes as they are.
    ///
    /// # Errors
    /// Standard output cannot be written. A reader that hung up has what it wanted and is no error.
    pub fn bytes(&self, bytes: &[u8]) -> Result<(), ToolError> {
        let mut out = std::io::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(ToolError::io("write", std::path::Path::new("standard output"), &error))
            }
            _ => Ok(()),
        }
    }

    /// Prints an output: as it is for a program, as an outline for a person.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn output(&self, output: &Value) -> Result<(), ToolError> {
        if self.json {
            let text = serde_json::to_string_pretty(output).unwrap_or_default();
            return self.out(&text);
        }
        let mut text = String::new();
        outline(output, 0, &mut text);
        self.out(&text)
    }

    /// Tells something on the side.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }

    /// Tells a failure; returns its exit code.
    pub fn failed(&self, error: &ToolError) -> ExitCode {
        let mut err = std::io::stderr().lock();
        let _ = if self.json {
            writeln!(err, "{}", serde_json::to_string(error).unwrap_or_default())
        } else {
            writeln!(err, "error: {}", error.message)
        };
        if let (false, Some(hint)) = (self.json, &error.hint) {
            let _ = writeln!(err, "hint: {hint}");
        }
        ExitCode::from(error.kind.exit_code())
    }

    /// Where work done in this process reports to: the line of `bar`, and the notes.
    pub fn reporter(&self, bar: &indicatif::ProgressBar) -> Arc<dyn Reporter> {
        Arc::new(BarReporter { bar: bar.clone(), quiet: self.quiet || self.json })
    }

    /// A progress line on a terminal, hidden elsewhere.
    pub fn progress(&self) -> indicatif::ProgressBar {
        if !self.progress {
            return indicatif::ProgressBar::hidden();
        }
        let bar = indicatif::ProgressBar::new_spinner();
        bar.enable_steady_tick(std::time::Duration::from_millis(120));
        bar
    }

    /// A bar that counts bytes on a terminal, hidden elsewhere.
    pub fn bytes_bar(&self) -> indicatif::ProgressBar {
        if !self.progress {
            return indicatif::ProgressBar::hidden();
        }
        let bar = indicatif::ProgressBar::new(0);
        if let Ok(style) =
            indicatif::ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
        {
            bar.set_style(style);
        }
        bar
    }
}

struct BarReporter {
    bar: indicatif::ProgressBar,
    quiet: bool,
}

impl Reporter for BarReporter {
    fn phase(&self, name: &str) {
        self.bar.set_message(name.to_string());
    }

    fn progress(&self, done: u64, total: u64) {
        if self.bar.length().is_some() {
            self.bar.set_length(total);
            self.bar.set_position(done);
        }
    }

    fn log(&self, line: &str) {
        self.bar.set_message(line.to_string());
    }

    fn waiting(&self, holder: Option<&Holder>) {
        if let (Some(holder), false) = (holder, self.quiet) {
            self.bar.set_message(format!("waits for {} ({})", holder.job_id, holder.what));
        }
    }
}

/// Help, version and usage errors as clap writes them, with our exit codes.
pub fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { 2 } else { 0 })
}

/// JSON as indented `name: value` lines.
fn outline(value: &Value, depth: usize, out: &mut String) {
    let pad = "  ".repeat(depth);
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match scalar(member) {
                    Some(text) => out.push_str(&format!("{pad}{name}: {text}\n")),
                    None => {
                        out.push_str(&format!("{pad}{name}:\n"));
                        outline(member, depth + 1, out);
                    }
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                match scalar(item) {
                    Some(text) => out.push_str(&format!("{pad}- {text}\n")),
                    None => {
                        let mut inner = String::new();
                        outline(item, depth + 1, &mut inner);
                        out.push_str(&format!("{pad}- {}", inner.trim_start()));
                    }
                }
            }
        }
        other => out.push_str(&format!("{pad}{}\n", scalar(other).unwrap_or_default())),
    }
}

/// A value that fits on its line.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(items) if items.is_empty() => Some("none".into()),
        Value::Object(members) if members.is_empty() => Some("none".into()),
        Value::Array(items) if items.iter().all(|item| item.is_number() || item.is_boolean()) => {
            Some(items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
        }
        Value::Array(_) | Value::Object(_) => None,
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::outline;
    use serde_json::json;

    #[test]
    fn an_outline_nests() {
        let mut text = String::new();
        outline(&json!({"a": 1, "b": {"c": "x"}, "d": [{"e": 1, "f": 2}, "y"], "g": []}), 0, &mut text);
        assert_eq!(text, "a: 1\nb:\n  c: x\nd:\n  - e: 1\n    f: 2\n  - y\ng: none\n");
    }
}
