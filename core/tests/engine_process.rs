//! Engines as processes: the host with the toy executor, and the Python example, driven through spawn and client.

use crit_core::error::{Diagnose, ErrorKind};
use crit_core::protocol::frame::{read_frame, write_frame};
use crit_core::protocol::{
    Client, ClientError, ConnectOptions, EngineCommand, EngineProcess, FinishReason, Generate, GenerationEvent,
    Identity, PROTOCOL_VERSION, Reply, Request, ScoreItem, ScorePlan, ScoreRow, ScoreSequence, serve, socket_from_env,
};
use crit_core::runtime::toy::{ToyExecutor, toy_logits};
use crit_core::runtime::{Engine, EngineConfig, Policies};
use crit_core::sampling::log_softmax;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const VOCAB: usize = 50;
const SOON: Duration = Duration::from_secs(20);

/// Not a test of its own: the host process of the others, which start this test binary again with a socket to serve.
#[test]
fn host_process() {
    let Ok(socket) = socket_from_env() else { return };
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if setting("TOY_FAILS").is_some() {
        panic!("the toy was told to fail");
    }
    let mut toy = ToyExecutor::new(VOCAB, 4, 100, 8, 64);
    toy.step_time = Duration::from_millis(setting("TOY_STEP_MS").unwrap_or(0));
    let engine = Engine::new(toy, Policies::default(), EngineConfig::default());
    let identity = Identity { engine: "toy 1".into(), target: "cpu".into(), ..Default::default() };
    serve(engine, identity, &socket).expect("the socket can be used");
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn toy_command(folder: &Path, env: &[(&str, &str)]) -> EngineCommand {
    EngineCommand {
        program: std::env::current_exe().expect("this test binary"),
        args: ["--exact", "host_process", "--nocapture"].map(Into::into).to_vec(),
        env: env.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        log: folder.join("engine.log"),
        ..Default::default()
    }
}

fn start(env: &[(&str, &str)]) -> (tempfile::TempDir, EngineProcess, Client) {
    let folder = folder();
    let (process, client) =
        EngineProcess::start(&toy_command(folder.path(), env), "test", SOON).expect("the engine starts");
    (folder, process, client)
}

fn generate(prompt: &[u32], max_tokens: u32) -> Generate {
    Generate { prompt: prompt.to_vec(), max_tokens, ..Default::default() }
}

fn expected(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        let logits = toy_logits(&tokens, VOCAB);
        let best = (0..VOCAB).max_by(|a, b| logits[*a].total_cmp(&logits[*b]).then(b.cmp(a)));
        tokens.push(best.expect("there are tokens") as u32);
    }
    tokens.split_off(prompt.len())
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < until, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn generates_for_many_at_once_and_closes() {
    let (_folder, process, client) = start(&[]);
    let info = client.info().expect("info");
    assert_eq!((info.engine.as_str(), info.vocab, info.max_context, info.max_batch), ("toy 1", 50, 400, 8));
    std::thread::scope(|scope| {
        for seed in 0..12u32 {
            let client = client.clone();
            scope.spawn(move || {
                let prompt: Vec<u32> = (0..=seed).map(|i| (i * 7 + seed) % 50).collect();
                let done = client.submit(generate(&prompt, 20)).and_then(|g| g.finish()).expect("it runs");
                assert_eq!(done.tokens, expected(&prompt, 20));
                assert_eq!((done.reason, done.usage.generated_tokens), (FinishReason::Length, 20));
            });
        }
    });
    let error = client.submit(generate(&[], 1)).and_then(|g| g.finish()).expect_err("no prompt");
    assert_eq!(error.kind(), ErrorKind::Input);
    let stats = client.stats().expect("stats");
    assert_eq!((stats.generated_tokens, stats.blocks_used, stats.running), (240, 0, 0));
    client.close(SOON).expect("it closes");
    let how = process.state().ended_within(SOON).expect("it is gone");
    assert_eq!(how, "status 0");
    let error = client.info().expect_err("it is gone");
    assert!(matches!(error, ClientError::Exited { .. }), "{error}");
}

#[test]
fn killing_the_engine_ends_what_goes_on_with_a_clear_error() {
    let (_folder, process, client) = start(&[("TOY_STEP_MS", "20")]);
    let mut generation = client.submit(generate(&[1], 300)).expect("it starts");
    assert!(matches!(generation.next(), Some(Ok(GenerationEvent::Tokens { .. }))));
    let (sender, others) = std::sync::mpsc::channel();
    client.submit_with(generate(&[2], 300), move |event| drop(sender.send(event))).expect("it starts");
    let pid = rustix::process::Pid::from_raw(process.pid() as i32).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it lives");
    let killed = Instant::now();
    let error = generation.find_map(Result::err).expect("it cannot end well");
    // At once, that is, long before any of the client's time limits, the shortest of which is a minute.
    assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
    let text = error.to_string();
    assert!(text.starts_with("engine exited with signal 9") && text.ends_with("while generating"), "{text}");
    assert_eq!(error.kind(), ErrorKind::Engine);
    assert_eq!(generation.next(), None);
    assert!(others.iter().any(|event| event.is_err()));
    assert!(client.submit(generate(&[1], 1)).is_err());
    drop(process);
    let (_folder, _process, client) = start(&[]);
    assert_eq!(client.submit(generate(&[1], 3)).and_then(|g| g.finish()).expect("it runs").tokens, expected(&[1], 3));
}

#[test]
fn cancelled_and_dropped_requests_free_their_state() {
    let (_folder, process, client) = start(&[("TOY_STEP_MS", "20")]);
    let generation = client.submit(generate(&[1, 2, 3], 300)).expect("it starts");
    generation.cancel().expect("it can be asked");
    assert_eq!(generation.finish().expect("it ends").reason, FinishReason::Cancelled);
    drop(client.submit(generate(&[1, 2, 3], 300)).expect("it starts"));
    let idle = |client: &Client| {
        let stats = client.stats().expect("stats");
        stats.running + stats.waiting + stats.blocks_used == 0
    };
    wait_until("a dropped generation is gone", || idle(&client));
    client.cancel(12_345).expect("an unknown id is nothing");
    // A whole connection: eight run, fifteen wait.
    let mut stream = UnixStream::connect(process.socket()).expect("it listens");
    write_frame(&mut stream, &Request::Open { protocol: PROTOCOL_VERSION, client: "raw".into() }).expect("sent");
    for id in 0..23 {
        write_frame(&mut stream, &Request::Submit { id, generate: generate(&[6], 390) }).expect("sent");
    }
    wait_until("they run and wait", || {
        let stats = client.stats().expect("stats");
        (stats.running, stats.waiting) == (8, 15)
    });
    drop(stream);
    wait_until("they are gone", || idle(&client));
    assert_eq!(client.submit(generate(&[1], 3)).and_then(|g| g.finish()).expect("it runs").tokens, expected(&[1], 3));
}

#[test]
fn malformed_frames_are_answered_and_kill_nobody() {
    let (_folder, process, client) = start(&[]);
    let open = |protocol| {
        let mut stream = UnixStream::connect(process.socket()).expect("it listens");
        stream.set_read_timeout(Some(SOON)).expect("a timeout");
        write_frame(&mut stream, &Request::Open { protocol, client: "raw".into() }).expect("sent");
        let reply = read_frame::<Reply>(&mut stream).expect("a reply").expect("a reply");
        (stream, reply)
    };
    let frame = |stream: &mut UnixStream, json: &str| {
        stream.write_all(&(json.len() as u32).to_le_bytes()).expect("sent");
        stream.write_all(json.as_bytes()).expect("sent");
        read_frame::<Reply>(stream).expect("a reply")
    };
    let (mut stream, reply) = open(PROTOCOL_VERSION);
    assert!(matches!(reply, Reply::Opened { .. }));
    for (json, id) in [
        ("{", None),
        (r#"{"type":"dance","id":4}"#, Some(4)),
        (r#"{"type":"submit","id":5,"prompt":"text","max_tokens":1}"#, Some(5)),
        (r#"{"type":"submit","id":6,"prompt":[1],"max_tokens":1,"sampling":{"heat":1}}"#, Some(6)),
        (r#"{"type":"submit","id":7,"prompt":[1],"max_tokens":-1}"#, Some(7)),
    ] {
        match frame(&mut stream, json) {
            Some(Reply::Error { id: told, error }) => assert_eq!(told, id, "{error}"),
            other => panic!("{json} was answered by {other:?}"),
        }
    }
    // The connection still works.
    assert!(matches!(frame(&mut stream, r#"{"type":"stats","id":8}"#), Some(Reply::Stats { id: 8, .. })));
    // A length no frame has: answered, then the connection ends.
    stream.write_all(&[255; 4]).expect("sent");
    assert!(matches!(read_frame(&mut stream), Ok(Some(Reply::Error { id: None, .. }))));
    assert_eq!(stream.read(&mut [0]).expect("closed"), 0);
    // Cut off in a frame, another version, no `open`.
    let (mut stream, _) = open(PROTOCOL_VERSION);
    stream.write_all(&[100, 0, 0, 0, b'{']).expect("sent");
    drop(stream);
    let (_, reply) = open(99);
    assert!(matches!(reply, Reply::Error { id: None, ref error } if error.message.contains("99")), "{reply:?}");
    let mut stream = UnixStream::connect(process.socket()).expect("it listens");
    assert!(matches!(frame(&mut stream, r#"{"type":"close"}"#), Some(Reply::Error { id: None, .. })));
    assert_eq!(client.submit(generate(&[1], 3)).and_then(|g| g.finish()).expect("it runs").tokens, expected(&[1], 3));
}

fn plan(ids: &[u32]) -> ScorePlan {
    let wrong = (ids[20] + 1) % VOCAB as u32;
    let item = |take| ScoreItem { seq: 0, take, rows: true, ..Default::default() };
    ScorePlan {
        sequences: vec![ScoreSequence { ids: ids.to_vec(), ..Default::default() }],
        steps: vec![
            vec![item(17)],
            vec![ScoreItem { draft: vec![ids[18], ids[19], wrong], accept: 2, ..item(1) }],
            vec![ScoreItem { rows: false, ..item(4) }],
            vec![item(ids.len() as u32 - 24)],
        ],
    }
}

/// Scores the plan and compares each row with the wanted log-probs.
fn check_score(client: &Client, ids: &[u32], vocab: usize, wanted: impl Fn(&[u32]) -> Vec<f32>) {
    let mut seen: Vec<ScoreRow> = Vec::new();
    let hits = client.score(&plan(ids), vocab, |rows, values| {
        assert_eq!(values.len(), rows.len() * vocab);
        for (row, values) in rows.iter().zip(values.chunks(vocab)) {
            let own = wanted(&ids[..=row.position as usize]);
            let off = own.iter().zip(values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // Log-probs of a few nats in f32: rounded to 5e-7.
            assert!(off < 1e-5, "{row:?} is off by {off}");
        }
        seen.extend(rows);
    });
    assert_eq!(hits, Ok(vec![0]));
    let positions: Vec<u32> = seen.iter().map(|row| row.position).collect();
    let wanted: Vec<u32> = (0..20).chain(24..ids.len() as u32).collect();
    assert_eq!(positions, wanted);
}

fn toy_log_probs(history: &[u32]) -> Vec<f32> {
    let mut row = toy_logits(history, VOCAB);
    log_softmax(&mut row);
    row
}

#[test]
fn scores_through_the_ring() {
    let (_folder, _process, client) = start(&[]);
    let ids: Vec<u32> = (0..60u32).map(|i| (i * i + 3) % 50).collect();
    check_score(&client, &ids, VOCAB, toy_log_probs);
    let mut wrong = plan(&ids);
    wrong.steps[1][0].accept = 3;
    let error = client.score(&wrong, VOCAB, |_, _| {}).expect_err("the third draft token is wrong");
    assert_eq!(error.kind(), ErrorKind::Input);
    assert!(error.to_string().contains("step 1, item 0"), "{error}");
    let stats = client.stats().expect("stats");
    assert_eq!(stats.blocks_used, 0);
    let rings = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let own = format!("crit-ring-{}-", std::process::id());
    let left = rings.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own)).count();
    assert_eq!(left, 0, "ring files are left behind");
}

#[test]
fn a_client_that_does_not_acknowledge_holds_up_only_itself() {
    let (_folder, process, client) = start(&[]);
    let ring = crit_core::protocol::ring::Ring::create(2, VOCAB as u64 * 4).expect("a ring");
    let ids: Vec<u32> = (0..40u32).map(|i| (i * 3) % 50).collect();
    let mut stream = UnixStream::connect(process.socket()).expect("it listens");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    write_frame(&mut stream, &Request::Open { protocol: PROTOCOL_VERSION, client: "raw".into() }).expect("sent");
    let score = Request::Score {
        id: 3,
        plan: plan(&ids),
        ring: ring.path().to_string_lossy().into_owned(),
        slots: 2,
        slot_bytes: VOCAB as u64 * 4,
    };
    write_frame(&mut stream, &score).expect("sent");
    let mut next = || read_frame::<Reply>(&mut stream).expect("a reply").expect("a reply");
    assert!(matches!(next(), Reply::Opened { .. }));
    assert!(matches!(next(), Reply::ScoreChunk { id: 3, chunk: 0, .. }));
    assert!(matches!(next(), Reply::ScoreChunk { id: 3, chunk: 1, .. }));
    // Both areas are full: the plan stands still, a generation does not.
    assert_eq!(client.submit(generate(&[1], 9)).and_then(|g| g.finish()).expect("it runs").tokens, expected(&[1], 9));
    assert!(client.stats().expect("stats").blocks_used > 0);
    write_frame(&mut stream, &Request::ScoreAck { id: 3, chunk: 1 }).expect("sent");
    match read_frame::<Reply>(&mut stream).expect("a reply") {
        Some(Reply::ScoreChunk { chunk: 2, slot, rows, .. }) => {
            assert_eq!(rows, [ScoreRow { seq: 0, position: 2 }]);
            let mut values = [0.0; VOCAB];
            ring.read(slot, &mut values).expect("it is there");
            assert_eq!(values.to_vec(), toy_log_probs(&ids[..3]));
        }
        other => panic!("{other:?}"),
    }
    drop(stream);
    wait_until("the plan of a lost connection is gone", || client.stats().expect("stats").blocks_used == 0);
    check_score(&client, &ids, VOCAB, toy_log_probs);
}

#[test]
fn an_engine_that_does_not_come_up_says_why() {
    let folder = folder();
    let failing = toy_command(folder.path(), &[("TOY_FAILS", "1")]);
    let error = EngineProcess::start(&failing, "test", SOON).err().expect("it fails").to_string();
    assert!(error.contains("engine exited with status 101"), "{error}");
    assert!(error.contains("the toy was told to fail"), "{error}");
    let missing = EngineCommand { program: "/no/such/engine".into(), ..failing.clone() };
    let error = EngineProcess::start(&missing, "test", SOON).err().expect("it fails");
    assert_eq!(error.kind(), ErrorKind::Input);
    let sleeper = EngineCommand { program: "sleep".into(), args: vec!["60".into()], env: Vec::new(), ..failing };
    let begun = Instant::now();
    let error = EngineProcess::start(&sleeper, "test", Duration::from_millis(300)).err().expect("it is silent");
    assert!(error.to_string().contains("no engine answers"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10), "it is killed, not waited for");
}

#[test]
fn an_engine_dies_with_its_process_handle() {
    let (_folder, process, client) = start(&[("TOY_STEP_MS", "20")]);
    let mut generation = client.submit(generate(&[1], 300)).expect("it starts");
    assert!(matches!(generation.next(), Some(Ok(_))));
    let socket = process.socket().to_path_buf();
    drop(process);
    assert!(generation.any(|event| event.is_err()));
    assert!(!socket.exists());
}

#[test]
fn an_engine_behind_a_wrapper_lives_and_dies_like_any_other() {
    let folder = folder();
    let direct = toy_command(folder.path(), &[]);
    // The shell stays, as the engine's parent: there is a command behind the engine's.
    let script = r#""$0" "$@"; echo over"#;
    let mut args = vec!["-c".into(), script.into(), direct.program.clone().into_os_string()];
    args.extend(direct.args.iter().cloned());
    let wrapped = EngineCommand { program: "sh".into(), args, ..direct };
    let (process, client) = EngineProcess::start(&wrapped, "test", SOON).expect("the engine starts");
    std::thread::sleep(Duration::from_millis(600));
    assert!(client.info().is_ok(), "it outlives a look at its parent");
    drop(process);
    wait_until("the engine itself is gone", || client.info().is_err());
}

#[test]
fn an_engine_ends_when_its_user_is_gone() {
    let folder = folder();
    let mut user = std::process::Command::new("sleep").arg("60").spawn().expect("there is a `sleep`");
    let command = toy_command(folder.path(), &[]);
    let socket = folder.path().join("s");
    let mut engine = std::process::Command::new(&command.program)
        .args(&command.args)
        .env("CRIT_ENGINE_SOCKET", &socket)
        .env("CRIT_ENGINE_PARENT", user.id().to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("the engine starts");
    let client = Client::connect(&socket, ConnectOptions::new("test")).expect("it answers");
    std::thread::sleep(Duration::from_millis(600));
    assert!(client.info().is_ok());
    user.kill().and_then(|()| user.wait()).expect("it lives");
    wait_until("the engine is gone", || engine.try_wait().expect("it can be asked").is_some());
}

fn python_example() -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/python/example_engine.py");
    let python = std::process::Command::new("python3").arg("--version").output();
    if !python.is_ok_and(|output| output.status.success()) {
        let _ = writeln!(std::io::stderr(), "skipped: there is no python3 to run {}", script.display());
        return None;
    }
    Some(script)
}

/// The example's model, written down again: see `logits` in the script.
fn bigram_log_probs(history: &[u32]) -> Vec<f32> {
    let last = *history.last().expect("a token");
    let mut row: Vec<f32> = (0..32u32).map(|v| ((last * 7 + v * 13) % 29) as f32 / 4.0).collect();
    log_softmax(&mut row);
    row
}

#[test]
fn an_engine_in_another_language_generates_and_scores() {
    let Some(script) = python_example() else { return };
    let folder = folder();
    let command = EngineCommand {
        program: "python3".into(),
        args: vec![script.into()],
        log: folder.path().join("engine.log"),
        ..Default::default()
    };
    let (process, client) = EngineProcess::start(&command, "test", SOON).expect("the example starts");
    let info = client.info().expect("info");
    assert_eq!((info.vocab, info.executor), (32, None));
    let request = Generate { top_logprobs: Some(2), ..generate(&[5], 12) };
    let done = client.submit(request).and_then(|g| g.finish()).expect("it runs");
    let mut seen = vec![5u32];
    for (token, given) in done.tokens.iter().zip(&done.logprobs) {
        let row = bigram_log_probs(&seen);
        let best = (0..32).max_by(|a, b| row[*a].total_cmp(&row[*b]).then(b.cmp(a))).expect("there are tokens");
        assert_eq!(*token, best as u32);
        assert!((given.logprob - row[best]).abs() < 1e-5 && given.top.len() == 2);
        seen.push(*token);
    }
    assert_eq!((seen.len(), done.reason), (13, FinishReason::Length));
    let sampled = Generate {
        sampling: crit_core::sampling::SamplingParams { temperature: 1.0, ..Default::default() },
        ..generate(&[5], 2)
    };
    let error = client.submit(sampled).and_then(|g| g.finish()).expect_err("the example is greedy only");
    assert_eq!(error.kind(), ErrorKind::Input);
    let ids: Vec<u32> = (0..50u32).map(|i| (i * i + 3) % 32).collect();
    let mut wrong = plan(&ids);
    wrong.steps[0][0].take = 51;
    assert_eq!(client.score(&wrong, 32, |_, _| {}).expect_err("too many ids").kind(), ErrorKind::Input);
    check_score(&client, &ids, 32, bigram_log_probs);
    assert!(client.stats().expect("stats").generated_tokens >= 12);
    client.close(SOON).expect("it closes");
    assert_eq!(process.state().ended_within(SOON).as_deref(), Some("status 0"));
}
