//! `crit run`: the records of this workspace.

use super::call;
use super::printer::Printer;
use clap::Subcommand;
use crit_core::digest::Digest;
use crit_core::error::ErrorKind;
use crit_records::Store;
use crit_records::verify::{Options, verify};
use crit_tools::{Context, ToolError};
use serde_json::{Value, json};
use std::process::ExitCode;

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// All runs, oldest first.
    List,
    /// Where a run stands and what to do next.
    Status {
        /// The run; the newest if not given.
        run: Option<String>,
    },
    /// A run's records, or one record.
    Show {
        /// A run or a record: an id, the beginning of one, or `latest`.
        #[arg(default_value = "latest")]
        id: String,
        /// Print this attachment of the record.
        #[arg(long)]
        attachment: Option<String>,
    },
    /// Mend what can be mended: set damaged files aside, bring runs back to their last good record.
    Doctor,
    /// Prove that runs are untouched.
    Verify {
        /// The run; all if not given.
        run: Option<String>,
        /// A record id kept elsewhere that must be in the history.
        #[arg(long)]
        held: Vec<String>,
    },
}

/// Runs the command.
///
/// # Errors
/// There is no such run, or the store cannot be read.
pub fn run(args: &Args, context: &Context, printer: &Printer) -> Result<ExitCode, ToolError> {
    match &args.action {
        Action::List => list(context, printer),
        Action::Status { run } => {
            let output = call::call("run_status", context, printer, &json!({"run": run}), false)?;
            printer.output(&output)?;
            Ok(ExitCode::SUCCESS)
        }
        Action::Show { id, attachment } => show(context, printer, id, attachment.as_deref()),
        Action::Doctor => {
            let rescue = Store::open(context.workspace()?.root())?.doctor()?;
            printer.output(&serde_json::to_value(&rescue).unwrap_or_default())?;
            let mended = rescue.beyond_help.is_empty();
            Ok(if mended { ExitCode::SUCCESS } else { ExitCode::from(ErrorKind::Check.exit_code()) })
        }
        Action::Verify { run, held } => check(context, printer, run.as_deref(), held),
    }
}

fn list(context: &Context, printer: &Printer) -> Result<ExitCode, ToolError> {
    let store = Store::open(context.workspace()?.root())?;
    let runs: Vec<Value> = store
        .runs()?
        .into_iter()
        .map(|run| {
            json!({"run": run.short, "id": run.id, "at": run.at, "model": run.body.model, "goal": run.body.goal,
                "records": run.records, "last": run.last.name(), "sealed": run.sealed})
        })
        .collect();
    let damaged: Vec<Value> =
        store.damaged_runs()?.into_iter().map(|(run, error)| json!({"id": run, "why": error.to_string()})).collect();
    printer.output(&json!({"runs": runs, "damaged": damaged}))?;
    Ok(ExitCode::SUCCESS)
}

fn show(context: &Context, printer: &Printer, id: &str, attachment: Option<&str>) -> Result<ExitCode, ToolError> {
    let store = Store::open(context.workspace()?.root())?;
    if let Some(name) = attachment {
        let bytes = store.attachment(&store.show(id)?, name)?;
        printer.bytes(&bytes)?;
        return Ok(ExitCode::SUCCESS);
    }
    let output = match store.find_run(id) {
        Ok(run) => {
            let records: Vec<Value> = store
                .records(&run)?
                .iter()
                .map(|stored| {
                    let record = &stored.record;
                    let blobs: Vec<&str> = record.blobs.iter().map(|blob| blob.name.as_str()).collect();
                    json!({"seq": record.seq, "kind": stored.kind.name(), "id": stored.id, "at": record.at,
                        "attachments": blobs})
                })
                .collect();
            json!({"run": run, "records": records})
        }
        Err(not_a_run) => match store.show(id) {
            Ok(stored) => json!({"id": stored.id, "record": stored.record}),
            Err(_) => return Err(not_a_run.into()),
        },
    };
    printer.output(&output)?;
    Ok(ExitCode::SUCCESS)
}

fn check(context: &Context, printer: &Printer, run: Option<&str>, held: &[String]) -> Result<ExitCode, ToolError> {
    let workspace = context.workspace()?.root();
    let held = held
        .iter()
        .map(|text| {
            Digest::parse(text).ok_or_else(|| {
                ToolError::new(ErrorKind::Usage, "`--held` takes whole record ids, 64 hex digits")
                    .with_hint("`crit run show RUN` lists the ids of its records")
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let run = run.map(|text| Store::open(workspace)?.find_run(text)).transpose()?;
    let report = verify(workspace, &Options { run, held })?;
    let failures: Vec<Value> = report
        .failures
        .iter()
        .map(|broken| json!({"record": broken.record, "level": broken.level, "what": broken.what}))
        .collect();
    printer.output(&json!({
        "passed": report.passed(),
        "checks": report.checks,
        "failures": failures,
        "warnings": report.warnings,
        "runs": report.runs.iter().map(|run| json!({"run": run.run, "records": run.records, "tip": run.tip,
            "merkle_root": run.merkle_root, "sealed": run.sealed})).collect::<Vec<_>>(),
    }))?;
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::from(ErrorKind::Check.exit_code()) })
}
