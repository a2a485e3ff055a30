//! From the JSON of a chat completion to a [`Call`]. Fields this dialect does not know are ignored; fields it knows but
//! cannot honour are refused, so that no client believes in a constraint that is not kept.

use super::API;
use crate::app::Call;
use crate::fields::{Fields, wrong};
use crate::problem::Problem;
use crate::text::Conversation;
use crit_core::sampling::SamplingParams;
use serde_json::{Map, Value};
use std::time::Instant;

const MAX_CHOICES: i64 = 128;
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;
const MAX_TOP_LOGPROBS: i64 = 20;

/// A chat completion request.
#[derive(Clone, Debug)]
pub struct ChatRequest {
    /// What to generate.
    pub call: Call,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether a stream ends with usage.
    pub include_usage: bool,
}

impl ChatRequest {
    /// Reads a request; `defaults` is the sampling where it says nothing.
    ///
    /// # Errors
    /// The first wrong value, by its path.
    pub fn parse(body: &Value, defaults: &SamplingParams, received: Instant) -> Result<Self, Problem> {
        let fields = Fields::of(body, "")?;
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let include_usage = include_usage(&fields, stream)?;
        refuse_output_constraints(&fields)?;
        let call = Call {
            api: API,
            received,
            model: fields.string("model")?.map(str::to_owned),
            conversation: conversation(&fields)?,
            conversation_path: "messages",
            sampling: sampling(&fields, defaults)?,
            max_tokens: max_tokens(&fields)?,
            stops: stops(&fields)?,
            ignore_end: fields.boolean("ignore_eos")?.unwrap_or(false),
            top_logprobs: top_logprobs(&fields)?,
            choices: fields.integer("n", 1..=MAX_CHOICES)?.map_or(1, |n| n as u32),
        };
        Ok(Self { call, stream, include_usage })
    }
}

fn include_usage(fields: &Fields<'_>, stream: bool) -> Result<bool, Problem> {
    let Some(options) = fields.object("stream_options")? else { return Ok(false) };
    if !stream {
        return Err(Problem::invalid("stream_options", "is only allowed when `stream` is true"));
    }
    Ok(options.boolean("include_usage")?.unwrap_or(false))
}

fn max_tokens(fields: &Fields<'_>) -> Result<Option<u32>, Problem> {
    let range = || 1..=i64::from(u32::MAX);
    let old = fields.integer("max_tokens", range())?;
    let new = fields.integer("max_completion_tokens", range())?;
    Ok(new.or(old).map(|limit| limit as u32))
}

fn stops(fields: &Fields<'_>) -> Result<Vec<String>, Problem> {
    let Some(value) = fields.get("stop") else { return Ok(Vec::new()) };
    match value {
        Value::String(_) => Ok(vec![stop("stop", value)?]),
        Value::Array(items) if items.len() > MAX_STOPS => {
            Err(Problem::invalid("stop", format!("must hold at most {MAX_STOPS} strings, holds {}", items.len())))
        }
        Value::Array(items) => {
            items.iter().enumerate().map(|(index, item)| stop(&format!("stop[{index}]"), item)).collect()
        }
        other => Err(wrong("stop", "a string or an array of strings", other)),
    }
}

fn stop(path: &str, value: &Value) -> Result<String, Problem> {
    let text = value.as_str().ok_or_else(|| wrong(path, "a string", value))?;
    match text.len() {
        0 => Err(Problem::invalid(path, "must not be empty")),
        1..=MAX_STOP_BYTES => Ok(text.to_owned()),
        bytes => Err(Problem::invalid(path, format!("must be at most {MAX_STOP_BYTES} bytes, is {bytes}"))),
    }
}

fn top_logprobs(fields: &Fields<'_>) -> Result<Option<u32>, Problem> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(Problem::invalid("top_logprobs", "needs `logprobs` to be true"));
    }
    Ok(wanted.then(|| top.unwrap_or(0) as u32))
}

fn sampling(fields: &Fields<'_>, defaults: &SamplingParams) -> Result<SamplingParams, Problem> {
    let real = |name: &str, range, default: f32| -> Result<f32, Problem> {
        Ok(fields.number(name, range)?.map_or(default, |number| number as f32))
    };
    let top_k = fields.integer("top_k", -1..=i64::from(u32::MAX))?;
    Ok(SamplingParams {
        temperature: real("temperature", 0.0..=100.0, defaults.temperature)?,
        // -1 is another common way to say "all".
        top_k: top_k.map_or(defaults.top_k, |k| k.max(0) as u32),
        // 0 would keep nothing; the smallest positive share keeps the most likely token.
        top_p: real("top_p", 0.0..=1.0, defaults.top_p)?.max(f32::MIN_POSITIVE),
        min_p: real("min_p", 0.0..=1.0, defaults.min_p)?,
        repetition_penalty: real("repetition_penalty", 0.01..=100.0, defaults.repetition_penalty)?,
        presence_penalty: real("presence_penalty", -2.0..=2.0, defaults.presence_penalty)?,
        frequency_penalty: real("frequency_penalty", -2.0..=2.0, defaults.frequency_penalty)?,
        logit_bias: logit_bias(fields)?.unwrap_or_else(|| defaults.logit_bias.clone()),
        seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map_or_else(random_seed, |seed| seed as u64),
    })
}

fn logit_bias(fields: &Fields<'_>) -> Result<Option<Vec<(u32, f32)>>, Problem> {
    let Some(bias) = fields.object("logit_bias")? else { return Ok(None) };
    let pair = |key: &String| {
        let id = key.parse::<u32>().map_err(|_| Problem::invalid(bias.path(key), "must have a token id as its key"))?;
        let value = bias.number(key, -100.0..=100.0)?.unwrap_or(0.0);
        Ok((id, value as f32))
    };
    bias.map().keys().map(pair).collect::<Result<_, _>>().map(Some)
}

