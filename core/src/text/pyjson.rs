//! JSON as Python's `json.dumps` writes it. Models were trained on that text, so every space counts.

use serde_json::{Number, Value};

/// How to write. The default is what chat templates get from `tojson` without arguments.
#[derive(Clone, Debug)]
pub(super) struct Style {
    pub(super) indent: Option<usize>,
    pub(super) item: String,
    pub(super) key: String,
    pub(super) ascii: bool,
    pub(super) sort_keys: bool,
}

impl Style {
    /// Python's separators: a trailing space after commas only on one line.
    pub(super) fn new(indent: Option<usize>) -> Self {
        let item = if indent.is_some() { "," } else { ", " };
        Self { indent, item: item.into(), key: ": ".into(), ascii: false, sort_keys: false }
    }
}

/// `value` in `style`.
pub(super) fn dumps(value: &Value, style: &Style) -> String {
    let mut out = String::new();
    write(value, style, 0, &mut out);
    out
}

fn write(value: &Value, style: &Style, depth: usize, out: &mut String) {
    match value {
        Value::Number(number) => out.push_str(&number_text(number)),
        Value::String(text) => write_text(text, style.ascii, out),
        Value::Array(items) => {
            let parts = items.iter().map(|item| (None, item));
            write_list(('[', ']'), parts, style, depth, out);
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().map(|(key, value)| (Some(key), value)).collect();
            if style.sort_keys {
                entries.sort_by_key(|(key, _)| *key);
            }
            write_list(('{', '}'), entries.into_iter(), style, depth, out);
        }
        simple => out.push_str(&simple.to_string()),
    }
}

fn write_list<'a>(
    (open, close): (char, char),
    parts: impl ExactSizeIterator<Item = (Option<&'a String>, &'a Value)>,
    style: &Style,
    depth: usize,
    out: &mut String,
) {
    let empty = parts.len() == 0;
    out.push(open);
    for (i, (key, value)) in parts.enumerate() {
        if i > 0 {
            out.push_str(&style.item);
        }
        new_line(style, depth + 1, out);
        if let Some(key) = key {
            write_text(key, style.ascii, out);
            out.push_str(&style.key);
        }
        write(value, style, depth + 1, out);
    }
    if !empty {
        new_line(style, depth, out);
    }
    out.push(close);
}

fn new_line(style: &Style, depth: usize, out: &mut String) {
    if let Some(indent) = style.indent {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent * depth));
    }
}

fn write_text(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (ascii && !c.is_ascii()) => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Python writes exponents from 1e16 and below 1e-4, with a sign and two digits.
fn number_text(number: &Number) -> String {
    let Some(x) = number.as_f64().filter(|_| number.is_f64()) else { return number.to_string() };
    let scientific = format!("{x:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{x:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn writes_what_python_writes() {
        let value = json!({"b": [1, 2.0, 1e16, 1.5e-5, 0.0001], "a": {"é<\u{1}": null}, "e": [], "t": true});
        assert_eq!(
            dumps(&value, &Style::new(None)),
            "{\"b\": [1, 2.0, 1e+16, 1.5e-05, 0.0001], \"a\": {\"é<\\u0001\": null}, \"e\": [], \"t\": true}"
        );
        let sorted = Style { sort_keys: true, ascii: true, ..Style::new(Some(2)) };
        assert_eq!(
            dumps(&json!({"b": [1], "a": "é😀"}), &sorted),
            "{\n  \"a\": \"\\u00e9\\ud83d\\ude00\",\n  \"b\": [\n    1\n  ]\n}"
        );
    }
}
