//! Jobs from outside: real processes, real signals. The executable is test and runner in one, with tools of its own.

use crit_core::error::ErrorKind;
use crit_tools::jobs::process::ProcessId;
use crit_tools::jobs::store::Job;
use crit_tools::jobs::{JobState, Store, cancel, runner, watch};
use crit_tools::{Context, Effect, Entry, Runs, Tool, ToolError, Workspace, tool};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// A tool that does what it is told.
struct Act;

#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct ActParams {
    what: String,
    #[serde(default)]
    salt: u32,
}

#[derive(Serialize, Deserialize, schemars::JsonSchema)]
struct ActOutput {
    said: String,
}

impl Tool for Act {
    const NAME: &'static str = "act";
    const TITLE: &'static str = "Act";
    const DESCRIPTION: &'static str = "Does as told. For tests.";
    const EFFECT: Effect = Effect::Adds { idempotent: true };
    const RUNS: Runs = Runs::Job { deadline_s: 4, inline_without_workspace: false };
    type Params = ActParams;
    type Output = ActOutput;

    fn run(context: &Context, params: ActParams) -> Result<ActOutput, ToolError> {
        let said = |text: &str| Ok(ActOutput { said: text.into() });
        match params.what.as_str() {
            "finish" => {
                context.report().phase("work");
                context.report().log("a line");
                context.report().progress(1, 2);
                said("finished")
            }
            "read stdin" => {
                let mut text = String::new();
                std::io::Read::read_to_string(&mut std::io::stdin(), &mut text)
                    .map_err(|e| ToolError::io("read", Path::new("stdin"), &e))?;
                said(&format!("{} bytes", text.len()))
            }
            "fail" => Err(ToolError::new(ErrorKind::Input, "no such luck").with_hint("try luck")),
            "panic" => panic!("the sky fell"),
            "nap" => {
                std::thread::sleep(Duration::from_millis(1500));
                said("rested")
            }
            "hang with child" => {
                context.report().log("child starts");
                let child = Command::new("sleep").arg("600").spawn();
                let child = child.map_err(|e| ToolError::io("start", Path::new("sleep"), &e))?;
                context.report().log(&format!("child {}", child.id()));
                loop {
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
            "measure" => {
                let _guard = context.measure("a test")?;
                context.report().phase("measuring");
                std::thread::sleep(Duration::from_millis(1200));
                said("measured")
            }
            other => said(other),
        }
    }
}

static ACTS: &[Entry] = &[Entry::of::<Act>()];

struct Bench {
    context: Context,
    _folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { context: context(folder.path()), _folder: folder }
    }

    fn store(&self) -> Store {
        Store::of(self.context.workspace().expect("a workspace"))
    }

    fn call(&self, arguments: Value) -> Result<Value, ToolError> {
        tool::find(ACTS, "act").and_then(|act| act.answer(&self.context, &arguments))
    }

    fn start(&self, what: &str) -> String {
        let answer = self.call(json!({"what": what, "wait_s": 0})).expect("it starts");
        answer["job_id"].as_str().expect("an id").to_string()
    }

    fn end(&self, id: &str) -> Job {
        watch::wait(&self.context, &self.store(), id, Duration::from_secs(20), None).expect("the job is there")
    }

    fn until(&self, id: &str, what: &str, holds: impl Fn(&Job) -> bool) -> Job {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let job = self.store().load(id).expect("the job is there");
            if holds(&job) {
                return job;
            }
            assert!(Instant::now() < end, "{what}: {:?}", job.state);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn context(folder: &Path) -> Context {
    let workspace = Workspace::at(folder).expect("a workspace");
    Context::new(Some(workspace), std::env::current_exe().expect("this executable"), ACTS)
}

fn child_of(job: &Job) -> ProcessId {
    let lines = watch::tail(&job.log(), 50);
    let pid = lines.iter().find_map(|line| line.strip_prefix("child ")?.parse().ok()).expect("the child's id");
    ProcessId::of(pid).expect("the child runs")
}

fn gone(process: &ProcessId) {
    let end = Instant::now() + Duration::from_secs(5);
    while process.is_alive() {
        assert!(Instant::now() < end, "process {} lives on", process.pid);
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn a_short_job_answers_inline() {
    let bench = Bench::new();
    let answer = bench.call(json!({"what": "finish", "wait_s": 10})).expect("it works");
    assert_eq!(answer["state"], "done");
    assert_eq!(answer["result"]["said"], "finished");
    let job = bench.end(answer["job_id"].as_str().expect("an id"));
    assert!(watch::tail(&job.log(), 9).contains(&"a line".to_string()));
}

fn a_long_job_answers_at_once_and_has_no_input() {
    let bench = Bench::new();
    let begun = Instant::now();
    let answer = bench.call(json!({"what": "nap"})).expect("it starts");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(answer["next"]["tool"], "job_status");
    assert_eq!(bench.end(answer["job_id"].as_str().expect("an id")).state.state, JobState::Done);
    let answer = bench.call(json!({"what": "read stdin", "wait_s": 10})).expect("it works");
    assert_eq!(answer["result"]["said"], "0 bytes");
}

fn failure_and_panic_are_told() {
    let bench = Bench::new();
    let error = bench.call(json!({"what": "fail", "wait_s": 10})).expect_err("it fails");
    assert_eq!((error.kind, error.hint.as_deref()), (ErrorKind::Input, Some("try luck")));
    let error = bench.call(json!({"what": "panic", "wait_s": 10})).expect_err("it fails");
    assert_eq!(error.kind, ErrorKind::Internal);
    assert!(error.message.contains("the sky fell"), "{error}");
}

fn cancel_ends_runner_and_children() {
    let bench = Bench::new();
    let id = bench.start("hang with child");
    let job = bench.until(&id, "child starts", |job| {
        watch::tail(&job.log(), 9).iter().any(|l| l.starts_with("child ") && l != "child starts")
    });
    let (runner, child) = (job.runner().expect("a runner"), child_of(&job));
    assert_eq!(cancel::cancel(&bench.store(), &id).expect("cancelled").state.state, JobState::Cancelled);
    gone(&runner);
    gone(&child);
    // Twice is once.
    assert_eq!(cancel::cancel(&bench.store(), &id).expect("cancelled").state.state, JobState::Cancelled);
}

fn a_killed_runner_is_a_failure_with_its_log() {
    let bench = Bench::new();
    let id = bench.start("hang with child");
    let job = bench.until(&id, "child starts", |job| watch::tail(&job.log(), 9).len() >= 2);
    let child = child_of(&job);
    let pid = job.runner().expect("a runner").pid.to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill runs").success());
    // Another process, which knows nothing but the folder, sees it.
    let other = Store::of(bench.context.workspace().expect("a workspace"));
    let job = bench.until(&id, "failed", |job| job.state.state == JobState::Failed);
    assert_eq!(other.load(&id).expect("there").state, job.state);
    let error = job.state.error.expect("an error");
    assert!(error.message.contains("child starts"), "{error}");
    gone(&child);
}

fn a_job_outlives_whoever_started_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let me = std::env::current_exe().expect("this executable");
    let output = Command::new(me).arg("start-nap").arg(folder.path()).output().expect("it runs");
    let id = String::from_utf8_lossy(&output.stdout).trim().to_string();
    let bench = Bench { context: context(folder.path()), _folder: folder };
    assert_eq!(bench.end(&id).state.state, JobState::Done);
}

fn the_deadline_ends_a_job() {
    let bench = Bench::new();
    let id = bench.start("hang with child");
    let job = bench.until(&id, "child starts", |job| watch::tail(&job.log(), 9).len() >= 2);
    let child = child_of(&job);
    let job = bench.end(&id);
    assert_eq!(job.state.state, JobState::Failed);
    assert!(job.state.error.expect("an error").message.contains("4 s"));
    gone(&child);
}

fn the_same_call_finds_the_same_job() {
    let bench = Bench::new();
    let first = bench.start("nap");
    let again = bench.call(json!({"what": "nap", "salt": 0, "wait_s": 0})).expect("found");
    assert_eq!((again["job_id"].as_str(), &again["reused"]), (Some(first.as_str()), &json!(true)));
    bench.end(&first);
    assert_eq!(bench.start("nap"), first);
    let other = bench.call(json!({"what": "nap", "salt": 1, "wait_s": 0})).expect("started");
    let fresh = bench.call(json!({"what": "nap", "fresh": true, "wait_s": 0})).expect("started");
    assert_ne!(other["job_id"].as_str(), Some(first.as_str()));
    assert_ne!(fresh["job_id"].as_str(), Some(first.as_str()));
    // A failure is no answer to keep.
    let failed = bench.start("fail");
    bench.end(&failed);
    assert_ne!(bench.start("fail"), failed);
}

fn measurements_do_not_overlap() {
    let (one, two) = (Bench::new(), Bench::new());
    let first = one.start("measure");
    one.until(&first, "measures", |job| job.state.phase == "measuring");
    let second = two.start("measure");
    let job = two.until(&second, "queued", |job| job.state.waiting_for.is_some());
    assert_eq!(job.state.state, JobState::Queued);
    assert_eq!(job.state.waiting_for.map(|holder| holder.job_id), Some(first.clone()));
    let first_end = one.end(&first).state.ended_ms.expect("ended");
    let second = two.end(&second);
    assert_eq!(second.state.state, JobState::Done);
    assert!(second.state.phase_ms >= first_end - 100, "they overlapped");
}

fn wrong_calls_are_refused() {
    let bench = Bench::new();
    for (arguments, part) in [
        (json!({"what": 5}), "`what`"),
        (json!({"what": "nap", "wait_s": "long"}), "wait_s"),
        (json!({"what": "nap", "slat": 1}), "slat"),
    ] {
        let error = bench.call(arguments).expect_err("refused");
        assert_eq!(error.kind, ErrorKind::Usage);
        assert!(error.message.contains(part), "{error}");
    }
    for id in ["", "../../etc", "00000000-0000-4000-8000-000000000000", "\u{1b}[2J"] {
        assert_eq!(bench.store().load(id).expect_err("no such job").kind, ErrorKind::Input);
    }
}

fn a_runner_that_cannot_start_is_a_failed_job() {
    let mut bench = Bench::new();
    bench.context.program = "/nonexistent/crit".into();
    let error = bench.call(json!({"what": "finish"})).expect_err("it cannot start");
    assert_eq!(error.kind, ErrorKind::Environment);
    assert_eq!(bench.store().list()[0].state.state, JobState::Failed);
}

type Case = (&'static str, fn());

const CASES: &[Case] = &[
    ("a_short_job_answers_inline", a_short_job_answers_inline),
    ("a_long_job_answers_at_once_and_has_no_input", a_long_job_answers_at_once_and_has_no_input),
    ("failure_and_panic_are_told", failure_and_panic_are_told),
    ("cancel_ends_runner_and_children", cancel_ends_runner_and_children),
    ("a_killed_runner_is_a_failure_with_its_log", a_killed_runner_is_a_failure_with_its_log),
    ("a_job_outlives_whoever_started_it", a_job_outlives_whoever_started_it),
    ("the_deadline_ends_a_job", the_deadline_ends_a_job),
    ("the_same_call_finds_the_same_job", the_same_call_finds_the_same_job),
    ("measurements_do_not_overlap", measurements_do_not_overlap),
    ("wrong_calls_are_refused", wrong_calls_are_refused),
    ("a_runner_that_cannot_start_is_a_failed_job", a_runner_that_cannot_start_is_a_failed_job),
];

#[expect(clippy::print_stdout, reason = "a test executable reports there")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["job-run", "--workspace", folder, id] => {
            let ended = runner::run(&context(Path::new(folder)), id);
            return if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        ["start-nap", folder] => {
            let bench = context(Path::new(folder));
            let act = tool::find(ACTS, "act").expect("it is there");
            let answer = act.answer(&bench, &json!({"what": "nap", "wait_s": 0})).expect("it starts");
            println!("{}", answer["job_id"].as_str().expect("an id"));
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
    let me = std::env::current_exe().expect("this executable");
    let mut failed = 0;
    // Each case in a process of its own, so that a measuring lock of their own keeps them apart from others.
    if let Ok(name) = std::env::var("CRIT_JOBS_CASE") {
        let (_, case) = CASES.iter().find(|(case, _)| *case == name).expect("a known case");
        case();
        return ExitCode::SUCCESS;
    }
    for (name, _) in chosen {
        let locks = tempfile::tempdir().expect("a folder");
        let status = Command::new(&me)
            .env("CRIT_JOBS_CASE", name)
            .env("CRIT_LOCK_DIR", locks.path())
            .stdin(Stdio::null())
            .status()
            .expect("this executable runs");
        println!("test {name} ... {}", if status.success() { "ok" } else { "FAILED" });
        failed += u32::from(!status.success());
    }
    println!("test result: {}. {failed} failed", if failed == 0 { "ok" } else { "FAILED" });
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
