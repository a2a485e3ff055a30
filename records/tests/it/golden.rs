//! Records written by released versions, which every later version must accept.
//!
//! `golden/v<n>` holds one record of each kind as stored, their ids (computed by another program), and the whole store in one
//! text, a line a file: path, a tab, hex. `CRIT_WRITE_GOLDEN=v2` writes a new set beside the others; none is ever rewritten.

use crate::common::*;
use crate::verify::assert_sound;
use crit_records::format::*;
use crit_records::{Draft, Store};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn versions() -> Vec<PathBuf> {
    let folders = fs::read_dir(golden()).unwrap().map(|entry| entry.unwrap().path());
    let folders: Vec<PathBuf> = folders.filter(|path| path.is_dir()).collect();
    assert!(!folders.is_empty());
    folders
}

fn write_golden(golden: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::create(folder.path()).unwrap();
    let started = whole_run(&store, folder.path());
    let last = store.records(&started.run).unwrap().pop().unwrap();
    let body = RecoveryBody {
        reason: "a damaged tip".into(),
        last_good: last.id,
        lost: vec!["eval 16".into()],
        quarantined: vec!["refs/crit/quarantine/x".into()],
    };
    store.append(&started.run, Draft::new(&body).unwrap()).unwrap();
    fs::create_dir_all(golden).unwrap();
    for stored in store.records(&started.run).unwrap() {
        fs::write(golden.join(stored.file_name()), &stored.bytes).unwrap();
    }
    let mut text = String::new();
    for path in crate::verify::files(folder.path()) {
        let hex: String = fs::read(&path).unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        text.push_str(&format!("{}\t{hex}\n", path.strip_prefix(folder.path()).unwrap().display()));
    }
    fs::write(golden.join("store.txt"), text).unwrap();
}

#[test]
fn a_golden_store_still_verifies() {
    if let Some(version) = std::env::var_os("CRIT_WRITE_GOLDEN").filter(|version| !golden().join(version).exists()) {
        write_golden(&golden().join(version));
    }
    for golden in versions() {
        let folder = tempfile::tempdir().unwrap();
        for line in fs::read_to_string(golden.join("store.txt")).unwrap().lines() {
            let (path, hex) = line.split_once('\t').unwrap();
            let bytes: Vec<u8> =
                (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect();
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        assert_sound(folder.path());
        let store = Store::open(folder.path()).unwrap();
        let records = store.records(&store.find_run("latest").unwrap()).unwrap();
        let kinds: BTreeSet<Kind> = records.iter().map(|stored| stored.kind).collect();
        assert_eq!(kinds, Kind::ALL.iter().copied().collect());
        let ids = fs::read_to_string(golden.join("ids.txt")).unwrap();
        let again: String = records.iter().map(|stored| format!("{}  {}\n", stored.id, stored.file_name())).collect();
        assert_eq!(ids, again);
        for stored in &records {
            assert_eq!(fs::read(golden.join(stored.file_name())).unwrap(), stored.bytes, "{}", stored.file_name());
        }
    }
}
