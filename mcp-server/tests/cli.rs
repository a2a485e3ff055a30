//! The command line from outside: exit codes, streams, and errors that say the next step.

use serde_json::Value;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/assets/tiny-qwen3")
}

fn crit(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crit"));
    command.current_dir(folder).args(arguments).stdin(Stdio::null()).output().expect("crit runs")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("it exited")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs with `--json`; the output must be JSON and nothing else.
fn json(folder: &Path, arguments: &[&str]) -> Value {
    let output = crit(folder, &[arguments, &["--json"]].concat());
    assert_eq!(code(&output), 0, "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON alone on standard output")
}

#[test]
fn exit_codes_are_by_kind_and_errors_name_the_next_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    std::fs::write(at.join("broken.safetensors"), b"\xff\xff\xff\xff\xff\xff\xff\x7f{}").expect("written");
    let cases: &[(&[&str], i32, &str)] = &[
        (&["--version"], 0, ""),
        (&["frobnicate"], 2, "frobnicate"),
        (&["recon", "--modell", "x"], 2, "--model"),
        (&["models", "inspect", "nowhere"], 3, "nowhere"),
        (&["models", "inspect", "broken.safetensors"], 3, "broken"),
        (&["recon", "--model", "nowhere"], 3, "nowhere"),
        (&["recon", "--quality", "fast"], 2, "preserve"),
        (&["inference", "search", "--slot", "kv"], 2, "kv_cache"),
        (&["inference", "search", "--entry", "ngram_draftr"], 2, "ngram_drafter"),
        (&["job", "status", "nope"], 3, "job_status"),
        (&["build"], 3, "recon"),
        (&["run", "show", "deadbeef"], 3, ""),
        (&["run", "verify", "--held", "zz"], 2, "crit run show"),
        (&["plan", "--hypothesis", "x", "--expect", "decode_tok_s NaN..5 %"], 2, "METRIC LOW..HIGH UNIT"),
        (&["models", "logits", "nowhere", "--input", "nowhere.safetensors", "--out", "x"], 3, "input_ids"),
        (&["serve", "--model", "nowhere", "--name", ""], 2, "--name"),
        (&["seal", "--candidate", "abc"], 3, "recon"),
        (&["--workspace", "nowhere", "job", "list"], 3, "nowhere"),
    ];
    for (arguments, expected, part) in cases {
        let output = crit(at, arguments);
        let said = text(&output.stderr);
        assert_eq!(code(&output), *expected, "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
        assert!(*expected == 0 || output.stdout.is_empty(), "{arguments:?}: {}", text(&output.stdout));
    }
}

#[test]
fn a_slip_in_engine_json_is_refused_before_anything_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    json(at, &["init", "--model", model().to_str().expect("a path")]);
    let path = at.join("engine/engine.json");
    let first: Value = serde_json::from_slice(&std::fs::read(&path).expect("there")).expect("JSON");
    let refuse = |member: &str, value: Value, budget: &str| {
        let mut assembly = first.clone();
        assembly[member] = value;
        std::fs::write(&path, assembly.to_string()).expect("written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_crit"));
        let output = command.current_dir(at).arg("build").env("CRIT_MEMORY_BYTES", budget).output().expect("crit runs");
        (code(&output), text(&output.stderr))
    };
    let plenty = "1000000000000";
    // The embedded model was made for 4096 tokens.
    let cases = [
        ("context", Value::from(4097), plenty, 2, vec!["`context`", "4097", "4096", "hint"]),
        ("context", Value::from(3), plenty, 2, vec!["engine/engine.json: `context`", "at least 16", "hint"]),
        ("context", Value::from("x"), plenty, 3, vec!["engine/engine.json: `context`", "a whole number"]),
        ("contxt", Value::from(64), plenty, 3, vec!["no key `contxt`", "did you mean `context`?"]),
        ("max_batch", Value::from(0), plenty, 2, vec!["`max_batch`", "between 1 and 1024", "hint"]),
        ("target", Value::from("tpu"), plenty, 2, vec!["`target`", "`cuda` and `cuda:N` are", "hint"]),
        ("max_batch", Value::from(4), "1000", 4, vec!["needs", "1000 are free", "lower `context` or `max_batch`"]),
    ];
    for (member, value, budget, expected, parts) in cases {
        let (code, said) = refuse(member, value, budget);
        assert_eq!(code, expected, "{member}: {said}");
        for part in parts {
            assert!(said.contains(part), "{member}: {part} is not in {said}");
        }
        assert!(!said.contains("inference_search"), "searching does not mend it: {said}");
    }
    let jobs = std::fs::read_dir(at.join(".crit/jobs")).map_or(0, Iterator::count);
    assert_eq!(jobs, 0, "a refused build leaves a job behind");
}

