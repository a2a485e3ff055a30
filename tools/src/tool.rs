//! What a tool is: a name, words to find it by, typed parameters and output, and `run`.
//!
//! [`Tool`] is what one file implements; [`Entry`] is the same without its types, as the MCP server, the command line
//! and the job runner use it.

use crate::context::Context;
use crate::error::ToolError;
use crate::jobs;
use crate::params;
use crate::schema;
use crit_core::digest::Digest;
use crit_core::error::{ErrorKind, nearest};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

/// What a call changes, as annotations tell clients. No tool overwrites, deletes or reaches beyond this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Reads,
    /// It adds records or jobs.
    Adds {
        /// The same call twice changes nothing more.
        idempotent: bool,
    },
}

/// How a call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// In the call: an answer within a moment.
    Inline,
    /// In a process of its own.
    Job {
        /// Longest run in seconds; past it the job is ended and reported as failed.
        deadline_s: u64,
        /// Without a workspace it runs in the call instead of being refused.
        inline_without_workspace: bool,
    },
}

/// A tool.
pub trait Tool {
    /// Name, `[a-z_]`.
    const NAME: &'static str;
    /// Title for people.
    const TITLE: &'static str;
    /// What it does. The first sentence holds the words an agent would search for.
    const DESCRIPTION: &'static str;
    /// What it changes.
    const EFFECT: Effect;
    /// How it runs.
    const RUNS: Runs;
    /// Arguments.
    type Params: DeserializeOwned + Serialize + schemars::JsonSchema;
    /// Answer.
    type Output: DeserializeOwned + Serialize + schemars::JsonSchema;

    /// A digest of what the answer depends on besides the arguments (the engine folder, the records so far): with the
    /// same arguments and inputs, a job that is live or finished answers for a new call.
    ///
    /// # Errors
    /// The inputs cannot be read.
    fn inputs(context: &Context, params: &Self::Params) -> Result<Digest, ToolError> {
        let _ = (context, params);
        Ok(Digest::of(b""))
    }

    /// Does the work.
    ///
    /// # Errors
    /// What the caller should read, with the next step.
    fn run(context: &Context, params: Self::Params) -> Result<Self::Output, ToolError>;
}

/// A tool without its types.
pub struct Entry {
    /// Name.
    pub name: &'static str,
    /// Title for people.
    pub title: &'static str,
    /// What it does.
    pub description: &'static str,
    /// What it changes.
    pub effect: Effect,
    /// How it runs.
    pub runs: Runs,
    params: fn() -> Value,
    output: fn() -> Value,
    check: fn(&Value) -> Result<Value, ToolError>,
    inputs: fn(&Context, &Value) -> Result<Digest, ToolError>,
    run: fn(&Context, &Value) -> Result<Value, ToolError>,
}

impl Entry {
    /// The entry of the tool `T`.
    pub const fn of<T: Tool>() -> Self {
        Self {
            name: T::NAME,
            title: T::TITLE,
            description: T::DESCRIPTION,
            effect: T::EFFECT,
            runs: T::RUNS,
            params: schema::of::<T::Params>,
            output: schema::of::<T::Output>,
            check: |arguments| to_json(&params::parse::<T::Params>(arguments)?),
            inputs: |context, arguments| T::inputs(context, &params::parse::<T::Params>(arguments)?),
            run: |context, arguments| to_json(&T::run(context, params::parse::<T::Params>(arguments)?)?),
        }
    }

    /// Schema of the arguments.
    pub fn input_schema(&self) -> Map<String, Value> {
        let mut root = schema::object((self.params)());
        if self.is_job() {
            jobs::call::add_arguments(&mut root);
        }
        root
    }

    /// Schema of the answer.
    pub fn output_schema(&self) -> Map<String, Value> {
        let output = schema::object((self.output)());
        if self.is_job() { jobs::call::answer_schema(output) } else { output }
    }

    /// Whether a call starts a job.
    pub const fn is_job(&self) -> bool {
        matches!(self.runs, Runs::Job { .. })
    }

    /// Checks arguments; returns them with defaults filled in.
    ///
    /// # Errors
    /// Arguments that do not fit, with the path.
    pub fn check(&self, arguments: &Value) -> Result<Value, ToolError> {
        (self.check)(arguments)
    }

    /// Digest of what the answer depends on besides the arguments.
    ///
    /// # Errors
    /// The inputs cannot be read.
    pub fn inputs(&self, context: &Context, arguments: &Value) -> Result<Digest, ToolError> {
        (self.inputs)(context, arguments)
    }

    /// Does the work here and now.
    ///
    /// # Errors
    /// Arguments that do not fit, or the work failed.
    pub fn run(&self, context: &Context, arguments: &Value) -> Result<Value, ToolError> {
        (self.run)(context, arguments)
    }

    /// Answers a call: runs the work, or starts (or finds) its job and waits as long as asked.
    ///
    /// # Errors
    /// Arguments that do not fit, or the work failed within the wait.
    pub fn answer(&self, context: &Context, arguments: &Value) -> Result<Value, ToolError> {
        match self.runs {
            Runs::Inline => self.run(context, arguments),
            Runs::Job { inline_without_workspace: true, .. } if context.try_workspace().is_none() => {
                jobs::call::run_inline(self, context, arguments)
            }
            Runs::Job { .. } => jobs::call::answer(self, context, arguments),
        }
    }
}

/// The tool called `name` in `tools`.
///
/// # Errors
/// No such tool; names the nearest.
pub fn find<'a>(tools: &'a [Entry], name: &str) -> Result<&'a Entry, ToolError> {
    tools.iter().find(|tool| tool.name == name).ok_or_else(|| {
        let all: Vec<&str> = tools.iter().map(|tool| tool.name).collect();
        let hint = match nearest(name, all.iter().copied()) {
            Some(near) => format!("did you mean `{near}`? the tools are {}", all.join(", ")),
            None => format!("the tools are {}", all.join(", ")),
        };
        ToolError::new(ErrorKind::Usage, format!("there is no tool `{name}`")).with_hint(hint)
    })
}

/// `value` as JSON without members that are null: schemas say a member may be absent, never that it may be null.
fn to_json<T: Serialize>(value: &T) -> Result<Value, ToolError> {
    let mut json = serde_json::to_value(value)
        .map_err(|error| ToolError::new(ErrorKind::Internal, format!("cannot write the answer as JSON: {error}")))?;
    drop_nulls(&mut json);
    Ok(json)
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}
