//! An engine package from nothing to tokens: made, given a plugin by its author and one from the catalogue, checked,
//! tested, built, started, and asked to generate.
//!
//! It compiles the SDK, so it takes a minute or more the first time; a second run finds what is built. Its target folder
//! is that of the workspace, so third-party crates are not compiled twice.

use crit_catalog::host::ExecutorKind;
use crit_catalog::{build_engine, package};
use crit_core::model::Model;
use crit_core::plugin::Assembly;
use crit_core::protocol::Generate;
use crit_core::protocol::spawn::{EngineCommand, EngineProcess};
use crit_core::runtime::Event;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Long enough for a machine that compiles on all cores beside it.
const READY: Duration = Duration::from_secs(60);

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/assets/tiny-qwen3").canonicalize().unwrap()
}

fn cargo_is_there() -> bool {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Command::new(cargo).arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// A workspace whose builds go to the target folder of this test.
fn workspace() -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("engine-package");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let _ = fs::remove_dir_all(home.join("engine"));
    fs::create_dir_all(home.join(".crit/built")).unwrap();
    let link = home.join(".crit/built/target");
    if !link.exists() {
        std::os::unix::fs::symlink(target, &link).unwrap();
    }
    home
}

fn prompt() -> Vec<u32> {
    // A phrase and its beginning again: something to copy.
    [&[40, 41, 42, 43, 44, 45, 46, 47][..]; 6].concat()
}

fn request() -> Generate {
    Generate {
        prompt: prompt(),
        sampling: Default::default(),
        max_tokens: 24,
        stop_ids: Vec::new(),
        top_logprobs: None,
    }
}

/// What the plain reference answers.
fn expected() -> Vec<u32> {
    let assembly = Assembly { context: Some(128), max_batch: 1, ..Assembly::base(tiny()) };
    let model = Model::open(&tiny()).unwrap();
    let mut engine = build_engine(&assembly, model, &[], ExecutorKind::Plain).unwrap().engine;
    engine.submit(request()).unwrap();
    let mut events = Vec::new();
    while engine.step_once(&mut events) {}
    events
        .into_iter()
        .flat_map(|event| if let Event::Tokens { tokens, .. } = event { tokens } else { vec![] })
        .collect()
}

#[test]
#[expect(clippy::print_stderr, reason = "a test speaks to whoever runs it")]
fn a_package_with_plugins_of_its_own_builds_loads_and_generates() {
    if !cargo_is_there() {
        eprintln!("skipped: engine packages: cargo is not there to build one");
        return;
    }
    let home = workspace();
    let folder = package::new(&home, "echo_drafter").unwrap();
    assert!(package::new(&home, "echo_drafter").unwrap_err().to_string().contains("already"));
    package::add(&home, "prefix_cache").unwrap();
    let names: Vec<String> = package::plugins(&home).unwrap().into_iter().map(|plugin| plugin.folder).collect();
    assert_eq!(names, ["echo_drafter", "prefix_cache"]);

    // The author's own idea: one more option.
    let manifest = fs::read_to_string(folder.join("plugin.json")).unwrap();
    fs::write(folder.join("plugin.json"), manifest.replace("\"default\": 3", "\"default\": 5")).unwrap();
    let config = home.join("engine/engine.json");
    let engine_json = serde_json::json!({
        "model": tiny(), "context": 128, "max_batch": 2,
        "plugins": [{"name": "echo_drafter", "options": {"draft_tokens": 4}}, {"name": "prefix_cache"}],
    });
    fs::write(&config, engine_json.to_string()).unwrap();

    let checked = package::check(&home).unwrap();
    assert!(checked.assembly);
    let tested = package::test(&home).unwrap();
    assert!(tested.tests >= 2, "{tested:?}");
    let built = package::build(&home).unwrap();
    let lock = fs::read_to_string(home.join("engine/Cargo.lock")).unwrap();
    for banned in ["git2", "tantivy", "rmcp", "axum"] {
        assert!(!lock.contains(&format!("name = \"{banned}\"")), "the engine package pulls {banned}");
    }

    let command = EngineCommand {
        program: built.executable.clone(),
        config: Some(config),
        log: home.join(".crit/logs/engine.log"),
        ..EngineCommand::default()
    };
    let (_process, client) = EngineProcess::start(&command, "test", READY).unwrap();
    let info = client.info().unwrap();
    assert_eq!(info.plugins, ["echo_drafter@0.1.0", "prefix_cache@1.0.0"]);
    let first = client.submit(request()).unwrap().finish().unwrap();
    assert_eq!(first.tokens, expected());
    assert!(first.usage.drafted_tokens > 0, "its drafter drafts: {:?}", first.usage);
    let second = client.submit(request()).unwrap().finish().unwrap();
    assert_eq!(second.tokens, first.tokens);
    assert!(second.usage.cached_tokens > 0, "its prefix cache remembers: {:?}", second.usage);
    client.close(READY).unwrap();

    rebuild_is_quick(&home, &folder);
    mistakes_are_told(&home, &folder, &built.executable);
}

/// One changed plugin compiles one package and links it.
#[expect(clippy::print_stderr, reason = "a test speaks to whoever runs it")]
fn rebuild_is_quick(home: &Path, folder: &Path) {
    let code = fs::read_to_string(folder.join("mod.rs")).unwrap();
    fs::write(folder.join("mod.rs"), format!("{code}\n// Changed.\n")).unwrap();
    let start = Instant::now();
    package::build(home).unwrap();
    eprintln!("rebuild after one changed plugin: {} ms", start.elapsed().as_millis());
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    fs::write(folder.join("mod.rs"), code).unwrap();
}

fn mistakes_are_told(home: &Path, folder: &Path, executable: &Path) {
    let code = fs::read_to_string(folder.join("mod.rs")).unwrap();
    fs::write(folder.join("mod.rs"), code.replace("self.draft_tokens);", "self.draft_tokns);")).unwrap();
    let error = package::check(home).unwrap_err();
    assert!(error.to_string().contains("draft_tokns"), "{error}");
    fs::write(folder.join("mod.rs"), &code).unwrap();

    fs::write(folder.join("notes.md"), "A file the code does not name.").unwrap();
    let error = package::build(home).unwrap_err().to_string();
    assert!(error.contains("echo_drafter"), "{error}");
    fs::remove_file(folder.join("notes.md")).unwrap();

    let bad = home.join("bad.json");
    fs::write(&bad, serde_json::json!({"model": tiny(), "plugins": [{"name": "echo_draftr"}]}).to_string()).unwrap();
    let output = Command::new(executable).arg("--config").arg(&bad).args(["--socket", "s"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("did you mean `echo_drafter`?"), "{stderr}");

    package::remove(home, "prefix_cache").unwrap();
    assert!(!fs::read_to_string(home.join("engine/plugins/mod.rs")).unwrap().contains("prefix_cache"));
}
