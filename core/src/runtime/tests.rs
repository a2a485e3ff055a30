//! The runtime against the toy executor, whose logits depend on every token of a sequence as its blocks hold it: any
//! way to the same tokens must give the same tokens.

use super::toy::{ToyExecutor, toy_logits};
use super::*;
use crate::plugin::{Draft, Drafter, PrefixCache, PrefixHit};
use crate::protocol::{FinishReason, Generate, ScoreItem, ScorePlan, ScoreRow, ScoreSequence, Usage};
use crate::sampling::{Lane, RandomStream, SamplingParams, log_softmax};
use std::collections::HashMap;

const VOCAB: usize = 50;

/// Remembers blocks by all tokens up to their end; gives up the oldest first.
#[derive(Default)]
struct SimpleCache {
    known: Vec<(Vec<u32>, u32)>,
}

impl PrefixCache for SimpleCache {
    fn lookup(&mut self, tokens: &[u32], block_tokens: usize) -> PrefixHit {
        let find = |n: usize| {
            let beginning = tokens.get(..n * block_tokens)?;
            self.known.iter().find(|entry| entry.0 == beginning).map(|entry| entry.1)
        };
        PrefixHit { blocks: (1..).map_while(find).collect() }
    }

    fn insert(&mut self, tokens: &[u32], blocks: &[u32], block_tokens: usize) -> Vec<u32> {
        let mut new = Vec::new();
        for (i, &block) in blocks.iter().enumerate() {
            let beginning = &tokens[..(i + 1) * block_tokens];
            if !self.known.iter().any(|entry| entry.0 == beginning) {
                self.known.push((beginning.to_vec(), block));
                new.push(block);
            }
        }
        new
    }

    fn evict(&mut self, wanted: usize, unused: &dyn Fn(u32) -> bool) -> Vec<u32> {
        let mut given_up = Vec::new();
        self.known.retain(|entry| {
            let go = given_up.len() < wanted && unused(entry.1);
            if go {
                given_up.push(entry.1);
            }
            !go
        });
        given_up
    }

    fn len(&self) -> usize {
        self.known.len()
    }
}

/// Proposes what the toy would say, or not.
struct ToyDrafter {
    /// Share of proposed tokens that are what the toy says, in percent.
    right: u64,
    calls: u64,
}

impl Drafter for ToyDrafter {
    fn propose(&mut self, _: u64, tokens: &[u32], limit: usize) -> Draft {
        self.calls += 1;
        let random = RandomStream::new(self.calls);
        let mut seen = tokens.to_vec();
        for i in 0..limit as u64 {
            let right = random.bits(i, Lane::Draw) % 100 < self.right;
            seen.push(if right { greedy_next(&seen) } else { (random.bits(i, Lane::Accept) % VOCAB as u64) as u32 });
        }
        Draft { tokens: seen.split_off(tokens.len()), probs: None }
    }

    fn accepted(&mut self, _: u64, proposed: usize, accepted: usize) {
        assert!(accepted <= proposed);
    }

    fn forget(&mut self, _: u64) {}
}

fn greedy_next(tokens: &[u32]) -> u32 {
    let logits = toy_logits(tokens, VOCAB);
    let best = (0..VOCAB).max_by(|a, b| logits[*a].total_cmp(&logits[*b]).then(b.cmp(a)));
    best.expect("there are tokens") as u32
}

/// What greedy decoding of the toy must give, from its definition alone.
fn expected(prompt: &[u32], max_tokens: u32) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..max_tokens {
        tokens.push(greedy_next(&tokens));
    }
    tokens.split_off(prompt.len())
}

fn prompt(seed: u64, length: usize) -> Vec<u32> {
    let random = RandomStream::new(seed);
    (0..length as u64).map(|i| (random.bits(i, Lane::Draw) % VOCAB as u64) as u32).collect()
}

fn greedy(prompt: Vec<u32>, max_tokens: u32) -> Generate {
    Generate { prompt, max_tokens, ..Default::default() }
}

struct Setup {
    blocks: usize,
    slots: usize,
    step_tokens: usize,
    step_rows: usize,
    cache: bool,
    /// A drafter that is right so often.
    drafter: Option<u64>,
    /// Logits come from a state that cannot be cut.
    recurrent: bool,
    /// The toy's own head proposes so many tokens, one in so many wrong.
    head: Option<(usize, u64)>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            blocks: 200,
            slots: 8,
            step_tokens: 64,
            step_rows: 64,
            cache: false,
            drafter: None,
            recurrent: false,
            head: None,
        }
    }
}

