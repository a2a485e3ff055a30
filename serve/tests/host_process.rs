//! The server with its engine in a process of its own: kill, stop, hang, and what the process inherits.
//!
//! The engine host is this very test executable: run as an engine, it has the socket in its environment, and the "test"
//! [`engine_host`] then plays the host until it is closed or killed.

mod kit;

use crit_core::error::ErrorKind;
use crit_core::protocol::frame::{read_frame, write_frame};
use crit_core::protocol::{EngineCommand, PROTOCOL_VERSION, Reply, Request};
use crit_serve::engine::link::StopFlag;
use crit_serve::engine::{EngineLauncher, HostLauncher};
use crit_serve::{BackgroundServer, ServeError, ServerConfig};
use kit::scripted::{Scripted, Step, text_steps};
use kit::{ByteText, Client, config, eventually};
use serde_json::{Value, json};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SOCKET: &str = "CRIT_ENGINE_SOCKET";
const STUBBORN: &str = "TEST_HOST_IGNORES_CLOSE";

/// The engine host; without a socket in the environment there is nothing to do.
#[test]
fn engine_host() {
    if let Some(socket) = std::env::var_os(SOCKET) {
        host(Path::new(&socket));
    }
}

fn host(socket: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let engine = Scripted::new(|submit| match submit.text().contains("endless") {
        true => (0..30_000).flat_map(|_| [Step::Tokens(vec![b'x'.into()]), Step::Wait(2)]).collect(),
        false => text_steps("fine"),
    });
    let mut link = engine.launch(&StopFlag::default()).unwrap();
    let mut out = stream.try_clone().unwrap();
    let replies = std::thread::spawn(move || {
        while let Ok(Some(reply)) = link.replies.receive() {
            write_frame(&mut out, &reply).unwrap();
        }
    });
    let mut answer = stream.try_clone().unwrap();
    while let Ok(Some(request)) = read_frame::<Request>(&mut stream) {
        match request {
            Request::Open { .. } => {
                let opened = Reply::Opened { protocol: PROTOCOL_VERSION, engine: "scripted 1".into() };
                write_frame(&mut answer, &opened).unwrap();
            }
            Request::Info { id } => {
                write_frame(&mut answer, &Reply::Info { id, info: Box::new(link.info.clone()) }).unwrap();
            }
            Request::Close if std::env::var_os(STUBBORN).is_some() => {}
            Request::Close => {
                link.requests.send(&request).unwrap();
                break;
            }
            other => link.requests.send(&other).unwrap(),
        }
    }
    replies.join().unwrap();
}

fn own_command(dir: &TempDir) -> EngineCommand {
    EngineCommand {
        program: std::env::current_exe().unwrap(),
        args: ["--exact", "engine_host", "--nocapture"].map(Into::into).to_vec(),
        log: dir.path().join("engine.log"),
        ..EngineCommand::default()
    }
}

fn start(config: ServerConfig, command: EngineCommand) -> BackgroundServer {
    let launcher = HostLauncher::new(command, Duration::from_secs(20));
    BackgroundServer::start(config, Arc::new(ByteText::default()), Arc::new(launcher)).unwrap()
}

fn ask(word: &str) -> Value {
    json!({"messages": [{"role": "user", "content": word}]})
}

fn pid(client: &Client) -> u64 {
    client.get("/health").json()["engine_pid"].as_u64().expect("the engine is up")
}

