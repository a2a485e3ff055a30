//! The MCP server over real pipes, with raw lines. The executable is test, server and job runner in one, with tools
//! that misbehave; the listing is checked on the real `crit` as well.

use crit_core::error::ErrorKind;
use crit_tools::{Context, Effect, Entry, Runs, Tool, ToolError, Workspace};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A tool that does what it is told.
struct Act;
/// The same as a job.
struct ActLong;

#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct ActParams {
    what: String,
}

#[derive(Serialize, Deserialize, schemars::JsonSchema)]
struct ActOutput {
    said: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    absent: Option<u32>,
}

#[expect(clippy::print_stdout, reason = "printing where it must not is what is tested")]
fn act(what: &str) -> Result<ActOutput, ToolError> {
    match what {
        "panic" => panic!("the sky fell"),
        "print" => println!("this is not JSON-RPC"),
        "child" => {
            let ran = Command::new("sh").args(["-c", "echo noise; cat"]).status();
            ran.map_err(|error| ToolError::io("start", Path::new("sh"), &error))?;
        }
        "fail" => return Err(ToolError::new(ErrorKind::Input, "no such luck").with_hint("try luck")),
        "nap" => std::thread::sleep(Duration::from_millis(2500)),
        _ => {}
    }
    Ok(ActOutput { said: what.into(), absent: None })
}

impl Tool for Act {
    const NAME: &'static str = "act";
    const TITLE: &'static str = "Act";
    const DESCRIPTION: &'static str = "Does as told. For tests.";
    const EFFECT: Effect = Effect::Reads;
    const RUNS: Runs = Runs::Inline;
    type Params = ActParams;
    type Output = ActOutput;

    fn run(_: &Context, params: ActParams) -> Result<ActOutput, ToolError> {
        act(&params.what)
    }
}

impl Tool for ActLong {
    const NAME: &'static str = "act_long";
    const TITLE: &'static str = "Act long";
    const DESCRIPTION: &'static str = "Does as told, as a job. For tests.";
    const EFFECT: Effect = Effect::Adds { idempotent: true };
    const RUNS: Runs = Runs::Job { deadline_s: 60, inline_without_workspace: false };
    type Params = ActParams;
    type Output = ActOutput;

    fn run(_: &Context, params: ActParams) -> Result<ActOutput, ToolError> {
        act(&params.what)
    }
}

static ACTS: &[Entry] = &[
    Entry::of::<Act>(),
    Entry::of::<ActLong>(),
    Entry::of::<crit_tools::job_cancel::JobCancel>(),
    Entry::of::<crit_tools::job_status::JobStatus>(),
];

/// A server at the other end of pipes.
struct Client {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    last_id: u64,
}

impl Client {
    fn start(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
        let output = child.stdout.take().expect("a pipe");
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Self { input: child.stdin.take(), child, lines, last_id: 0 }
    }

    fn acts(folder: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this executable"));
        command.arg("serve").arg(folder);
        let mut client = Self::start(command);
        client.hello("a-client");
        client
    }

    fn hello(&mut self, name: &str) -> Value {
        let params = json!({"protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": name, "version": "1"}});
        let answer = self.ask("initialize", params);
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string());
        answer["result"].clone()
    }

    fn send(&mut self, line: &str) {
        let input = self.input.as_mut().expect("open");
        input.write_all(line.as_bytes()).and_then(|()| input.write_all(b"\n")).expect("the server reads");
    }

    fn post(&mut self, method: &str, params: Value) -> u64 {
        self.last_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}).to_string());
        self.last_id
    }

    /// The next answer to `id`; every line on the way must be JSON-RPC.
    fn answer(&mut self, id: u64) -> Value {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(20)).expect("an answer");
            let message: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            assert_eq!(message["jsonrpc"], "2.0", "{line}");
            if message["id"] == id {
                return message;
            }
        }
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.post(method, params);
        self.answer(id)
    }

    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({"name": tool, "arguments": arguments}))["result"].clone()
    }

    /// Hangs up; returns how long the server took to end.
    fn hang_up(mut self) -> Duration {
        self.input = None;
        let begun = Instant::now();
        while self.child.try_wait().expect("its status").is_none() {
            assert!(begun.elapsed() < Duration::from_secs(10), "the server stays");
            std::thread::sleep(Duration::from_millis(10));
        }
        begun.elapsed()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn crit(folder: &Path) -> Client {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crit"));
    command.arg("mcp").current_dir(folder);
    Client::start(command)
}

fn both_halves_agree(result: &Value) {
    let text = result["content"][0]["text"].as_str().expect("text");
    let text: Value = serde_json::from_str(text).expect("the text is JSON");
    assert_eq!(text, result["structuredContent"]);
}

fn the_real_server_presents_itself() {
    let begun = Instant::now();
    let mut client = crit(&std::env::temp_dir());
    let hello = client.hello("a-client");
    // Measured 20 ms; a client gives up after 5 s. The bound is the promise, with room for a busy machine.
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    assert_eq!(hello["serverInfo"]["name"], "crit");
    assert_eq!(hello["serverInfo"]["version"], env!("CARGO_PKG_VERSION"));
    let instructions = hello["instructions"].as_str().expect("instructions");
    assert!(instructions.len() <= 1200, "{}", instructions.len());
    assert!(instructions[..240].contains("recon") && instructions[..240].contains("inference engine"));
    let answer = client.ask("tools/list", json!({}));
    assert!(answer.to_string().len() <= 24 * 1024, "the list has {} bytes", answer.to_string().len());
    let tools = answer["result"]["tools"].as_array().expect("tools").clone();
    assert!(tools.is_sorted_by(|a, b| a["name"].as_str() < b["name"].as_str()));
    for tool in &tools {
        let name = tool["name"].as_str().expect("a name");
        for hint in ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"] {
            assert!(tool["annotations"][hint].is_boolean(), "{name}: {hint}");
        }
        for schema in ["inputSchema", "outputSchema"] {
            assert_eq!(crit_tools::schema::complaints(&tool[schema]), Vec::<String>::new(), "{name}");
        }
    }
    assert_eq!(client.ask("tools/list", json!({}))["result"]["tools"], json!(tools));
    as_it_was_read(&json!(tools));
}

