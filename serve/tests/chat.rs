//! Chat completions over HTTP, whole and streamed, against a scripted engine.

mod kit;

use crit_serve::BackgroundServer;
use kit::http::accumulated;
use kit::scripted::{Scripted, Step, text_steps};
use kit::{ByteText, END, config, eventually, serve, serve_with};
use serde_json::{Value, json};
use std::sync::Arc;

fn hello() -> Value {
    json!({"model": "test/model", "messages": [{"role": "user", "content": "hi"}]})
}

fn with(more: Value) -> Value {
    let mut body = hello();
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn parsed(events: &[String]) -> Vec<Value> {
    events.iter().filter(|event| *event != "[DONE]").map(|event| serde_json::from_str(event).unwrap()).collect()
}

#[test]
fn whole_answer_has_text_finish_and_exact_usage() {
    let mut steps = vec![Step::Cached(3)];
    steps.extend(text_steps("Hello!"));
    let (_server, client, _engine) = serve(steps);
    let reply = client.chat(&hello());
    assert_eq!(reply.status(), 200, "{}", reply.body);
    let body = reply.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "test/model");
    assert_eq!(body["choices"][0]["message"]["content"], "Hello!");
    assert_eq!(body["choices"][0]["message"]["role"], "assistant");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(body["choices"][0]["logprobs"], Value::Null);
    let prompt = "<user>hi<assistant>".len();
    let expected = json!({
        "prompt_tokens": prompt,
        "completion_tokens": 7,
        "total_tokens": prompt + 7,
        "prompt_tokens_details": {"cached_tokens": 3},
    });
    assert_eq!(body["usage"], expected);
}

#[test]
fn stream_has_role_deltas_one_finish_usage_and_done() {
    let (_server, client, _engine) = serve(text_steps("Hello!"));
    let (head, events) = client.chat_stream(with(json!({"stream_options": {"include_usage": true}})));
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    let events: Vec<String> = events.collect();
    assert_eq!(events.last().unwrap(), "[DONE]");
    let chunks = parsed(&events);
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk["id"] == chunks[0]["id"]));
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(accumulated(&events, 0), "Hello!");
    let finishes: Vec<&Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"].get(0))
        .map(|choice| &choice["finish_reason"])
        .filter(|reason| !reason.is_null())
        .collect();
    assert_eq!(finishes, ["stop"]);
    let last = chunks.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 7);
    assert!(chunks[..chunks.len() - 1].iter().all(|chunk| chunk["usage"].is_null()));
}

#[test]
fn usage_chunk_is_sent_only_when_asked_for() {
    let (_server, client, _engine) = serve(text_steps("Hello!"));
    let chunks = parsed(&client.chat_events(hello()));
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none() && chunk["choices"].as_array().unwrap().len() == 1));
}

#[test]
fn token_limit_and_context_end_with_length() {
    let (_server, client, engine) = serve(text_steps(&"x".repeat(9000)));
    let body = client.chat(&with(json!({"max_tokens": 3}))).json();
    assert_eq!(body["choices"][0]["message"]["content"], "xxx");
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    let body = client.chat(&with(json!({"max_tokens": 3, "max_completion_tokens": 2}))).json();
    assert_eq!(body["usage"]["completion_tokens"], 2);
    let prompt = "<user>hi<assistant>".len() as u32;
    client.chat(&with(json!({"max_tokens": 1_000_000})));
    client.chat(&hello());
    let limits: Vec<u32> = engine.submits().iter().map(|submit| submit.max_tokens).collect();
    assert_eq!(limits, [3, 2, 4096 - prompt, 4096 - prompt]);
}

