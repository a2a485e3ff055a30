//! Snapshots of the report, and that nothing leaks out of its frame.

use super::*;
use crate::ceiling::{Bound, Share};
use crate::kpi::Kpi;
use crate::limits::MemoryLevel;
use crate::probe::{ArithmeticPoint, Cache, CopyPoint, Machine, ReadPoint};
use crate::profile::{OpPart, Profile};
use crate::quality::reduce::{Divergence, PathResult};
use crate::quality::{Conduct, ConductState, Identity, Mode, PathKind};
use crate::speed::beyond::{DepthSpeed, WidthSpeed};
use crate::speed::served::{PromptSpeed, ServedSampling, SkippedPrompt};
use crate::speed::{Beyond, Honesty};
use crate::stats::Measured;
use crit_core::model::program::Precision;

fn measured(middle: f64) -> Measured {
    Measured::of(vec![middle * 0.99, middle, middle * 1.02]).unwrap()
}

fn share(tok_s: f64, ceiling_tok_s: f64, bound: Bound) -> Share {
    Share {
        tok_s,
        ceiling_tok_s,
        share: tok_s / ceiling_tok_s,
        share_limit: 1.02,
        state: ShareState::Valid,
        reason: None,
        bound,
        level: Some(MemoryLevel::Dram),
        fastest_allowed_tok_s: Some(ceiling_tok_s * 1.6),
    }
}

fn prompt(name: &str, tokens: u64, decode: f64) -> PromptSpeed {
    PromptSpeed {
        name: name.into(),
        prompt_tokens: tokens,
        generated_tokens: vec![128; 3],
        cached_tokens: 0,
        first_token_ms: Some(measured(tokens as f64 / 0.9)),
        prefill_tok_s: Some(measured(900.0)),
        decode_tok_s: Some(measured(decode)),
        prefill: Some(share(900.0, 1_900.0, Bound::Arithmetic)),
        decode: Some(share(decode, 75.0, Bound::Memory)),
        tokens_per_pass: Some(if tokens > 1_000 { 1.6 } else { 1.0 }),
        notes: vec![],
    }
}

fn served() -> ServedSpeed {
    ServedSpeed {
        suite: "speed-1".into(),
        suite_digest: "ab".repeat(32),
        sampling: ServedSampling::Model,
        decode_tok_s: Some(54.4),
        prefill_tok_s: Some(900.0),
        decode_share: Some(0.725),
        prefill_share: Some(0.474),
        state: Some(ShareState::Valid),
        reason: None,
        prompts: vec![
            prompt("chat_question", 31, 57.0),
            prompt("code_review", 402, 55.2),
            prompt("summary", 1_180, 53.1),
            prompt("long_code", 4_210, 48.9),
        ],
        skipped: vec![SkippedPrompt {
            name: "agent_session".into(),
            why: "needs about 14200 tokens of context, the engine holds 8192".into(),
        }],
        warm: true,
        beyond: Some(beyond()),
    }
}

fn path(kind: PathKind, mean: f64) -> PathResult {
    PathResult {
        path: kind.name(),
        what: kind.what(),
        rows: 1_536,
        kld: Some(Divergence { mean, low: mean * 0.7, high: mean * 1.4, p999: mean * 22.0, max: mean * 40.0 }),
        prompt_kld_same_rows: Some(0.011),
        reference_ppl: Some(8.412),
        candidate_ppl: Some(8.412 * mean.exp()),
        delta_nll: Some(mean),
        delta_nll_high: Some(mean * 1.4),
        same_top_share: Some(0.967),
        near_tie_flips: 31,
        hard_flips: 19,
        sure_rows: 640,
        sure_flips: 0,
        bad_rows: 0,
        unnormalised_rows: 0,
        self_check_z: 0.7,
        shift_gain: Some(2.2),
        by_text: vec![Some(mean); 3],
    }
}

fn quality() -> Quality {
    let paths = vec![
        path(PathKind::Prompt, 0.011),
        path(PathKind::Chunks64, 0.0112),
        path(PathKind::Batch, 0.0124),
        path(PathKind::PrefixCache, 0.0109),
        path(PathKind::Verify, 0.0143),
        path(PathKind::Decode, 0.0171),
    ];
    Quality {
        mode: Mode::Preserve,
        verdict: Verdict::Pass,
        reasons: vec![],
        worst_path: "decode".into(),
        paths,
        skipped: vec![],
        texts: vec![("chat".into(), 512), ("code".into(), 512), ("verse".into(), 512)],
        near_tie_nats: 0.1,
        identity: Some(Identity {
            rows: 64,
            same_kld: 0.0,
            formula_error: 2e-8,
            drawn_z: 0.7,
            neighbours_kld: Some(5.1),
        }),
        conduct: vec![
            Conduct::new("sampled", "own samples", ConductState::Pass, "1536 tokens, z = +0.4".into()),
            Conduct::new("logprobs", "told log-probs", ConductState::NotMeasured, "the engine tells none".into()),
        ],
        reference_spread: 1e-9,
        reference: "exact 1".into(),
        eval_version: "1".into(),
    }
}

