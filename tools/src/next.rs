//! The call suggested after an answer.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A tool call: what to do next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Next {
    /// Name of the tool.
    pub tool: String,
    /// Its arguments, ready to send.
    #[serde(default)]
    pub arguments: Map<String, Value>,
}

impl Next {
    /// A call of `tool` without arguments.
    pub fn call(tool: &str) -> Self {
        Self { tool: tool.to_string(), arguments: Map::new() }
    }

    /// The same call with one more argument.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.arguments.insert(name.to_string(), value.into());
        self
    }
}
