//! Arguments from JSON, with errors that say where and what instead.

use crate::error::ToolError;
use crit_core::error::{Diagnose, ErrorKind};
use crit_core::json::{self, JsonError};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads `arguments` as `T`.
///
/// # Errors
/// The path of what does not fit, and for an unknown member the nearest known one.
pub fn parse<T: DeserializeOwned>(arguments: &Value) -> Result<T, ToolError> {
    if !arguments.is_object() {
        return Err(usage("arguments must be a JSON object".to_string()));
    }
    json::from_value(arguments.clone(), "the arguments do not fit").map_err(|error| {
        let refusal = usage(error.to_string());
        match error {
            JsonError::UnknownKey { .. } => refusal.with_hint(error.hint().unwrap_or_default()),
            JsonError::Value { path, expected, .. } => refusal.with_hint(format!("set {path} to {expected}")),
            _ => refusal.with_hint("compare the arguments with the tool's input schema"),
        }
    })
}

fn usage(message: String) -> ToolError {
    ToolError::new(ErrorKind::Usage, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its reading is tested")]
    struct Sample {
        model: String,
        #[serde(default)]
        items: Vec<Item>,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its reading is tested")]
    struct Item {
        count: u32,
    }

    fn refuse(value: Value) -> ToolError {
        parse::<Sample>(&value).expect_err("must not fit")
    }

    #[test]
    fn errors_name_path_and_nearest() {
        let error = refuse(json!({"model": "m", "items": [{"count": 1}, {"count": -1}]}));
        assert!(error.message.contains("`items[1].count`: integer `-1`, expected a whole number"), "{error}");
        let error = refuse(json!({"modle": "m"}));
        assert_eq!(error.hint.as_deref(), Some("did you mean `model`?"));
        assert_eq!(refuse(json!([])).kind, ErrorKind::Usage);
        assert!(refuse(json!({})).message.contains("model"));
    }
}
