//! `crit plan`: say what is tried next and what it should bring.

use super::call::Face;
use crit_core::error::ErrorKind;
use crit_tools::ToolError;
use serde_json::{Value, json};

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What is believed, in words.
    #[arg(long)]
    hypothesis: String,
    /// What it should bring, as `METRIC LOW..HIGH UNIT`: "decode_tok_s 5..15 %". May be given several times.
    #[arg(long = "expect", value_name = "RANGE", value_parser = expected)]
    expect: Vec<Value>,
    /// A plugin of the next candidate, as NAME or NAME:{"option": value}. May be given several times; replaces the list
    /// in engine/engine.json.
    #[arg(long = "plugin", value_name = "NAME", value_parser = plugin)]
    plugins: Vec<Value>,
    /// The next candidate has no plugins.
    #[arg(long, conflicts_with = "plugins")]
    no_plugins: bool,
    /// When to give up.
    #[arg(long)]
    stop_rule: Option<String>,
}

impl Face for Args {
    const TOOL: &'static str = "plan";

    fn arguments(&self) -> Value {
        let plugins = (self.no_plugins || !self.plugins.is_empty()).then_some(&self.plugins);
        json!({"hypothesis": self.hypothesis, "expected": self.expect, "plugins": plugins, "stop_rule": self.stop_rule})
    }
}

fn expected(text: &str) -> Result<Value, ToolError> {
    let mut words = text.split_ascii_whitespace();
    let parsed = (|| {
        let metric = words.next()?;
        let (low, high) = words.next()?.split_once("..")?;
        let unit = words.next()?;
        let number = |text: &str| text.parse::<f64>().ok().filter(|value| value.is_finite());
        Some(json!({"metric": metric, "low": number(low)?, "high": number(high)?, "unit": unit}))
    })();
    parsed.filter(|_| words.next().is_none()).ok_or_else(|| {
        ToolError::new(ErrorKind::Usage, "a range reads `METRIC LOW..HIGH UNIT`, such as \"decode_tok_s 5..15 %\"")
    })
}

fn plugin(text: &str) -> Result<Value, ToolError> {
    let Some((name, options)) = text.split_once(':') else { return Ok(json!({"name": text})) };
    let options: Value = serde_json::from_str(options)
        .map_err(|error| ToolError::new(ErrorKind::Usage, format!("the options of `{name}` are not JSON: {error}")))?;
    Ok(json!({"name": name, "options": options}))
}
