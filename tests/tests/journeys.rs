//! The whole product by its binary: the demo seals a candidate; any damage to its records is found; the sealed
//! candidate serves the official OpenAI client; an engine killed in mid-sentence is replaced; the official MCP client
//! runs the loop.
//!
//! Real clients need `CRIT_PYTHON`, a Python with the packages `openai` and `mcp`.

use crit_tests::skip;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The binary, which cargo builds beside this test.
fn crit() -> PathBuf {
    let here = std::env::current_exe().expect("a test has a path");
    let binary = here.parent().and_then(Path::parent).expect("target/release/deps").join("crit");
    assert!(binary.is_file(), "{} is missing: run `cargo build --release -p crit`", binary.display());
    binary
}

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/assets/tiny-qwen3").canonicalize().expect("it is committed")
}

fn run(workspace: &Path, arguments: &[&str]) -> Output {
    let output = Command::new(crit()).arg("--workspace").arg(workspace).args(arguments).stdin(Stdio::null()).output();
    output.expect("crit starts")
}

fn output_json(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "exit {:?}\n{errors}", output.status.code());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}\n{errors}"))
}

/// One demo for all tests of this file: it takes a while.
fn demo() -> &'static (tempfile::TempDir, Value) {
    static DEMO: OnceLock<(tempfile::TempDir, Value)> = OnceLock::new();
    DEMO.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let result = output_json(&run(folder.path(), &["demo", "--json"]));
        (folder, result)
    })
}

#[test]
fn the_demo_ends_with_a_sealed_candidate() {
    let (folder, result) = demo();
    let sealed = result["sealed"].as_str().expect("a digest");
    assert_eq!(sealed.len(), 64, "{sealed}");
    let candidates = result["candidates"].as_array().expect("candidates");
    assert_eq!(candidates.len(), 2);
    for candidate in candidates {
        assert_eq!(candidate["quality"]["verdict"], "pass", "{candidate}");
        assert!(candidate["decode"]["tok_s"].as_f64().unwrap_or(0.0) > 0.0, "{candidate}");
    }
    let rows = result["ablation"].as_array().expect("rows");
    assert!(rows.iter().any(|r| r["variant"] == "off") && rows.iter().any(|r| r["variant"] == "alone"), "{rows:?}");
    let verified = output_json(&run(folder.path(), &["run", "verify", "--json"]));
    assert!(verified["checks"].as_u64().unwrap_or(0) > 100, "{verified}");
}

/// Every file that holds records or blobs.
fn record_files(folder: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let path = entry.path();
        if path.is_dir() { out.extend(record_files(&path)) } else { out.push(path) }
    }
    out.sort();
    out
}