fn probe() -> Probe {
    let sets = (15..=27u32).map(|power| 1u64 << power);
    let cache = |level, bytes, shared_by| Cache { level, bytes, shared_by };
    let machine = Machine {
        cpu: "Example 9000".into(),
        flags: vec!["avx2".into(), "fma".into(), "avx512f".into()],
        cores: 2,
        caches: vec![cache(1, 32 << 10, 1), cache(2, 1 << 20, 1), cache(3, 32 << 20, 2)],
        memory_bytes: 24 << 30,
        memory_free_bytes: 20 << 30,
        kernel: "6.1.0".into(),
        governor: Some("performance".into()),
        virtual_machine: false,
        load_hundredths: 3,
    };
    let read = [1u32, 2]
        .into_iter()
        .flat_map(|threads| sets.clone().map(move |set| (threads, set)))
        .map(|(threads, working_set_bytes)| {
            let level = machine.level(working_set_bytes, threads);
            let gb_s = match level {
                MemoryLevel::L1 => 190.0,
                MemoryLevel::L2 => 110.0,
                MemoryLevel::L3 => 48.0,
                MemoryLevel::Dram => 17.0,
            };
            ReadPoint { threads, working_set_bytes, level, bytes_s: measured(gb_s * 1e9 * f64::from(threads).sqrt()) }
        })
        .collect();
    let arithmetic = [(Precision::F32, 180.0), (Precision::Bf16, 340.0), (Precision::Int8, 690.0)];
    Probe {
        read,
        copy: vec![CopyPoint { threads: 2, buffer_bytes: 64 << 20, bytes_s: measured(20e9) }],
        arithmetic: arithmetic
            .into_iter()
            .map(|(precision, gops)| ArithmeticPoint { threads: 2, precision, ops_s: Some(measured(gops * 1e9)) })
            .chain([ArithmeticPoint { threads: 2, precision: Precision::F16, ops_s: None }])
            .collect(),
        unstable: vec![],
        took_ms: 9_000,
        machine,
    }
}

fn beyond() -> Beyond {
    let width = |width: u32, total_tok_s: f64| WidthSpeed {
        width,
        total_tok_s,
        each_tok_s: total_tok_s / f64::from(width),
        slowest_first_token_ms: 40.0,
    };
    Beyond {
        outside_digest: "cd".repeat(32),
        outside: vec![prompt("german", 52, 56.1), prompt("secret_short", 210, 55.8)],
        full_context: Some(DepthSpeed {
            depth: 7_900,
            context: 8_192,
            decode_tok_s: 41.2,
            first_token_ms: 9_870.0,
            decode: Some(share(41.2, 63.0, Bound::Memory)),
        }),
        widths: vec![width(1, 57.0), width(2, 98.0), width(4, 151.0), width(8, 173.0)],
        notes: vec![],
    }
}

fn profile() -> Profile {
    let part = |op: &str, time_us: f64, floor_us: Option<f64>, bytes| OpPart {
        op: op.into(),
        time_us,
        floor_us,
        bytes,
        flops: 2 * bytes,
    };
    Profile {
        steps: 64,
        step_us: 17_500.0,
        executor_us: 16_900.0,
        floor_us: 13_300.0,
        ops: vec![
            part("linear", 12_400.0, Some(10_100.0), 180 << 20),
            part("head_linear", 3_300.0, Some(3_000.0), 60 << 20),
            part("attention", 700.0, Some(200.0), 1 << 20),
            part("rms_norm", 120.0, Some(1.0), 4 << 10),
        ],
    }
}

fn kpis() -> Vec<Kpi> {
    let kpi = |name: &str, tok_s: Option<f64>, time_ms: Option<f64>, fastest_allowed| Kpi {
        name: name.into(),
        what: "a use".into(),
        tok_s,
        time_ms,
        fastest_allowed,
        bound: if tok_s.is_some() { Bound::Memory } else { Bound::Arithmetic },
        bytes: 241 << 20,
        flops: 500_000_000,
    };
    vec![
        kpi("decode", Some(75.0), None, 120.0),
        kpi("decode_batch_8", Some(580.0), None, 910.0),
        kpi("first_token_512", None, Some(270.0), 168.0),
    ]
}

fn evaluation() -> Evaluation {
    Evaluation {
        eval_version: "1".into(),
        subject: Subject {
            model: "gemma-3-270m".into(),
            candidate: "candidate 2".into(),
            candidate_digest: Some("3f".repeat(32)),
            checkpoint_digest: Some("9c".repeat(32)),
            engine: "crit 0.1.0".into(),
            arch: "gemma3".into(),
            target: "cpu".into(),
            threads: 2,
            max_context: 8_192,
            plugins: vec!["kv_q8@1".into(), "ngram_drafter@1".into()],
            memory_bytes: Some(420 << 20),
            decode_pass_bytes: Some(241 << 20),
        },
        probe: Some(probe()),
        served: Some(served()),
        direct: None,
        quality: Some(quality()),
        kpis: kpis(),
        profile: Some(profile()),
        honesty: Some(Honesty {
            repeat_ratio: Some(1.01),
            unsaid_cache_ratio: Some(0.99),
            public_ratio: Some(1.02),
            sustained_tok_s: Some(53.8),
            burst_tok_s: Some(56.9),
            ..Honesty::default()
        }),
        tampered: vec![],
        notes: vec![],
    }
}