impl Setup {
    fn engine(&self) -> Engine<ToyExecutor> {
        let toy = ToyExecutor::new(VOCAB, 4, self.blocks, self.slots, self.step_tokens);
        let toy = if self.recurrent { toy.with_recurrence() } else { toy };
        let mut toy = if self.head.is_some() { toy.with_head() } else { toy };
        toy.head_wrong_every = self.head.map_or(0, |(_, wrong)| wrong);
        let policies = Policies {
            draft_head: self.head.map(|(tokens, _)| tokens),
            drafter: self.drafter.map(|right| Box::new(ToyDrafter { right, calls: 0 }) as Box<dyn Drafter>),
            prefix_cache: self.cache.then(|| Box::<SimpleCache>::default() as Box<dyn PrefixCache>),
        };
        Engine::new(toy.with_max_step_rows(self.step_rows), policies, EngineConfig::default())
    }
}

/// What came of requests, by key.
#[derive(Default)]
struct Outcome {
    tokens: HashMap<u64, Vec<u32>>,
    ended: HashMap<u64, (FinishReason, Usage)>,
    failed: HashMap<u64, crate::error::Failure>,
}

impl Outcome {
    fn take(&mut self, events: &mut Vec<Event>) {
        for event in events.drain(..) {
            match event {
                Event::Tokens { key, tokens, .. } => {
                    assert!(!self.ended.contains_key(&key), "tokens after the end");
                    self.tokens.entry(key).or_default().extend(tokens);
                }
                Event::Finished { key, reason, usage } => {
                    assert!(self.ended.insert(key, (reason, usage)).is_none(), "two ends");
                }
                Event::Failed { key, error } => {
                    assert!(self.failed.insert(key, error).is_none(), "two failures");
                }
            }
        }
    }

    /// Runs until nothing is left, with a bound so that a scheduler that is stuck shows.
    fn run(&mut self, engine: &mut Engine<ToyExecutor>) {
        let mut events = Vec::new();
        for _ in 0..20_000 {
            let stepped = engine.step_once(&mut events);
            self.take(&mut events);
            if engine.is_idle() {
                return;
            }
            assert!(stepped, "requests are left and nothing runs");
        }
        panic!("20,000 steps were not enough");
    }
}

fn run(engine: &mut Engine<ToyExecutor>) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.run(engine);
    outcome
}

/// Runs requests through a setup and compares with the toy's definition.
fn check(setup: &Setup, requests: &[(Vec<u32>, u32)]) -> super::super::protocol::EngineStats {
    let mut engine = setup.engine();
    let submit = |(prompt, n): &(Vec<u32>, u32)| engine.submit(greedy(prompt.clone(), *n)).expect("valid");
    let keys: Vec<u64> = requests.iter().map(submit).collect();
    let outcome = run(&mut engine);
    assert!(outcome.failed.is_empty(), "{:?}", outcome.failed);
    for (key, (prompt, n)) in keys.iter().zip(requests) {
        assert_eq!(outcome.tokens[key], expected(prompt, *n), "request {key}");
        let (reason, usage) = outcome.ended[key];
        assert_eq!((reason, usage.generated_tokens), (FinishReason::Length, *n));
        assert_eq!(usage.prompt_tokens as usize, prompt.len());
    }
    let stats = engine.stats();
    assert_eq!(stats.blocks_used, stats.blocks_remembered, "blocks leaked");
    assert_eq!(engine.state.free_slots(), setup.slots, "slots leaked");
    let prompts: u64 = requests.iter().map(|(prompt, _)| prompt.len() as u64).sum();
    assert_eq!(stats.prompt_tokens + stats.cached_tokens, prompts);
    assert_eq!(stats.generated_tokens, requests.iter().map(|(_, n)| u64::from(*n)).sum::<u64>());
    stats
}

fn mixed_requests() -> Vec<(Vec<u32>, u32)> {
    let lengths = [(1, 9), (3, 20), (4, 1), (5, 30), (40, 12), (150, 5), (17, 25), (8, 8), (64, 3), (2, 40)];
    lengths.iter().enumerate().map(|(i, (length, n))| (prompt(i as u64, *length), *n)).collect()
}

#[test]
fn alone_batched_and_chunked_are_the_same() {
    let requests = mixed_requests();
    for request in &requests {
        check(&Setup::default(), std::slice::from_ref(request));
    }
    for recurrent in [false, true] {
        let setup = || Setup { recurrent, ..Setup::default() };
        check(&setup(), &requests);
        check(&Setup { slots: 2, ..setup() }, &requests);
        for step_tokens in [1, 2, 3, 7] {
            check(&Setup { step_tokens, ..setup() }, &requests);
        }
        for step_rows in [1, 2, 5] {
            check(&Setup { step_rows, ..setup() }, &requests);
        }
    }
}

#[test]
fn preempted_requests_give_the_same_tokens() {
    // Each needs 20 blocks in the end and 5 at first; 42 hold two.
    let requests: Vec<_> = (0..6).map(|i| (prompt(i, 18), 60)).collect();
    for drafter in [None, Some(70)] {
        for (cache, recurrent) in [(false, false), (true, false), (true, true)] {
            let stats = check(&Setup { blocks: 42, drafter, cache, recurrent, ..Setup::default() }, &requests);
            assert!(stats.preemptions > 0, "nothing was preempted: the test tests nothing");
        }
    }
    // A single one that needs everything there is.
    check(&Setup { blocks: 20, ..Setup::default() }, &[(prompt(1, 18), 62)]);
}

