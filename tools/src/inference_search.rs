//! `inference_search`: find strategies of the catalogue.
use crate::context::Context;
use crate::error::ToolError;
use crate::tool::{Effect, Runs, Tool};
use serde::{Deserialize, Serialize};
/// The tool.
pub struct InferenceSearch;
/// Arguments.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Words.
    #[serde(default)]
    pub query: String,
}
/// Answer.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Output {
    /// x.
    pub count: u32,
}
impl Tool for InferenceSearch {
    const NAME: &'static str = "inference_search";
    const TITLE: &'static str = "Search the catalogue";
    const DESCRIPTION: &'static str = "a. b";
    const EFFECT: Effect = Effect::Reads;
    const RUNS: Runs = Runs::Inline;
    type Params = Params;
    type Output = Output;
    fn run(_: &Context, _: Params) -> Result<Output, ToolError> {
        Ok(Output { count: 0 })
    }
}
