//! The evaluator attacked: each cheat is an engine that does it, beside an honest twin. Every cheat must be caught by the
//! check its row names, and no honest engine may be refused in thirty runs. The table in `docs/cheats.md` is made from the
//! rows here (`CRIT_BLESS=1` writes it anew).
//!
//! Engines are the embedded tiny model behind the real protocol with one thing changed; what is told by time runs on a
//! clock of the test's own.

mod tiny;

use crit_core::digest::Digest;
use crit_core::error::Failure;
use crit_core::protocol::{EngineInfo, EngineStats, FinishReason, ScorePlan, TokenLogprobs, Usage};
use crit_core::runtime::{Executor, Policies};
use crit_core::sampling::SamplingParams;
use crit_eval::EvalError;
use crit_eval::ceiling::ShareState;
use crit_eval::census::Census;
use crit_eval::clock::Clock;
use crit_eval::limits::{ArithmeticLimit, Limits, MemoryLevel, ReadLimit};
use crit_eval::link::{EngineLink, Generation, OnRow, OnTokens, ProtocolLink};
use crit_eval::quality::gate::Mode;
use crit_eval::quality::reference::ReferenceKey;
use crit_eval::quality::{ConductOptions, PathKind, QualityOptions, Text, Verdict, conduct, measure, texts};
use crit_eval::rng::Rng;
use crit_eval::seal::FileSeal;
use crit_eval::speed::honesty::{HonestyOptions, examine};
use crit_eval::speed::{CeilingInput, DirectOptions, direct};
use crit_eval::workbench::{BenchOptions, CheckOptions, Declared, Kernel, bench, check, problem};
use crit_kernels::exec::Style;
use std::cell::Cell;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;
use std::rc::Rc;
use tiny::Tampered;

/// A cheat: a row of the table.
struct Row {
    cheat: &'static str,
    fixture: &'static str,
    /// The check that catches it, as its complaint begins.
    caught_by: &'static str,
    how: &'static str,
    /// Runs the fixture; the complaints it drew.
    run: fn() -> Vec<String>,
}

