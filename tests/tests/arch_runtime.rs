//! Every case through the runtime: requests of mixed lengths together give what each gives alone and what transformers
//! gives; a beginning taken from the prefix cache gives what computing it gives; a sequence that grows long is computed
//! as one that was long from the start.

use crit_core::model::Model;
use crit_core::plugin::{PrefixCache, PrefixHit};
use crit_core::protocol::Generate;
use crit_core::runtime::{Engine, EngineConfig, Event, Policies};
use crit_core::sampling::SamplingParams;
use crit_kernels::exec::{CpuExecutor, ExecOptions, Style, build};
use crit_tests::{Case, Hand, arch_cases, argmax, supported};

fn executor(model: &Model, sequences: usize) -> CpuExecutor {
    build(model, ExecOptions::new(Style::Exact, 192, sequences)).unwrap_or_else(|e| panic!("{e}"))
}

fn cases() -> impl Iterator<Item = (Case, Model)> {
    arch_cases().into_iter().filter(supported).map(|case| {
        let model = Model::open(&case.path).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        (case, model)
    })
}

/// Remembers blocks by the tokens up to their end, for ever.
#[derive(Default)]
struct Remember(Vec<(Vec<u32>, u32)>);

impl PrefixCache for Remember {
    fn lookup(&mut self, tokens: &[u32], block_tokens: usize) -> PrefixHit {
        let find = |n: usize| {
            let beginning = tokens.get(..n * block_tokens)?;
            self.0.iter().find(|(known, _)| known == beginning).map(|(_, block)| *block)
        };
        PrefixHit { blocks: (1..).map_while(find).collect() }
    }

    fn insert(&mut self, tokens: &[u32], blocks: &[u32], block_tokens: usize) -> Vec<u32> {
        let mut new = Vec::new();
        for (i, block) in blocks.iter().enumerate() {
            let beginning = tokens[..(i + 1) * block_tokens].to_vec();
            if self.0.iter().all(|(known, _)| *known != beginning) {
                self.0.push((beginning, *block));
                new.push(*block);
            }
        }
        new
    }

    fn evict(&mut self, _: usize, _: &dyn Fn(u32) -> bool) -> Vec<u32> {
        Vec::new()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

fn request(prompt: &[u32], max_tokens: u32) -> Generate {
    let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    Generate { prompt: prompt.to_vec(), sampling, max_tokens, stop_ids: Vec::new(), top_logprobs: None }
}

/// Runs requests together; the tokens of each, and how many of its prompt came from the prefix cache.
fn together(engine: &mut Engine<CpuExecutor>, requests: &[Generate]) -> Vec<(Vec<u32>, u32)> {
    let keys: Vec<u64> = requests.iter().map(|r| engine.submit(r.clone()).expect("it fits")).collect();
    let mut out = vec![(Vec::new(), 0); requests.len()];
    let mut events = Vec::new();
    while engine.step_once(&mut events) {}
    for event in events {
        let at = |key| keys.iter().position(|k| *k == key).expect("a request of this call");
        match event {
            Event::Tokens { key, tokens, .. } => out[at(key)].0.extend(tokens),
            Event::Finished { key, usage, .. } => out[at(key)].1 = usage.cached_tokens,
            Event::Failed { error, .. } => panic!("{error:?}"),
        }
    }
    out
}

fn engine(model: &Model, policies: Policies) -> Engine<CpuExecutor> {
    // Few tokens a step, so that prompts run in pieces beside the decoding of others.
    Engine::new(executor(model, 6), policies, EngineConfig { step_tokens: 21, ..EngineConfig::default() })
}

#[test]
fn mixed_lengths_together_give_what_each_gives_alone() {
    for (case, model) in cases() {
        let goldens = case.goldens();
        let mut requests: Vec<Generate> =
            goldens.iter().map(|golden| request(&golden.ids, golden.greedy.len() as u32)).collect();
        let long = &goldens[goldens.len() - 1].ids;
        requests.extend([3, 17, 41].map(|length| request(&long[..length], 9)));
        let mixed = together(&mut engine(&model, Policies::default()), &requests);
        for (golden, (tokens, _)) in goldens.iter().zip(&mixed) {
            assert_eq!(*tokens, golden.greedy, "{} {}", case.name, golden.suffix);
        }
        for (request, (tokens, _)) in requests.iter().zip(&mixed).skip(goldens.len()) {
            let alone = together(&mut engine(&model, Policies::default()), std::slice::from_ref(request));
            assert_eq!(*tokens, alone[0].0, "{} prompt of {}", case.name, request.prompt.len());
        }
    }
}

#[test]
fn a_remembered_beginning_gives_what_computing_it_gives() {
    for (case, model) in cases() {
        let policies = Policies { prefix_cache: Some(Box::new(Remember::default())), ..Policies::default() };
        let mut engine = engine(&model, policies);
        let shares = model.program.slot_bytes() == 0;
        for golden in case.goldens() {
            let request = request(&golden.ids, golden.greedy.len() as u32);
            let long = model.program.long_above().is_some_and(|above| golden.ids.len() > above);
            for again in [false, true] {
                let (tokens, cached) = together(&mut engine, std::slice::from_ref(&request)).swap_remove(0);
                assert_eq!(tokens, golden.greedy, "{} {} again {again}", case.name, golden.suffix);
                assert_eq!(cached > 0, again && shares && !long, "{} {} cached {cached}", case.name, golden.suffix);
            }
        }
    }
}

#[test]
fn a_sequence_that_grows_long_is_computed_anew() {
    let mut seen = 0;
    for (case, model) in cases() {
        let Some(above) = model.program.long_above() else { continue };
        seen += 1;
        let golden = case.goldens().pop().expect("a case has a long input");
        let prompt = &golden.ids[..above - 4];
        // The same tokens one at a time, each from the whole sequence in one go.
        let mut ids = prompt.to_vec();
        let mut expected = Vec::new();
        for _ in 0..10 {
            let mut executor = executor(&model, 1);
            let logits = Hand::new(&mut executor).run(&ids, ids.len());
            expected.push(argmax(&logits[logits.len() - 1]));
            ids.push(expected[expected.len() - 1]);
        }
        let got = together(&mut engine(&model, Policies::default()), &[request(prompt, 10), request(&golden.ids, 4)]);
        assert_eq!(got[0].0, expected, "{}", case.name);
        assert_eq!(got[1].0, golden.greedy[..4], "{}", case.name);
    }
    assert!(seen > 0, "phi3 is committed");
}
