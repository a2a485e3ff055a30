//! Rescue after damage.

use crate::common::*;
use crate::verify::{assert_sound, check};
use crit_records::Store;
use crit_records::format::*;
use std::fs;
use std::path::PathBuf;

struct Broken {
    folder: tempfile::TempDir,
    store: Store,
    run: RunId,
}

fn workspace() -> Broken {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::create(folder.path()).unwrap();
    let run = start(&store, folder.path()).run;
    Broken { folder, store, run }
}

impl Broken {
    fn repo(&self) -> PathBuf {
        self.folder.path().join(".crit/records.git")
    }

    fn object(&self, spec: &str) -> PathBuf {
        let repo = git2::Repository::open_bare(self.repo()).unwrap();
        let hex = repo
            .revparse_single(&spec.replace("RUN", &format!("refs/crit/runs/{}", self.run)))
            .unwrap()
            .id()
            .to_string();
        self.repo().join("objects").join(&hex[..2]).join(&hex[2..])
    }

    fn kinds(&self) -> Vec<Kind> {
        self.store.records(&self.run).unwrap().iter().map(|stored| stored.kind).collect()
    }
}

#[test]
fn a_healthy_store_is_left_alone() {
    let broken = workspace();
    assert_eq!(broken.store.doctor().unwrap(), Default::default());
    assert_sound(broken.folder.path());
}

#[test]
fn an_unreadable_tip_goes_back_to_the_last_good_record() {
    use Kind::*;
    for spec in ["RUN", "RUN^{tree}", "RUN:records", "RUN:records/00000005-smoke.json"] {
        for damage in [0, 10, usize::MAX] {
            let broken = workspace();
            let path = broken.object(spec);
            let mut bytes = fs::read(&path).unwrap();
            if damage == usize::MAX {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            } else {
                bytes.truncate(damage);
            }
            fs::write(&path, bytes).unwrap();
            assert!(!check(broken.folder.path()).passed());
            assert!(broken.store.append(&broken.run, plan()).is_err());
            let rescue = broken.store.doctor().unwrap();
            assert_eq!(rescue.recovered.len(), 1, "{spec} {rescue:#?}");
            assert!(rescue.recovered[0].lost[0].starts_with("smoke 5"), "{rescue:#?}");
            assert_eq!(broken.kinds(), [Run, Recon, Plan, Candidate, Build, Recovery], "{spec}");
            assert_sound(broken.folder.path());
            broken.store.append(&broken.run, plan()).unwrap();
            assert_eq!(broken.store.doctor().unwrap(), Default::default());
            assert_sound(broken.folder.path());
        }
    }
}

#[test]
fn damage_in_the_middle_costs_what_follows_and_says_so() {
    let broken = workspace();
    fs::write(broken.object("RUN:records/00000002-plan.json"), b"").unwrap();
    let rescue = broken.store.doctor().unwrap();
    assert_eq!(rescue.recovered[0].lost.len(), 4);
    let recovery = broken.store.latest(&broken.run, Kind::Recovery).unwrap().unwrap();
    assert_eq!(recovery.body::<RecoveryBody>().unwrap().lost, rescue.recovered[0].lost);
    assert_eq!(broken.kinds(), [Kind::Run, Kind::Recon, Kind::Recovery]);
    assert_sound(broken.folder.path());
}

#[test]
fn an_emptied_or_missing_ref_loses_nothing() {
    for remove in [false, true] {
        let broken = workspace();
        let path = broken.repo().join(format!("refs/crit/runs/{}", broken.run));
        if remove {
            fs::remove_file(&path).unwrap()
        } else {
            fs::write(&path, b"").unwrap()
        }
        let rescue = broken.store.doctor().unwrap();
        assert!(rescue.recovered[0].lost.is_empty());
        assert_eq!(broken.kinds().len(), 7);
        assert_sound(broken.folder.path());
    }
}

#[test]
fn leftovers_are_swept_and_fixed_files_restored() {
    let broken = workspace();
    fs::write(broken.repo().join("objects/tmp_obj_1_1"), b"half").unwrap();
    fs::write(broken.repo().join(format!("refs/crit/runs/{}.lock", broken.run)), b"").unwrap();
    fs::write(broken.repo().join("HEAD"), b"").unwrap();
    fs::write(broken.repo().join("hello"), b"").unwrap();
    let journal = broken.repo().join(format!("logs/refs/crit/runs/{}", broken.run));
    let text = fs::read(&journal).unwrap();
    fs::write(&journal, &text[..text.len() - 30]).unwrap();
    let rescue = broken.store.doctor().unwrap();
    assert_eq!((rescue.swept.len(), rescue.set_aside.len(), rescue.recovered.len()), (2, 2, 0), "{rescue:#?}");
    assert_eq!(fs::read(&journal).unwrap(), text);
    assert_sound(broken.folder.path());
}

#[test]
fn what_cannot_be_mended_is_told() {
    let broken = workspace();
    fs::write(broken.object("RUN:records/00000000-run.json"), b"").unwrap();
    let rescue = broken.store.doctor().unwrap();
    assert_eq!(rescue.beyond_help.len(), 1, "{rescue:#?}");
    assert!(!check(broken.folder.path()).passed());
}
