//! One writer: what is appended is read back, and what breaks a rule is not appended.

use crate::common::*;
use crit_core::digest::Digest;
use crit_core::error::{ErrorKind, Failure};
use crit_records::format::*;
use crit_records::{Draft, RecordError, Store};

#[test]
fn a_whole_run_reads_back() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::create(folder.path()).unwrap();
    let started = whole_run(&store, folder.path());
    let records = store.records(&started.run).unwrap();
    let kinds: Vec<Kind> = records.iter().map(|stored| stored.kind).collect();
    use Kind::*;
    let expected = [
        Run, Recon, Plan, Candidate, Build, Smoke, Eval, Eval, Eval, Ablation, Decision, Selection, Cost, Seal,
        Signature, Anchor,
    ];
    assert_eq!(kinds, expected);
    let runs = store.runs().unwrap();
    assert_eq!((runs.len(), runs[0].records, runs[0].sealed), (1, 16, Some(started.package)));
    assert_eq!(store.find_run(&runs[0].short).unwrap(), started.run);
    assert_eq!(store.find_run("latest").unwrap(), started.run);
    let seal = store.latest(&started.run, Seal).unwrap().unwrap();
    assert_eq!(store.show(&seal.id.short()).unwrap(), seal);
    let body: SealBody = seal.body().unwrap();
    assert_eq!(body.count, 13);
    assert_eq!(body.tip, Some(records[12].id));
    assert_eq!(store.attachment(&records[1], "probe.json").unwrap(), br#"{"repeats":9}"#);

    // git itself can read it, and finds nothing wrong.
    let repo = git2::Repository::open_bare(folder.path().join(".crit/records.git")).unwrap();
    let tip = repo.find_reference(&format!("refs/crit/runs/{}", started.run)).unwrap().peel_to_commit().unwrap();
    let blob = tip.tree().unwrap().get_path("records/00000013-seal.json".as_ref()).unwrap();
    assert_eq!(repo.find_blob(blob.id()).unwrap().content(), seal.bytes);
}

#[test]
fn rules_are_enforced_with_the_next_step() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::create(folder.path()).unwrap();
    let started = start(&store, folder.path());
    let refuse = |draft: Draft| match store.append(&started.run, draft) {
        Err(error) => Failure::from(error),
        Ok(_) => panic!("accepted"),
    };
    let mut body = eval(&started, EvalKind::Speed, EvalStatus::Started);
    body.candidate = Digest::of(b"never built");
    assert!(refuse(Draft::new(&body).unwrap()).message.contains("record its build first"));
    body.candidate = started.package;
    body.recon = Digest::of(b"no recon");
    assert!(refuse(Draft::new(&body).unwrap()).message.contains("no earlier recon"));
    body.recon = started.recon;
    body.summary = vec![samples().summarise("decode_tok_s", Statistic::Mean, 1).unwrap()];
    assert!(refuse(Draft::new(&body).unwrap()).message.contains("only started"));

    let mut wrong = eval(&started, EvalKind::Speed, EvalStatus::Finished);
    wrong.samples = Some("samples.json".into());
    wrong.summary =
        vec![SummaryRow { series: "decode_tok_s".into(), statistic: Statistic::Median, value: q("99.000 tok/s") }];
    let draft = Draft::new(&wrong).unwrap().attach("samples.json", MEDIA_SAMPLES, samples().to_bytes().unwrap());
    let failure = refuse(draft);
    assert!(failure.message.contains("the samples say 71.250 tok/s"), "{}", failure.message);
    assert_eq!(failure.kind, ErrorKind::Check);

    let mut no_plan = Draft::new(&CandidateBody {
        name: "c2".into(),
        source: Digest::of(b"x"),
        form: Form::Command,
        parents: vec![],
        inspirations: vec![],
    })
    .unwrap();
    assert!(refuse(no_plan.clone()).message.contains("record the plan first"));
    no_plan.body["share"] = 0.5.into();
    assert!(refuse(no_plan.clone()).message.contains("0.5"));
    no_plan.body = serde_json::json!([1]);
    refuse(no_plan);
    assert!(refuse(Draft::new(&run_body("again")).unwrap().field("nonce", "n")).message.contains("one `run` record"));

    let intent =
        store.append(&started.run, Draft::new(&eval(&started, EvalKind::Speed, EvalStatus::Started)).unwrap()).unwrap();
    assert!(refuse(seal(&started)).message.contains("never closed"));
    assert_eq!(store.open_intents(&started.run).unwrap()[0].id, intent);
    let mut aborted = eval(&started, EvalKind::Speed, EvalStatus::Aborted);
    aborted.failure = Some("the job died".into());
    store.append(&started.run, Draft::new(&aborted).unwrap().link(REL_INTENT, intent)).unwrap();
    assert!(store.open_intents(&started.run).unwrap().is_empty());
    store.append(&started.run, seal(&started)).unwrap();
    assert!(refuse(plan()).message.contains("sealed"));
}

#[test]
fn missing_and_ambiguous_names_list_what_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let error = Store::open(folder.path()).unwrap_err();
    assert!(matches!(error, RecordError::NoStore { .. }));
    let store = Store::create(folder.path()).unwrap();
    assert!(Failure::from(store.find_run("latest").unwrap_err()).message.contains("no runs yet"));
    let runs: Vec<RunId> = (0..20).map(|i| store.begin_run(run_body(&format!("goal {i}"))).unwrap()).collect();
    let message = Failure::from(store.find_run("xyz").unwrap_err()).message;
    assert!(runs.iter().all(|run| message.contains(&run.to_string()[..8])), "{message}");
    // 20 ids and 16 first digits: two must share one.
    let shared = runs
        .iter()
        .map(|run| run.to_string()[..1].to_string())
        .find(|d| runs.iter().filter(|r| r.to_string().starts_with(d)).count() > 1);
    let Err(RecordError::Ambiguous { matches, .. }) = store.find_run(&shared.unwrap()) else { panic!("not ambiguous") };
    assert!(matches.len() > 1);
    assert!(matches!(store.show("zz").unwrap_err(), RecordError::NoSuchRecord { .. }));
    assert!(matches!(store.records(&Digest::of(b"?")).unwrap_err(), RecordError::NoSuchRun { .. }));
    assert!(matches!(store.blob(&Digest::of(b"?")).unwrap_err(), RecordError::NoSuchBlob { .. }));
}

#[test]
fn huge_attachments_stay_outside_git() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::create(folder.path()).unwrap();
    let run = store.begin_run(run_body("big")).unwrap();
    let big: Vec<u8> = (0..crit_records::INLINE_BYTES + 1).map(|i| (i % 251) as u8).collect();
    store.append(&run, recon().attach("big", MEDIA_BYTES, big.clone())).unwrap();
    let sha256 = Digest::of(&big).to_string();
    assert!(folder.path().join(".crit/blobs").join(&sha256[..2]).join(&sha256).exists());
    assert_eq!(store.blob(&Digest::of(&big)).unwrap(), big);
}

#[test]
fn no_update_of_a_ref_is_forced() {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for entry in std::fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        let text: String = std::fs::read_to_string(&path).unwrap().split_whitespace().collect();
        for (at, _) in text.match_indices(".reference(") {
            let call = &text[at..at + text[at..].find(')').unwrap()];
            assert!(!call.contains("true"), "{}: {call}", path.display());
        }
        assert!(!text.contains(".set_target("), "{}", path.display());
    }
}
