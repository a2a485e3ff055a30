//! A small but complete run, as the tools would record it.

use crit_core::digest::Digest;
use crit_records::candidate::{CandidateParts, PluginCode};
use crit_records::format::*;
use crit_records::quantity::{Quantity, ns, ppm, seed_text};
use crit_records::{Draft, Store, tree};
use std::path::Path;
use std::time::Duration;

pub fn run_body(goal: &str) -> RunBody {
    RunBody {
        goal: goal.into(),
        model: "tiny-qwen3".into(),
        checkpoint: Digest::of(b"checkpoint"),
        machine: "x86_64-avx2 2 cores".into(),
        metric: decode(),
        decision_rule: "interval/1".into(),
        quality_mode: "preserve".into(),
        budget: vec!["3600 s".parse().unwrap()],
        seeds_commitment: Some(Digest::of(b"salt and seeds")),
        policy: None,
        nonce: String::new(),
    }
}

fn decode() -> Metric {
    Metric { name: "decode_tok_s".into(), unit: "tok/s".into(), direction: Direction::Higher }
}

pub fn plan() -> Draft {
    let prediction = Prediction { metric: "decode_tok_s".into(), low: q("1.1 x"), high: q("1.4 x") };
    let body = PlanBody {
        hypothesis: "8-bit keys and values halve the cache traffic".into(),
        predictions: vec![prediction],
        scope: vec!["kv_q8".into()],
        stop_rule: "two failed builds".into(),
    };
    Draft::new(&body).unwrap()
}

pub fn q(text: &str) -> Quantity {
    text.parse().unwrap()
}

