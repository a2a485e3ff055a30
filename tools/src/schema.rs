//! JSON Schemas that every client takes.
//!
//! Derived schemas are mended in one pass: references are inlined, `format` of numbers goes, optional means absent and
//! never null, `true` becomes an object, variants of constants become one `enum`. A client that fails on any of these
//! loses all tools, not one.

use serde_json::{Map, Value, json};

/// The mended schema of `T`.
pub fn of<T: schemars::JsonSchema>() -> Value {
    let settings = schemars::generate::SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    mend(&mut schema);
    if let Some(root) = schema.as_object_mut() {
        root.remove("title");
        root.remove("description");
    }
    schema
}

/// `schema` as an object schema with `properties`.
pub fn object(schema: Value) -> Map<String, Value> {
    let mut root = match schema {
        Value::Object(root) => root,
        _ => Map::new(),
    };
    root.insert("type".into(), json!("object"));
    root.entry("properties").or_insert_with(|| json!({}));
    root
}

/// `root` without what only explains: clients keep the whole list in the model's context, and names carry their units.
/// What a value must be stays.
pub fn short(root: Map<String, Value>) -> Map<String, Value> {
    let mut schema = Value::Object(root);
    shorten(&mut schema, true);
    object(schema)
}

fn shorten(schema: &mut Value, is_root: bool) {
    let Some(members) = schema.as_object_mut() else { return };
    members.remove("description");
    if !is_root {
        for name in ["default", "minimum", "required"] {
            members.remove(name);
        }
    }
    if let Some(Value::Object(parts)) = members.get_mut("properties") {
        parts.values_mut().for_each(|part| shorten(part, false));
    }
    for name in ["items", "additionalProperties"] {
        if let Some(part) = members.get_mut(name) {
            shorten(part, false);
        }
    }
}

fn mend(schema: &mut Value) {
    if schema.is_boolean() {
        *schema = json!({"type": "object"});
        return;
    }
    let Some(members) = schema.as_object_mut() else { return };
    unwrap_optional(members);
    merge_constants(members);
    drop_null_type(members);
    if members.get("type").is_some_and(|kind| kind == "integer" || kind == "number") {
        members.remove("format");
    }
    if members.get("additionalProperties") == Some(&Value::Bool(true)) {
        members.remove("additionalProperties");
    }
    if members.get("default").is_some_and(Value::is_null) {
        members.remove("default");
    }
    mend_parts(members);
}

fn mend_parts(members: &mut Map<String, Value>) {
    for name in ["properties", "$defs"] {
        if let Some(Value::Object(parts)) = members.get_mut(name) {
            parts.values_mut().for_each(mend);
        }
    }
    for name in ["items", "contains"] {
        if let Some(part) = members.get_mut(name) {
            mend(part);
        }
    }
    if let Some(part @ Value::Object(_)) = members.get_mut("additionalProperties") {
        mend(part);
    }
    for name in ["prefixItems", "oneOf", "anyOf", "allOf"] {
        if let Some(Value::Array(parts)) = members.get_mut(name) {
            parts.iter_mut().for_each(mend);
        }
    }
    // A tuple is shown as an array of its first member's kind: few clients read `prefixItems`.
    if let Some(Value::Array(parts)) = members.remove("prefixItems") {
        let first = parts.into_iter().next().unwrap_or_else(|| json!({"type": "object"}));
        members.insert("items".into(), first);
    }
}

/// `anyOf [X, null]` is X; a lone `allOf [X]` is X.
fn unwrap_optional(members: &mut Map<String, Value>) {
    for name in ["anyOf", "oneOf", "allOf"] {
        let Some(Value::Array(parts)) = members.get_mut(name) else { continue };
        parts.retain(|part| part.get("type") != Some(&json!("null")));
        if parts.len() == 1
            && let Value::Object(only) = parts.remove(0)
        {
            members.remove(name);
            for (key, value) in only {
                members.entry(key).or_insert(value);
            }
        }
    }
}