fn random_seed() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().1
}

/// What needs constrained decoding, which this server does not have.
fn refuse_output_constraints(fields: &Fields<'_>) -> Result<(), Problem> {
    if let Some(format) = fields.object("response_format")? {
        let kind = format.string("type")?.unwrap_or("text");
        if kind != "text" {
            let message = format!("`{kind}` is not supported: this server does not constrain its output; use `text`");
            return Err(Problem::invalid("response_format.type", message));
        }
    }
    match fields.get("tool_choice") {
        None => Ok(()),
        Some(Value::String(word)) if word == "auto" || word == "none" => Ok(()),
        Some(_) => Err(Problem::invalid(
            "tool_choice",
            "must be `auto` or `none`: this server does not constrain its output to a tool call",
        )),
    }
}

fn conversation(fields: &Fields<'_>) -> Result<Conversation, Problem> {
    let messages = fields.require("messages", "the conversation")?;
    let items = messages.as_array().ok_or_else(|| wrong("messages", "an array", messages))?;
    if items.is_empty() {
        return Err(Problem::invalid("messages", "must hold at least one message"));
    }
    let messages = items.iter().enumerate().map(|(index, item)| message(item, index)).collect::<Result<_, _>>()?;
    let variables = fields.object("chat_template_kwargs")?.map(|object| object.map().clone()).unwrap_or_default();
    Ok(Conversation { messages, tools: tools(fields)?, variables })
}

fn message(value: &Value, index: usize) -> Result<Value, Problem> {
    let fields = Fields::of(value, format!("messages[{index}]"))?;
    fields.require("role", "who speaks")?;
    let role = match fields.string("role")?.unwrap_or_default() {
        role @ ("system" | "user" | "assistant" | "tool") => role,
        // The newer name of the same role; templates know only the older one.
        "developer" => "system",
        other => {
            let message = format!("must be system, developer, user, assistant or tool, is `{other}`");
            return Err(Problem::invalid(fields.path("role"), message));
        }
    };
    let mut message = Map::new();
    message.insert("role".into(), role.into());
    message.insert("content".into(), content(&fields, role)?.into());
    for name in ["name", "tool_call_id", "reasoning_content"] {
        if let Some(text) = fields.string(name)? {
            message.insert(name.into(), text.into());
        }
    }
    if let Some(calls) = fields.array("tool_calls")? {
        let path = fields.path("tool_calls");
        let calls = calls.iter().enumerate().map(|(at, call)| tool_call(call, &format!("{path}[{at}]")));
        message.insert("tool_calls".into(), Value::Array(calls.collect::<Result<_, _>>()?));
    }
    Ok(Value::Object(message))
}

/// The text of a message. Parts are joined by line breaks; an assistant may have none.
fn content(fields: &Fields<'_>, role: &str) -> Result<String, Problem> {
    match fields.get("content") {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let path = fields.path("content");
            let texts: Vec<&str> = parts
                .iter()
                .enumerate()
                .map(|(index, part)| text_part(part, format!("{path}[{index}]")))
                .collect::<Result<_, _>>()?;
            Ok(texts.join("\n"))
        }
        Some(other) => Err(wrong(&fields.path("content"), "a string or an array of text parts", other)),
        None if role == "assistant" => Ok(String::new()),
        None => Err(Problem::invalid(fields.path("content"), "is required: what is said")),
    }
}

fn text_part(part: &Value, path: String) -> Result<&str, Problem> {
    let fields = Fields::of(part, path)?;
    fields.require("type", "the kind of the part")?;
    match fields.string("type")?.unwrap_or_default() {
        "text" => {
            fields.require("text", "the text of the part")?;
            Ok(fields.string("text")?.unwrap_or_default())
        }
        "refusal" => Ok(fields.string("refusal")?.unwrap_or_default()),
        other => Err(Problem::invalid(
            fields.path("type"),
            format!("must be text, is `{other}`: this model reads text only"),
        )),
    }
}

/// A call of an earlier turn. Templates expect the arguments as an object; what is no JSON object stays a string, as
/// refusing it would end the conversation for good.
fn tool_call(value: &Value, path: &str) -> Result<Value, Problem> {
    let fields = Fields::of(value, path)?;
    let function = fields.require("function", "the call")?;
    let function = Fields::of(function, fields.path("function"))?;
    function.require("name", "the name of the function")?;
    function.string("name")?;
    let mut call = fields.map().clone();
    let parsed = function.get("arguments").and_then(Value::as_str).and_then(|text| serde_json::from_str(text).ok());
    if let (Some(Value::Object(arguments)), Some(slot)) = (parsed, call.get_mut("function")) {
        slot["arguments"] = Value::Object(arguments);
    }
    Ok(Value::Object(call))
}

/// The function tools. Other kinds cannot be served here and are left out; with `tool_choice` none, all are.
fn tools(fields: &Fields<'_>) -> Result<Vec<Value>, Problem> {
    let mut tools = Vec::new();
    for (index, value) in fields.array("tools")?.unwrap_or_default().iter().enumerate() {
        let tool = Fields::of(value, format!("tools[{index}]"))?;
        if tool.string("type")? != Some("function") {
            continue;
        }
        let function = Fields::of(tool.require("function", "what can be called")?, tool.path("function"))?;
        function.require("name", "the name of the function")?;
        function.string("name")?;
        tools.push(value.clone());
    }
    let none = fields.get("tool_choice").and_then(Value::as_str) == Some("none");
    Ok(if none { Vec::new() } else { tools })
}