#[test]
fn drafts_right_wrong_and_mixed_change_nothing() {
    let requests = mixed_requests();
    for (right, recurrent) in [0, 50, 90, 100].into_iter().flat_map(|right| [(right, false), (right, true)]) {
        for step_tokens in [5, 64] {
            let setup = Setup { drafter: Some(right), step_tokens, recurrent, ..Setup::default() };
            let stats = check(&setup, &requests);
            assert!(stats.drafted_tokens > 0);
            match right {
                100 => assert_eq!(stats.accepted_tokens, stats.drafted_tokens),
                // One in 50 random tokens is right by chance.
                0 => assert!(stats.accepted_tokens * 10 < stats.drafted_tokens),
                _ => assert!(stats.accepted_tokens > 0 && stats.accepted_tokens < stats.drafted_tokens),
            }
        }
    }
}

#[test]
fn rejected_drafts_give_their_blocks_back_in_the_same_step() {
    let mut engine = Setup { drafter: Some(0), ..Setup::default() }.engine();
    engine.submit(greedy(prompt(1, 6), 60)).expect("valid");
    let (mut outcome, mut events) = (Outcome::default(), Vec::new());
    let mut drafted = 0;
    while engine.step_once(&mut events) && !engine.is_idle() {
        outcome.take(&mut events);
        let computed = engine.scheduler.running[0].computed();
        let stats = engine.stats();
        if stats.drafted_tokens > drafted {
            // Blocks of 4; a draft of 8 tokens had two more.
            assert_eq!(stats.blocks_used as usize, computed.div_ceil(4));
        }
        drafted = stats.drafted_tokens;
    }
    assert!(drafted > 100);
}

#[test]
fn right_drafts_save_steps() {
    let requests = [(prompt(1, 10), 90)];
    for recurrent in [false, true] {
        let plain = check(&Setup { recurrent, ..Setup::default() }, &requests);
        let drafted = check(&Setup { drafter: Some(100), recurrent, ..Setup::default() }, &requests);
        // 8 drafted and 1 more a step.
        assert_eq!((plain.steps, drafted.steps), (90, 1 + 10));
        // Nothing is lost by drafting in vain.
        let wrong = check(&Setup { drafter: Some(0), recurrent, ..Setup::default() }, &requests);
        assert!(wrong.steps <= 90);
    }
}

#[test]
fn the_models_own_head_changes_nothing_and_saves_steps() {
    let requests = mixed_requests();
    for (recurrent, wrong) in [(false, 0), (false, 1), (false, 3), (true, 0), (true, 1), (true, 3)] {
        for (tokens, step_tokens, blocks) in [(1, 64, 200), (4, 64, 200), (3, 5, 200), (4, 64, 45)] {
            let sizes = Setup { step_tokens, blocks, cache: true, ..Setup::default() };
            let stats = check(&Setup { recurrent, head: Some((tokens, wrong)), ..sizes }, &requests);
            assert!(stats.drafted_tokens > 0);
            match wrong {
                0 => assert_eq!(stats.accepted_tokens, stats.drafted_tokens),
                // A wrong row is right by chance one time in 50.
                1 => assert!(stats.accepted_tokens * 10 < stats.drafted_tokens),
                _ => assert!(stats.accepted_tokens > 0 && stats.accepted_tokens < stats.drafted_tokens),
            }
        }
        let head = |tokens| Setup { recurrent, head: Some((tokens, wrong)), ..Setup::default() };
        let steps = check(&head(4), &[(prompt(1, 10), 90)]).steps;
        match wrong {
            // 4 proposed and 1 more a step, the first token alone.
            0 => assert_eq!(steps, 1 + 18),
            _ => assert!(steps <= 90),
        }
    }
}

#[test]
fn a_recurrent_state_is_never_taken_from_the_prefix_cache() {
    let setup = Setup { cache: true, recurrent: true, ..Setup::default() };
    let stats = check(&setup, &[(prompt(3, 22), 8), (prompt(3, 22), 8)]);
    assert_eq!((stats.cached_tokens, stats.blocks_remembered), (0, 0));
}

