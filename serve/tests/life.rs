//! Engines that load, die, hang and stop; clients that leave or do not read.

mod kit;

use crit_core::error::ErrorKind;
use crit_serve::{BackgroundServer, ServeError};
use kit::scripted::{Scripted, Step, text_steps};
use kit::{ByteText, Client, config, eventually, serve, serve_with};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn ask(word: &str) -> Value {
    json!({"messages": [{"role": "user", "content": word}]})
}

/// Tokens for ever, one a millisecond.
fn endless() -> Vec<Step> {
    (0..3000).flat_map(|_| [Step::Tokens(vec![b'x'.into()]), Step::Wait(1)]).collect()
}

/// What the user says decides what happens.
fn obeying() -> Scripted {
    Scripted::new(|submit| {
        let prompt = submit.text();
        match () {
            () if prompt.contains("crash") => vec![Step::Tokens(vec![65, 66]), Step::Wait(100), Step::Crash],
            () if prompt.contains("hang") => vec![Step::Tokens(vec![65, 66]), Step::Hang],
            () if prompt.contains("endless") => endless(),
            () if prompt.contains("silent") => vec![Step::Wait(60_000)],
            () => text_steps("fine"),
        }
    })
}

fn content(client: &Client) -> String {
    let reply = client.chat(&ask("hello"));
    assert_eq!(reply.status(), 200, "{}", reply.body);
    reply.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

#[test]
fn a_client_that_leaves_cancels_its_generation() {
    let engine = obeying();
    let (_server, client) = serve_with(config(), &engine);
    let cancelled = || engine.cancelled.load(Ordering::SeqCst);
    let (_, mut events) = client.chat_stream(ask("endless"));
    assert!(events.nth(2).is_some());
    drop(events);
    eventually("the stream's generation is cancelled", || cancelled() == 1);
    drop(client.chat_stream(ask("silent")));
    eventually("also before its first token", || cancelled() == 2);
    let mut several = ask("endless");
    several["n"] = 3.into();
    drop(client.chat_stream(several));
    eventually("all its choices", || cancelled() == 5);
    let mut socket = std::net::TcpStream::connect(client.address()).unwrap();
    let body = ask("silent").to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    std::io::Write::write_all(&mut socket, head.as_bytes()).unwrap();
    eventually("the whole answer is under way", || engine.submits().len() == 6);
    drop(socket);
    eventually("a whole answer's generation is cancelled as well", || cancelled() == 6);
    assert_eq!(content(&client), "fine");
    eventually("metrics tell", || client.metric("crit_client_disconnects_total") == 4.0);
    assert_eq!(client.metric("crit_http_streams_open"), 0.0);
    assert_eq!(client.metric("crit_requests_running"), 0.0);
}

#[test]
fn a_crash_ends_running_requests_and_the_next_is_answered() {
    let engine = obeying();
    let (_server, client) = serve_with(config(), &engine);
    let events = client.chat_events(ask("crash"));
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "engine_lost");
    assert!(last["error"]["message"].as_str().unwrap().contains("exited in the test"), "{last}");
    assert_eq!(content(&client), "fine");
    let reply = client.chat(&ask("crash"));
    assert_eq!((reply.status(), reply.json()["error"]["code"].as_str()), (502, Some("engine_lost")));
    assert_eq!(content(&client), "fine");
    assert_eq!(engine.launches.load(Ordering::SeqCst), 3);
    assert_eq!(client.metric("crit_engine_restarts_total"), 2.0);
}

#[test]
fn a_hang_is_noticed_and_the_host_replaced() {
    let engine = obeying();
    let mut config = config();
    config.supervision.hang_after = Duration::from_millis(150);
    let (_server, client) = serve_with(config, &engine);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(engine.launches.load(Ordering::SeqCst), 1, "idle is not hung");
    let reply = client.chat(&ask("hang"));
    assert_eq!(reply.status(), 502, "{}", reply.body);
    assert!(reply.body.contains("no progress"), "{}", reply.body);
    assert_eq!(content(&client), "fine");
    assert!(engine.kills.load(Ordering::SeqCst) >= 1);
}