/// A stop string cut into tokens in every way, with text before and after it in the same tokens.
#[test]
fn stop_string_is_found_in_every_split_and_never_leaks() {
    let text = "ab<END>cd";
    let cuts = text.len() - 1;
    let splits: Vec<Vec<Vec<u8>>> = (0..1_usize << cuts)
        .map(|mask| {
            let mut pieces = vec![vec![]];
            for (at, byte) in text.bytes().enumerate() {
                pieces.last_mut().unwrap().push(byte);
                if at < cuts && mask >> at & 1 == 1 {
                    pieces.push(vec![]);
                }
            }
            pieces
        })
        .collect();
    let all: Vec<Vec<u8>> = splits.iter().flatten().cloned().collect();
    let text_model = ByteText { pieces: all };
    let starts: Vec<u32> = splits
        .iter()
        .scan(kit::bytes::PIECES, |next, split| {
            let start = *next;
            *next += split.len() as u32;
            Some(start)
        })
        .collect();
    let lengths: Vec<u32> = splits.iter().map(|split| split.len() as u32).collect();
    let engine = Scripted::new(move |submit| {
        let index = submit.sampling.seed as usize;
        (starts[index]..starts[index] + lengths[index]).map(|token| Step::Tokens(vec![token])).collect()
    });
    let mut config = config();
    config.supervision.hang_after = std::time::Duration::from_secs(60);
    let server = BackgroundServer::start(config, Arc::new(text_model), Arc::new(engine.clone())).unwrap();
    server.wait_ready().unwrap();
    let client = kit::Client::new(server.address());
    for (seed, split) in splits.iter().enumerate() {
        let body = with(json!({"stop": ["never", "<END>"], "seed": seed}));
        let whole = client.chat(&body).json();
        assert_eq!(whole["choices"][0]["message"]["content"], "ab", "split {split:?}");
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
        let events = client.chat_events(body);
        assert_eq!(accumulated(&events, 0), "ab", "split {split:?}");
        let ends = split.iter().scan(0, |end, piece| {
            *end += piece.len();
            Some(*end)
        });
        let tokens = ends.take_while(|&end| end < "ab<END>".len()).count() + 1;
        assert_eq!(whole["usage"]["completion_tokens"], tokens, "split {split:?}");
    }
}

#[test]
fn stop_string_cancels_the_engine_and_keeps_cached_tokens_exact() {
    let mut steps = vec![Step::Cached(5)];
    steps.extend("one two".bytes().map(|byte| Step::Tokens(vec![byte.into()])));
    steps.push(Step::Wait(60_000));
    let (_server, client, engine) = serve(steps);
    let body = client.chat(&with(json!({"stop": " "}))).json();
    assert_eq!(body["choices"][0]["message"]["content"], "one");
    assert_eq!(body["usage"]["completion_tokens"], 4);
    assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 5);
    eventually("the engine is told", || engine.cancelled.load(std::sync::atomic::Ordering::SeqCst) == 1);
}

#[test]
fn text_that_only_looked_like_a_stop_is_shown() {
    let (_server, client, _engine) = serve(text_steps("a <EN b <END"));
    let body = with(json!({"stop": ["<END>"]}));
    assert_eq!(client.chat(&body).json()["choices"][0]["message"]["content"], "a <EN b <END");
    assert_eq!(accumulated(&client.chat_events(body), 0), "a <EN b <END");
}

#[test]
fn characters_split_over_tokens_come_out_whole() {
    let (_server, client, _engine) = serve(text_steps("né 漢字 🦀!"));
    let events = client.chat_events(hello());
    assert_eq!(accumulated(&events, 0), "né 漢字 🦀!");
    assert!(events.iter().all(|event| !event.contains('\u{fffd}')));
    assert_eq!(client.chat(&hello()).json()["choices"][0]["message"]["content"], "né 漢字 🦀!");
}

#[test]
fn broken_bytes_become_replacement_characters_at_the_end() {
    let (_server, client, _engine) =
        serve(vec![Step::Tokens(vec!['a' as u32]), Step::Tokens(vec![0xf0, 0x9f]), Step::Tokens(vec![END])]);
    assert_eq!(client.chat(&hello()).json()["choices"][0]["message"]["content"], "a\u{fffd}");
}

