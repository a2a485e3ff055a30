//! Many writers, killed writers, and a file system that stops taking bytes.

use crate::common::*;
use crit_core::digest::Digest;
use crit_records::format::*;
use crit_records::{Draft, Store};
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const WORKSPACE: &str = "CRIT_TEST_WORKSPACE";
const RUN: &str = "CRIT_TEST_RUN";
const COUNT: &str = "CRIT_TEST_COUNT";
const ATTACH_BYTES: &str = "CRIT_TEST_ATTACH_BYTES";

/// Not a check of its own: started as a child by the others, it appends and prints each acknowledged id. Without its
/// environment it has nothing to do.
#[test]
fn child_writer() {
    let Ok(workspace) = std::env::var(WORKSPACE) else { return };
    let run = Digest::parse(&std::env::var(RUN).unwrap()).unwrap();
    let count: usize = std::env::var(COUNT).unwrap().parse().unwrap();
    let bytes: usize = std::env::var(ATTACH_BYTES).unwrap().parse().unwrap();
    let store = Store::open(Path::new(&workspace)).unwrap();
    for i in 0..count {
        let content: Vec<u8> = (0..bytes).map(|b| ((b * 31 + i) % 251) as u8).collect();
        let draft = plan().field("note", format!("{} {i}", std::process::id())).attach("a", MEDIA_BYTES, content);
        match store.append(&run, draft) {
            Ok(id) => println!("acknowledged {id}"),
            Err(error) => println!("refused {}", crit_core::error::Failure::from(error)),
        }
        std::io::stdout().flush().unwrap();
    }
}

fn child(workspace: &Path, run: &RunId, count: usize, bytes: usize, shell: &str) -> Child {
    let own = std::env::current_exe().unwrap();
    Command::new("sh")
        .args(["-c", &format!("{shell} exec \"$0\" \"$@\"")])
        .arg(own)
        .args(["--exact", "writers::child_writer", "--nocapture", "--test-threads=1"])
        .env(WORKSPACE, workspace)
        .env(RUN, run.to_string())
        .env(COUNT, count.to_string())
        .env(ATTACH_BYTES, bytes.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn acknowledged(child: &mut Child) -> Vec<Digest> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    lines.filter_map(|line| acknowledgement(&line)).collect()
}

fn acknowledgement(line: &str) -> Option<Digest> {
    // The test harness may print before the word on one line.
    Digest::parse(line.split_once("acknowledged ")?.1)
}

fn ids(store: &Store, run: &RunId) -> HashSet<Digest> {
    store.records(run).unwrap().iter().map(|stored| stored.id).collect()
}

#[test]
fn four_processes_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::create(folder.path()).unwrap();
    let run = store.begin_run(run_body("many")).unwrap();
    let mut children: Vec<Child> = (0..4).map(|_| child(folder.path(), &run, 50, 40, "")).collect();
    let kept: Vec<Digest> = children.iter_mut().flat_map(acknowledged).collect();
    assert!(children.iter_mut().all(|child| child.wait().unwrap().success()));
    assert_eq!(kept.len(), 200);
    let stored = ids(&store, &run);
    assert_eq!(stored.len(), 201);
    assert!(kept.iter().all(|id| stored.contains(id)));
    crate::verify::assert_sound(folder.path());
}

#[test]
fn threads_share_a_store_and_runs_are_independent() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::create(folder.path()).unwrap();
    let runs: Vec<RunId> = (0..2).map(|i| store.begin_run(run_body(&format!("{i}"))).unwrap()).collect();
    std::thread::scope(|scope| {
        for i in 0..4 {
            let (store, run) = (&store, runs[i % 2]);
            scope.spawn(move || (0..10).for_each(|_| assert!(store.append(&run, plan()).is_ok())));
        }
    });
    assert!(runs.iter().all(|run| store.records(run).unwrap().len() == 21));
    crate::verify::assert_sound(folder.path());
}

#[test]
fn a_killed_writer_leaves_no_half_record() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::create(folder.path()).unwrap();
    let run = store.begin_run(run_body("killed")).unwrap();
    let mut kept: Vec<Digest> = Vec::new();
    for round in 0..20u64 {
        let mut child = child(folder.path(), &run, 1000, 3000, "");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        // Once it is writing, kill it at a moment that differs from round to round.
        kept.push(lines.by_ref().find_map(|line| acknowledgement(&line)).unwrap());
        std::thread::sleep(Duration::from_micros(round * 3_137));
        child.kill().unwrap();
        kept.extend(lines.filter_map(|line| acknowledgement(&line)));
        child.wait().unwrap();
        let stored = ids(&store, &run);
        assert!(kept.iter().all(|id| stored.contains(id)), "round {round}");
    }
    store.append(&run, plan()).unwrap();
    crate::verify::assert_sound(folder.path());
}

#[test]
fn a_full_disk_leaves_no_half_record() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::create(folder.path()).unwrap();
    let run = store.begin_run(run_body("full")).unwrap();
    let before = ids(&store, &run);
    // A limit on the size of files stands in for a full disk: writes beyond it fail half way. Blocks are 512 bytes or more.
    let mut child = child(folder.path(), &run, 3, 2_000_000, "trap '' XFSZ; ulimit -f 512;");
    let output = {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut text).unwrap();
        text
    };
    child.wait().unwrap();
    assert_eq!(output.matches("refused cannot write").count(), 3, "{output}");
    assert_eq!(ids(&store, &run), before);
    store.append(&run, Draft::new(&run_body("x")).unwrap()).unwrap_err();
    store.append(&run, plan()).unwrap();
    crate::verify::assert_sound(folder.path());
}