fn signal(name: &str, pid: u64) {
    assert!(std::process::Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

fn exists(pid: u64) -> bool {
    PathBuf::from(format!("/proc/{pid}")).exists()
}

#[test]
fn kill_in_mid_generation_ends_it_clearly_and_the_next_request_is_answered() {
    let dir = TempDir::new().unwrap();
    let server = start(config(), own_command(&dir));
    server.wait_ready().unwrap();
    let client = Client::new(server.address());
    let first = pid(&client);
    for n in 1..=2 {
        let killed = pid(&client);
        let (_, mut events) = client.chat_stream(ask("endless"));
        assert!(events.nth(3).is_some());
        let whole = std::thread::spawn(move || client.chat(&ask("endless")));
        eventually("both run", || client.metric("crit_requests_running") == 2.0);
        signal("-9", killed);
        let last: Value = serde_json::from_str(&events.last().unwrap()).unwrap();
        assert_eq!(last["error"]["code"], "engine_lost");
        assert!(last["error"]["message"].as_str().unwrap().contains("signal 9"), "{last}");
        let whole = whole.join().unwrap();
        assert_eq!((whole.status(), whole.json()["error"]["code"].as_str()), (502, Some("engine_lost")));
        let next = client.chat(&ask("hello"));
        assert_eq!(next.status(), 200, "{}", next.body);
        assert_eq!(next.json()["choices"][0]["message"]["content"], "fine");
        assert_eq!(client.metric("crit_engine_restarts_total"), f64::from(n));
        assert!(!exists(killed), "a killed host leaves no zombie");
    }
    assert_ne!(pid(&client), first);
    assert!(dir.path().join("engine.log.previous").exists(), "the lost host's log is kept");
}

#[test]
fn a_stopped_process_is_found_hung_and_replaced() {
    let dir = TempDir::new().unwrap();
    let mut config = config();
    config.supervision.hang_after = Duration::from_millis(500);
    let server = start(config, own_command(&dir));
    server.wait_ready().unwrap();
    let client = Client::new(server.address());
    let (_, mut events) = client.chat_stream(ask("endless"));
    events.next();
    signal("-STOP", pid(&client));
    let last = events.last().unwrap();
    assert!(last.contains("no progress"), "{last}");
    assert_eq!(client.chat(&ask("hello")).status(), 200);
}

#[test]
fn the_host_inherits_no_stream_and_is_gone_with_the_server() {
    let dir = TempDir::new().unwrap();
    let server = start(config(), own_command(&dir));
    server.wait_ready().unwrap();
    let pid = pid(&Client::new(server.address()));
    let stream = |number: u32| std::fs::read_link(format!("/proc/{pid}/fd/{number}")).unwrap();
    assert_eq!(stream(0), Path::new("/dev/null"));
    assert_eq!((stream(1), stream(2)), (dir.path().join("engine.log"), dir.path().join("engine.log")));
    server.stop().unwrap();
    assert!(!exists(pid));
}

#[test]
fn a_host_that_ignores_close_is_killed() {
    let dir = TempDir::new().unwrap();
    let mut command = own_command(&dir);
    command.env.push((STUBBORN.into(), "1".into()));
    let mut config = config();
    config.supervision.close = Duration::from_millis(200);
    let server = start(config, command);
    server.wait_ready().unwrap();
    let pid = pid(&Client::new(server.address()));
    let started = Instant::now();
    server.stop().unwrap();
    assert!(started.elapsed() < Duration::from_secs(20));
    assert!(!exists(pid));
}

#[test]
fn hosts_that_cannot_start_say_why() {
    let dir = TempDir::new().unwrap();
    let shell = |script: &str| EngineCommand {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        log: dir.path().join("engine.log"),
        ..EngineCommand::default()
    };
    let ended = |command: EngineCommand| match start(config(), command).stop_when_ended() {
        ServeError::Launch(failure) => failure,
        other => panic!("{other}"),
    };
    let failure = ended(shell("echo no such tensor >&2; exit 3"));
    assert!(failure.message.contains("status 3") && failure.message.contains("no such tensor"), "{failure}");
    let missing = EngineCommand { program: "/does/not/exist".into(), ..shell("") };
    assert_eq!(ended(missing).kind, ErrorKind::Input);
    let launcher = HostLauncher::new(shell("sleep 60"), Duration::from_millis(100));
    let failure = launcher.launch(&StopFlag::default()).err().unwrap();
    assert!(failure.message.contains("not ready within 100ms"), "{failure}");
}

#[test]
fn a_server_that_is_loading_can_be_stopped() {
    let dir = TempDir::new().unwrap();
    let command = EngineCommand {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), "sleep 60".into()],
        log: dir.path().join("engine.log"),
        ..EngineCommand::default()
    };
    let server = start(config(), command);
    std::thread::sleep(Duration::from_millis(100));
    let started = Instant::now();
    server.stop().unwrap();
    assert!(started.elapsed() < Duration::from_secs(20));
}

trait StopWhenEnded {
    fn stop_when_ended(self) -> ServeError;
}

impl StopWhenEnded for BackgroundServer {
    fn stop_when_ended(self) -> ServeError {
        self.wait_ready().unwrap_err();
        self.stop().unwrap_err()
    }
}