/// Variants that are all constant strings become one `enum`, their descriptions one text.
fn merge_constants(members: &mut Map<String, Value>) {
    let Some(Value::Array(parts)) = members.get("oneOf") else { return };
    let mut names = Vec::new();
    let mut notes = Vec::new();
    for part in parts {
        let found: Vec<Value> = match (part.get("const"), part.get("enum")) {
            (Some(name), _) => vec![name.clone()],
            (None, Some(Value::Array(list))) => list.clone(),
            _ => return,
        };
        if let (Some(Value::String(note)), Some(Value::String(name))) = (part.get("description"), found.first()) {
            notes.push(format!("{name}: {}", note.replace('\n', " ").trim_end_matches('.')));
        }
        names.extend(found);
    }
    members.remove("oneOf");
    members.insert("type".into(), json!("string"));
    members.insert("enum".into(), Value::Array(names));
    if !notes.is_empty() {
        let head =
            members.get("description").and_then(Value::as_str).map(|text| format!("{text} ")).unwrap_or_default();
        members.insert("description".into(), Value::String(format!("{head}({})", notes.join("; "))));
    }
}

/// `type: [X, null]` is `type: X`.
fn drop_null_type(members: &mut Map<String, Value>) {
    if let Some(Value::Array(kinds)) = members.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        if let [only] = kinds.as_slice() {
            let only = only.clone();
            members.insert("type".into(), only);
        }
    }
    if let Some(Value::Array(values)) = members.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
}

/// What a client would stumble over in `schema`, as sentences; empty for a good one.
pub fn complaints(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let root_type = schema.get("type");
    if root_type != Some(&json!("object")) || !schema.get("properties").is_some_and(Value::is_object) {
        found.push("the root is not an object with properties".to_string());
    }
    for name in ["oneOf", "anyOf", "allOf"] {
        if schema.get(name).is_some() {
            found.push(format!("the root has `{name}`"));
        }
    }
    walk(schema, "", &mut found);
    found
}

fn walk(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            let number = members.get("type").is_some_and(|kind| kind == "integer" || kind == "number");
            if number && members.contains_key("format") {
                found.push(format!("{path} has a number format"));
            }
            if members.get("type").is_some_and(Value::is_array) {
                found.push(format!("{path} has several types"));
            }
            if members.contains_key("$ref") || members.contains_key("$defs") {
                found.push(format!("{path} has a reference"));
            }
            if let Some(Value::Object(parts)) = members.get("properties") {
                for (name, part) in parts.iter().filter(|(_, part)| part.is_boolean()) {
                    found.push(format!("{path}/properties/{name} is {part}"));
                }
            }
            for (name, part) in members {
                walk(part, &format!("{path}/{name}"), found);
            }
        }
        Value::Array(parts) => {
            for (i, part) in parts.iter().enumerate() {
                walk(part, &format!("{path}/{i}"), found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Serialize, schemars::JsonSchema)]
    struct Sample {
        count: u64,
        share: Option<f64>,
        mode: Option<Mode>,
        list: Vec<Inner>,
        inner: Option<Inner>,
        free: Value,
        map: Map<String, Value>,
        pair: (u32, u32),
    }

    #[derive(serde::Serialize, schemars::JsonSchema)]
    struct Inner {
        name: String,
    }

    #[derive(serde::Serialize, schemars::JsonSchema)]
    #[serde(rename_all = "snake_case")]
    #[expect(dead_code, reason = "only its schema is tested")]
    enum Mode {
        /// Quick.
        Fast,
        /// Slow.
        Full,
    }

    #[test]
    fn derived_schemas_lose_what_clients_stumble_over() {
        let schema = of::<Sample>();
        assert_eq!(complaints(&schema), Vec::<String>::new(), "{schema:#}");
        assert_eq!(schema["properties"]["mode"]["enum"], json!(["fast", "full"]));
        assert_eq!(schema["properties"]["inner"]["properties"]["name"]["type"], "string");
        assert_eq!(schema["properties"]["share"]["type"], "number");
    }

    #[test]
    fn complaints_see_each_trap() {
        let bad = json!({"anyOf": [], "properties": {"a": true, "b": {"type": ["string", "null"]},
            "c": {"type": "integer", "format": "uint32"}, "d": {"$ref": "#/x"}}});
        assert_eq!(complaints(&bad).len(), 6, "{:?}", complaints(&bad));
    }
}