#[test]
fn markdown_as_agents_read_it() {
    insta::assert_snapshot!(markdown(&evaluation()));
}

#[test]
fn page_as_people_read_it() {
    let page = html(&evaluation());
    if let Ok(path) = std::env::var("CRIT_REPORT_PREVIEW") {
        std::fs::write(path, &page).unwrap();
    }
    insta::assert_snapshot!(page);
}

#[test]
fn the_page_needs_no_network_and_no_script() {
    let page = html(&evaluation());
    for forbidden in ["http://", "https://", "<script", "url(", "@import", "<link", "<img"] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
}

#[test]
fn names_cannot_break_out_of_the_page() {
    let mut evaluation = evaluation();
    evaluation.subject.model = "<script>alert(1)</script>\"'&".into();
    evaluation.notes.push("<b>".into());
    evaluation.served.as_mut().unwrap().prompts[0].name = "<svg onload=x>".into();
    let page = html(&evaluation);
    assert!(!page.contains("<script>") && !page.contains("<svg onload") && !page.contains("<b></p>"));
}

#[test]
fn verdicts() {
    let word = |evaluation: &Evaluation| evaluation.verdict().0;
    assert_eq!(word(&evaluation()), Overall::Pass);
    let mut e = evaluation();
    e.quality = None;
    assert_eq!(word(&e), Overall::Incomplete);
    let mut e = evaluation();
    e.quality.as_mut().unwrap().verdict = Verdict::Fail;
    assert_eq!(word(&e), Overall::Fail);
    let mut e = evaluation();
    let share = e.served.as_mut().unwrap().prompts[1].decode.as_mut().unwrap();
    (share.state, share.reason) = (ShareState::Unstable, Some("load".into()));
    assert_eq!(e.verdict(), (Overall::Unstable, vec!["load".to_string()]));
    let share = e.served.as_mut().unwrap().prompts[1].decode.as_mut().unwrap();
    (share.state, share.reason) = (ShareState::Invalid, Some("140 % of what the machine can do".into()));
    assert_eq!(e.verdict().0, Overall::Invalid);
    assert!(e.verdict().1[0].starts_with("code_review, decode: 140 %"));
    let mut e = evaluation();
    e.served = None;
    assert_eq!(word(&e), Overall::Incomplete);
}

#[test]
fn an_evaluation_survives_json_and_has_a_schema() {
    let json = serde_json::to_string(&evaluation()).unwrap();
    let back: Evaluation = serde_json::from_str(&json).unwrap();
    assert_eq!(html(&back), html(&evaluation()));
    let schema = serde_json::to_value(schemars::schema_for!(Evaluation)).unwrap();
    assert!(schema["properties"]["quality"].is_object());
}

/// The schema of `evaluation.json`, published; `CRIT_BLESS=1` writes it anew.
#[test]
fn the_published_schema_is_this_one() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/evaluation.schema.json");
    let schema = serde_json::to_value(schemars::schema_for!(Evaluation)).unwrap();
    if std::env::var_os("CRIT_BLESS").is_some() {
        std::fs::write(&path, serde_json::to_string(&schema).unwrap() + "\n").unwrap();
    }
    let kept: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(kept, schema, "docs/reference/evaluation.schema.json is another; CRIT_BLESS=1 writes it anew");
}

/// Looked at in a browser, if there is one: it renders in light and in dark, and they differ.
#[test]
fn a_browser_shows_it_in_light_and_dark() {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let there =
        |name: &&str| std::process::Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
    let Some(browser) = names.iter().find(|name| there(name)) else {
        skipped("a browser looks at the report", "no chromium here");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("report.html");
    std::fs::write(&page, html(&evaluation())).unwrap();
    let shot = |scheme: u8| {
        let image = dir.path().join(format!("{scheme}.png"));
        let done = std::process::Command::new(browser)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1000,3000"])
            .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
            .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
            .arg(format!("--screenshot={}", image.display()))
            .arg(format!("file://{}", page.display()))
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        std::fs::read(image).unwrap()
    };
    let (dark, light) = (shot(0), shot(1));
    // A page that failed to render is a blank one, which compresses to a few kilobytes.
    assert!(dark.len() > 50_000 && light.len() > 50_000, "{} and {} bytes", dark.len(), light.len());
    assert_ne!(dark, light);
}

#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn skipped(what: &str, why: &str) {
    eprintln!("skipped: {what}: {why}");
}

#[test]
fn nothing_measured_is_said_so() {
    let empty = Evaluation { probe: None, served: None, quality: None, ..evaluation() };
    assert!(markdown(&empty).contains("Nothing was measured."));
    assert!(html(&empty).contains("INCOMPLETE"));
}