/// The whole surface agents see, kept in `tools.json`: every name in it is a promise, so a difference is to be read
/// before it is accepted (`CRIT_ACCEPT=1` writes the file anew).
fn as_it_was_read(tools: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools.json");
    if std::env::var_os("CRIT_ACCEPT").is_some() {
        let text = serde_json::to_string_pretty(tools).expect("JSON");
        std::fs::write(&path, text + "\n").expect("written");
    }
    let kept: Value = serde_json::from_slice(&std::fs::read(&path).expect("there")).expect("JSON");
    for (now, then) in tools.as_array().into_iter().flatten().zip(kept.as_array().into_iter().flatten()) {
        assert_eq!(now, then, "tests/tools.json differs; read the difference, then accept it with CRIT_ACCEPT=1");
    }
    assert_eq!(tools.as_array().map(Vec::len), kept.as_array().map(Vec::len));
}

fn the_newer_protocol_is_spoken_too() {
    let mut client = crit(&std::env::temp_dir());
    let meta = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "claude-code", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {}}});
    let found = client.ask("server/discover", meta.clone());
    assert!(found["result"]["supportedVersions"].to_string().contains("2026-07-28"), "{found}");
    assert!(client.ask("tools/list", meta)["result"]["tools"].is_array());
}

fn answers_and_errors_say_all_in_both_halves() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut client = Client::acts(folder.path());
    let good = client.call("act", json!({"what": "x"}));
    assert_eq!(good["structuredContent"], json!({"said": "x"}));
    both_halves_agree(&good);
    let bad = client.call("act", json!({"what": "fail"}));
    assert_eq!(bad["isError"], true);
    assert_eq!(bad["structuredContent"], json!({"kind": "input", "message": "no such luck", "hint": "try luck"}));
    both_halves_agree(&bad);
}

fn what_is_wrong_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut client = Client::acts(folder.path());
    for (tool, arguments, part) in [
        ("act", json!({"what": 1}), "`what`"),
        ("act", json!({}), "what"),
        ("act", json!({"waht": "x"}), "did you mean `what`?"),
        ("actt", json!({}), "did you mean `act`?"),
        ("act_long", json!({"what": "x", "wait_s": -1}), "wait_s"),
        ("job_status", json!({"job_id": "nope"}), "job_status"),
    ] {
        let result = client.call(tool, arguments.clone());
        assert_eq!(result["isError"], true, "{tool} {arguments}");
        assert!(result["structuredContent"].to_string().contains(part), "{tool} {arguments}: {result}");
        both_halves_agree(&result);
    }
}

fn nothing_reaches_the_protocol_but_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut client = Client::acts(folder.path());
    for what in ["print", "child", "panic"] {
        // `answer` fails on any line that is not JSON-RPC; a child that read our input would swallow the next call.
        let result = client.call("act", json!({"what": what}));
        assert_eq!(result["isError"] == true, what == "panic", "{result}");
        assert_eq!(client.call("act", json!({"what": "alive"}))["structuredContent"]["said"], "alive");
    }
}

