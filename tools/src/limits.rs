//! The machine's measured limits, kept in the workspace until the machine boots again.

use crate::context::Context;
use crate::error::ToolError;
use crit_core::error::ErrorKind;
use crit_eval::probe::{Probe, ProbeOptions, probe_machine};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A probe and the boot it was made in.
#[derive(Serialize, Deserialize)]
struct Kept {
    version: String,
    boot: String,
    probe: Probe,
}

/// The limits of this machine: kept ones if they are of this boot, else measured now.
///
/// # Errors
/// The machine cannot be measured.
pub fn measured(context: &Context, fresh: bool, options: &ProbeOptions) -> Result<Probe, ToolError> {
    if !fresh && let Some(kept) = kept(context) {
        return Ok(kept);
    }
    let _alone = context.measure("probe")?;
    context.report().phase("probe");
    let found = probe_machine(options, &|line| context.report().log(line))?;
    keep(context, &found)?;
    Ok(found)
}

/// The kept limits of this boot, if there are any.
pub fn kept(context: &Context) -> Option<Probe> {
    let bytes = std::fs::read(path(context)?).ok()?;
    let kept: Kept = serde_json::from_slice(&bytes).ok()?;
    (kept.version == crit_eval::EVAL_VERSION && kept.boot == boot()).then_some(kept.probe)
}

fn keep(context: &Context, probe: &Probe) -> Result<(), ToolError> {
    let Some(path) = path(context) else { return Ok(()) };
    context.workspace()?.prepare()?;
    let kept = Kept { version: crit_eval::EVAL_VERSION.into(), boot: boot(), probe: probe.clone() };
    let text = serde_json::to_vec(&kept)
        .map_err(|error| ToolError::new(ErrorKind::Internal, format!("cannot write the probe: {error}")))?;
    let part = path.with_extension("part");
    let written = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, &path));
    written.map_err(|error| ToolError::io("write", &path, &error))
}

fn path(context: &Context) -> Option<PathBuf> {
    Some(context.try_workspace()?.cache().join("probe.json"))
}

fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_string()
}
