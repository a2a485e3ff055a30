//! Chat templates: messages to the text that a model was trained on.
//!
//! Templates are written for Python's jinja2 as `transformers` sets it up: blocks swallow the line they stand on, string
//! methods are Python's, `tojson` writes Python's JSON, and `raise_exception` refuses the messages. A template is
//! data from the internet: it runs with bounded work and sees nothing but its inputs.

use super::dates::strftime;
use super::error::TextError;
use super::pyjson::{self, Style};
use crate::files::{Checkpoint, token_text};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde};
use minijinja::{Environment, Error, ErrorKind, Value};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Steps of template code that one rendering may take: thousands of times what real templates need.
const FUEL: u64 = 10_000_000;

const SPECIAL: &[&str] = &["bos_token", "cls_token", "eos_token", "mask_token", "pad_token", "sep_token", "unk_token"];

/// A checkpoint's chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special: Vec<(&'static str, String)>,
    source: String,
    has_tool_variant: bool,
}

impl ChatTemplate {
    /// The chat template of `checkpoint`, where it has one: chat_template.jinja, else that of tokenizer_config.json; for
    /// GGUF that of the metadata.
    ///
    /// # Errors
    /// A template that is no sound template.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Option<Self>, TextError> {
        let sources = sources(checkpoint)?;
        let Some(default) = sources.iter().find(|(name, _)| name == "default").or(sources.first()) else {
            return Ok(None);
        };
        let special = SPECIAL.iter().filter_map(|key| Some((*key, special_text(checkpoint, key)?))).collect();
        let mut template = Self::new(checkpoint.path(), &default.1, special)?;
        if let Some((_, tools)) = sources.iter().find(|(name, _)| name == "tool_use") {
            add(&mut template.environment, checkpoint.path(), "tools", tools)?;
            template.has_tool_variant = true;
        }
        Ok(Some(template))
    }

    /// The template with this source; `special` are the texts of special tokens under their names.
    ///
    /// # Errors
    /// A source that is no sound template.
    pub fn new(origin: &Path, source: &str, special: Vec<(&'static str, String)>) -> Result<Self, TextError> {
        let mut environment = environment();
        add(&mut environment, origin, "chat", source)?;
        Ok(Self { environment, special, source: source.into(), has_tool_variant: false })
    }

    /// The text of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders `messages` (a list of objects with `role` and `content`). `extra` are further variables, such as
    /// `enable_thinking`.
    ///
    /// # Errors
    /// [`TextError::Refused`] when the template itself refuses the messages, [`TextError::Render`] when it stops on
    /// them.
    pub fn render(
        &self,
        messages: &serde_json::Value,
        tools: Option<&serde_json::Value>,
        add_generation_prompt: bool,
        extra: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, TextError> {
        let mut variables: Vec<(String, Value)> =
            self.special.iter().map(|(key, text)| (key.to_string(), Value::from(text))).collect();
        variables.push(("messages".into(), Value::from(Serde(messages))));
        variables.push(("tools".into(), Value::from(Serde(tools))));
        variables.push(("documents".into(), Value::from(())));
        variables.push(("add_generation_prompt".into(), add_generation_prompt.into()));
        variables.extend(extra.iter().map(|(key, value)| (key.clone(), Value::from(Serde(value)))));
        let name = if tools.is_some() && self.has_tool_variant { "tools" } else { "chat" };
        let template = self.environment.get_template(name).map_err(|error| failure(&error))?;
        template.render(Value::from_pairs(variables)).map_err(|error| failure(&error))
    }
}

/// The templates of a checkpoint by name.
fn sources(checkpoint: &Checkpoint) -> Result<Vec<(String, String)>, TextError> {
    if let Some(path) = checkpoint.template_file() {
        let broken = |what: String| TextError::Template { path: path.into(), what };
        let bytes = crate::json::read_bounded(path, 16 << 20).map_err(|error| broken(error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|_| broken("not UTF-8".into()))?;
        return Ok(vec![("default".into(), text)]);
    }
    if let Some(metadata) = checkpoint.metadata() {
        let named = metadata.keys().filter_map(|key| {
            let name = key.strip_prefix("tokenizer.chat_template.")?;
            Some((name.to_string(), metadata.str(key)?.to_string()))
        });
        let default = metadata.str("tokenizer.chat_template").map(|text| ("default".to_string(), text.to_string()));
        return Ok(default.into_iter().chain(named).collect());
    }
    let Some(config) = checkpoint.tokenizer_config() else { return Ok(Vec::new()) };
    let one = |value: &serde_json::Value| {
        let text = |key: &str| Some(value.get(key)?.as_str()?.to_string());
        Some((text("name")?, text("template")?))
    };
    match config.get("chat_template") {
        None => Ok(Vec::new()),
        Some(serde_json::Value::String(text)) => Ok(vec![("default".into(), text.clone())]),
        Some(value) => value.as_array().and_then(|list| list.iter().map(one).collect()).ok_or_else(|| {
            let error = config.wrong("chat_template", "a string, or a list of objects with `name` and `template`");
            TextError::File(error.into())
        }),
    }
}

/// The text of the special token that templates call `key`.
fn special_text(checkpoint: &Checkpoint, key: &str) -> Option<String> {
    let Some(metadata) = checkpoint.metadata() else { return token_text(checkpoint.tokenizer_config()?, key) };
    // The format's own spelling of the separator is kept.
    let name = match key {
        "pad_token" => "padding_token",
        "sep_token" => "seperator_token",
        "unk_token" => "unknown_token",
        other => other,
    };
    let id = match key {
        "bos_token" => checkpoint.bos_id(),
        _ => metadata.id(&format!("tokenizer.ggml.{name}_id")),
    };
    let tokens = metadata.strings("tokenizer.ggml.tokens").ok()??;
    tokens.get(id? as usize).map(|token| token.to_string())
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the ordinary delimiters do not clash"));
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |reason: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, reason.clone()).with_source(Refusal(reason)))
    });
    environment.add_function("strftime_now", |format: String| strftime(SystemTime::now(), &format));
    environment.add_filter("tojson", tojson);
    environment
}