fn garbage_is_survived() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut client = Client::acts(folder.path());
    for line in [
        "{",
        "nonsense",
        "[]",
        "null",
        "{\"jsonrpc\":\"2.0\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":77,\"method\":5}",
        "\0\u{1}",
    ] {
        client.send(line);
    }
    client.send(&"z".repeat(20 << 20));
    client.send(&format!("{{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"{}\"}}", "y".repeat(20 << 20)));
    client.post("no/such/method", json!({}));
    client.post("tools/call", json!({"name": 5}));
    client.post("tools/call", json!("text"));
    client.last_id = 1000;
    assert_eq!(client.call("act", json!({"what": "alive"}))["structuredContent"]["said"], "alive");
}

fn a_cancelled_or_lost_wait_leaves_the_job() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut client = Client::acts(folder.path());
    let id = client.post("tools/call", json!({"name": "act_long", "arguments": {"what": "nap", "wait_s": 40}}));
    std::thread::sleep(Duration::from_millis(500));
    client
        .send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}).to_string());
    let again = client.call("act_long", json!({"what": "nap", "wait_s": 0}));
    let job = again["structuredContent"]["job_id"].as_str().expect("an id").to_string();
    assert_eq!(again["structuredContent"]["reused"], true);
    // A wait in flight does not hold the server back for long.
    client.post("tools/call", json!({"name": "job_status", "arguments": {"job_id": job, "wait_s": 40}}));
    assert!(client.hang_up() < Duration::from_secs(8));
    let mut client = Client::acts(folder.path());
    let status = client.call("job_status", json!({"job_id": job, "wait_s": 30}));
    assert_eq!(status["structuredContent"]["job"]["state"], "done", "{status}");
    assert_eq!(status["structuredContent"]["result"]["said"], "nap");
}

fn a_wait_is_cut_to_what_the_client_survives() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut client = Client::acts(folder.path());
    let job = client.call("act_long", json!({"what": "x", "wait_s": 0}));
    let job = job["structuredContent"]["job_id"].clone();
    let status = client.call("job_status", json!({"job_id": job, "wait_s": 600}));
    assert_eq!(status["structuredContent"]["waited_at_most_s"], 45, "{status}");
}

fn the_root_folder_is_no_workspace() {
    let mut client = crit(Path::new("/"));
    client.hello("a-client");
    let result = client.call("job_status", json!({}));
    assert_eq!(result["isError"], true);
    assert!(result["structuredContent"]["hint"].as_str().expect("a hint").contains("--workspace"), "{result}");
    assert!(!Path::new("/.crit").exists());
}

fn the_server_ends_with_its_client() {
    let mut client = crit(&std::env::temp_dir());
    client.hello("a-client");
    assert!(client.hang_up() < Duration::from_secs(2));
    assert!(crit(&std::env::temp_dir()).hang_up() < Duration::from_secs(2));
}

type Case = (&'static str, fn());

const CASES: &[Case] = &[
    ("the_real_server_presents_itself", the_real_server_presents_itself),
    ("the_newer_protocol_is_spoken_too", the_newer_protocol_is_spoken_too),
    ("answers_and_errors_say_all_in_both_halves", answers_and_errors_say_all_in_both_halves),
    ("what_is_wrong_is_named", what_is_wrong_is_named),
    ("nothing_reaches_the_protocol_but_answers", nothing_reaches_the_protocol_but_answers),
    ("garbage_is_survived", garbage_is_survived),
    ("a_cancelled_or_lost_wait_leaves_the_job", a_cancelled_or_lost_wait_leaves_the_job),
    ("a_wait_is_cut_to_what_the_client_survives", a_wait_is_cut_to_what_the_client_survives),
    ("the_root_folder_is_no_workspace", the_root_folder_is_no_workspace),
    ("the_server_ends_with_its_client", the_server_ends_with_its_client),
];

fn context(folder: &str) -> Context {
    let workspace = Workspace::at(Path::new(folder)).expect("a workspace");
    Context::new(Some(workspace), std::env::current_exe().expect("this executable"), ACTS)
}

#[expect(clippy::print_stdout, reason = "a test executable reports there")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["serve", folder] => {
            crit_faces::mcp::serve(context(folder)).expect("the streams can be used");
            return ExitCode::SUCCESS;
        }
        ["job-run", "--workspace", folder, id] => {
            crit_tools::jobs::runner::run(&context(folder), id).expect("the job's folder can be used");
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    if arguments.iter().any(|argument| argument == "--list") {
        CASES.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let chosen = CASES.iter().filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|w| name.contains(w.as_str())));
    let mut failed = 0;
    for (name, case) in chosen {
        let good = std::panic::catch_unwind(case).is_ok();
        println!("test {name} ... {}", if good { "ok" } else { "FAILED" });
        failed += u32::from(!good);
    }
    println!("test result: {}. {failed} failed", if failed == 0 { "ok" } else { "FAILED" });
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
