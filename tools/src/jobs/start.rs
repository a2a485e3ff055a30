//! Starting a job, or finding the one that already does the same.

use super::process::ProcessId;
use super::store::Job;
use super::{JobState, Request, Store, now_ms};
use crate::context::Context;
use crate::error::ToolError;
use crate::tool::{Entry, Runs};
use crit_core::digest::Digest;
use crit_core::error::ErrorKind;
use serde_json::Value;
use std::fs::File;
use std::process::{Command, Stdio};

/// Starts a job for `tool`, or returns the live or finished one with the same arguments and inputs unless `fresh`.
///
/// # Errors
/// The arguments do not fit, the workspace cannot be written, or the runner cannot be started.
pub fn start(tool: &Entry, context: &Context, arguments: &Value, fresh: bool) -> Result<Job, ToolError> {
    let workspace = context.workspace()?;
    let arguments = tool.check(arguments)?;
    let inputs = tool.inputs(context, &arguments)?;
    workspace.prepare()?;
    let store = Store::of(workspace);
    let key = key(tool.name, &arguments, &inputs);
    let deadline_s = match tool.runs {
        Runs::Job { deadline_s, .. } => deadline_s,
        Runs::Inline => 0,
    };
    let _guard = store.lock()?;
    if !fresh && let Some(job) = store.find(&key) {
        return Ok(job);
    }
    let request = Request {
        tool: tool.name.to_string(),
        arguments,
        key,
        client: context.client.clone(),
        created_ms: now_ms(),
        deadline_s,
    };
    let id = store.create(&request)?;
    if let Err(error) = spawn(context, &store, &id) {
        store.finish(&id, JobState::Failed, Some(error.clone()))?;
        return Err(error);
    }
    store.load(&id)
}

/// Equal for calls that ask for the same work on the same inputs.
fn key(tool: &str, arguments: &Value, inputs: &Digest) -> String {
    let mut text = String::new();
    sorted(arguments, &mut text);
    Digest::of_parts([tool.as_bytes(), text.as_bytes(), inputs.bytes().as_slice()]).to_string()
}

/// JSON with the members of objects in order of name.
fn sorted(value: &Value, out: &mut String) {
    match value {
        Value::Object(members) => {
            let mut names: Vec<&String> = members.keys().collect();
            names.sort();
            out.push('{');
            for name in names {
                out.push_str(&Value::String(name.clone()).to_string());
                out.push(':');
                sorted(&members[name], out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                sorted(item, out);
                out.push(',');
            }
            out.push(']');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

fn spawn(context: &Context, store: &Store, id: &str) -> Result<(), ToolError> {
    let workspace = context.workspace()?;
    let path = store.folder(id)?.join("log");
    let log = File::options().create(true).append(true).open(&path);
    let log = log.and_then(|log| Ok((log.try_clone()?, log)));
    let (out, err) = log.map_err(|error| ToolError::io("write", &path, &error))?;
    let spawned = Command::new(&context.program)
        .arg("job-run")
        .arg("--workspace")
        .arg(workspace.root())
        .arg(id)
        .current_dir(workspace.root())
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .spawn();
    let mut child = spawned.map_err(|error| {
        ToolError::new(ErrorKind::Environment, format!("cannot start {}: {error}", context.program.display()))
    })?;
    // Known from here on, even if the runner dies before it can say so itself.
    if let Some(runner) = i32::try_from(child.id()).ok().and_then(ProcessId::of) {
        store.set_runner(id, &runner)?;
    }
    // Someone has to collect its exit, or it stays as a zombie of a long-lived server.
    std::thread::spawn(move || child.wait());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn key_depends_on_tool_arguments_and_inputs_but_not_on_order() {
        let inputs = Digest::of(b"in");
        let base = key("eval", &json!({"a": 1, "b": [2]}), &inputs);
        assert_eq!(base, key("eval", &json!({"b": [2], "a": 1}), &inputs));
        assert_ne!(base, key("smoke", &json!({"a": 1, "b": [2]}), &inputs));
        assert_ne!(base, key("eval", &json!({"a": 1, "b": [3]}), &inputs));
        assert_ne!(base, key("eval", &json!({"a": 1, "b": [2]}), &Digest::of(b"other")));
    }
}