fn tojson(value: Value, positional: Rest<Value>, arguments: Kwargs) -> Result<Value, Error> {
    let indent = match positional.first() {
        Some(indent) => Some(usize::try_from(indent.clone())?),
        None => arguments.get::<Option<usize>>("indent")?,
    };
    let mut style = Style::new(indent.map(|indent| indent.min(32)));
    style.ascii = arguments.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    style.sort_keys = arguments.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    if let Some(separators) = arguments.get::<Option<Vec<String>>>("separators")? {
        let [item, key] =
            separators.try_into().map_err(|_| Error::new(ErrorKind::InvalidOperation, "two separators"))?;
        (style.item, style.key) = (item, key);
    }
    arguments.assert_all_used()?;
    let value =
        serde_json::to_value(&value).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(Value::from_safe_string(pyjson::dumps(&value, &style)))
}

fn add(environment: &mut Environment<'static>, origin: &Path, name: &str, source: &str) -> Result<(), TextError> {
    let added = environment.add_template_owned(name.to_string(), without_generation_tags(source));
    added.map_err(|error| TextError::Template { path: PathBuf::from(origin), what: error.to_string() })
}

/// Turns `{% generation %}` blocks, which mark a reply for training, into blocks without effect.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let tag = &rest[start + 2..start + length];
        let word = tag.trim_matches(['-', '+']).trim();
        out.push_str(&rest[..start + 2]);
        match word {
            "generation" => out.push_str(&tag.replace(word, "if true")),
            "endgeneration" => out.push_str(&tag.replace(word, "endif")),
            _ => out.push_str(tag),
        }
        rest = &rest[start + length..];
    }
    out + rest
}

/// The template's own refusal, carried through the engine's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn failure(error: &Error) -> TextError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(Refusal(reason)) = cause.downcast_ref::<Refusal>() {
            return TextError::Refused { reason: reason.clone() };
        }
        source = cause.source();
    }
    TextError::Render { what: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, json};

    fn render(source: &str, messages: serde_json::Value) -> Result<String, TextError> {
        ChatTemplate::new(Path::new("t"), source, vec![("bos_token", "<s>".into())])?.render(
            &messages,
            None,
            true,
            &Map::new(),
        )
    }

    #[test]
    fn blocks_swallow_their_line_and_the_last_newline_goes() {
        let source = "{{ bos_token }}\n{% for m in messages %}\n  {% if m.role == 'user' %}\nU {{ m['content'] }}\n  {% endif %}\n{% endfor %}\nend\n";
        assert_eq!(render(source, json!([{"role": "user", "content": "<hi> &"}])).unwrap(), "<s>\nU <hi> &\nend");
    }

    #[test]
    fn python_in_templates() {
        let source = "{% set ns = namespace(n=0) %}{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}\
            {% set ns.n = ns.n + 1 %}{{ m.content.split('|')[-1].strip().upper() }}{% endfor %}{{ ns.n }}\
            {{ messages[::-1][0].content[1:] }}{{ messages | length }}{{ tools is none }}{{ x is defined and x is false }}\
            {% generation %}g{%- endgeneration %}{{ {'b': 1, 'a': [1.0, '<é>']} | tojson }}{{ messages[0].items() | list | length }}";
        let messages = json!([{"role": "a", "content": "1"}, {"role": "b", "content": "x|  yz "}]);
        assert_eq!(render(source, messages).unwrap(), "YZ1|  yz 2TrueFalseg{\"b\": 1, \"a\": [1.0, \"<é>\"]}2");
    }

    #[test]
    fn refusals_and_faults_are_told_apart() {
        let refused = render("{{ raise_exception('only users') }}", json!([]));
        assert!(matches!(refused, Err(TextError::Refused { reason }) if reason == "only users"));
        assert!(matches!(render("{{ messages[0].role.x.y }}", json!([])), Err(TextError::Render { .. })));
        assert!(matches!(render("{% if %}", json!([])), Err(TextError::Template { .. })));
    }

    #[test]
    fn endless_templates_stop() {
        let source = "{% for i in range(9999) %}{% for j in range(9999) %}{% set x = i * j %}{% endfor %}{% endfor %}";
        assert!(matches!(render(source, json!([])), Err(TextError::Render { .. })));
    }
}
