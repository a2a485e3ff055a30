//! Arguments from JSON, with errors that say where and what instead.

use crate::error::ToolError;
use crit_core::error::{ErrorKind, nearest};
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
    serde_path_to_error::deserialize(arguments).map_err(|error| {
        let path = error.path().to_string();
        let message = error.inner().to_string();
        let place = if path == "." { String::new() } else { format!(" at `{path}`") };
        let refusal = usage(format!("the arguments do not fit{place}: {message}"));
        match suggestion(&message) {
            Some(hint) => refusal.with_hint(hint),
            None => refusal.with_hint("compare the arguments with the tool's input schema"),
        }
    })
}

fn usage(message: String) -> ToolError {
    ToolError::new(ErrorKind::Usage, message)
}

/// For "unknown field `x`, expected one of `a`, `b`": the nearest of those expected.
fn suggestion(message: &str) -> Option<String> {
    if !message.starts_with("unknown ") {
        return None;
    }
    let mut quoted = message.split('`').skip(1).step_by(2);
    let given = quoted.next()?;
    let known: Vec<&str> = quoted.collect();
    let near = nearest(given, known.iter().copied())?;
    Some(format!("did you mean `{near}`?"))
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
        assert!(error.message.contains("items[1].count"), "{error}");
        let error = refuse(json!({"modle": "m"}));
        assert_eq!(error.hint.as_deref(), Some("did you mean `model`?"));
        assert_eq!(refuse(json!([])).kind, ErrorKind::Usage);
        assert!(refuse(json!({})).message.contains("model"));
    }
}
