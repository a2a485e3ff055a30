//! A sound store verifies; a store with any byte changed does not.

use crate::common::*;
use crit_core::digest::Digest;
use crit_records::Store;
use crit_records::verify::{Level, Options, Report, verify};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub fn check(workspace: &Path) -> Report {
    let start = Instant::now();
    let report = verify(workspace, &Options::default()).unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "verify took {:?}", start.elapsed());
    report
}

pub fn assert_sound(workspace: &Path) {
    let report = check(workspace);
    assert!(report.passed(), "{:#?}", report.failures);
}

/// All files of the store.
pub fn files(workspace: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![workspace.join(".crit/records.git"), workspace.join(".crit/blobs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

fn sealed_workspace() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::create(folder.path()).unwrap();
    whole_run(&store, folder.path());
    folder
}

fn names(report: &Report, path: &Path) -> bool {
    // A loose object or blob file is named by its path, a ref or journal through its run.
    let name = path.file_name().unwrap().to_str().unwrap();
    let text = format!("{:?}", report.failures);
    text.contains(name) || text.contains(&name[..8.min(name.len())])
}

#[test]
fn a_whole_run_is_sound_and_counts_its_checks() {
    let folder = sealed_workspace();
    let report = check(folder.path());
    assert!(report.passed(), "{:#?}", report.failures);
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    assert!(report.checks > 200, "{}", report.checks);
    assert_eq!((report.runs[0].records, report.runs[0].sealed), (16, true));
    let tip = report.runs[0].tip.unwrap();
    let held = |id| verify(folder.path(), &Options { held: vec![id], ..Options::default() }).unwrap();
    assert!(held(tip).passed());
    assert!(!held(Digest::of(b"another")).passed());
    assert!(!verify(folder.path(), &Options { run: Some(Digest::of(b"?")), held: vec![] }).unwrap().passed());
}

#[test]
fn an_empty_store_is_not_a_pass() {
    let folder = tempfile::tempdir().unwrap();
    assert!(verify(folder.path(), &Options::default()).is_err());
    Store::create(folder.path()).unwrap();
    assert!(!check(folder.path()).passed());
}

/// Flips bytes of each file and expects each flip to be seen and named. `stride` thins out long files.
fn flip_all(workspace: &Path, stride: usize) -> u64 {
    let mut flips = 0;
    for path in files(workspace) {
        let good = fs::read(&path).unwrap();
        for at in (0..good.len()).step_by(1 + good.len() / stride).chain([good.len() - 1]) {
            for flip in [0x01u8, 0x9d] {
                let mut bad = good.clone();
                bad[at] ^= flip;
                fs::write(&path, &bad).unwrap();
                let report = check(workspace);
                assert!(!report.passed(), "{} byte {at} xor {flip}", path.display());
                assert!(names(&report, &path), "{} byte {at}: {:#?}", path.display(), report.failures);
                flips += 1;
            }
        }
        fs::write(&path, &good).unwrap();
    }
    assert_sound(workspace);
    flips
}

#[test]
fn every_flipped_byte_is_seen_and_named() {
    let folder = sealed_workspace();
    // An attachment outside git as well, written as the store would; it need not be that large to be looked at.
    let outside = Digest::of(b"outside").to_string();
    let path = folder.path().join(".crit/blobs").join(&outside[..2]);
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join(&outside), b"outside").unwrap();
    assert!(flip_all(folder.path(), 4) > 500);
}

#[test]
fn cut_emptied_and_removed_files_are_seen() {
    let folder = sealed_workspace();
    for path in files(folder.path()) {
        let good = fs::read(&path).unwrap();
        for length in [0, 10, good.len() / 2, good.len() - 1].into_iter().filter(|n| *n < good.len()) {
            fs::write(&path, &good[..length]).unwrap();
            let report = check(folder.path());
            let last_line_torn = path.to_string_lossy().contains("/logs/") && length == good.len() - 1;
            assert!(!report.passed() || last_line_torn, "{} cut to {length}", path.display());
        }
        fs::remove_file(&path).unwrap();
        let report = check(folder.path());
        assert!(!report.passed() || path.to_string_lossy().contains("/logs/"), "{} removed", path.display());
        fs::write(&path, &good).unwrap();
    }
    assert_sound(folder.path());
}

#[test]
fn a_ref_moved_back_is_seen() {
    let folder = sealed_workspace();
    let repo = git2::Repository::open_bare(folder.path().join(".crit/records.git")).unwrap();
    let name = repo.references().unwrap().next().unwrap().unwrap().name().unwrap().to_string();
    let tip = repo.find_reference(&name).unwrap().peel_to_commit().unwrap();
    let earlier = tip.parent(0).unwrap().parent(0).unwrap().id();
    fs::write(folder.path().join(".crit/records.git").join(&name), format!("{earlier}\n")).unwrap();
    let report = check(folder.path());
    assert!(report.failures.iter().any(|f| f.what.contains("cut short")), "{:#?}", report.failures);
    assert!(report.failures.iter().any(|f| f.what.contains("after the run's last")));
}

#[test]
fn a_removed_run_is_seen() {
    let folder = sealed_workspace();
    let run = Store::open(folder.path()).unwrap().find_run("latest").unwrap();
    let repo = folder.path().join(".crit/records.git");
    fs::remove_file(repo.join(format!("refs/crit/runs/{run}"))).unwrap();
    assert!(check(folder.path()).failures.iter().any(|f| f.what.contains("its ref is gone")));
    fs::remove_file(repo.join(format!("logs/refs/crit/runs/{run}"))).unwrap();
    assert!(check(folder.path()).failures.iter().any(|f| f.what.contains("cut short or removed")));
}

#[test]
fn packed_by_git_it_still_verifies_and_flips_are_seen() {
    let folder = sealed_workspace();
    let repo = folder.path().join(".crit/records.git");
    let git = |args: &[&str]| std::process::Command::new("git").arg("-C").arg(&repo).args(args).output();
    let Ok(packed) = git(&["gc", "--quiet"]) else {
        println!("skipped: no git command here to pack the store with");
        return;
    };
    assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
    assert!(files(folder.path()).iter().any(|path| path.extension().is_some_and(|e| e == "pack")));
    assert_sound(folder.path());
    for derived in ["info/refs", "objects/info/packs"] {
        let _ = fs::remove_file(repo.join(derived));
    }
    flip_all(folder.path(), 20);
    // And it can be written to again.
    let store = Store::open(folder.path()).unwrap();
    let run = store.find_run("latest").unwrap();
    let again = store.begin_run(run_body("after packing")).unwrap();
    store.append(&again, plan()).unwrap();
    assert_eq!(store.records(&run).unwrap().len(), 16);
    assert_sound(folder.path());
}

#[test]
fn five_hundred_records_stay_quick() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::create(folder.path()).unwrap();
    let run = store.begin_run(run_body("long")).unwrap();
    let start = Instant::now();
    for _ in 0..499 {
        store.append(&run, plan()).unwrap();
    }
    let appended = start.elapsed();
    let start = Instant::now();
    assert_eq!(store.records(&run).unwrap().len(), 500);
    let read = start.elapsed();
    let start = Instant::now();
    assert_sound(folder.path());
    println!("499 appends {appended:?}, read {read:?}, verify {:?}", start.elapsed());
    assert!(read < Duration::from_secs(1), "{read:?}");
}

#[test]
fn levels_serialise_in_lower_case() {
    assert_eq!(serde_json::to_value(Level::V0).unwrap(), "v0");
}
