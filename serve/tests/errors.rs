//! Requests that get no answer: status, body, and that nothing reached the engine.

mod kit;

use crit_core::error::ErrorKind;
use crit_serve::{BackgroundServer, ServeError};
use kit::scripted::{Scripted, Step, text_steps};
use kit::{config, eventually, serve, serve_with};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn with(key: &str, value: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body[key] = value;
    body
}

#[test]
fn wrong_values_are_refused_with_their_path() {
    let (_server, client, engine) = serve(text_steps("x"));
    let message = |message: Value| with("messages", json!([{"role": "user", "content": "a"}, message]));
    let cases = [
        (json!([]), ""),
        (json!({}), "messages"),
        (with("messages", json!("hi")), "messages"),
        (with("messages", json!([])), "messages"),
        (message(json!("hi")), "messages[1]"),
        (message(json!({"content": "x"})), "messages[1].role"),
        (message(json!({"role": "wizard", "content": "x"})), "messages[1].role"),
        (message(json!({"role": "user"})), "messages[1].content"),
        (message(json!({"role": "user", "content": 5})), "messages[1].content"),
        (message(json!({"role": "user", "content": ["x"]})), "messages[1].content[0]"),
        (message(json!({"role": "user", "content": [{"type": "text", "text": 1}]})), "messages[1].content[0].text"),
        (message(json!({"role": "user", "content": [{"type": "image_url"}]})), "messages[1].content[0].type"),
        (message(json!({"role": "assistant", "tool_calls": [{}]})), "messages[1].tool_calls[0].function"),
        (with("model", json!(7)), "model"),
        (with("stream", json!("yes")), "stream"),
        (with("stream_options", json!({"include_usage": true})), "stream_options"),
        (with("max_tokens", json!(0)), "max_tokens"),
        (with("max_tokens", json!("10")), "max_tokens"),
        (with("max_tokens", json!(1.5)), "max_tokens"),
        (with("max_completion_tokens", json!(-1)), "max_completion_tokens"),
        (with("temperature", json!(-0.1)), "temperature"),
        (with("temperature", json!("hot")), "temperature"),
        (with("top_p", json!(1.1)), "top_p"),
        (with("top_k", json!(-2)), "top_k"),
        (with("min_p", json!(2)), "min_p"),
        (with("repetition_penalty", json!(0)), "repetition_penalty"),
        (with("presence_penalty", json!(3)), "presence_penalty"),
        (with("frequency_penalty", json!(-3)), "frequency_penalty"),
        (with("logit_bias", json!([])), "logit_bias"),
        (with("logit_bias", json!({"x": 1})), "logit_bias.x"),
        (with("logit_bias", json!({"5": 101})), "logit_bias.5"),
        (with("logit_bias", json!({"99999999": 5})), "logit_bias.99999999"),
        (with("seed", json!(1.5)), "seed"),
        (with("n", json!(0)), "n"),
        (with("n", json!(129)), "n"),
        (with("stop", json!(5)), "stop"),
        (with("stop", json!(["a", 5])), "stop[1]"),
        (with("stop", json!([""])), "stop[0]"),
        (with("stop", json!(vec!["x"; 17])), "stop"),
        (with("top_logprobs", json!(2)), "top_logprobs"),
        (with("tools", json!([{"type": "function"}])), "tools[0].function"),
        (with("tools", json!([{"type": "function", "function": {}}])), "tools[0].function.name"),
        (with("tool_choice", json!("required")), "tool_choice"),
        (with("response_format", json!({"type": "json_object"})), "response_format.type"),
        (with("chat_template_kwargs", json!("x")), "chat_template_kwargs"),
        (with("messages", json!([{"role": "tool", "content": "x"}])), "messages"),
    ];
    for (body, path) in cases {
        let reply = client.chat(&body);
        assert_eq!(reply.status(), 400, "{body} gave {}", reply.body);
        let error = &reply.json()["error"];
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["param"].as_str().unwrap_or_default(), path, "{body} gave {error}");
        assert!(error["message"].as_str().unwrap().contains(path));
    }
    assert!(engine.submits().is_empty());
}

#[test]
fn what_is_no_json_is_refused() {
    let (_server, client, _engine) = serve(text_steps("x"));
    for body in [&b"{"[..], b"", b"\xff\xfe", br#"{"messages":[{"role":"user","content":"\ud83d"}]}"#] {
        let reply = client.send("POST", "/v1/chat/completions", "", body);
        assert_eq!(reply.status(), 400);
        assert_eq!(reply.json()["error"]["code"], "invalid_json");
    }
    let deep = "[".repeat(100_000);
    assert_eq!(client.send("POST", "/v1/chat/completions", "", deep.as_bytes()).status(), 400);
}