#[test]
fn a_damaged_model_is_named_with_its_path() {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("copy");
    std::fs::create_dir(&copy).expect("made");
    for file in std::fs::read_dir(model()).expect("there").flatten() {
        std::fs::copy(file.path(), copy.join(file.file_name())).expect("copied");
    }
    let config = std::fs::read_to_string(copy.join("config.json")).expect("there");
    for (from, to, part) in [
        ("\"qwen3\"", "\"qwen9\"", "supported are"),
        ("\"intermediate_size\":", "\"intermediate_size\": 8, \"was\":", "has shape"),
        ("\"num_hidden_layers\":", "\"num_hidden_layers\": 99, \"was\":", "is missing"),
    ] {
        let other = config.replacen(from, to, 1);
        assert_ne!(other, config, "{from}");
        std::fs::write(copy.join("config.json"), other).expect("written");
        let output = crit(folder.path(), &["models", "inspect", "copy"]);
        let said = text(&output.stderr);
        assert_eq!(code(&output), 3, "{said}");
        assert!(said.contains("copy") && said.contains(part) && said.contains("hint"), "{said}");
        assert!(!said.contains("did you mean"), "another version is no slip: {said}");
    }
}

#[test]
fn an_error_as_json_is_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = crit(folder.path(), &["models", "inspect", "nowhere", "--json"]);
    let error: Value = serde_json::from_slice(&output.stderr).expect("JSON alone on standard error");
    assert_eq!(error["kind"], "input");
    assert!(error["message"].is_string());
}

#[test]
fn looking_writes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let facts = json(folder.path(), &["models", "inspect", model().to_str().expect("a path")]);
    assert_eq!(facts["architecture"], "qwen3");
    assert_eq!(facts["bytes_by_dtype"].as_object().map(serde_json::Map::len), Some(1));
    assert!(facts["kv_bytes_per_token"].as_u64() > Some(0) && facts["chat_template"] == true);
    let found = json(folder.path(), &["inference", "search", "speculative", "decoding"]);
    assert_eq!(found["entries"][0]["name"], "ngram_drafter");
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
}

#[test]
fn lines_become_token_ids() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_crit"))
        .args(["models", "tokenize", model().to_str().expect("a path")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("crit runs");
    child.stdin.take().expect("a pipe").write_all("Hello world\n\nno end".as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let lines: Vec<Vec<u32>> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("a list of ids")).collect();
    assert_eq!(lines.len(), 3);
    assert!(!lines[0].is_empty() && !lines[2].is_empty());
}

#[test]
fn a_reader_that_hangs_up_is_no_error() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let status = Command::new(env!("CARGO_BIN_EXE_crit"))
        .args(["inference", "search", "--json"])
        .stdin(Stdio::null())
        .stdout(writer)
        .status()
        .expect("crit runs");
    assert_eq!(status.code(), Some(0));
}

#[test]
fn init_writes_once_and_leaves_what_is_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = model();
    let arguments = ["init", "--model", model.to_str().expect("a path")];
    assert_eq!(json(folder.path(), &arguments)["written"], true);
    let config = folder.path().join("engine/engine.json");
    std::fs::write(&config, "{}").expect("written");
    assert_eq!(json(folder.path(), &arguments)["written"], false);
    assert_eq!(std::fs::read_to_string(config).expect("there"), "{}");
}