#[test]
fn prefix_cache_hits_are_exact_and_change_nothing() {
    let setup = Setup { cache: true, ..Setup::default() };
    let mut engine = setup.engine();
    let base = prompt(3, 22);
    let variants: Vec<(Vec<u32>, u32)> = vec![
        (base.clone(), 0),
        // The same: 5 whole blocks of 4.
        (base.clone(), 20),
        // One shorter than a block edge, at it, and one more; a prompt is never taken whole.
        (base[..19].to_vec(), 16),
        (base[..20].to_vec(), 16),
        (base[..21].to_vec(), 20),
        // Another token in the middle of block 2.
        ([&base[..9], &[base[9] ^ 1], &base[10..]].concat(), 8),
        ([&base[..], &prompt(9, 30)].concat(), 20),
    ];
    for (prompt, cached) in variants {
        let key = engine.submit(greedy(prompt.clone(), 10)).expect("valid");
        let outcome = run(&mut engine);
        assert_eq!(outcome.tokens[&key], expected(&prompt, 10));
        assert_eq!(outcome.ended[&key].1.cached_tokens, cached, "prompt of {}", prompt.len());
    }
    // The output of a finished request is remembered too.
    let turn = [&base[..], &expected(&base, 10)].concat();
    let key = engine.submit(greedy([&turn[..], &[1, 2, 3]].concat(), 4)).expect("valid");
    // 22 + 10 tokens, the state of the last of which was never computed.
    assert_eq!(run(&mut engine).ended[&key].1.cached_tokens, 28);
}

#[test]
fn a_running_request_shares_its_prompt() {
    let mut engine = Setup { cache: true, ..Setup::default() }.engine();
    let long = prompt(3, 40);
    let first = engine.submit(greedy(long.clone(), 50)).expect("valid");
    let (mut outcome, mut events) = (Outcome::default(), Vec::new());
    engine.step_once(&mut events);
    outcome.take(&mut events);
    let second = engine.submit(greedy(long.clone(), 5)).expect("valid");
    outcome.run(&mut engine);
    assert_eq!(outcome.ended[&second].1.cached_tokens, 36);
    assert_eq!(outcome.tokens[&second], expected(&long, 5));
    assert_eq!(outcome.tokens[&first].len(), 49 + 1);
}

#[test]
fn the_cache_gives_way_to_requests() {
    let setup = Setup { blocks: 30, cache: true, ..Setup::default() };
    let requests: Vec<_> = (0..40).map(|i| (prompt(i / 3, 30 + (i % 3) as usize), 20)).collect();
    let stats = check(&setup, &requests);
    assert!(stats.cached_tokens > 0);
}

#[test]
fn cancelling_frees_everything_in_every_phase() {
    let setup = Setup { blocks: 60, slots: 2, step_tokens: 8, ..Setup::default() };
    // Steps of 8 tokens: a prompt of 50 is in prefill after 2 steps, decodes after 8; the third request waits.
    for steps in [0, 1, 2, 8, 12] {
        let mut engine = setup.engine();
        let keys: Vec<u64> = (0..3).map(|i| engine.submit(greedy(prompt(i, 50), 30)).expect("valid")).collect();
        let (mut outcome, mut events) = (Outcome::default(), Vec::new());
        for _ in 0..steps {
            engine.step_once(&mut events);
        }
        for key in &keys {
            assert!(engine.cancel(*key, &mut events));
            assert!(!engine.cancel(*key, &mut events));
        }
        outcome.take(&mut events);
        assert!(keys.iter().all(|key| outcome.ended[key].0 == FinishReason::Cancelled));
        let stats = engine.stats();
        assert_eq!((stats.blocks_used, stats.running, stats.waiting), (0, 0, 0), "after {steps} steps");
        assert_eq!(engine.state.free_slots(), 2);
        assert!(!engine.step_once(&mut events));
        let key = engine.submit(greedy(prompt(9, 20), 3)).expect("valid");
        assert_eq!(run(&mut engine).tokens[&key], expected(&prompt(9, 20), 3));
    }
}

#[test]
fn two_thousand_random_requests_with_aborts_leak_nothing() {
    random_requests_with_aborts(false);
}

#[test]
fn two_thousand_random_requests_of_a_recurrent_model_leak_nothing() {
    random_requests_with_aborts(true);
}

fn random_requests_with_aborts(recurrent: bool) {
    let sizes = Setup { blocks: 40, slots: 6, step_tokens: 24, step_rows: 16, ..Setup::default() };
    let mut engine = Setup { cache: true, drafter: Some(60), recurrent, ..sizes }.engine();
    let random = RandomStream::new(77);
    let mut live: Vec<(u64, Vec<u32>, u32)> = Vec::new();
    let (mut outcome, mut events, mut aborted) = (Outcome::default(), Vec::new(), 0);
    let (mut compared, mut submitted, mut ticks) = (0, 0u64, 0u64);
    while submitted < 2000 || !engine.is_idle() {
        ticks += 1;
        assert!(ticks < 200_000, "no progress");
        let bits = random.bits(ticks, Lane::Draw);
        if submitted < 2000 && !bits.is_multiple_of(4) {
            let common = prompt((bits >> 8) % 5, ((bits >> 16) % 20) as usize);
            let own = prompt(submitted, 1 + ((bits >> 24) % 30) as usize);
            let (whole, n) = ([common, own].concat(), 1 + ((bits >> 32) % 25) as u32);
            let key = engine.submit(greedy(whole.clone(), n)).expect("valid");
            live.push((key, whole, n));
            submitted += 1;
        }
        if (bits >> 40) % 10 < 3 && !live.is_empty() {
            let victim = ((bits >> 48) as usize) % live.len();
            aborted += usize::from(engine.cancel(live[victim].0, &mut events));
        }
        engine.step_once(&mut events);
        outcome.take(&mut events);
        live.retain(|(key, prompt, n)| {
            let Some((reason, _)) = outcome.ended.get(key) else { return true };
            let tokens = outcome.tokens.remove(key).unwrap_or_default();
            let wanted = expected(prompt, *n);
            match reason {
                FinishReason::Cancelled => assert_eq!(tokens, wanted[..tokens.len()]),
                _ => assert_eq!(tokens, wanted),
            }
            compared += 1;
            false
        });
    }
    assert!(outcome.failed.is_empty());
    assert_eq!(compared, 2000);
    let stats = engine.stats();
    assert!(aborted > 200 && stats.preemptions > 0, "{aborted} {}", stats.preemptions);
    assert_eq!(stats.cached_tokens > 0, !recurrent);
    assert_eq!(stats.blocks_used, stats.blocks_remembered);
    assert_eq!(engine.state.free_slots(), 6);
}