#[test]
fn a_prompt_that_is_too_long_is_refused_with_both_numbers() {
    let engine = Scripted::new(|_| text_steps("x"));
    engine.context.store(30, Ordering::SeqCst);
    let (_server, client) = serve_with(config(), &engine);
    let frame = "<user><assistant>".len();
    let ask = |bytes: usize, stream: bool| {
        let mut body = with("stream", stream.into());
        body["messages"][0]["content"] = "x".repeat(bytes).into();
        client.chat(&body)
    };
    for stream in [false, true] {
        let reply = ask(30 - frame, stream);
        assert_eq!(reply.status(), 400, "a full context leaves no room to generate");
        let error = &reply.json()["error"];
        assert_eq!(error["code"], "context_length_exceeded");
        assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(30), &json!(30)));
        assert!(error["message"].as_str().unwrap().contains("31"), "{error}");
        assert_eq!(ask(29 - frame, stream).status(), 200);
    }
}

#[test]
fn unknown_models_routes_and_methods_have_json_errors() {
    let (_server, client, _engine) = serve(text_steps("x"));
    let reply = client.chat(&with("model", json!("other")));
    assert_eq!(reply.status(), 404);
    assert_eq!(reply.json()["error"]["code"], "model_not_found");
    assert!(reply.body.contains("test/model"), "the error says what is served");
    assert_eq!(client.get("/v1/nothing").status(), 404);
    assert_eq!(client.get("/v1/nothing").json()["error"]["code"], "not_found");
    let reply = client.get("/v1/chat/completions");
    assert_eq!((reply.status(), reply.json()["error"]["code"].as_str()), (405, Some("method_not_allowed")));
}

#[test]
fn a_large_body_is_refused_and_a_query_string_ignored() {
    let engine = Scripted::new(|_| text_steps("x"));
    let mut config = config();
    config.limits.body_bytes = 1000;
    let (_server, client) = serve_with(config, &engine);
    let reply = client.chat(&with("user", json!("x".repeat(2000))));
    assert_eq!((reply.status(), reply.json()["error"]["code"].as_str()), (413, Some("request_too_large")));
    assert_eq!(client.post("/v1/chat/completions?beta=true", &with("user", json!("me"))).status(), 200);
}

#[test]
fn a_flood_is_shed_at_once_and_room_returns() {
    let gate = Arc::new(AtomicBool::new(false));
    let closed = gate.clone();
    let engine = Scripted::new(move |_| {
        let mut steps = vec![Step::Gate(closed.clone())];
        steps.extend(text_steps("x"));
        steps
    });
    let mut config = config();
    config.limits.generations = 3;
    let (_server, client) = serve_with(config, &engine);
    let ask = move |n: u32| std::thread::spawn(move || client.chat(&with("n", n.into())));
    let running = [ask(1), ask(2)];
    eventually("three generations run", || engine.submits().len() == 3);
    // The gate is closed: an answer that waited for room would never come.
    let refused = client.chat(&with("stream", true.into()));
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.head.header("retry-after"), Some("1"));
    assert_eq!(refused.json()["error"]["code"], "overloaded");
    assert_eq!(client.metric("crit_admission_rejections_total{reason=\"overloaded\"}"), 1.0);
    gate.store(true, Ordering::SeqCst);
    for thread in running {
        assert_eq!(thread.join().unwrap().status(), 200);
    }
    assert_eq!(client.chat(&with("n", json!(3))).status(), 200);
    assert_eq!(client.chat(&with("n", json!(4))).status(), 400, "four would never fit");
}

#[test]
fn what_the_engine_refuses_has_a_status_in_both_modes() {
    for (kind, status, retry) in
        [(ErrorKind::Environment, 503, Some("1")), (ErrorKind::Input, 400, None), (ErrorKind::Engine, 500, None)]
    {
        let (_server, client, _engine) = serve(vec![Step::Refuse(kind, "no room for 12 blocks")]);
        for stream in [false, true] {
            let reply = client.chat(&with("stream", stream.into()));
            assert_eq!(reply.status(), status);
            assert_eq!(reply.head.header("retry-after"), retry);
            assert_eq!(reply.json()["error"]["message"], "no room for 12 blocks");
        }
    }
}

#[test]
fn a_fault_in_a_stream_is_an_error_frame_without_done() {
    let steps = vec![Step::Tokens(vec![65]), Step::Wait(100), Step::Refuse(ErrorKind::Engine, "kernel failed")];
    let (_server, client, _engine) = serve(steps);
    let events = client.chat_events(with("user", json!("me")));
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["message"], "kernel failed");
    assert!(!events.contains(&"[DONE]".to_owned()));
}

#[test]
fn foreign_hosts_are_refused_on_loopback() {
    let (_server, client, _engine) = serve(text_steps("x"));
    assert_eq!(client.send("GET", "/v1/models", "host: evil.example\r\n", b"").status(), 403);
    assert_eq!(client.send("GET", "/v1/models", "host: localhost:1\r\n", b"").status(), 200);
}

#[test]
fn an_address_others_can_reach_needs_permission() {
    let engine = Scripted::new(|_| text_steps("x"));
    let mut config = config();
    config.host = [0, 0, 0, 0].into();
    let start = |config| BackgroundServer::start(config, Arc::new(kit::ByteText::default()), Arc::new(engine.clone()));
    assert!(matches!(start(config.clone()), Err(ServeError::RemoteAddress(_))));
    config.allow_remote = true;
    let server = start(config.clone()).unwrap();
    config.port = server.address().port();
    assert!(matches!(start(config), Err(ServeError::Bind { .. })));
}