#[test]
fn any_flipped_byte_of_the_demos_records_is_named() {
    let (folder, _) = demo();
    let copy = tempfile::tempdir().expect("a folder");
    let from = folder.path().join(".crit");
    for part in ["records.git", "blobs"].iter().filter(|part| from.join(part).exists()) {
        let to = copy.path().join(".crit");
        std::fs::create_dir_all(&to).expect("a folder");
        let status = Command::new("cp").arg("-a").arg(from.join(part)).arg(&to).status().expect("cp runs");
        assert!(status.success());
    }
    assert!(run(copy.path(), &["run", "verify"]).status.success(), "the copy is sound");
    let files = record_files(&copy.path().join(".crit"));
    let held: Vec<&PathBuf> = files
        .iter()
        .filter(|f| f.metadata().is_ok_and(|m| m.len() > 0) && f.extension().is_none_or(|e| e != "lock"))
        .collect();
    assert!(held.len() > 30, "records, blobs, refs: {}", held.len());
    // A prime stride visits files of every kind; the offset moves through them.
    for (i, path) in held.iter().enumerate().step_by((held.len() / 23).max(1)) {
        let sound = std::fs::read(path).expect("readable");
        let mut damaged = sound.clone();
        let at = (i * 7919) % damaged.len();
        damaged[at] ^= 1 << (i % 8);
        let mode = path.metadata().expect("there").permissions();
        std::fs::remove_file(path).expect("removable");
        std::fs::write(path, &damaged).expect("writable");
        let begun = Instant::now();
        let output = run(copy.path(), &["run", "verify"]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{} byte {at}: {said}", path.display());
        assert!(begun.elapsed() < Duration::from_secs(5), "verify took {:?}", begun.elapsed());
        assert!(said.len() > 40, "it names what is damaged: {said}");
        std::fs::write(path, &sound).expect("writable");
        std::fs::set_permissions(path, mode).expect("settable");
    }
    assert!(run(copy.path(), &["run", "verify"]).status.success(), "all put back");
}

/// A server of the demo's sealed candidate; killed when dropped.
struct Server {
    child: Child,
    address: String,
    model: String,
}

impl Server {
    fn start(workspace: &Path) -> Self {
        let mut child = Command::new(crit())
            .arg("--workspace")
            .arg(workspace)
            .args(["serve", "--port", "0", "--json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("crit starts");
        let mut text = String::new();
        let mut reader = BufReader::new(child.stdout.take().expect("piped"));
        let said: Value = loop {
            let n = reader.read_line(&mut text).expect("readable");
            if let Ok(value) = serde_json::from_str(&text) {
                break value;
            }
            assert!(n > 0, "the server ended: {text}");
        };
        let url = said["url"].as_str().expect("a url").to_string();
        let model = said["model"].as_str().expect("a model").to_string();
        let server = Self { child, address: url.trim_start_matches("http://").to_string(), model };
        server.wait_until_ready();
        server
    }

    /// The address is told at once; the engine loads behind it.
    fn wait_until_ready(&self) {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let mut stream = TcpStream::connect(&self.address).expect("it listens");
            write!(stream, "GET /health HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address)
                .expect("writable");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            if answer.starts_with("HTTP/1.1 200") {
                return;
            }
            assert!(Instant::now() < until, "not ready: {answer}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn post(&self, body: &Value) -> (u16, String) {
        let body = body.to_string();
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("settable");
        write!(
            stream,
            "POST /v1/chat/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )
        .expect("writable");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer in time");
        let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        (status, answer)
    }

    fn ask(&self, max_tokens: u32) -> Value {
        json!({
            "model": self.model, "temperature": 0, "max_tokens": max_tokens,
            "messages": [{"role": "user", "content": "Count from 1 to 30."}]
        })
    }

    /// Process ids of the server's children.
    fn children(&self) -> Vec<i32> {
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        let all =
            std::fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().filter_map(Result::ok);
        let listed = all.map(|t| t.path().join("children")).chain([PathBuf::from(path)]);
        let text: String = listed.filter_map(|p| std::fs::read_to_string(p).ok()).collect::<Vec<_>>().join(" ");
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg("-TERM").arg(self.child.id().to_string()).status();
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_killed_engine_ends_its_request_and_the_next_one_is_answered() {
    let (folder, _) = demo();
    let server = Server::start(folder.path());
    let (status, before) = server.post(&server.ask(24));
    assert_eq!(status, 200, "{before}");

    let mut ask = server.ask(4000);
    ask["stream"] = json!(true);
    ask["logit_bias"] = json!({"2045": -100, "2043": -100, "2044": -100});
    let body = ask.to_string();
    let mut stream = TcpStream::connect(&server.address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("settable");
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        server.address,
        body.len()
    )
    .expect("writable");
    let mut first = [0u8; 600];
    stream.read_exact(&mut first).expect("the stream began");
    let children = server.children();
    assert!(!children.is_empty(), "the engine is a process of its own");
    for pid in &children {
        let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
    }
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the request ends");
    assert!(rest.contains("\"error\""), "the client is told: {rest}");

    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let (status, answer) = server.post(&server.ask(24));
        if status == 200 {
            let text = |answer: &str| answer.split("\"content\":").nth(1).map(|t| t[..20].to_string());
            assert_eq!(text(&answer), text(&before), "the same answer as before");
            return;
        }
        assert!(Instant::now() < until, "no answer after the restart: {status} {answer}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn python() -> Option<PathBuf> {
    std::env::var_os("CRIT_PYTHON").map(PathBuf::from).filter(|p| p.is_file())
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(name)
}

#[test]
fn the_official_openai_client_chats_with_the_sealed_candidate() {
    let Some(python) = python() else {
        return skip("the OpenAI client", "CRIT_PYTHON is not set");
    };
    let (folder, _) = demo();
    let server = Server::start(folder.path());
    let (_, answer) = server.post(&server.ask(200));
    let body = answer.split("\r\n\r\n").nth(1).expect("a body");
    let start = body.find('{').expect("JSON");
    let end = body.rfind('}').expect("JSON");
    let plain: Value = serde_json::from_str(&body[start..=end]).expect("JSON");
    let text = plain["choices"][0]["message"]["content"].as_str().expect("text");
    let output = Command::new(python)
        .arg(script("openai_client.py"))
        .arg(format!("http://{}", server.address))
        .args(["--prompt", "Count from 1 to 30.", "--expect", text, "--max-tokens", "200"])
        .output()
        .expect("python runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_official_mcp_client_runs_the_loop() {
    let Some(python) = python() else {
        return skip("the MCP client", "CRIT_PYTHON is not set");
    };
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(python)
        .arg(script("mcp_loop.py"))
        .arg(crit())
        .arg(model())
        .arg(folder.path())
        .output()
        .expect("python runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_str(&said).expect("JSON");
    let tools: Vec<&str> = result["tools"].as_array().expect("tools").iter().filter_map(Value::as_str).collect();
    for tool in
        ["recon", "plan", "build_candidate", "smoke", "ablate", "eval", "seal", "inference_search", "run_status"]
    {
        assert!(tools.contains(&tool), "{tool} is not in {tools:?}");
    }
    let verified = output_json(&run(folder.path(), &["run", "verify", "--json"]));
    assert!(verified["checks"].as_u64().unwrap_or(0) > 50, "{verified}");
}