#[test]
fn a_long_prompt_does_not_stop_the_others() {
    let mut engine = Setup { step_tokens: 16, ..Setup::default() }.engine();
    let running = engine.submit(greedy(prompt(1, 4), 60)).expect("valid");
    let mut events = Vec::new();
    engine.step_once(&mut events);
    engine.submit(greedy(prompt(2, 400), 1)).expect("valid");
    events.clear();
    for _ in 0..20 {
        engine.step_once(&mut events);
    }
    let own = events.iter().filter(|event| matches!(event, Event::Tokens { key, .. } if *key == running)).count();
    assert_eq!(own, 20, "the running request gets a token every step");
}

#[test]
fn more_requests_than_a_step_holds_all_get_on() {
    let mut engine = Setup { step_tokens: 3, ..Setup::default() }.engine();
    let keys: Vec<u64> = (0..8).map(|i| engine.submit(greedy(prompt(i, 2), 30)).expect("valid")).collect();
    let (mut outcome, mut events) = (Outcome::default(), Vec::new());
    for _ in 0..80 {
        engine.step_once(&mut events);
    }
    outcome.take(&mut events);
    let made: Vec<usize> = keys.iter().map(|key| outcome.tokens.get(key).map_or(0, Vec::len)).collect();
    assert!(made.iter().all(|n| *n > 15), "{made:?}");
}

#[test]
fn only_the_request_that_cannot_run_fails() {
    for recurrent in [false, true] {
        only_the_poisoned_fails(recurrent);
    }
}

fn only_the_poisoned_fails(recurrent: bool) {
    let mut engine = Setup { recurrent, ..Setup::default() }.engine();
    // It has run some steps by the time another one makes a step fail.
    let running = engine.submit(greedy(vec![9; 90], 40)).expect("valid");
    for _ in 0..3 {
        engine.step_once(&mut Vec::new());
    }
    engine.executor.poison_token = Some(7);
    engine.executor.nan_token = Some(8);
    let clean =
        |seed| -> Vec<u32> { prompt(seed, 20).into_iter().map(|t| if t == 7 || t == 8 { 9 } else { t }).collect() };
    let good = engine.submit(greedy(clean(1), 1)).expect("valid");
    let poisoned = engine.submit(greedy([clean(2), vec![7, 1]].concat(), 5)).expect("valid");
    let nan = engine.submit(greedy([clean(3), vec![8]].concat(), 5)).expect("valid");
    let outcome = run(&mut engine);
    assert_eq!(outcome.tokens[&good], expected(&clean(1), 1));
    let all = expected(&[9; 90], 40);
    match all.iter().any(|token| [7, 8].contains(token)) {
        true => assert!(outcome.failed.contains_key(&running)),
        false => assert!(all.ends_with(&outcome.tokens[&running])),
    }
    assert!(outcome.failed[&poisoned].message.contains("poison"), "{:?}", outcome.failed);
    assert!(outcome.failed[&nan].message.contains("NaN"), "{:?}", outcome.failed);
    assert_eq!(engine.stats().blocks_used, 0);
}

#[test]
fn stop_ids_and_the_context_end_a_request() {
    let mut engine = Setup::default().engine();
    let wanted = expected(&prompt(4, 6), 20);
    let stop = wanted[7];
    let first = wanted.iter().position(|t| *t == stop).expect("it is there") + 1;
    for drafter in [None, Some(100)] {
        let mut engine = Setup { drafter, ..Setup::default() }.engine();
        let request = Generate { stop_ids: vec![stop], ..greedy(prompt(4, 6), 20) };
        let key = engine.submit(request).expect("valid");
        let outcome = run(&mut engine);
        assert_eq!(outcome.tokens[&key], wanted[..first]);
        assert_eq!(outcome.ended[&key].0, FinishReason::Stop);
    }
    // 200 blocks of 4.
    let key = engine.submit(greedy(prompt(4, 790), 100)).expect("valid");
    let outcome = run(&mut engine);
    assert_eq!((outcome.tokens[&key].len(), outcome.ended[&key].0), (10, FinishReason::Length));
}