const ROWS: &[Row] = &[
    Row {
        cheat: "works on after the answer",
        fixture: "computes 50 ms of each answer after sending it",
        caught_by: "it computes on after its answer",
        how: "processor time of the process tree in the quiet after an answer",
        run: || timed(Timed { late_s: 0.05, ..Timed::new(1) }),
    },
    Row {
        cheat: "lies about its times",
        fixture: "tells a tenth of the time it took",
        caught_by: "same speed",
        how: "only the evaluator's own clock counts: the figure is the honest twin's",
        run: tells_other_times,
    },
    Row {
        cheat: "slows the evaluator's clock",
        fixture: "a clock that shows a hundredth of the time",
        caught_by: "of what the machine can do, at most",
        how: "a share of the machine's measured ceiling above 100 % and the probe's spread is INVALID",
        run: || above_physics(0.01),
    },
    Row {
        cheat: "edits the evaluator's files",
        fixture: "rewrites kept reference rows while it is measured",
        caught_by: "was changed while the engine was measured",
        how: "files are hashed before and after; kept rows are used only under their digest",
        run: edits_files,
    },
    Row {
        cheat: "remembers answers",
        fixture: "answers a prompt it has seen from a table",
        caught_by: "it decodes a prompt faster the second time",
        how: "the same prompt twice, by decode time",
        run: || timed(Timed { remembers: true, ..Timed::new(2) }),
    },
    Row {
        cheat: "keeps prefixes without a word",
        fixture: "reuses what it read before and tells no cached tokens",
        caught_by: "it reads a prompt faster the second time",
        how: "the same prompt twice, by time to the first token; told cached tokens are no fault",
        run: || timed(Timed { keeps_prefix: true, ..Timed::new(3) }),
    },
    Row {
        cheat: "was tuned to the public prompts",
        fixture: "has drafts of the answers to the suite's prompts",
        caught_by: "it decodes the suite's public prompts faster",
        how: "public prompts against secret ones of the same kind, drawn after the freeze",
        run: || timed(Timed { knows_public: true, ..Timed::new(4) }),
    },
    Row {
        cheat: "sells a burst as a pace",
        fixture: "rests before a run and is 40 % slower after two seconds of work",
        caught_by: "the pace is the speed",
        how: "a minute without a pause; below 85 % of the burst the pace is the figure",
        run: || timed(Timed { burst: true, ..Timed::new(5) }),
    },
    Row {
        cheat: "accepts drafts unchecked",
        fixture: "one token in four is a draft nobody verified",
        caught_by: "sampled: its tokens are not drawn from its own distribution",
        how: "own samples against own rows: Σ(−ln p − H) and the count of likeliest tokens, over their deviations, are \
              standard normal numbers",
        run: || conducted(Kind::Unchecked),
    },
    Row {
        cheat: "samples colder than asked",
        fixture: "three quarters of the temperature: drafts are accepted more often",
        caught_by: "sampled: its tokens are not drawn from its own distribution",
        how: "the same numbers",
        run: || conducted(Kind::Cold),
    },
    Row {
        cheat: "ignores the filters",
        fixture: "leaves top-k out",
        caught_by: "sampled: tokens outside the set",
        how: "every token must lie in the set temperature and filters keep, ties at its edge apart",
        run: || conducted(Kind::Unfiltered),
    },
    Row {
        cheat: "cuts the vocabulary when it generates",
        fixture: "chooses among the eight likeliest tokens",
        caught_by: "sampled: its tokens are not drawn from its own distribution",
        how: "the same numbers",
        run: || conducted(Kind::CutHead),
    },
    Row {
        cheat: "gives short answers",
        fixture: "end tokens two nats likelier",
        caught_by: "sampled: it ends more or less often",
        how: "ends seen against the sum of their probabilities",
        run: || conducted(Kind::EagerEnd),
    },
    Row {
        cheat: "fakes the first token",
        fixture: "sends a fixed token at once, then its answer",
        caught_by: "argmax: greedy tokens that are not the most likely",
        how: "greedy tokens, the first one included, against own rows",
        run: || conducted(Kind::FakeFirst),
    },
    Row {
        cheat: "has another build for quality",
        fixture: "scores with all layers and generates with some skipped",
        caught_by: "argmax: greedy tokens that are not the most likely",
        how: "what it generates must be what it scores",
        run: || conducted(Kind::OtherBuild),
    },
    Row {
        cheat: "falls into a loop, the fastest text there is",
        fixture: "repeats its last twelve tokens from token 40 on",
        caught_by: "free_run: it loops where the model does not",
        how: "loops are found and put to the reference: eight runs of it from where the loop begins",
        run: || conducted(Kind::Loop { from: 40, period: 12 }),
    },
    Row {
        cheat: "falls into a loop late",
        fixture: "one token for ever from token 300 on",
        caught_by: "free_run: it loops where the model does not",
        how: "the same",
        run: || conducted(Kind::Loop { from: 300, period: 1 }),
    },
    Row {
        cheat: "tells other log-probs than it uses",
        fixture: "those of the token before",
        caught_by: "logprobs: what it tells is not what it uses",
        how: "log-probs told with tokens against the rows the tokens came from",
        run: || conducted(Kind::StaleLogprobs),
    },
    Row {
        cheat: "generates past the stop token",
        fixture: "drops the request's stop tokens",
        caught_by: "stop: told to stop",
        how: "a stop token drawn from the engine's own greedy text",
        run: || conducted(Kind::NeverStops),
    },
    Row {
        cheat: "counts tokens it did not give",
        fixture: "reports twice the tokens",
        caught_by: "stop: it counts",
        how: "tokens are counted from ids; for a foreign server, from its text",
        run: || conducted(Kind::Overcounts),
    },
    Row {
        cheat: "skips layers when it decodes",
        fixture: "single-token steps past position 64 compute something else",
        caught_by: "decode: ",
        how: "each way to reach a logit is a path of its own, held to the prompt path",
        run: || scored(Kind::Honest, |b, s| b.seqs.len() == 1 && b.seqs[s].tokens == 1 && b.seqs[s].past >= 64),
    },
    Row {
        cheat: "forgets the oldest tokens",
        fixture: "sees the last 300 positions only",
        caught_by: "decode_depth: ",
        how: "decoding behind a long prompt is a path",
        run: || scored(Kind::Honest, |b, s| b.seqs[s].past >= 300),
    },
    Row {
        cheat: "cuts the vocabulary of the head",
        fixture: "no chance for the upper half of the ids",
        caught_by: "prompt: ",
        how: "the divergence is over the whole vocabulary; a token without a chance is no distribution",
        run: || scored(Kind::CutRows, |_, _| false),
    },
    Row {
        cheat: "answers probabilities that sum to more than one",
        fixture: "adds a tenth of a nat to every log-prob",
        caught_by: "prompt: probabilities of",
        how: "rows are normalised before they are compared, and counted when they were not",
        run: || scored(Kind::Swollen, |_, _| false),
    },
    Row {
        cheat: "knows the public texts",
        fixture: "computes in full only what begins like a text of the suite",
        caught_by: "prompt: ",
        how: "one of the texts is drawn after the freeze",
        run: || scored(Kind::KnowsCorpus, |_, _| true),
    },
    Row {
        cheat: "a kernel does nothing",
        fixture: "leaves the output as it found it, where an answer may lie",
        caught_by: "it leaves output unwritten",
        how: "outputs are poisoned before each call; the reference runs after, elsewhere",
        run: || kernel(KernelKind::Nothing),
    },
    Row {
        cheat: "a kernel answers a constant",
        fixture: "writes zeros",
        caught_by: "errors of",
        how: "contents are drawn anew, three kinds of them, in f64 beside",
        run: || kernel(KernelKind::Constant),
    },
    Row {
        cheat: "a kernel remembers addresses",
        fixture: "answers what it answered for these buffers",
        caught_by: "errors of",
        how: "the same buffers come again with other content",
        run: || kernel(KernelKind::MemoAddress),
    },
    Row {
        cheat: "a kernel remembers contents",
        fixture: "answers known inputs from a table",
        caught_by: "it remembers answers",
        how: "known and fresh contents are timed in random order",
        run: || kernel(KernelKind::MemoContent),
    },
    Row {
        cheat: "a kernel knows when it is timed",
        fixture: "is honest as long as it is only looked at, then computes a quarter",
        caught_by: "a timed call",
        how: "the calls that are timed are the calls that are checked",
        run: || kernel(KernelKind::CountsCalls),
    },
    Row {
        cheat: "a kernel writes later",
        fixture: "fills the output of a call in the next one",
        caught_by: "it leaves output unwritten",
        how: "fingerprints when it returns and after the next call",
        run: || kernel(KernelKind::Deferred),
    },
    Row {
        cheat: "a kernel drops precision",
        fixture: "rounds its inputs to 8 bits of mantissa and says f32",
        caught_by: "errors of",
        how: "errors as shares of the summed terms against what the declared format explains",
        run: || kernel(KernelKind::Coarse),
    },
    Row {
        cheat: "a kernel knows the shapes",
        fixture: "is right for multiples of eight only",
        caught_by: "errors of",
        how: "each shape's neighbours, and shapes nobody named",
        run: || kernel(KernelKind::Shapes),
    },
    Row {
        cheat: "a kernel is lucky",
        fixture: "reads past its inputs: other bits each time",
        caught_by: "the same call twice gives other bits",
        how: "each call one to three times, bit for bit",
        run: || kernel(KernelKind::Lucky),
    },
    Row {
        cheat: "a kernel beats physics",
        fixture: "halves its time a thousandfold",
        caught_by: "no kernel is that fast",
        how: "a share of the machine's floor above 100 % and its spread",
        run: || kernel(KernelKind::BeyondPhysics),
    },
    Row {
        cheat: "a kernel picks a weak yardstick",
        fixture: "is compared with a naive loop",
        caught_by: "weak yardstick",
        how: "several yardsticks; the best one counts, those far from it are named",
        run: || kernel(KernelKind::WeakYardstick),
    },
];

