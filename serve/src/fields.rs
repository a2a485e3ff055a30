//! Typed reading of a JSON request whose errors name the path of the wrong value.
//!
//! `null` is the same as absent. Unknown fields are never looked at, so they are ignored.

use crate::problem::Problem;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// A JSON object of a request, and where it stands.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    /// `value` as an object standing at `path` (empty for the body itself).
    pub fn of(value: &'a Value, path: impl Into<String>) -> Result<Self, Problem> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(Self { map, path }),
            other => Err(wrong(&path, "an object", other)),
        }
    }

    /// The path of a field.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// All fields.
    pub fn map(&self) -> &'a Map<String, Value> {
        self.map
    }

    /// A field, if it is there and not null.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// A field that must be there.
    pub fn require(&self, name: &str, what: &str) -> Result<&'a Value, Problem> {
        self.get(name).ok_or_else(|| Problem::invalid(self.path(name), format!("is required: {what}")))
    }

    /// A string.
    pub fn string(&self, name: &str) -> Result<Option<&'a str>, Problem> {
        self.typed(name, "a string", Value::as_str)
    }

    /// A boolean.
    pub fn boolean(&self, name: &str) -> Result<Option<bool>, Problem> {
        self.typed(name, "true or false", Value::as_bool)
    }

    /// An array.
    pub fn array(&self, name: &str) -> Result<Option<&'a [Value]>, Problem> {
        self.typed(name, "an array", |value| value.as_array().map(Vec::as_slice))
    }

    /// An object.
    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>, Problem> {
        self.get(name).map(|value| Fields::of(value, self.path(name))).transpose()
    }

    /// An integer within `range`. A float without fraction counts as one, as JSON has only numbers.
    pub fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, Problem> {
        let Some(number) = self.typed(name, "an integer", as_integer)? else { return Ok(None) };
        if range.contains(&number) {
            return Ok(Some(number));
        }
        let bounds = match (*range.start(), *range.end()) {
            (low, i64::MAX) => format!("must be at least {low}"),
            (low, high) => format!("must be from {low} to {high}"),
        };
        Err(Problem::invalid(self.path(name), format!("{bounds}, is {number}")))
    }

    /// A finite number within `range`.
    pub fn number(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, Problem> {
        let Some(number) = self.typed(name, "a number", Value::as_f64)? else { return Ok(None) };
        if range.contains(&number) {
            return Ok(Some(number));
        }
        let (low, high) = (range.start(), range.end());
        Err(Problem::invalid(self.path(name), format!("must be from {low} to {high}, is {number}")))
    }

    fn typed<T>(&self, name: &str, what: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>, Problem> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| wrong(&self.path(name), what, value))
    }
}

/// The problem of a value that should have been `what`.
pub fn wrong(path: &str, what: &str, value: &Value) -> Problem {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a fractional number",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    Problem::invalid(path, format!("must be {what}, is {kind}"))
}

fn as_integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let number = value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 2f64.powi(53))?;
        Some(number as i64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn message(result: Result<Option<impl std::fmt::Debug>, Problem>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn errors_name_the_path_and_both_types() {
        let body = json!({"a": {"b": "x", "n": 3.5, "big": 9}, "nothing": null});
        let fields = Fields::of(&body, "").unwrap().object("a").unwrap().unwrap();
        assert_eq!(message(fields.boolean("b")), "`a.b` must be true or false, is a string");
        assert_eq!(message(fields.integer("n", 0..=5)), "`a.n` must be an integer, is a fractional number");
        assert_eq!(message(fields.integer("big", 0..=5)), "`a.big` must be from 0 to 5, is 9");
        assert!(Fields::of(&body, "").unwrap().string("nothing").unwrap().is_none());
    }
}