#[test]
fn requests_that_cannot_be_served_are_refused() {
    let toy = ToyExecutor::new(VOCAB, 4, 10, 2, 8);
    let mut engine = Engine::new(toy, Policies::default(), EngineConfig { waiting: 2, ..Default::default() });
    let mut refuse = |generate| engine.submit(generate).expect_err("refused").to_string();
    assert!(refuse(greedy(vec![], 1)).contains("no tokens"));
    assert!(refuse(greedy(vec![1], 0)).contains("max_tokens"));
    assert!(refuse(greedy(vec![1, 50], 1)).contains("prompt token 1 is 50"));
    assert!(refuse(greedy(vec![1; 40], 1)).contains("the context holds 40"));
    let biased = SamplingParams { logit_bias: vec![(99, 1.0)], ..Default::default() };
    assert!(refuse(Generate { sampling: biased, ..greedy(vec![1], 1) }).contains("99"));
    assert!(engine.submit(greedy(vec![1; 39], 9)).is_ok() && engine.submit(greedy(vec![1], 1)).is_ok());
    assert_eq!(engine.submit(greedy(vec![1], 1)), Err(RequestError::QueueFull { waiting: 2 }));
    run(&mut engine);
}

#[test]
fn sampled_requests_depend_on_their_seed_alone() {
    let params =
        |seed| SamplingParams { temperature: 0.8, top_p: 0.9, presence_penalty: 0.2, seed, ..Default::default() };
    let request = |seed| Generate { sampling: params(seed), ..greedy(prompt(5, 12), 40) };
    let alone = |seed| {
        let mut engine = Setup::default().engine();
        let key = engine.submit(request(seed)).expect("valid");
        run(&mut engine).tokens[&key].clone()
    };
    for (blocks, step_tokens, drafter) in [(200, 64, None), (40, 7, None), (40, 20, Some(50))] {
        let mut engine = Setup { blocks, step_tokens, drafter, ..Setup::default() }.engine();
        let keys: Vec<u64> = (0..5).map(|seed| engine.submit(request(seed)).expect("valid")).collect();
        let outcome = run(&mut engine);
        for (seed, key) in keys.iter().enumerate() {
            assert_eq!(outcome.tokens[key], alone(seed as u64), "seed {seed}, {blocks} blocks, drafter {drafter:?}");
        }
    }
    assert_ne!(alone(0), alone(1));
}

#[test]
fn log_probs_are_the_models_own() {
    let mut engine = Setup { drafter: Some(80), ..Setup::default() }.engine();
    let sampling =
        SamplingParams { temperature: 3.0, top_k: 20, frequency_penalty: 1.0, seed: 3, ..Default::default() };
    let start = prompt(6, 9);
    let request = Generate { sampling, top_logprobs: Some(3), ..greedy(start.clone(), 30) };
    engine.submit(request).expect("valid");
    let mut events = Vec::new();
    while engine.step_once(&mut events) {}
    let mut seen = start;
    for event in events {
        let Event::Tokens { tokens, logprobs, .. } = event else { continue };
        assert_eq!(tokens.len(), logprobs.len());
        for (token, given) in tokens.iter().zip(logprobs) {
            let mut row = toy_logits(&seen, VOCAB);
            log_softmax(&mut row);
            assert_eq!(given.logprob, row[*token as usize]);
            assert_eq!(given.top[0].0, greedy_next(&seen));
            assert!(given.top.len() == 3 && given.top.is_sorted_by(|a, b| a.1 >= b.1));
            seen.push(*token);
        }
    }
    assert_eq!(seen.len(), 39);
}

/// Runs a plan and collects its rows.
fn score(engine: &mut Engine<ToyExecutor>, plan: ScorePlan) -> (Vec<(ScoreRow, Vec<f32>)>, Vec<u32>) {
    let mut run = engine.score_start(plan).expect("a valid plan");
    let mut rows = Vec::new();
    while engine.score_step(&mut run).expect("it runs") {
        assert_eq!(run.log_probs().len(), run.rows().len() * VOCAB);
        rows.extend(run.rows().iter().copied().zip(run.log_probs().chunks(VOCAB).map(<[f32]>::to_vec)));
    }
    (rows, engine.score_end(run))
}

fn assert_rows(rows: &[(ScoreRow, Vec<f32>)], sequences: &[Vec<u32>], wanted: &[(u32, std::ops::Range<u32>)]) {
    let places: Vec<(u32, u32)> = rows.iter().map(|(row, _)| (row.seq, row.position)).collect();
    let expected: Vec<(u32, u32)> =
        wanted.iter().flat_map(|(seq, range)| range.clone().map(|position| (*seq, position))).collect();
    assert_eq!(places, expected);
    for (row, values) in rows {
        let mut own = toy_logits(&sequences[row.seq as usize][..=row.position as usize], VOCAB);
        log_softmax(&mut own);
        assert_eq!(*values, own, "{row:?}");
    }
}

