//! Typed reading of the keys of a JSON object.
//!
//! A key that is null counts as absent, as configuration writers mean it. An error names the file, the full path of
//! the key, what stands there and what is needed. Sizes are bounded so that products of two of them cannot overflow.

use super::JsonError;
use serde_json::{Map, Value};
use std::sync::Arc;

/// The largest size (a count of layers, heads, tokens, ...) that [`Config::usize`] takes.
pub const MAX_SIZE: usize = (1 << 31) - 1;

/// An object of a JSON document whose keys are read with their types.
#[derive(Clone, Debug)]
pub struct Config {
    origin: Arc<str>,
    path: String,
    map: Map<String, Value>,
}

impl Config {
    /// Parses `bytes` as an object; `origin` names them in errors.
    ///
    /// # Errors
    /// Anything that is not one strict JSON object.
    pub fn parse(bytes: &[u8], origin: &str) -> Result<Self, JsonError> {
        Self::from_value(super::parse(bytes, origin)?, origin)
    }

    /// An object already parsed.
    ///
    /// # Errors
    /// A value that is not an object.
    pub fn from_value(value: Value, origin: &str) -> Result<Self, JsonError> {
        match value {
            Value::Object(map) => Ok(Self::from_map(map, origin)),
            other => Err(JsonError::Value {
                origin: origin.into(),
                path: "the top level".into(),
                found: show(&other),
                expected: "an object".into(),
            }),
        }
    }

    /// A map already parsed or made.
    pub fn from_map(map: Map<String, Value>, origin: &str) -> Self {
        Self { origin: origin.into(), path: String::new(), map }
    }

    /// The name of the document in errors.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// All keys and values.
    pub fn map(&self) -> &Map<String, Value> {
        &self.map
    }

    /// The value of `key`, unless it is absent or null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether `key` is there and not null.
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// A size.
    ///
    /// # Errors
    /// Absent, or not a whole number from 0 to [`MAX_SIZE`].
    pub fn usize(&self, key: &str) -> Result<usize, JsonError> {
        self.opt_usize(key)?.ok_or_else(|| self.absent(key, SIZE))
    }

    /// A size above 0.
    ///
    /// # Errors
    /// Absent, 0, or not a whole number up to [`MAX_SIZE`].
    pub fn positive(&self, key: &str) -> Result<usize, JsonError> {
        match self.usize(key)? {
            0 => Err(self.wrong(key, "a whole number above 0")),
            size => Ok(size),
        }
    }

    /// A size, or `default` where the key is absent.
    ///
    /// # Errors
    /// Not a whole number from 0 to [`MAX_SIZE`].
    pub fn usize_or(&self, key: &str, default: usize) -> Result<usize, JsonError> {
        Ok(self.opt_usize(key)?.unwrap_or(default))
    }

    /// A size, if the key is there.
    ///
    /// # Errors
    /// Not a whole number from 0 to [`MAX_SIZE`].
    pub fn opt_usize(&self, key: &str) -> Result<Option<usize>, JsonError> {
        self.optional(key, SIZE, size_of)
    }

    /// Any whole number, if the key is there.
    ///
    /// # Errors
    /// Not a whole number of 64 bits.
    pub fn opt_i64(&self, key: &str) -> Result<Option<i64>, JsonError> {
        self.optional(key, "a whole number", Value::as_i64)
    }

    /// A number.
    ///
    /// # Errors
    /// Absent or not a number.
    pub fn f64(&self, key: &str) -> Result<f64, JsonError> {
        self.opt_f64(key)?.ok_or_else(|| self.absent(key, "a number"))
    }

    /// A number, or `default` where the key is absent.
    ///
    /// # Errors
    /// Not a number.
    pub fn f64_or(&self, key: &str, default: f64) -> Result<f64, JsonError> {
        Ok(self.opt_f64(key)?.unwrap_or(default))
    }

    /// A number, if the key is there.
    ///
    /// # Errors
    /// Not a number.
    pub fn opt_f64(&self, key: &str) -> Result<Option<f64>, JsonError> {
        self.optional(key, "a number", Value::as_f64)
    }

    /// A truth value, or `default` where the key is absent.
    ///
    /// # Errors
    /// Not a truth value.
    pub fn bool_or(&self, key: &str, default: bool) -> Result<bool, JsonError> {
        Ok(self.opt_bool(key)?.unwrap_or(default))
    }