#[test]
fn init_tells_agents_and_leaves_what_people_wrote() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    std::fs::write(at.join(".mcp.json"), r#"{"mcpServers": {"other": {"command": "x"}}, "more": 1}"#).expect("written");
    std::fs::write(at.join("AGENTS.md"), "mine").expect("written");
    let told = json(at, &["init", "--claude", "--codex"])["clients"].clone();
    assert_eq!(told, serde_json::json!([".mcp.json", "CLAUDE.md", ".codex/config.toml"]));
    let settings: Value = serde_json::from_slice(&std::fs::read(at.join(".mcp.json")).expect("there")).expect("JSON");
    let entry = &settings["mcpServers"]["crit"];
    assert_eq!((settings["more"].as_u64(), &settings["mcpServers"]["other"]["command"]), (Some(1), &Value::from("x")));
    assert_eq!((&entry["args"][0], &entry["args"][1]), (&Value::from("mcp"), &Value::from("--workspace")));
    assert!(Path::new(entry["command"].as_str().expect("a path")).is_file());
    assert_eq!(std::fs::read_to_string(at.join("AGENTS.md")).expect("there"), "mine");
    let toml = std::fs::read_to_string(at.join(".codex/config.toml")).expect("there");
    assert!(toml.starts_with("[mcp_servers.crit]\ncommand = \"/"), "{toml}");
    assert_eq!(json(at, &["init", "--claude", "--codex"])["clients"], serde_json::json!([]), "once is enough");
    std::fs::write(at.join(".mcp.json"), "[]").expect("written");
    let output = crit(at, &["init", "--claude"]);
    assert_eq!(code(&output), 3, "{}", text(&output.stderr));
}

#[test]
fn a_store_without_damage_needs_no_doctor() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = crit(folder.path(), &["run", "doctor"]);
    assert_eq!(code(&output), 3, "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("crit recon --model"), "{}", text(&output.stderr));
}

#[test]
fn logits_have_the_names_and_shapes_asked_for() {
    use safetensors::tensor::{Dtype, SafeTensors, TensorView};
    let folder = tempfile::tempdir().expect("a folder");
    let ids: Vec<u8> = [1i64, 2, 3, 4, 5, 6].iter().flat_map(|id| id.to_le_bytes()).collect();
    let views = [
        ("input_ids_a".to_string(), TensorView::new(Dtype::I64, vec![6], &ids).expect("a view")),
        ("input_ids_b".to_string(), TensorView::new(Dtype::I64, vec![2, 3], &ids).expect("a view")),
    ];
    let (input, out) = (folder.path().join("in.safetensors"), folder.path().join("out.safetensors"));
    safetensors::serialize_to_file(views, None, &input).expect("written");
    let model = model();
    let logits = |engine: &str| {
        let arguments = ["models", "logits", model.to_str().expect("a path"), "--engine", engine];
        let files = ["--input", input.to_str().expect("a path"), "--out", out.to_str().expect("a path")];
        json(folder.path(), &[arguments.as_slice(), files.as_slice()].concat());
        let bytes = std::fs::read(&out).expect("written");
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let a = file.tensor("logits_a").expect("there");
        let b = file.tensor("logits_b").expect("there");
        assert_eq!((a.shape()[0], b.shape()[..2].to_vec()), (6, vec![2, 3]));
        let floats = |bytes: &[u8]| -> Vec<f32> {
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
        };
        (floats(a.data()), floats(b.data()))
    };
    let (a, b) = logits("plain");
    // The first three ids are the first row of the second tensor: causal, so their logits are the same.
    assert_eq!(a[..b.len() / 2], b[..b.len() / 2]);
    let (exact, _) = logits("reference");
    let worst = a.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // Two f32 orders of the same sums; measured 1e-5 on this model.
    assert!(worst < 1e-3, "{worst}");
}