fn item(seq: u32, take: u32) -> ScoreItem {
    ScoreItem { seq, take, rows: true, ..Default::default() }
}

#[test]
fn plans_run_as_asked() {
    let ids = vec![prompt(1, 30), prompt(2, 21)];
    let wrong = ids[1][13] ^ 1;
    let plan = ScorePlan {
        sequences: ids.iter().map(|ids| ScoreSequence { ids: ids.clone(), ..Default::default() }).collect(),
        steps: vec![
            vec![item(0, 7)],
            vec![item(0, 1), item(1, 12)],
            // A draft half right, rolled back, then gone on from; and one all right.
            vec![ScoreItem { draft: vec![ids[1][13], wrong, 3, 4, 5], accept: 1, ..item(1, 1) }],
            vec![item(1, 1), ScoreItem { draft: ids[0][9..12].to_vec(), accept: 3, ..item(0, 1) }],
            vec![ScoreItem { rows: false, ..item(0, 10) }],
            vec![ScoreItem { draft: vec![1, 2], accept: 0, ..item(0, 2) }],
            vec![item(0, 6), item(1, 6)],
        ],
    };
    for recurrent in [false, true] {
        run_as_asked(&ids, plan.clone(), recurrent);
    }
}

fn run_as_asked(ids: &[Vec<u32>], plan: ScorePlan, recurrent: bool) {
    let mut engine = Setup { recurrent, ..Setup::default() }.engine();
    let (rows, hits) = score(&mut engine, plan);
    let wanted =
        [(0, 0..7), (0, 7..8), (1, 0..12), (1, 12..14), (1, 14..15), (0, 8..12), (0, 22..24), (0, 24..30), (1, 15..21)];
    assert_rows(&rows, ids, &wanted);
    assert_eq!(hits, [0, 0]);
    assert_eq!(engine.stats().blocks_used, 0);
    // Steps are batches: the toy ran as many as the plan has.
    assert_eq!(engine.executor.steps, 7);
    let shapes: u64 = engine.stats().passes.iter().map(|pass| pass.count).sum();
    assert_eq!(shapes, 7);
}

#[test]
fn plans_use_and_fill_the_prefix_cache() {
    let ids = prompt(1, 23);
    let plan = |prefix, keep| ScorePlan {
        sequences: vec![ScoreSequence { ids: ids.clone(), prefix, keep }],
        steps: vec![vec![item(0, 6)], vec![item(0, 5)], vec![item(0, 12)]],
    };
    let mut engine = Setup { cache: true, ..Setup::default() }.engine();
    let ids = [ids.clone()];
    let (rows, hits) = score(&mut engine, plan(23, true));
    assert_rows(&rows, &ids, &[(0, 0..23)]);
    assert_eq!(hits, [0]);
    // 22 ids may come from the cache, 5 whole blocks of 4 do; the first item and part of the second have nothing to run.
    for (prefix, hit) in [(23, 20), (9, 8), (3, 0), (0, 0)] {
        let steps = engine.executor.steps;
        let (rows, hits) = score(&mut engine, plan(prefix, false));
        assert_rows(&rows, &ids, &[(0, hit..23)]);
        assert_eq!(hits, [hit]);
        let skipped = [6, 11].iter().filter(|end| **end <= hit).count() as u64;
        assert_eq!(engine.executor.steps - steps, 3 - skipped);
    }
    // Generations share what plans kept.
    let key = engine.submit(greedy(ids[0].clone(), 2)).expect("valid");
    assert_eq!(run(&mut engine).ended[&key].1.cached_tokens, 20);
}

#[test]
fn a_drafted_item_inside_a_prefix_hit_is_skipped_whole() {
    let ids = prompt(1, 23);
    let sequence = ScoreSequence { ids: ids.clone(), prefix: 12, keep: true };
    let plan = ScorePlan {
        sequences: vec![sequence],
        steps: vec![
            vec![item(0, 9)],
            // Ids 9 and 10, then two accepted drafts: behind them the sequence is one id past the hit of 12.
            vec![ScoreItem { draft: vec![ids[11], ids[12], 1], accept: 2, ..item(0, 2) }],
            vec![item(0, 10)],
        ],
    };
    let mut engine = Setup { cache: true, ..Setup::default() }.engine();
    let sequences = [ids];
    let (rows, _) = score(&mut engine, plan.clone());
    assert_rows(&rows, &sequences, &[(0, 0..23)]);
    let (rows, hits) = score(&mut engine, plan);
    assert_eq!(hits, [12]);
    assert_rows(&rows, &sequences, &[(0, 12..23)]);
}

