//! Freezing and laying out source trees.

use crate::common::*;
use crit_records::format::*;
use crit_records::tree::{FileType, Manifest, freeze, materialise, scan};
use crit_records::{Draft, Store};
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

fn why(root: &Path) -> String {
    scan(root, &[]).expect_err("accepted").to_string()
}

#[test]
fn a_frozen_tree_comes_back_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("engine");
    write_engine(&root);
    fs::write(root.join("build.sh"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(root.join("build.sh"), fs::Permissions::from_mode(0o744)).unwrap();
    symlink("plugins/kv_q8/lib.rs", root.join("link.rs")).unwrap();
    symlink("../kv_q8", root.join("plugins/dirlink")).unwrap_or_default();
    fs::remove_file(root.join("plugins/dirlink")).unwrap();
    symlink("kv_q8", root.join("plugins/dirlink")).unwrap();
    fs::create_dir(root.join("target")).unwrap();
    fs::write(root.join("target/junk"), "x").unwrap();

    let store = Store::create(folder.path()).unwrap();
    let frozen = freeze(&store, &root, &["target".into()]).unwrap();
    assert_eq!(scan(&root, &["target".into()]).unwrap(), frozen.manifest);
    assert_eq!(Manifest::from_bytes(&frozen.manifest.to_bytes().unwrap()).unwrap(), frozen.manifest);
    let kinds: Vec<(&str, FileType)> = frozen.manifest.files.iter().map(|f| (f.path.as_str(), f.kind)).collect();
    assert_eq!(
        kinds,
        [
            ("build.sh", FileType::Exec),
            ("engine.json", FileType::File),
            ("link.rs", FileType::Symlink),
            ("plugins/dirlink", FileType::Symlink),
            ("plugins/kv_q8/lib.rs", FileType::File),
        ]
    );
    // An edit after the freeze does not reach the copy.
    fs::write(root.join("engine.json"), "edited").unwrap();
    let dest = folder.path().join("out");
    frozen.materialise(&store, &dest).unwrap();
    let again = scan(&dest, &["target".into()]).unwrap();
    assert_eq!(again.id().unwrap(), frozen.id);
    assert!(frozen.materialise(&store, &dest).unwrap_err().to_string().contains("not empty"));

    // Once recorded, it comes back from the record alone.
    let run = store.begin_run(run_body("t")).unwrap();
    let plan = store.append(&run, plan()).unwrap();
    let body = CandidateBody {
        name: "c".into(),
        source: frozen.id,
        form: Form::Package,
        parents: vec![],
        inspirations: vec![],
    };
    let id = store.append(&run, frozen.attach(Draft::new(&body).unwrap().link(REL_PLAN, plan)).unwrap()).unwrap();
    let bytes = store.attachment(&store.show(&id.to_string()).unwrap(), crit_records::tree::MANIFEST_NAME).unwrap();
    store.materialise(&Manifest::from_bytes(&bytes).unwrap(), &folder.path().join("again")).unwrap();
}

#[test]
fn the_id_sees_content_names_and_the_executable_bit_but_no_times() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let file = root.join("a.txt");
    fs::write(&file, "one\n").unwrap();
    let id = || scan(root, &[]).unwrap().id().unwrap();
    let base = id();
    fs::write(&file, "one\r\n").unwrap();
    assert_ne!(id(), base);
    fs::write(&file, "one\n").unwrap();
    assert_eq!(id(), base);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o700)).unwrap();
    assert_ne!(id(), base);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(id(), base);
    fs::create_dir(root.join("empty")).unwrap();
    assert_eq!(id(), base);
    fs::rename(&file, root.join("b.txt")).unwrap();
    assert_ne!(id(), base);
}

#[test]
fn what_cannot_mean_the_same_everywhere_is_refused() {
    for name in [
        "con",
        "AUX.txt",
        "com1",
        "a\\b",
        "a:b",
        "x.",
        "x ",
        ".git",
        ".GIT",
        "git~1",
        ".g\u{200c}it",
        ".git .",
        "e\u{301}",
        "a\nb",
        "x\u{202e}y",
    ] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(name), "x").unwrap();
        let text = why(folder.path());
        assert!(text.contains('`'), "{name}: {text}");
        fs::remove_file(folder.path().join(name)).unwrap();
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("inside"), "x").unwrap();
        why(folder.path());
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(std::ffi::OsStr::from_bytes(b"\xff")), "x").unwrap();
    assert!(why(folder.path()).contains("UTF-8"));

    for (one, two) in [("Read.me", "read.me"), ("Straße", "STRASSE"), ("d/x", "D/y")] {
        let folder = tempfile::tempdir().unwrap();
        for name in [one, two] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        assert!(why(folder.path()).contains("one name"), "{one} {two}");
    }

    let folder = tempfile::tempdir().unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
    assert!(why(folder.path()).contains("socket"));

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("su");
    fs::write(&file, "x").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
    assert!(why(folder.path()).contains("another user"));
}

#[test]
fn links_stay_inside_and_pass_no_other_link() {
    for (target, expected) in [
        ("/etc/passwd", "out of the tree"),
        ("../outside", "out of the tree"),
        ("d/../../outside", "out of the tree"),
        (".", "out of the tree"),
        ("absent", "not part of the tree"),
        ("loop", "another link"),
        ("through/file", "another link"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("d")).unwrap();
        fs::write(folder.path().join("d/file"), "x").unwrap();
        symlink("d", folder.path().join("through")).unwrap();
        symlink(target, folder.path().join("loop")).unwrap();
        assert!(why(folder.path()).contains(expected), "{target}: {}", why(folder.path()));
    }
}

#[test]
fn a_hostile_manifest_writes_nothing_outside() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("a"), "../victim").unwrap();
    let good = scan(&source, &[]).unwrap();
    let read = |_: &crit_core::digest::Digest| Ok(Box::new(&b"../victim"[..]) as Box<dyn Read>);
    for (path, kind) in [
        ("../victim", FileType::File),
        ("/victim", FileType::File),
        ("a", FileType::Symlink),
        ("a/../../victim", FileType::File),
    ] {
        let mut bad = good.clone();
        bad.files[0].path = path.into();
        bad.files[0].kind = kind;
        let dest = folder.path().join("dest");
        assert!(materialise(&bad, &dest, &read).is_err(), "{path}");
        let _ = fs::remove_dir_all(&dest);
        assert!(!folder.path().join("victim").exists());
    }
    // A link and a file below it: the file would be written through the link.
    let mut both = good.clone();
    both.files.push(both.files[0].clone());
    both.files[0].kind = FileType::Symlink;
    both.files[1].path = "a/b".into();
    assert!(materialise(&both, &folder.path().join("dest"), &read).is_err());
    // Wrong bytes.
    let wrong = |_: &crit_core::digest::Digest| Ok(Box::new(&b"other"[..]) as Box<dyn Read>);
    assert!(materialise(&good, &folder.path().join("dest2"), &wrong).unwrap_err().to_string().contains("digest"));
}