    /// A truth value, if the key is there.
    ///
    /// # Errors
    /// Not a truth value.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, JsonError> {
        self.optional(key, "true or false", Value::as_bool)
    }

    /// A string.
    ///
    /// # Errors
    /// Absent or not a string.
    pub fn str(&self, key: &str) -> Result<&str, JsonError> {
        self.opt_str(key)?.ok_or_else(|| self.absent(key, "a string"))
    }

    /// A string, if the key is there.
    ///
    /// # Errors
    /// Not a string.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, JsonError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(key, "a string")),
        }
    }

    /// A list of sizes, if the key is there.
    ///
    /// # Errors
    /// Not a list of whole numbers from 0 to [`MAX_SIZE`].
    pub fn opt_usize_list(&self, key: &str) -> Result<Option<Vec<usize>>, JsonError> {
        self.list(key, "a list of whole numbers", size_of)
    }

    /// A list of numbers, if the key is there.
    ///
    /// # Errors
    /// Not a list of numbers.
    pub fn opt_f64_list(&self, key: &str) -> Result<Option<Vec<f64>>, JsonError> {
        self.list(key, "a list of numbers", Value::as_f64)
    }

    /// A list of truth values, if the key is there.
    ///
    /// # Errors
    /// Not a list of truth values.
    pub fn opt_bool_list(&self, key: &str) -> Result<Option<Vec<bool>>, JsonError> {
        self.list(key, "a list of true and false", Value::as_bool)
    }

    /// A list of strings, if the key is there.
    ///
    /// # Errors
    /// Not a list of strings.
    pub fn opt_str_list(&self, key: &str) -> Result<Option<Vec<String>>, JsonError> {
        self.list(key, "a list of strings", |value| value.as_str().map(String::from))
    }

    /// One token id or a list of them; empty where the key is absent.
    ///
    /// # Errors
    /// Neither a token id nor a list of token ids.
    pub fn ids(&self, key: &str) -> Result<Vec<u32>, JsonError> {
        const IDS: &str = "a token id or a list of token ids";
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => {
                items.iter().map(id).collect::<Option<Vec<u32>>>().ok_or_else(|| self.wrong(key, IDS))
            }
            Some(value) => id(value).map(|id| vec![id]).ok_or_else(|| self.wrong(key, IDS)),
        }
    }

    /// The object under `key`, if the key is there.
    ///
    /// # Errors
    /// Not an object.
    pub fn opt_object(&self, key: &str) -> Result<Option<Self>, JsonError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                let path = format!("{}{key}.", self.path);
                Ok(Some(Self { origin: self.origin.clone(), path, map: map.clone() }))
            }
            Some(_) => Err(self.wrong(key, "an object")),
        }
    }

    /// The configuration of the text model: `text_config` of a multi-modal wrapper, or this object itself.
    ///
    /// A wrapper states some facts about the text model beside `text_config`; they are taken over where the inner
    /// object does not state them.
    ///
    /// # Errors
    /// A `text_config` that is not an object.
    pub fn text(&self) -> Result<Self, JsonError> {
        let Some(mut inner) = self.opt_object("text_config")? else { return Ok(self.clone()) };
        for key in
            ["tie_word_embeddings", "bos_token_id", "eos_token_id", "dtype", "torch_dtype", "quantization_config"]
        {
            if let (false, Some(value)) = (inner.has(key), self.get(key)) {
                inner.map.insert(key.into(), value.clone());
            }
        }
        Ok(inner)
    }

    /// The error that `key` holds something else than `expected`.
    pub fn wrong(&self, key: &str, expected: &str) -> JsonError {
        let found = self.map.get(key).map_or_else(|| "absent".into(), show);
        JsonError::Value {
            origin: self.origin.to_string(),
            path: format!("`{}{key}`", self.path),
            found,
            expected: expected.into(),
        }
    }

    fn absent(&self, key: &str, expected: &str) -> JsonError {
        self.wrong(key, expected)
    }

    fn optional<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, JsonError> {
        self.get(key).map(|value| read(value).ok_or_else(|| self.wrong(key, expected))).transpose()
    }

    fn list<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, JsonError> {
        self.optional(key, expected, |value| value.as_array()?.iter().map(&read).collect())
    }
}

const SIZE: &str = "a whole number from 0 to 2147483647";

fn size_of(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|size| usize::try_from(size).ok()).filter(|size| *size <= MAX_SIZE)
}

fn show(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((cut, _)) => format!("found {}...", &text[..cut]),
        None => format!("found {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(value: Value) -> Config {
        Config::from_value(value, "config.json").unwrap()
    }

    #[test]
    fn reads_types_and_treats_null_as_absent() {
        let c = config(json!({"n": 3, "x": 0.5, "null": null, "list": [1, 2], "ids": 7}));
        assert_eq!(c.usize("n").unwrap(), 3);
        assert_eq!(c.f64("n").unwrap(), 3.0);
        assert_eq!(c.usize_or("null", 9).unwrap(), 9);
        assert_eq!(c.opt_usize_list("list").unwrap(), Some(vec![1, 2]));
        assert_eq!(c.ids("ids").unwrap(), [7]);
        assert_eq!(c.ids("list").unwrap(), [1, 2]);
    }

    #[test]
    fn errors_name_key_found_and_expected() {
        let c = config(json!({"n": -3, "big": 1u64 << 40, "x": 8.5, "s": "8", "o": {"f": "x"}, "zero": 0}));
        for key in ["n", "big", "x", "s", "none"] {
            let error = c.usize(key).unwrap_err().to_string();
            assert!(error.contains(&format!("`{key}`")) && error.contains("expected a whole number"), "{error}");
        }
        assert!(c.positive("zero").is_err());
        let inner = c.opt_object("o").unwrap().unwrap().f64("f").unwrap_err().to_string();
        assert_eq!(inner, "config.json: `o.f`: found \"x\", expected a number");
    }

    #[test]
    fn text_config_inherits_the_wrappers_facts() {
        let c = config(json!({"tie_word_embeddings": true, "text_config": {"hidden_size": 8}}));
        let text = c.text().unwrap();
        assert_eq!(text.usize("hidden_size").unwrap(), 8);
        assert!(text.bool_or("tie_word_embeddings", false).unwrap());
        assert!(text.usize("layers").unwrap_err().to_string().contains("`text_config.layers`"));
    }
}