#[test]
fn generations_give_way_to_plans_and_come_back() {
    let mut engine = Setup { blocks: 30, slots: 2, ..Setup::default() }.engine();
    let keys: Vec<u64> = (0..2).map(|i| engine.submit(greedy(prompt(i, 30), 20)).expect("valid")).collect();
    let (mut outcome, mut events) = (Outcome::default(), Vec::new());
    for _ in 0..6 {
        engine.step_once(&mut events);
    }
    let ids = [prompt(8, 100)];
    let plan = ScorePlan {
        sequences: vec![ScoreSequence { ids: ids[0].clone(), ..Default::default() }],
        steps: vec![vec![item(0, 50)], vec![item(0, 50)]],
    };
    let (rows, _) = score(&mut engine, plan);
    assert_rows(&rows, &ids, &[(0, 0..100)]);
    assert!(engine.stats().preemptions > 0);
    outcome.take(&mut events);
    outcome.run(&mut engine);
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(outcome.tokens[key], expected(&prompt(i as u64, 30), 20));
    }
}

#[test]
fn plans_that_cannot_run_are_refused_by_place() {
    let engine = Setup { blocks: 10, slots: 2, step_tokens: 16, ..Setup::default() }.engine();
    let sequence = |ids: Vec<u32>| ScoreSequence { ids, ..Default::default() };
    let two = || vec![sequence(prompt(1, 12)), sequence(prompt(2, 12))];
    let draft = |draft: Vec<u32>, accept| ScoreItem { draft, accept, ..item(0, 2) };
    let third = prompt(1, 12)[2];
    type Case = (&'static str, Vec<ScoreSequence>, Vec<Vec<ScoreItem>>);
    let cases: Vec<Case> = vec![
        ("sequence 1: it has no ids", vec![sequence(vec![1]), sequence(vec![])], vec![]),
        ("sequence 0: id 50", vec![sequence(vec![50])], vec![]),
        ("step 0, item 1 (sequence 5): the plan has 2", two(), vec![vec![item(0, 1), item(5, 1)]]),
        ("already", two(), vec![vec![item(0, 1), item(0, 1)]]),
        ("take is 0", two(), vec![vec![item(0, 0)]]),
        ("step 1, item 0 (sequence 0): take is 9 and 4", two(), vec![vec![item(0, 8)], vec![item(0, 9)]]),
        ("draft token 50", two(), vec![vec![draft(vec![50], 0)]]),
        ("accept is 2 of a draft of 1", two(), vec![vec![draft(vec![1], 2)]]),
        ("not the sequence's next ids", two(), vec![vec![draft(vec![third ^ 1], 1)]]),
        ("step 0: it needs 24 tokens", two(), vec![vec![item(0, 12), item(1, 12)]]),
        ("step 0: it has no items", two(), vec![vec![]]),
        (
            "3 sequences alive",
            (0..3).map(|i| sequence(prompt(i, 4))).collect(),
            vec![vec![item(0, 1)], vec![item(1, 1)], vec![item(2, 1)], vec![item(0, 1), item(1, 1), item(2, 1)]],
        ),
        ("41 positions", vec![sequence(prompt(1, 41))], (0..41).map(|_| vec![item(0, 1)]).collect()),
        (
            "11 KV blocks",
            vec![sequence(prompt(1, 24)), sequence(prompt(2, 20))],
            vec![vec![item(0, 8)], vec![item(1, 8)], vec![item(0, 8)], vec![item(1, 6)], vec![item(0, 8), item(1, 6)]],
        ),
    ];
    for (words, sequences, steps) in cases {
        let error = engine.score_start(ScorePlan { sequences, steps }).expect_err(words).to_string();
        assert!(error.contains(words), "`{words}` is not in `{error}`");
    }
}

#[test]
fn a_cache_that_lies_harms_nobody() {
    struct Liar;
    impl PrefixCache for Liar {
        fn lookup(&mut self, _: &[u32], _: usize) -> PrefixHit {
            PrefixHit { blocks: vec![199, 12_345] }
        }
        fn insert(&mut self, _: &[u32], blocks: &[u32], _: usize) -> Vec<u32> {
            vec![blocks[0], blocks[0], 77, 99_999]
        }
        fn evict(&mut self, _: usize, _: &dyn Fn(u32) -> bool) -> Vec<u32> {
            (0..250).collect()
        }
        fn len(&self) -> usize {
            1
        }
    }
    let policies = Policies { prefix_cache: Some(Box::new(Liar)), ..Default::default() };
    let mut engine = Engine::new(ToyExecutor::new(VOCAB, 4, 40, 4, 32), policies, EngineConfig::default());
    let keys: Vec<u64> = (0..8).map(|i| engine.submit(greedy(prompt(i, 20), 50)).expect("valid")).collect();
    let outcome = run(&mut engine);
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(outcome.tokens[key], expected(&prompt(i as u64, 20), 50));
    }
}