#[test]
fn health_follows_the_engine() {
    let engine = obeying();
    engine.load_ms.store(300, Ordering::SeqCst);
    let mut config = config();
    config.supervision.restart_wait = Duration::from_millis(50);
    let server = BackgroundServer::start(config, Arc::new(ByteText::default()), Arc::new(engine.clone())).unwrap();
    let client = Client::new(server.address());
    let health = client.get("/health");
    assert_eq!((health.status(), health.json()["status"].as_str()), (503, Some("loading")));
    let refused = client.chat(&ask("hello"));
    assert_eq!(refused.status(), 503);
    assert!(refused.head.header("retry-after").is_some());
    assert_eq!(client.metric("crit_engine_up"), 0.0);
    server.wait_ready().unwrap();
    assert_eq!(client.get("/health").status(), 200);
    assert_eq!(client.metric("crit_engine_up"), 1.0);
    engine.crash();
    eventually("health tells of the crash", || client.get("/health").json()["status"] == "restarting");
    let health = client.get("/health");
    assert_eq!(health.status(), 503);
    assert!(health.body.contains("closed its connection"), "{}", health.body);
    assert_eq!(client.chat(&ask("hello")).json()["error"]["code"], "engine_not_ready");
    eventually("the next host is up", || client.get("/health").status() == 200);
}

#[test]
fn an_engine_that_does_not_start_ends_the_server() {
    let engine = obeying();
    engine.broken_from.store(1, Ordering::SeqCst);
    let server = BackgroundServer::start(config(), Arc::new(ByteText::default()), Arc::new(engine)).unwrap();
    assert!(matches!(server.wait_ready(), Err(ServeError::Launch(_))));
    assert!(matches!(server.stop(), Err(ServeError::Launch(failure)) if failure.message.contains("cannot be loaded")));
}

#[test]
fn restarts_are_bounded() {
    let engine = obeying();
    engine.broken_from.store(2, Ordering::SeqCst);
    let mut config = config();
    config.supervision.max_restarts = 3;
    let (server, client) = serve_with(config, &engine);
    let reply = client.chat(&ask("crash"));
    assert_eq!(reply.status(), 502);
    eventually("the server gives up", || engine.launches.load(Ordering::SeqCst) == 4);
    let ended = server.stop();
    assert!(matches!(&ended, Err(ServeError::EngineLost { attempts: 3, .. })), "{ended:?}");
}

#[test]
fn a_host_that_dies_at_once_again_and_again_is_given_up() {
    let engine = Scripted::new(|_| vec![Step::Crash]);
    let mut config = config();
    config.supervision.max_restarts = 2;
    config.supervision.backoff = Duration::from_millis(1);
    let (server, client) = serve_with(config, &engine);
    for _ in 0..3 {
        assert_eq!(client.chat(&ask("hello")).status(), 502);
    }
    assert!(matches!(server.stop(), Err(ServeError::EngineLost { attempts: 2, .. })));
}

#[test]
fn stopping_lets_running_requests_end_and_closes_the_engine() {
    let engine = Scripted::new(|_| {
        let mut steps = vec![Step::Tokens(vec![65]), Step::Wait(300)];
        steps.extend(text_steps("!"));
        steps
    });
    let (server, client) = serve_with(config(), &engine);
    let (_, mut events) = client.chat_stream(ask("hello"));
    events.next();
    let reader = std::thread::spawn(move || events.collect::<Vec<String>>());
    server.stop().unwrap();
    assert_eq!(reader.join().unwrap().last().unwrap(), "[DONE]");
    assert!(engine.closed.load(Ordering::SeqCst));
}

#[test]
fn stopping_does_not_wait_for_ever() {
    let engine = obeying();
    let mut config = config();
    config.supervision.drain = Duration::from_millis(100);
    let (server, client) = serve_with(config, &engine);
    let (_, mut events) = client.chat_stream(ask("silent"));
    events.next();
    let reader = std::thread::spawn(move || events.collect::<Vec<String>>());
    let start = Instant::now();
    server.stop().unwrap();
    assert!(start.elapsed() < Duration::from_secs(20), "a minute of silence was left");
    let events = reader.join().unwrap();
    assert!(events.last().unwrap().contains("shutting_down"), "{events:?}");
    assert!(std::net::TcpStream::connect(client.address()).is_err(), "nobody listens any more");
}