pub fn recon() -> Draft {
    let limit = MeasuredLimit {
        name: "read_bandwidth".into(),
        level: "dram".into(),
        value: q("21.300 GB/s"),
        spread_ppm: 12_000,
    };
    let body = ReconBody {
        cpu: "a processor".into(),
        cores: 2,
        memory_bytes: 8 << 30,
        os: "Linux 6.1".into(),
        accelerators: vec![],
        limits: vec![limit],
    };
    Draft::new(&body).unwrap().attach("probe.json", MEDIA_JSON, br#"{"repeats":9}"#.to_vec())
}

/// The records of a run up to a smoked candidate.
pub struct Started {
    pub run: RunId,
    pub recon: RecordId,
    pub package: Digest,
}

pub fn write_engine(folder: &Path) {
    std::fs::create_dir_all(folder.join("plugins/kv_q8")).unwrap();
    std::fs::write(folder.join("engine.json"), r#"{"plugins":["kv_q8"]}"#).unwrap();
    std::fs::write(folder.join("plugins/kv_q8/lib.rs"), "// a plugin\n").unwrap();
}

pub fn start(store: &Store, workspace: &Path) -> Started {
    let run = store.begin_run(run_body("make it fast")).unwrap();
    let recon = store.append(&run, recon()).unwrap();
    let plan = store.append(&run, plan()).unwrap();
    write_engine(&workspace.join("engine"));
    let frozen = tree::freeze(store, &workspace.join("engine"), &["target".into()]).unwrap();
    let body = CandidateBody {
        name: "c1".into(),
        source: frozen.id,
        form: Form::Assembly,
        parents: vec![],
        inspirations: vec!["kv_q8".into()],
    };
    let draft = frozen.attach(Draft::new(&body).unwrap().link(REL_PLAN, plan)).unwrap();
    let candidate = store.append(&run, draft).unwrap();
    let inputs = CandidateParts {
        source: frozen.id,
        checkpoint: Digest::of(b"checkpoint"),
        engine: Digest::of(br#"{"plugins":["kv_q8"]}"#),
        plugins: vec![PluginCode { name: "kv_q8".into(), version: "1".into(), code: Digest::of(b"code") }],
        executable: Digest::of(b"executable"),
        cubins: vec![],
    };
    let package = inputs.digest();
    let build = BuildBody {
        candidate,
        status: Outcome::Passed,
        package: Some(package),
        inputs: Some(inputs),
        failure: None,
        command: vec![],
        exit: None,
        toolchain: vec!["rustc 1.95.0".into()],
        lock: None,
        network: false,
        took: Some(ns(Duration::from_millis(12))),
    };
    store
        .append(&run, Draft::new(&build).unwrap().attach("build.log", MEDIA_TEXT, b"nothing to compile\n".to_vec()))
        .unwrap();
    store.append(&run, smoke(package)).unwrap();
    Started { run, recon, package }
}

pub fn smoke(candidate: Digest) -> Draft {
    let case = SmokeCase { name: "greedy".into(), status: Outcome::Passed, seed: Some(seed_text(7)), detail: None };
    let body = SmokeBody {
        candidate,
        suite: "smoke/1".into(),
        cases: vec![case],
        passed: 1,
        failed: 0,
        status: Outcome::Passed,
        failure: None,
    };
    Draft::new(&body).unwrap().about("candidate", candidate)
}

pub fn eval(started: &Started, kind: EvalKind, status: EvalStatus) -> EvalBody {
    EvalBody {
        candidate: started.package,
        recon: started.recon,
        kind,
        suite: "speed/1".into(),
        workload: Digest::of(b"six prompts"),
        seeds: vec![seed_text(u64::MAX)],
        warmup: 1,
        status,
        samples: None,
        summary: vec![],
        failure: None,
    }
}

pub fn samples() -> Samples {
    let values = ["71.250 tok/s", "70.900 tok/s", "71.400 tok/s"].map(q).to_vec();
    Samples::new(vec![Series { name: "decode_tok_s".into(), values }])
}

pub fn finished(started: &Started, kind: EvalKind) -> Draft {
    let samples = samples();
    let mut body = eval(started, kind, EvalStatus::Finished);
    body.samples = Some("samples.json".into());
    body.summary = vec![samples.summarise("decode_tok_s", Statistic::Median, 3).unwrap()];
    Draft::new(&body).unwrap().attach("samples.json", MEDIA_SAMPLES, samples.to_bytes().unwrap())
}

pub fn seal(started: &Started) -> Draft {
    let body = SealBody {
        candidate: started.package,
        executable: Digest::of(b"executable"),
        tip: None,
        count: 0,
        merkle_root: None,
        cost: Some(q("1200000 pusd")),
        open_failures: vec![],
    };
    Draft::new(&body).unwrap().about("candidate", started.package)
}

/// A run with a record of every kind that a healthy run can have.
pub fn whole_run(store: &Store, workspace: &Path) -> Started {
    let started = start(store, workspace);
    let run = started.run;
    let intent =
        store.append(&run, Draft::new(&eval(&started, EvalKind::Speed, EvalStatus::Started)).unwrap()).unwrap();
    let speed = store.append(&run, finished(&started, EvalKind::Speed).link(REL_INTENT, intent)).unwrap();
    let quality = store.append(&run, finished(&started, EvalKind::Quality)).unwrap();
    let row = AblationRow {
        plugin: "kv_q8".into(),
        variant: Variant::Off,
        status: RowStatus::Measured,
        reason: None,
        value: Some(q("65.000 tok/s")),
        delta_ppm: Some(ppm(-0.0877).unwrap()),
        interval_ppm: Some([-95_000, -80_000]),
        quality: Some(q("0.000012 nat")),
    };
    let ablation = AblationBody { candidate: started.package, metric: decode(), rows: vec![row] };
    store.append(&run, Draft::new(&ablation).unwrap()).unwrap();
    let decision = DecisionBody {
        question: "keep c1?".into(),
        options: vec!["keep".into(), "drop".into()],
        rule: "interval/1".into(),
        inputs: vec![speed, quality],
        outcome: "keep".into(),
        reason: String::new(),
    };
    store.append(&run, Draft::new(&decision).unwrap()).unwrap();
    let selection = SelectionBody {
        considered: vec![started.package],
        excluded: vec![],
        rule: "interval/1".into(),
        winner: started.package,
        runner_up: None,
        margin_ppm: None,
        noise_ppm: Some(4_000),
        holdout: vec![speed],
    };
    store.append(&run, Draft::new(&selection).unwrap()).unwrap();
    let cost = CostBody {
        agent: "an agent 1.0".into(),
        method: "transcripts/1".into(),
        sources: vec![CostSource { session: "s1".into(), sha256: Digest::of(b"transcript"), bytes: 10 }],
        total: Some(q("1200000 pusd")),
        price_table: Some(Digest::of(b"prices")),
        lower_bound: false,
        unpriced: vec![],
        flags: vec![],
    };
    store.append(&run, Draft::new(&cost).unwrap()).unwrap();
    let seal = store.append(&run, seal(&started)).unwrap();
    let signature =
        SignatureBody { seal, scheme: "ssh".into(), key: "ssh-ed25519 AAAA".into(), signature: "c2ln".into() };
    store.append(&run, Draft::new(&signature).unwrap()).unwrap();
    let anchor = AnchorBody { tip: seal, place: "https://example.org/log".into(), receipt: "42".into() };
    store.append(&run, Draft::new(&anchor).unwrap()).unwrap();
    started
}