#[test]
fn every_cheat_is_caught_by_the_check_its_row_names() {
    let missed: Vec<String> = ROWS
        .iter()
        .filter_map(|row| {
            let complaints = (row.run)();
            let caught = complaints.iter().any(|complaint| complaint.contains(row.caught_by));
            (!caught).then(|| format!("{} ({}) drew only {complaints:?}", row.cheat, row.fixture))
        })
        .collect();
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn no_honest_engine_is_refused_in_thirty_runs() {
    for seed in 0..30 {
        assert_eq!(timed(Timed::new(100 + seed)), Vec::<String>::new(), "timed, seed {seed}");
        assert_eq!(kernel_judged(KernelKind::Honest, seed), Vec::<String>::new(), "kernel, seed {seed}");
        assert_eq!(judged(Kind::Honest, seed, SHORT), Vec::<String>::new(), "conduct, seed {seed}");
    }
    assert_eq!(above_physics(1.0), Vec::<String>::new());
    assert_eq!(scored(Kind::Honest, |_, _| false), Vec::<String>::new());
}

#[test]
fn the_table_is_the_one_in_the_docs() {
    let mut table = String::from(HEAD);
    for Row { cheat, fixture, caught_by, how, .. } in ROWS {
        let check = caught_by.trim().trim_end_matches(':');
        let _ = writeln!(table, "| {cheat} | {fixture} | {how} | `{check}` |");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cheats.md");
    if std::env::var_os("CRIT_BLESS").is_some() {
        std::fs::write(&path, &table).expect("docs can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(kept, table, "docs/cheats.md is not made from the rows; CRIT_BLESS=1 writes it anew");
}

const HEAD: &str = "# Cheats, and how they are caught

Made from the rows of [`eval/tests/cheats.rs`](../eval/tests/cheats.rs), which run each fixture and see it caught, and thirty \
                    honest runs
beside them and see none refused. The evaluator takes it that an engine's author reads its source: only seeds, secret \
                    prompts and their order
are hidden, and they are drawn after the engine is frozen.

| cheat | fixture | how it is caught | the complaint |
|---|---|---|---|
";

// What is told by time.

/// A clock that moves when engines work.
#[derive(Clone, Default)]
struct SimClock(Rc<Cell<f64>>);

impl SimClock {
    fn pass(&self, seconds: f64) {
        self.0.set(self.0.get() + seconds);
    }
}

impl Clock for SimClock {
    fn now_s(&self) -> f64 {
        self.0.get()
    }

    fn wait_s(&self, seconds: f64) {
        self.pass(seconds);
    }
}

/// An engine of pure time: 2 ms a prompt token, 5 ms a token, with jitter of a few per cent.
struct Timed {
    clock: SimClock,
    rng: Rng,
    seen: HashSet<Vec<u32>>,
    late_cpu_s: Rc<Cell<f64>>,
    busy_s: f64,
    late_s: f64,
    remembers: bool,
    keeps_prefix: bool,
    knows_public: bool,
    burst: bool,
    rested_at_s: f64,
}

impl Timed {
    fn new(seed: u64) -> Self {
        Self {
            clock: SimClock::default(),
            rng: Rng::new(seed),
            seen: HashSet::new(),
            late_cpu_s: Rc::default(),
            busy_s: 0.0,
            late_s: 0.0,
            remembers: false,
            keeps_prefix: false,
            knows_public: false,
            burst: false,
            rested_at_s: 0.0,
        }
    }
}

/// Public prompts begin with this id.
const PUBLIC: u32 = 7;

impl EngineLink for Timed {
    fn info(&mut self) -> Result<EngineInfo, Failure> {
        Ok(EngineInfo {
            engine: "timed".into(),
            arch: String::new(),
            target: "cpu".into(),
            max_context: 4_096,
            max_batch: 1,
            vocab: 100,
            plugins: vec![],
            executor: None,
        })
    }

    fn stats(&mut self) -> Result<EngineStats, Failure> {
        Ok(EngineStats::default())
    }

    fn generate(&mut self, generation: &Generation, on_tokens: OnTokens<'_>) -> Result<(FinishReason, Usage), Failure> {
        if self.clock.now_s() - self.rested_at_s > 1.0 {
            self.busy_s = 0.0;
        }
        let again = !self.seen.insert(generation.prompt.clone());
        let jitter = 1.0 + 0.03 * self.rng.normal();
        let slow = if self.burst && self.busy_s > 2.0 { 1.67 } else { 1.0 };
        let knows = self.remembers && again || self.knows_public && generation.prompt[0] == PUBLIC;
        let read_s = if self.keeps_prefix && again { 0.002 } else { 0.002 * generation.prompt.len() as f64 * jitter };
        let token_s = 0.005 * jitter * slow * if knows { 0.3 } else { 1.0 };
        self.clock.pass(read_s);
        for i in 0..generation.max_tokens {
            self.clock.pass(if i == 0 { 0.0 } else { token_s });
            on_tokens(&[1], &[]);
        }
        self.busy_s += read_s + token_s * f64::from(generation.max_tokens);
        self.rested_at_s = self.clock.now_s();
        self.late_cpu_s.set(self.late_cpu_s.get() + self.late_s);
        let usage = Usage { generated_tokens: generation.max_tokens, ..Usage::default() };
        Ok((FinishReason::Length, usage))
    }

    fn score(&mut self, _: &ScorePlan, _: OnRow<'_>) -> Result<Vec<u32>, Failure> {
        Ok(Vec::new())
    }
}

/// Processor time that goes on while the late work of a [`Timed`] is done.
struct LateWork {
    owed_s: Rc<Cell<f64>>,
    shown_s: f64,
}

impl Census for LateWork {
    fn cpu_s(&mut self) -> Option<f64> {
        // The first look after an answer sees nothing of it yet, the second all.
        let shown = self.shown_s;
        self.shown_s = self.owed_s.get();
        Some(shown)
    }
}

fn timed(mut engine: Timed) -> Vec<String> {
    let prompt = |first: u32, seed: u64| {
        let mut rng = Rng::new(seed);
        std::iter::once(first).chain((0..63).map(|_| 8 + rng.below(90) as u32)).collect::<Vec<u32>>()
    };
    let options = HonestyOptions {
        public: (0..12).map(|i| prompt(PUBLIC, i)).collect(),
        secret: (0..24).map(|i| prompt(1, 50 + i)).collect(),
        tokens: 32,
        sustained_s: 60.0,
        seed: 3,
    };
    let clock = engine.clock.clone();
    let mut census = LateWork { owed_s: engine.late_cpu_s.clone(), shown_s: 0.0 };
    let found = examine(&mut engine, &options, &clock, &mut census, &|_| {}).expect("it answers");
    let mut doubts = found.doubts.clone();
    if found.pace_counts {
        doubts.push(format!("the pace is the speed: {:?} of {:?}", found.sustained_tok_s, found.burst_tok_s));
    }
    doubts
}

// What is told by tokens and rows.

/// How a wrapped tiny engine cheats.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Honest,
    Unchecked,
    Cold,
    Unfiltered,
    CutHead,
    EagerEnd,
    FakeFirst,
    OtherBuild,
    Loop { from: u32, period: usize },
    StaleLogprobs,
    NeverStops,
    Overcounts,
    CutRows,
    Swollen,
    KnowsCorpus,
}

/// The tiny model with one thing changed on its way out. `other` is a second build of it that computes something else.
struct Cheat {
    kind: Kind,
    inner: ProtocolLink,
    other: Option<ProtocolLink>,
}

/// The end token of these tests: a common one, so that ends are seen.
fn end_token() -> u32 {
    let texts = tiny::texts();
    let mut counts = std::collections::HashMap::new();
    texts.iter().flat_map(|text| &text.ids).for_each(|id| *counts.entry(*id).or_insert(0) += 1);
    // The tenth most common: seen now and then, not in every line.
    let mut order: Vec<(u32, i32)> = counts.into_iter().collect();
    order.sort_by_key(|(id, count)| (-count, *id));
    order[10].0
}

impl Cheat {
    /// Three tokens sampled, then one taken from a drafter that guesses the likeliest, and nobody asked.
    fn in_pieces(
        &mut self,
        generation: &Generation,
        on_tokens: OnTokens<'_>,
    ) -> Result<(FinishReason, Usage), Failure> {
        let (mut ids, mut given) = (generation.prompt.clone(), 0);
        for piece in 0.. {
            let mut sampling = generation.sampling.clone();
            sampling.seed = sampling.seed.wrapping_add(piece);
            let drafted = piece % 2 == 1;
            if drafted {
                sampling.temperature = 0.0;
            }
            let max_tokens = if drafted { 1 } else { 3 }.min(generation.max_tokens - given);
            let stop_ids = generation.stop_ids.clone();
            let part = Generation { prompt: ids.clone(), sampling, max_tokens, stop_ids, ..Generation::default() };
            let mut got = Vec::new();
            let (reason, _) = self.inner.generate(&part, &mut |new, _| got.extend_from_slice(new))?;
            given += got.len() as u32;
            on_tokens(&got, &[]);
            ids.extend(got);
            if reason == FinishReason::Stop || given >= generation.max_tokens {
                return Ok((reason, Usage { generated_tokens: given, ..Usage::default() }));
            }
        }
        unreachable!("pieces have no end")
    }
}

impl EngineLink for Cheat {
    fn info(&mut self) -> Result<EngineInfo, Failure> {
        self.inner.info()
    }

    fn stats(&mut self) -> Result<EngineStats, Failure> {
        self.inner.stats()
    }

    fn generate(&mut self, generation: &Generation, on_tokens: OnTokens<'_>) -> Result<(FinishReason, Usage), Failure> {
        let mut asked = generation.clone();
        match self.kind {
            Kind::Unchecked => return self.in_pieces(generation, on_tokens),
            Kind::Cold => asked.sampling.temperature *= 0.75,
            Kind::Unfiltered => asked.sampling.top_k = 0,
            Kind::CutHead => asked.sampling.top_k = 8,
            Kind::EagerEnd => asked.sampling.logit_bias = vec![(end_token(), 2.0)],
            Kind::NeverStops => asked.stop_ids.clear(),
            Kind::OtherBuild => return self.other.as_mut().expect("it has two").generate(generation, on_tokens),
            Kind::FakeFirst => {
                on_tokens(&[end_token()], &[]);
                asked.max_tokens = generation.max_tokens.saturating_sub(1).max(1);
                if generation.max_tokens == 1 {
                    return Ok((FinishReason::Length, Usage { generated_tokens: 1, ..Usage::default() }));
                }
                let (reason, usage) = self.inner.generate(&asked, on_tokens)?;
                return Ok((reason, Usage { generated_tokens: usage.generated_tokens + 1, ..usage }));
            }
            Kind::Loop { from, period } if generation.max_tokens > from => {
                asked.max_tokens = from;
                let mut all = Vec::new();
                let (reason, usage) = self.inner.generate(&asked, &mut |ids, _| all.extend_from_slice(ids))?;
                if reason == FinishReason::Stop {
                    on_tokens(&all, &[]);
                    return Ok((reason, usage));
                }
                while (all.len() as u32) < generation.max_tokens {
                    all.push(all[all.len() - period]);
                }
                on_tokens(&all, &[]);
                let usage = Usage { generated_tokens: generation.max_tokens, ..Usage::default() };
                return Ok((FinishReason::Length, usage));
            }
            Kind::StaleLogprobs => {
                let mut before: Option<TokenLogprobs> = None;
                return self.inner.generate(&asked, &mut |ids, told| {
                    let stale: Vec<TokenLogprobs> =
                        told.iter().map(|now| before.replace(now.clone()).unwrap_or_else(|| now.clone())).collect();
                    on_tokens(ids, &stale);
                });
            }
            _ => {}
        }
        let (reason, mut usage) = self.inner.generate(&asked, on_tokens)?;
        if self.kind == Kind::Overcounts {
            usage.generated_tokens *= 2;
        }
        Ok((reason, usage))
    }

    fn score(&mut self, plan: &ScorePlan, on_row: OnRow<'_>) -> Result<Vec<u32>, Failure> {
        let kind = self.kind;
        let known = |ids: &[u32]| tiny::texts().iter().any(|text| text.ids.starts_with(&ids[..ids.len().min(8)]));
        if kind == Kind::KnowsCorpus && !plan.sequences.iter().all(|sequence| known(&sequence.ids)) {
            return self.other.as_mut().expect("it has two").score(plan, on_row);
        }
        self.inner.score(plan, &mut |row, values| {
            let mut values = values.to_vec();
            match kind {
                Kind::CutRows => {
                    let half = values.len() / 2;
                    values[half..].fill(f32::NEG_INFINITY);
                }
                Kind::Swollen => values.iter_mut().for_each(|value| *value += 0.1),
                _ => {}
            }
            on_row(row, &values);
        })
    }
}

fn start(dir: &Path, name: &str, executor: impl Executor + 'static) -> ProtocolLink {
    tiny::start(dir, name, executor, Policies::default())
}

/// Runs, tokens of each, tokens of the long run.
type Extent = (u32, u32, u32);
const SHORT: Extent = (4, 40, 100);
const MIDDLE: Extent = (3, 48, 440);
const LONG: Extent = (16, 96, 100);

/// Statistics need tokens; what is plain to see does not.
fn conducted(kind: Kind) -> Vec<String> {
    let extent = match kind {
        Kind::Unchecked | Kind::Cold | Kind::CutHead => LONG,
        // An end is a rare event: the more runs, the more of them.
        Kind::EagerEnd => (28, 96, 100),
        _ => MIDDLE,
    };
    judged(kind, 5, extent)
}

fn judged(kind: Kind, seed: u64, (runs, tokens, free_run_tokens): Extent) -> Vec<String> {
    let dir = tempfile::tempdir().expect("a folder");
    let skips = Tampered::new(|batch, seq, _| batch.seqs[seq].past >= 30);
    let other = (kind == Kind::OtherBuild).then(|| start(dir.path(), "other", skips));
    let mut engine = Cheat { kind, inner: start(dir.path(), "engine", tiny::executor(Style::Base)), other };
    let mut reference =
        || Ok(Box::new(start(dir.path(), "reference", tiny::executor(Style::Exact))) as Box<dyn EngineLink>);
    let sampling = SamplingParams { temperature: 0.9, top_k: 40, ..SamplingParams::default() };
    let mut options = ConductOptions::new(sampling, vec![end_token()], seed);
    (options.runs, options.tokens, options.free_run_tokens) = (runs, tokens, free_run_tokens);
    let checks = conduct(&mut engine, &mut reference, &tiny::texts(), &options, &|_| {}).expect("it is checked");
    checks.iter().filter_map(crit_eval::quality::Conduct::complaint).collect()
}

fn scored(kind: Kind, broken: impl Fn(&crit_core::runtime::StepBatch, usize) -> bool + Send + 'static) -> Vec<String> {
    let dir = tempfile::tempdir().expect("a folder");
    let tampered = Tampered::new(move |batch, seq, _| broken(batch, seq));
    // What knows the corpus computes public texts in full and others with the tampered build.
    let (inner, other) = match kind {
        Kind::KnowsCorpus => {
            (start(dir.path(), "engine", tiny::executor(Style::Base)), Some(start(dir.path(), "other", tampered)))
        }
        _ => (start(dir.path(), "engine", tampered), None),
    };
    let mut engine = Cheat { kind, inner, other };
    let mut open = || Ok(Box::new(start(dir.path(), "reference", tiny::executor(Style::Exact))) as Box<dyn EngineLink>);
    let reference = ReferenceKey { checkpoint: Digest::of(b"tiny"), version: "exact".into() };
    let mut options = QualityOptions::new(Mode::Speed, dir.path().join("cache"), reference);
    (options.tokens_per_text, options.depth_tokens) = (90, 400);
    options.paths = Some(vec![PathKind::Prompt, PathKind::Decode, PathKind::DecodeDepth]);
    let mut texts: Vec<Text> = tiny::texts();
    texts.push(tiny::encode("secret", &texts::secret(9, 600)));
    let quality = measure(&mut engine, &mut open, &texts, &options, &|_| {}).expect("it is measured");
    assert_eq!(quality.verdict == Verdict::Pass, quality.reasons.is_empty());
    quality.reasons
}

fn edits_files() -> Vec<String> {
    let dir = tempfile::tempdir().expect("a folder");
    let rows = dir.path().join("reference.f32");
    std::fs::write(&rows, [0u8; 64]).expect("written");
    let seal = FileSeal::of(&[dir.path()]).expect("sealed");
    // The fixture: an engine that makes itself the reference.
    std::fs::write(&rows, [1u8; 64]).expect("written");
    seal.broken()
}

/// An engine on the test's clock: the tiny model, each of its passes taking `pass_s`.
struct Clocked {
    inner: ProtocolLink,
    clock: SimClock,
    pass_s: f64,
    told: f64,
}

impl EngineLink for Clocked {
    fn info(&mut self) -> Result<EngineInfo, Failure> {
        self.inner.info()
    }

    fn stats(&mut self) -> Result<EngineStats, Failure> {
        self.inner.stats()
    }

    fn generate(&mut self, generation: &Generation, on_tokens: OnTokens<'_>) -> Result<(FinishReason, Usage), Failure> {
        let (clock, pass_s) = (self.clock.clone(), self.pass_s);
        let (reason, mut usage) = self.inner.generate(generation, &mut |ids, told| {
            ids.iter().for_each(|_| clock.pass(pass_s));
            on_tokens(ids, told);
        })?;
        usage.decode_us = (self.told * 1e6 * pass_s * f64::from(usage.generated_tokens)) as u64;
        usage.first_token_us = usage.decode_us;
        Ok((reason, usage))
    }

    fn score(&mut self, plan: &ScorePlan, on_row: OnRow<'_>) -> Result<Vec<u32>, Failure> {
        self.inner.score(plan, on_row)
    }
}

fn clocked(pass_s: f64, told: f64) -> (Option<f64>, Vec<String>) {
    let dir = tempfile::tempdir().expect("a folder");
    let clock = SimClock::default();
    let inner = start(dir.path(), "engine", tiny::executor(Style::Base));
    let mut engine = Clocked { inner, clock: clock.clone(), pass_s, told };
    let model = tiny::model();
    let executor = engine.info().expect("it answers").executor.expect("it is crit's");
    let read = |level, working_set_bytes| ReadLimit { working_set_bytes, level, bytes_s: 20e9, above_share: 0.02 };
    let precision = crit_core::model::program::Precision::F32;
    let limits = Limits {
        threads: 1,
        read: vec![read(MemoryLevel::L2, 1 << 20), read(MemoryLevel::Dram, 64 << 20)],
        arithmetic: vec![ArithmeticLimit { precision, ops_s: 100e9, above_share: 0.02 }],
        ..Limits::default()
    };
    let fastest_allowed = Mode::Speed.fastest_allowed();
    let ceiling = CeilingInput { program: &model.program, executor: &executor, limits: &limits, fastest_allowed };
    let options = DirectOptions { prompt_tokens: 0, generate_tokens: 12, repeats: 1, ..DirectOptions::default() };
    let speed = direct::measure_by(&clock, &mut engine, &options, Some(ceiling), &|_| {}).expect("it is measured");
    let share = speed.decode_detail.expect("it has a ceiling");
    let complaint = share.reason.filter(|_| share.state == ShareState::Invalid);
    (speed.decode_tok_s, complaint.into_iter().collect())
}

fn above_physics(clock_share: f64) -> Vec<String> {
    clocked(0.002 * clock_share, 1.0).1
}

fn tells_other_times() -> Vec<String> {
    let (honest, liar) = (clocked(0.002, 1.0).0, clocked(0.002, 0.1).0);
    // The liar's words are nowhere in its figure.
    if honest == liar { vec!["same speed".into()] } else { vec![format!("{honest:?} and {liar:?}")] }
}

// Kernels.

/// How a kernel cheats.
#[derive(Clone, Copy, Debug, PartialEq)]
enum KernelKind {
    Honest,
    Nothing,
    Constant,
    MemoAddress,
    MemoContent,
    CountsCalls,
    Deferred,
    Coarse,
    Shapes,
    Lucky,
    BeyondPhysics,
    WeakYardstick,
}

/// A product of matrices that takes a nanosecond a multiplication on the test's clock, and cheats.
struct CheatKernel {
    kind: KernelKind,
    clock: SimClock,
    rng: Rng,
    calls: u64,
    honest_for: u64,
    by_address: std::collections::HashMap<usize, Vec<f32>>,
    by_content: std::collections::HashMap<Vec<u32>, Vec<f32>>,
    owed: Vec<f32>,
    slow: f64,
}

impl CheatKernel {
    fn new(kind: KernelKind, clock: SimClock) -> Self {
        Self {
            kind,
            clock,
            rng: Rng::new(77),
            calls: 0,
            honest_for: u64::MAX,
            by_address: Default::default(),
            by_content: Default::default(),
            owed: Vec::new(),
            slow: 1.0,
        }
    }

    fn product(&self, shape: &[usize], inputs: &[Vec<f32>], output: &mut [f32], rows: usize) {
        let (n, k) = (shape[1], shape[2]);
        let round = |x: f32| match self.kind {
            KernelKind::Coarse => f32::from_bits((x.to_bits() + 0x8000) & 0xFFFF_0000),
            _ => x,
        };
        for (i, y) in output.iter_mut().enumerate().take(rows * n) {
            let (x, w) = (&inputs[0][i / n * k..][..k], &inputs[1][i % n * k..][..k]);
            *y = x.iter().zip(w).map(|(x, w)| round(*x) * round(*w)).sum();
        }
    }
}

impl Kernel for CheatKernel {
    fn name(&self) -> &str {
        "fixture"
    }

    fn run(&mut self, shape: &[usize], inputs: &[Vec<f32>], output: &mut [f32]) -> Result<(), EvalError> {
        self.calls += 1;
        let mut work_s = 1e-9 * (shape[0] * shape[1] * shape[2]) as f64 * (1.0 + 0.03 * self.rng.normal()) * self.slow;
        match self.kind {
            KernelKind::Nothing => {}
            KernelKind::Constant => output.fill(0.0),
            KernelKind::MemoAddress => {
                let known = self.by_address.get(&(inputs[0].as_ptr() as usize)).filter(|y| y.len() == output.len());
                match known {
                    Some(known) => output.copy_from_slice(known),
                    None => {
                        self.product(shape, inputs, output, shape[0]);
                        self.by_address.insert(inputs[0].as_ptr() as usize, output.to_vec());
                    }
                }
            }
            KernelKind::MemoContent => {
                let key: Vec<u32> = inputs.iter().flatten().map(|x| x.to_bits()).collect();
                match self.by_content.get(&key).filter(|y| y.len() == output.len()) {
                    Some(known) => {
                        output.copy_from_slice(known);
                        work_s *= 0.1;
                    }
                    None => {
                        self.product(shape, inputs, output, shape[0]);
                        self.by_content.insert(key, output.to_vec());
                    }
                }
            }
            KernelKind::CountsCalls => {
                let rows = if self.calls > self.honest_for { shape[0].div_ceil(4) } else { shape[0] };
                output.fill(0.0);
                self.product(shape, inputs, output, rows);
            }
            KernelKind::Deferred => {
                let mut now = vec![0.0; output.len()];
                self.product(shape, inputs, &mut now, shape[0]);
                output.iter_mut().zip(&self.owed).for_each(|(y, owed)| *y = *owed);
                self.owed = now;
            }
            KernelKind::Shapes => {
                let even = shape.iter().map(|n| (n / 8 * 8).max(1)).collect::<Vec<_>>();
                output.fill(0.0);
                if even == shape || shape[1].is_multiple_of(8) && shape[2].is_multiple_of(8) {
                    self.product(shape, inputs, output, shape[0]);
                }
            }
            KernelKind::Lucky => {
                self.product(shape, inputs, output, shape[0]);
                output[0] += 1e-7 * self.rng.normal() as f32 * output[0].abs();
            }
            _ => self.product(shape, inputs, output, shape[0]),
        }
        if self.kind == KernelKind::BeyondPhysics {
            work_s *= 1e-3;
        }
        self.clock.pass(work_s);
        Ok(())
    }
}

fn kernel(kind: KernelKind) -> Vec<String> {
    kernel_judged(kind, 4)
}

fn kernel_judged(kind: KernelKind, seed: u64) -> Vec<String> {
    let clock = SimClock::default();
    let linear = problem("linear").expect("it is there");
    let mut kernel = CheatKernel::new(kind, clock.clone());
    let shapes = vec![vec![2, 24, 32]];
    let options = CheckOptions { shapes, declared: Declared::F32, seed, most_flops: 1_000_000 };
    let checked = check(linear, &mut kernel, &options).expect("it runs").complaints;
    // It knows how often it is looked at before the clock runs.
    kernel.honest_for = kernel.calls + 4;
    let read = ReadLimit { working_set_bytes: 64 << 20, level: MemoryLevel::Dram, bytes_s: 20e9, above_share: 0.02 };
    let precision = crit_core::model::program::Precision::F32;
    let limits = Limits {
        threads: 1,
        read: vec![read],
        arithmetic: vec![ArithmeticLimit { precision, ops_s: 10e9, above_share: 0.02 }],
        ..Limits::default()
    };
    let yardstick = |slow: f64| {
        let mut one = CheatKernel::new(KernelKind::Honest, clock.clone());
        one.slow = slow;
        Box::new(one) as Box<dyn Kernel>
    };
    let mut yardsticks = vec![yardstick(1.1)];
    if kind == KernelKind::WeakYardstick {
        yardsticks.push(yardstick(20.0));
    }
    let timing = BenchOptions { shape: vec![4, 24, 32], declared: Declared::F32, calls: 10, flush: false, seed };
    let bench = bench(linear, &mut kernel, &mut yardsticks, Some(&limits), &clock, &timing).expect("it runs");
    let weak = bench.weak.iter().map(|name| format!("weak yardstick: {name}"));
    checked.into_iter().chain(bench.doubts.clone()).chain(weak).collect()
}
