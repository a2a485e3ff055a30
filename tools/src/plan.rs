//! `plan`: say what is tried next and what it should bring, before it is measured.

use crate::assembly;
use crate::context::Context;
use crate::error::ToolError;
use crate::next::Next;
use crate::runs::{self, RunState};
use crate::tool::{Effect, Runs, Tool};
use crit_catalog::host::free_bytes;
use crit_catalog::package;
use crit_core::error::ErrorKind;
use crit_core::plugin::PluginUse;
use crit_records::Draft;
use crit_records::format::{PlanBody, Prediction};
use crit_records::quantity::Quantity;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The tool.
pub struct Plan;

/// Arguments.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// What is believed, in words: what is changed and why that should help.
    pub hypothesis: String,
    /// What it should bring, against the candidate before.
    #[serde(default)]
    pub expected: Vec<Expected>,
    /// The plugins of the next candidate. Given, they replace the list in engine/engine.json; an empty list means none.
    #[serde(default)]
    pub plugins: Option<Vec<Plugin>>,
    /// When to give up.
    #[serde(default)]
    pub stop_rule: Option<String>,
}

/// A predicted range.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// Of what: `decode_tok_s`, `prefill_tok_s`, `first_token_ms`.
    pub metric: String,
    /// At least.
    pub low: f64,
    /// At most.
    pub high: f64,
    /// Unit of both: `%` of the candidate before, `tok/s`, `ms`.
    pub unit: String,
}

/// A plugin and its options.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plugin {
    /// Its name; `inference_search` finds them.
    pub name: String,
    /// Options that differ from their defaults.
    #[serde(default)]
    pub options: Map<String, Value>,
}

/// Answer.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Output {
    /// The plan's record.
    pub plan: String,
    /// The run.
    pub run: String,
    /// Plugins of engine/engine.json as it now stands, `name@version`.
    pub plugins: Vec<String>,
    /// What to do next.
    pub next: Next,
}

impl Tool for Plan {
    const NAME: &'static str = "plan";
    const TITLE: &'static str = "Plan a candidate";
    const DESCRIPTION: &'static str = "Plan the next optimization: record a hypothesis, the predicted speedup range and \
        the plugins of the next inference engine candidate. With `plugins` it also sets them in engine/engine.json, \
        checked against the catalogue. Predictions are compared with what eval measures.";
    const EFFECT: Effect = Effect::Adds { idempotent: false };
    const RUNS: Runs = Runs::Inline;
    type Params = Params;
    type Output = Output;

    fn run(context: &Context, params: Params) -> Result<Output, ToolError> {
        let workspace = context.workspace()?;
        let body = body(&params)?;
        let store = runs::store(context)?;
        let run = runs::open(&store)?;
        let own: Vec<_> = match package::exists(workspace.root()) {
            true => package::plugins(workspace.root())?.into_iter().map(|own| own.manifest).collect(),
            false => Vec::new(),
        };
        if let Some(plugins) = &params.plugins {
            let wanted: Vec<PluginUse> = plugins
                .iter()
                .map(|plugin| PluginUse {
                    name: plugin.name.clone(),
                    options: plugin.options.clone().into_iter().collect(),
                })
                .collect();
            assembly::set_plugins(workspace, &own, &wanted)?;
        }
        let checked = assembly::checked(workspace, &own, free_bytes())?;
        let plan = store.append(&run.id, Draft::new(&body)?)?;
        let state = RunState::read(&store, run)?;
        let plugins = checked.plugins.iter().map(|p| format!("{}@{}", p.manifest.name, p.manifest.version)).collect();
        let next = Next::call("build_candidate").with("name", format!("c{}", state.candidates.len()));
        Ok(Output { plan: plan.short(), run: state.info.short, plugins, next })
    }
}

fn body(params: &Params) -> Result<PlanBody, ToolError> {
    if params.hypothesis.trim().is_empty() {
        return Err(ToolError::new(ErrorKind::Usage, "`hypothesis` is empty").with_hint("say what you believe and why"));
    }
    let predictions = params.expected.iter().map(prediction).collect::<Result<Vec<_>, _>>()?;
    let scope = params.plugins.iter().flatten().map(|plugin| plugin.name.clone()).collect();
    Ok(PlanBody {
        hypothesis: params.hypothesis.clone(),
        predictions,
        scope,
        stop_rule: params.stop_rule.clone().unwrap_or_default(),
    })
}

fn prediction(expected: &Expected) -> Result<Prediction, ToolError> {
    if expected.low > expected.high {
        let text = format!("the range of `{}` is upside down: {} to {}", expected.metric, expected.low, expected.high);
        return Err(ToolError::new(ErrorKind::Usage, text).with_hint("give `low` at most `high`"));
    }
    let quantity = |value: f64| {
        Quantity::of(value, 3, &expected.unit).map_err(|error| {
            ToolError::new(ErrorKind::Usage, format!("the range of `{}` cannot be recorded: {error}", expected.metric))
                .with_hint("give finite numbers and a unit like `%`, `tok/s` or `ms`")
        })
    };
    Ok(Prediction { metric: expected.metric.clone(), low: quantity(expected.low)?, high: quantity(expected.high)? })
}