#[test]
fn logprobs_have_true_bytes_and_match_the_visible_text() {
    let (_server, client, _engine) = serve(text_steps("é!"));
    let body = with(json!({"logprobs": true, "top_logprobs": 2}));
    let whole = client.chat(&body).json();
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    let bytes: Vec<Value> = content.iter().map(|entry| entry["bytes"].clone()).collect();
    assert_eq!(bytes, [json!([0xc3]), json!([0xa9]), json!([b'!'])]);
    assert_eq!(content[2]["token"], "!");
    assert_eq!(content[2]["logprob"], -0.5);
    assert_eq!(content[2]["top_logprobs"][1]["token"], "\"");
    let streamed: Vec<Value> = parsed(&client.chat_events(body))
        .iter()
        .flat_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default())
        .collect();
    assert_eq!(streamed, content);
    let cut = client.chat(&with(json!({"logprobs": true, "stop": "!"}))).json();
    assert_eq!(cut["choices"][0]["logprobs"]["content"].as_array().unwrap().len(), 2);
    assert_eq!(cut["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json!([]));
}

#[test]
fn several_choices_each_have_role_text_and_one_finish() {
    let engine = Scripted::new(|submit| text_steps(&format!("choice {}", submit.sampling.seed)));
    let (_server, client) = serve_with(config(), &engine);
    let body = with(json!({"n": 3, "seed": 10, "stream_options": {"include_usage": true}}));
    let events = client.chat_events(body);
    let chunks = parsed(&events);
    for index in 0..3_u64 {
        assert_eq!(accumulated(&events, index), format!("choice {}", 10 + index));
        let of_choice =
            || chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()).filter(|c| c["index"] == index);
        assert_eq!(of_choice().filter(|choice| choice["delta"]["role"] == "assistant").count(), 1);
        assert_eq!(of_choice().filter(|choice| choice["finish_reason"] == "stop").count(), 1);
    }
    let usage = &chunks.last().unwrap()["usage"];
    assert_eq!(usage["completion_tokens"], 3 * ("choice 10".len() + 1));
    assert_eq!(usage["prompt_tokens"], "<user>hi<assistant>".len());
    let whole = client.chat(&with(json!({"n": 2, "seed": 10}))).json();
    assert_eq!(whole["choices"][1]["message"]["content"], "choice 11");
}

#[test]
fn sampling_fields_reach_the_engine_and_defaults_fill_the_rest() {
    let engine = Scripted::new(|_| text_steps("x"));
    let mut config = config();
    config.sampling.temperature = 0.7;
    config.sampling.top_k = 20;
    let (_server, client) = serve_with(config, &engine);
    client.chat(&hello());
    client.chat(&with(json!({
        "temperature": 0, "top_k": -1, "top_p": 0.5, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 1,
        "frequency_penalty": -1.5, "logit_bias": {"5": -100, "7": 2.5}, "seed": -1,
    })));
    let submits = engine.submits();
    assert_eq!((submits[0].sampling.temperature, submits[0].sampling.top_k), (0.7, 20));
    let sampling = &submits[1].sampling;
    assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p), (0.0, 0, 0.5, 0.1));
    assert_eq!(sampling.repetition_penalty, 1.1);
    assert_eq!((sampling.presence_penalty, sampling.frequency_penalty), (1.0, -1.5));
    assert_eq!(sampling.logit_bias, [(5, -100.0), (7, 2.5)]);
    assert_eq!(sampling.seed, u64::MAX);
    client.chat(&hello());
    assert_ne!(engine.submits()[0].sampling.seed, engine.submits()[2].sampling.seed, "no seed means a fresh one");
}

#[test]
fn conversation_reaches_the_template_normalised() {
    let engine = Scripted::new(|_| text_steps("x"));
    let (_server, client) = serve_with(config(), &engine);
    let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
    let bad = json!({"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{\"a\":"}});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
    let reply = client.chat(&json!({
        "messages": [
            {"role": "developer", "content": "S"},
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "content": null, "tool_calls": [call, bad]},
            {"role": "tool", "tool_call_id": "c1", "content": "R"},
        ],
        "tools": [{"type": "web_search"}, tool],
        "chat_template_kwargs": {"enable_thinking": false},
        "unknown_field": {"x": 1},
    }));
    assert_eq!(reply.status(), 200, "{}", reply.body);
    let prompt = engine.submits()[0].text();
    assert!(prompt.starts_with("<system>S<user>one\ntwo<assistant>["), "{prompt}");
    assert!(prompt.contains(r#""arguments":{"a":1}"#), "{prompt}");
    assert!(prompt.contains(r#""arguments":"{\"a\":""#), "{prompt}");
    assert!(prompt.ends_with(&format!("<tool>R[{tool}]{{\"enable_thinking\":false}}<assistant>")), "{prompt}");
    client.chat(&with(json!({"tools": [tool], "tool_choice": "none"})));
    assert_eq!(engine.submits()[1].text(), "<user>hi<assistant>");
}

#[test]
fn end_tokens_can_be_ignored() {
    let (_server, client, engine) = serve(vec![Step::Tokens(vec![65, END, 66]), Step::Tokens(vec![67])]);
    assert_eq!(client.chat(&hello()).json()["choices"][0]["message"]["content"], "A");
    let body = client.chat(&with(json!({"ignore_eos": true, "max_tokens": 4}))).json();
    assert_eq!(body["choices"][0]["message"]["content"], "ABC");
    assert_eq!(body["usage"]["completion_tokens"], 4);
    assert!(engine.submits()[1].stop_ids.is_empty());
}