#[test]
fn a_client_that_does_not_read_is_cut_off_and_stalls_nobody() {
    let engine = Scripted::new(|submit| match submit.text().contains("flood") {
        true => vec![Step::Tokens(vec![b'x'.into()]); 400_000],
        false => text_steps("fine"),
    });
    engine.context.store(1_000_000, Ordering::SeqCst);
    let mut config = config();
    config.limits.backlog_events = 64;
    let (_server, client) = serve_with(config, &engine);
    let (_, mut flood) = client.chat_stream(ask("flood"));
    flood.next();
    eventually("the flood is cancelled", || engine.cancelled.load(Ordering::SeqCst) == 1);
    assert_eq!(content(&client), "fine");
    let last = flood.last().unwrap();
    assert!(last.contains("client_too_slow"), "{last}");
}

#[test]
fn silence_is_filled_with_comments() {
    let engine = obeying();
    let mut config = config();
    config.limits.keep_alive = Duration::from_millis(30);
    let (_server, client) = serve_with(config, &engine);
    let mut request = ask("silent");
    request["stream"] = true.into();
    let (_, mut body) = client.open("POST", "/v1/chat/completions", "", request.to_string().as_bytes());
    let mut read = String::new();
    eventually("a comment comes", || {
        let mut buffer = [0; 512];
        let count = std::io::Read::read(&mut body, &mut buffer).unwrap();
        read.push_str(&String::from_utf8_lossy(&buffer[..count]));
        read.lines().any(|line| line.starts_with(':'))
    });
}

#[test]
fn a_new_hosts_counters_are_asked_for_at_once() {
    let engine = obeying();
    let mut config = config();
    config.supervision.stats_every = Duration::from_secs(3600);
    let (_server, client) = serve_with(config, &engine);
    eventually("its blocks are known", || client.metric("crit_kv_blocks") == 10.0);
}

#[test]
fn models_are_listed_with_aliases() {
    let engine = obeying();
    let mut config = config();
    config.aliases = vec!["short".into()];
    let (_server, client) = serve_with(config, &engine);
    let list = client.get("/v1/models").json();
    assert_eq!(list["object"], "list");
    let ids: Vec<&str> = list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["test/model", "short"]);
    assert_eq!(client.get("/v1/models/test/model").json()["object"], "model");
    assert_eq!(client.get("/v1/models/test/model").json()["max_model_len"], 4096);
    assert_eq!(client.get("/v1/models/none").status(), 404);
    let mut by_alias = ask("hello");
    by_alias["model"] = "short".into();
    assert_eq!(client.chat(&by_alias).status(), 200);
}

#[test]
fn token_metrics_equal_the_sum_of_usage() {
    let (_server, client, _engine) = serve({
        let mut steps = vec![Step::Cached(4)];
        steps.extend(text_steps("some text"));
        steps
    });
    let (mut prompt, mut generated) = (0, 0);
    for limit in [1, 3, 100] {
        let mut body = ask("hello");
        body["max_tokens"] = limit.into();
        let usage = client.chat(&body).json()["usage"].clone();
        prompt += usage["prompt_tokens"].as_u64().unwrap();
        generated += usage["completion_tokens"].as_u64().unwrap();
    }
    let metric = |name: &str| client.metric(name) as u64;
    let (computed, cached) = (
        metric("crit_prompt_tokens_total{source=\"computed\"}"),
        metric("crit_prompt_tokens_total{source=\"cached\"}"),
    );
    assert_eq!((computed + cached, cached), (prompt, 12));
    assert_eq!(metric("crit_generation_tokens_total"), generated);
    assert_eq!(metric("crit_time_to_first_token_seconds_count"), 3);
    assert_eq!(metric("crit_inter_token_latency_seconds_count"), generated - 3);
    assert_eq!(metric("crit_e2e_request_latency_seconds_count"), 3);
    assert_eq!(metric("crit_requests_total{api=\"chat_completions\",finish_reason=\"length\"}"), 2);
    assert_eq!(metric("crit_requests_total{api=\"chat_completions\",finish_reason=\"stop\"}"), 1);
    assert_eq!(metric("crit_http_requests_total{route=\"/v1/chat/completions\",status=\"200\"}"), 3);
    let page = client.get("/metrics");
    assert!(page.head.header("content-type").unwrap().starts_with("text/plain"));
    assert!(!page.body.contains("NaN"));
}

#[test]
fn a_refused_request_leaves_the_host_alone() {
    let engine = Scripted::new(|_| vec![Step::Refuse(ErrorKind::Engine, "one request only")]);
    let (_server, client) = serve_with(config(), &engine);
    assert_eq!(client.chat(&ask("x")).status(), 500);
    assert_eq!(engine.launches.load(Ordering::SeqCst), 1, "a refused request is no reason to restart");
}
