//! Speed through the running server: the suite's prompts over HTTP, streamed, the engine decoding its own output.
//!
//! A request's first token is the first event that carries text; if that comes clearly later than a whole request for
//! one token takes, the first tokens had no text (a special token, part of a character), and the time of the one-token
//! request stands for it: counting late would make decoding look faster than it was. Tokens are counted by the
//! server's usage and checked against the engine's counters where those are known.

use super::beyond::{self, Beyond, BeyondOptions};
use super::http::{Address, Body};
use super::suite::{Prompt, SUITE_VERSION, prompts, suite_digest};
use super::warm::warm_up;
use super::{CeilingInput, median_share};
use crate::Progress;
use crate::ceiling::{Share, ShareState, passes_between, split_passes};
use crate::error::EvalError;
use crate::rng::Rng;
use crate::stats::{Measured, median};
use crit_core::error::Failure;
use crit_core::protocol::EngineStats;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServedSampling {
    /// As the model's own generation settings say, which is what the server does when a request says nothing.
    Model,
    /// The most likely token.
    Greedy,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct ServedOptions {
    /// Tokens to generate for each prompt. End tokens are ignored, so that every repeat does the same work.
    pub generate_tokens: u32,
    /// Fresh repeats of each prompt.
    pub repeats: u32,
    /// How tokens are chosen.
    pub sampling: ServedSampling,
    /// Longest sequence the engine holds; prompts that do not fit are skipped.
    pub context: u32,
    /// Prompts by name; `None` for all.
    pub prompts: Option<Vec<String>>,
    /// Longest warm-up.
    pub warm_up_limit: Duration,
    /// Longest wait for a byte of an answer.
    pub timeout: Duration,
    /// Seed of the lines in front of the prompts and of the sampling; drawn after the engine is fixed.
    pub seed: u64,
    /// Name of the model to ask for, where a server wants one.
    pub model: Option<String>,
    /// Bearer token to send.
    pub bearer: Option<String>,
    /// What to measure beyond the suite.
    pub beyond: BeyondOptions,
}

impl ServedOptions {
    /// Three repeats of 128 tokens at the model's settings.
    pub fn new(context: u32, seed: u64) -> Self {
        Self {
            generate_tokens: 128,
            repeats: 3,
            sampling: ServedSampling::Model,
            context,
            prompts: None,
            warm_up_limit: Duration::from_secs(20),
            timeout: Duration::from_secs(300),
            seed,
            model: None,
            bearer: None,
            beyond: BeyondOptions::default(),
        }
    }
}

/// A server may count more tokens than its text has when encoded anew: special tokens have no text, and a sampled text is
/// not always split as the tokenizer would split it. More than twice as many is no rounding.
const COUNT_SLACK: f64 = 2.0;

/// How the error of an empty answer begins.
const NOTHING: &str = "it answered nothing";

/// Empty answers in a row after which a server is given up.
const EMPTY_ANSWERS: u32 = 6;

/// How the note of an overcount begins.
const OVERCOUNT: &str = "token count not believed";

/// A prompt that was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SkippedPrompt {
    /// Its name.
    pub name: String,
    /// Why.
    pub why: String,
}

/// A prompt's figures, medians over repeats with their samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PromptSpeed {
    /// Its name.
    pub name: String,
    /// Prompt tokens as the server counts them.
    pub prompt_tokens: u64,
    /// Tokens generated in each repeat.
    pub generated_tokens: Vec<u64>,
    /// Prompt tokens taken from a prefix cache, over all repeats.
    pub cached_tokens: u64,
    /// From the request to its first token, milliseconds.
    pub first_token_ms: Option<Measured>,
    /// Prompt tokens read a second.
    pub prefill_tok_s: Option<Measured>,
    /// Tokens decoded a second.
    pub decode_tok_s: Option<Measured>,
    /// Prefill beside its ceiling.
    pub prefill: Option<Share>,
    /// Decode beside its ceiling.
    pub decode: Option<Share>,
    /// Tokens decoded a pass.
    pub tokens_per_pass: Option<f64>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

/// The suite's figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ServedSpeed {
    /// Version of the suite.
    pub suite: String,
    /// Digest of the suite.
    pub suite_digest: String,
    /// How tokens were chosen.
    pub sampling: ServedSampling,
    /// Geometric mean of the prompts' decode speeds.
    pub decode_tok_s: Option<f64>,
    /// Geometric mean of the prompts' prefill speeds.
    pub prefill_tok_s: Option<f64>,
    /// Geometric mean of the prompts' decode shares.
    pub decode_share: Option<f64>,
    /// Geometric mean of the prompts' prefill shares.
    pub prefill_share: Option<f64>,
    /// The gravest state of any share.
    pub state: Option<ShareState>,
    /// Why, for `unstable` and `invalid`.
    pub reason: Option<String>,
    /// Each prompt.
    pub prompts: Vec<PromptSpeed>,
    /// Prompts not measured: the means are over the others.
    pub skipped: Vec<SkippedPrompt>,
    /// Whether times had stopped falling when measuring began.
    pub warm: bool,
    /// Beyond the suite: none of it is in the means.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beyond: Option<Beyond>,
}

/// Where the engine's counters come from, if they can be had.
pub type StatsSource<'a> = &'a mut dyn FnMut() -> Result<EngineStats, Failure>;

/// What the evaluator knows beyond the server's address.
pub struct ServedContext<'a> {
    /// Tokens of a prompt's text, template included as far as known.
    pub count_tokens: &'a dyn Fn(&str) -> usize,
    /// Whether `count_tokens` is the model's own tokenizer: then it stands in for a server that tells no usage, and
    /// checks one that does.
    pub counts_are_exact: bool,
    /// The engine's counters.
    pub stats: Option<StatsSource<'a>>,
    /// For the ceilings; needs the counters.
    pub ceiling: Option<CeilingInput<'a>>,
}

/// Measures the engine behind the server at `address`.
///
/// # Errors
/// The server cannot be reached, fails or breaks off, or no prompt fits.
pub fn measure(
    address: &str,
    options: &ServedOptions,
    context: &mut ServedContext<'_>,
    progress: Progress<'_>,
) -> Result<ServedSpeed, EvalError> {
    let mut client = Client { address: Address::parse(address)?, options, rng: Rng::new(options.seed) };
    let (wanted, skipped) = choose(options, context.count_tokens)?;
    progress("speed: warming up the server");
    let shortest = wanted[0].clone();
    let warm = match warm_up(options.warm_up_limit, || client.run(&shortest, 16, context).map(|run| run.end_s)) {
        Err(EvalError::Http { what, .. }) if what.starts_with(NOTHING) => false,
        warm => warm?,
    };
    let (mut measured, mut skipped) = (Vec::new(), skipped);
    let begun = Instant::now();
    for (i, prompt) in wanted.iter().enumerate() {
        let said = |line: &str| progress(&format!("{line}{}", left(begun, &wanted, i)));
        match measure_prompt(&mut client, prompt, context, &said) {
            Ok(prompt) => measured.push(prompt),
            // A server whose context is not known here says so itself.
            Err(EvalError::Status { status: 400 | 413 | 422, body, .. }) => {
                skipped.push(SkippedPrompt { name: prompt.name.into(), why: format!("the server refused it: {body}") });
            }
            Err(EvalError::Http { what, .. }) if what.starts_with(NOTHING) => {
                skipped.push(SkippedPrompt { name: prompt.name.into(), why: what });
            }
            Err(error) => return Err(error),
        }
    }
    if measured.is_empty() {
        return Err(EvalError::Request {
            what: "the server refused every prompt of the suite, or answered nothing".into(),
            hint: format!("it says: {}", skipped.first().map_or("", |one| one.why.as_str())),
        });
    }
    let mut speed = summary(options, measured, skipped, warm);
    if options.beyond != BeyondOptions::default() {
        speed.beyond = Some(beyond::measure(&mut client, &options.beyond, speed.prefill_tok_s, context, progress)?);
    }
    Ok(speed)
}

/// How long the rest will take, by the bytes of the prompts done and to come.
fn left(begun: Instant, prompts: &[Prompt], done: usize) -> String {
    // Generating costs about as much as reading so many bytes.
    let weight = |prompts: &[Prompt]| prompts.iter().map(|p| p.content.len() as f64 + 4_000.0).sum::<f64>();
    if done == 0 {
        return String::new();
    }
    let left_s = begun.elapsed().as_secs_f64() / weight(&prompts[..done]) * weight(&prompts[done..]);
    format!(" ({} of {}, about {left_s:.0} s left)", done + 1, prompts.len())
}

/// Tokens of context a prompt and its answer take.
fn needed(prompt: &Prompt, options: &ServedOptions, count_tokens: &dyn Fn(&str) -> usize) -> u64 {
    // The template's own tokens are not known here; 64 are more than common templates add.
    count_tokens(&prompt.with_nonce(u64::MAX)) as u64 + u64::from(options.generate_tokens) + 64
}

fn choose(
    options: &ServedOptions,
    count_tokens: &dyn Fn(&str) -> usize,
) -> Result<(Vec<Prompt>, Vec<SkippedPrompt>), EvalError> {
    let (mut wanted, mut skipped) = (Vec::new(), Vec::new());
    for prompt in prompts() {
        if options.prompts.as_ref().is_some_and(|names| !names.iter().any(|name| name == prompt.name)) {
            continue;
        }
        let needed = needed(&prompt, options, count_tokens);
        if needed > u64::from(options.context) {
            let why = format!("needs about {needed} tokens of context, the engine holds {}", options.context);
            skipped.push(SkippedPrompt { name: prompt.name.into(), why });
        } else {
            wanted.push(prompt);
        }
    }
    if wanted.is_empty() {
        let names: Vec<&str> = skipped.iter().map(|s| s.name.as_str()).collect();
        return Err(EvalError::Request {
            what: format!("no prompt of the suite can be measured (skipped: {})", names.join(", ")),
            hint: "raise `context` in engine.json, or generate fewer tokens".into(),
        });
    }
    Ok((wanted, skipped))
}

/// Samples of one prompt.
#[derive(Default)]
struct Samples {
    first_ms: Vec<f64>,
    prefill: Vec<f64>,
    decode: Vec<f64>,
    prefill_shares: Vec<Share>,
    decode_shares: Vec<Share>,
    per_pass: Vec<f64>,
    generated: Vec<u64>,
    prompt_tokens: u64,
    cached: u64,
    notes: Vec<String>,
}

pub(super) fn measure_prompt(
    client: &mut Client<'_>,
    prompt: &Prompt,
    context: &mut ServedContext<'_>,
    progress: Progress<'_>,
) -> Result<PromptSpeed, EvalError> {
    measure_repeats(client, prompt, client.options.repeats.max(1), context, progress)
}

/// The same with so many repeats.
pub(super) fn measure_repeats(
    client: &mut Client<'_>,
    prompt: &Prompt,
    repeats: u32,
    context: &mut ServedContext<'_>,
    progress: Progress<'_>,
) -> Result<PromptSpeed, EvalError> {
    progress(&format!("speed: {}", prompt.name));
    let one_token_s = client.run(prompt, 1, context)?.end_s;
    let mut samples = Samples::default();
    for _ in 0..repeats {
        let before = read_stats(context)?;
        let run = client.run(prompt, client.options.generate_tokens, context)?;
        let after = read_stats(context)?;
        samples.take(&run, one_token_s, before.zip(after), context.ceiling)?;
    }
    Ok(samples.finish(prompt.name))
}

fn read_stats(context: &mut ServedContext<'_>) -> Result<Option<EngineStats>, EvalError> {
    let Some(source) = context.stats.as_mut() else { return Ok(None) };
    source().map(Some).map_err(|failure| EvalError::Engine {
        who: "candidate".into(),
        doing: "reading its counters".into(),
        failure,
    })
}

impl Samples {
    fn take(
        &mut self,
        run: &Run,
        one_token_s: f64,
        stats: Option<(EngineStats, EngineStats)>,
        ceiling: Option<CeilingInput<'_>>,
    ) -> Result<(), EvalError> {
        let first_s = run.first_token_s(one_token_s);
        let (decode_s, decoded) = (run.end_s - first_s, run.generated.saturating_sub(1));
        let computed = run.prompt_tokens.saturating_sub(run.cached);
        self.prompt_tokens = run.prompt_tokens;
        self.cached += run.cached;
        self.generated.push(run.generated);
        self.first_ms.push(first_s * 1e3);
        if computed > 0 {
            self.prefill.push(computed as f64 / first_s);
        }
        if decoded > 0 && decode_s > 0.0 {
            self.decode.push(decoded as f64 / decode_s);
        } else {
            self.note("answers too short to time decoding");
        }
        run.notes.iter().for_each(|note| self.note(note));
        let Some((before, after)) = stats else { return Ok(()) };
        let counted = after.generated_tokens.saturating_sub(before.generated_tokens);
        if counted != run.generated {
            self.note(&format!("the server says {} tokens, the engine's counters {counted}", run.generated));
        }
        let (prefill, decode) = split_passes(&passes_between(&before.passes, &after.passes));
        let passes: u64 = decode.iter().map(|group| group.count).sum();
        if passes > 0 && decoded > 0 {
            self.per_pass.push(decoded as f64 / passes as f64);
        }
        if let Some(ceiling) = ceiling {
            self.prefill_shares.extend(ceiling.share(computed, first_s, &prefill)?);
            self.decode_shares.extend(ceiling.share(decoded, decode_s, &decode)?);
        }
        Ok(())
    }

    fn note(&mut self, note: &str) {
        if !self.notes.iter().any(|known| known == note) {
            self.notes.push(note.to_string());
        }
    }

    fn finish(self, name: &str) -> PromptSpeed {
        PromptSpeed {
            name: name.to_string(),
            prompt_tokens: self.prompt_tokens,
            generated_tokens: self.generated,
            cached_tokens: self.cached,
            first_token_ms: Measured::of(self.first_ms),
            prefill_tok_s: Measured::of(self.prefill),
            decode_tok_s: Measured::of(self.decode),
            prefill: median_share(self.prefill_shares),
            decode: median_share(self.decode_shares),
            tokens_per_pass: median(&self.per_pass),
            notes: self.notes,
        }
    }
}

fn summary(options: &ServedOptions, prompts: Vec<PromptSpeed>, skipped: Vec<SkippedPrompt>, warm: bool) -> ServedSpeed {
    let mean = |figure: &dyn Fn(&PromptSpeed) -> Option<f64>| geometric_mean(prompts.iter().filter_map(figure));
    let shares = || prompts.iter().flat_map(|p| [&p.decode, &p.prefill]).flatten();
    let gravest = [ShareState::Invalid, ShareState::Unstable, ShareState::Valid]
        .into_iter()
        .find_map(|state| shares().find(|share| share.state == state));
    let overcount = prompts.iter().find_map(|p| {
        p.notes.iter().find(|note| note.starts_with(OVERCOUNT)).map(|note| format!("{}: {note}", p.name))
    });
    ServedSpeed {
        suite: SUITE_VERSION.into(),
        suite_digest: suite_digest().to_string(),
        sampling: options.sampling,
        decode_tok_s: mean(&|p| p.decode_tok_s.as_ref().map(|m| m.median)),
        prefill_tok_s: mean(&|p| p.prefill_tok_s.as_ref().map(|m| m.median)),
        decode_share: mean(&|p| p.decode.as_ref().map(|s| s.share)),
        prefill_share: mean(&|p| p.prefill.as_ref().map(|s| s.share)),
        state: overcount.as_ref().map(|_| ShareState::Invalid).or(gravest.map(|share| share.state)),
        reason: overcount.or(gravest.and_then(|share| share.reason.clone())),
        prompts,
        skipped,
        warm,
        beyond: None,
    }
}

fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let logs: Vec<f64> = values.map(f64::ln).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

/// One streamed answer as this process saw it.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) first_text_s: Option<f64>,
    pub(super) end_s: f64,
    prompt_tokens: u64,
    cached: u64,
    pub(super) generated: u64,
    text: String,
    events: u64,
    notes: Vec<String>,
}

impl Run {
    /// When the first token was there.
    fn first_token_s(&self, one_token_s: f64) -> f64 {
        match self.first_text_s {
            Some(seen) => super::first_token_s(seen, self.end_s, self.generated, one_token_s),
            None => one_token_s.min(self.end_s),
        }
    }
}

/// A client of the server measured.
pub(super) struct Client<'a> {
    address: Address,
    pub(super) options: &'a ServedOptions,
    pub(super) rng: Rng,
}

impl Client<'_> {
    fn run(&mut self, prompt: &Prompt, max_tokens: u32, context: &ServedContext<'_>) -> Result<Run, EvalError> {
        // A server that does not ignore end tokens may end at once now and then; another line in front leads elsewhere.
        for _ in 0..EMPTY_ANSWERS {
            let (content, mut run) = self.request(prompt, max_tokens)?;
            if run.events > 0 || run.generated > 0 {
                self.count(&mut run, &content, context)?;
                return Ok(run);
            }
        }
        let what = format!("{NOTHING} to `{}`, {EMPTY_ANSWERS} times", prompt.name);
        Err(EvalError::Http { address: self.address.authority.clone(), what })
    }

    /// Another client of the same server.
    pub(super) fn another(&mut self) -> Self {
        Self { address: self.address.clone(), options: self.options, rng: Rng::new(self.rng.next_u64()) }
    }

    /// Whether a prompt and its answer fit the context.
    pub(super) fn fits(&self, prompt: &Prompt, context: &ServedContext<'_>) -> bool {
        needed(prompt, self.options, context.count_tokens) <= u64::from(self.options.context)
    }

    /// Sends a prompt; what was sent, and the answer with its tokens not yet counted.
    pub(super) fn request(&mut self, prompt: &Prompt, max_tokens: u32) -> Result<(String, Run), EvalError> {
        let content = prompt.with_nonce(self.rng.next_u64());
        let mut body = json!({
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
            "stream": true,
            "stream_options": {"include_usage": true},
            "ignore_eos": true,
            // Servers read seeds as signed numbers.
            "seed": self.rng.next_u64() >> 1,
        });
        if self.options.sampling == ServedSampling::Greedy {
            body["temperature"] = json!(0);
        }
        if let Some(model) = &self.options.model {
            body["model"] = json!(model);
        }
        let (body, bearer) = (body.to_string(), self.options.bearer.as_deref());
        let start = Instant::now();
        let answer = self.address.send_as("POST", "/v1/chat/completions", Some(&body), self.options.timeout, bearer)?;
        let run = self.read(answer, start)?;
        Ok((content, run))
    }

    /// Settles how many tokens there were: the server's usage, checked where the tokenizer is known here; without usage,
    /// the tokenizer's count of the text.
    pub(super) fn count(&self, run: &mut Run, content: &str, context: &ServedContext<'_>) -> Result<(), EvalError> {
        let silent = run.generated == 0;
        if silent && !context.counts_are_exact {
            let what = "its stream says nothing of usage, so its tokens cannot be counted".into();
            return Err(EvalError::Http { address: self.address.authority.clone(), what });
        }
        if !context.counts_are_exact {
            return Ok(());
        }
        let counted = (context.count_tokens)(&run.text) as u64;
        if silent {
            run.generated = counted;
            run.prompt_tokens = (context.count_tokens)(content) as u64;
            run.notes.push("the server tells no usage: tokens are counted from its text".into());
        } else if run.generated as f64 > COUNT_SLACK * counted as f64 + 16.0 {
            run.notes.push(format!("{OVERCOUNT}: it claims {} tokens, its text has {counted}", run.generated));
        }
        Ok(())
    }

    fn read(&self, mut answer: Body, start: Instant) -> Result<Run, EvalError> {
        let broken = |what: String| EvalError::Http { address: self.address.authority.clone(), what };
        let (mut run, mut line) = (Run::default(), Vec::new());
        loop {
            let Some(event) = answer.next_event(&mut line)? else {
                return Err(broken("its stream ended without [DONE]".into()));
            };
            let now = start.elapsed().as_secs_f64();
            if event == "[DONE]" {
                break;
            }
            let event: Value =
                serde_json::from_str(&event).map_err(|error| broken(format!("streams what is not JSON: {error}")))?;
            if let Some(error) = event.get("error") {
                return Err(broken(format!("failed in mid-answer: {error}")));
            }
            run.event(&event, now);
        }
        Ok(run)
    }
}

impl Run {
    /// Takes an event.
    fn event(&mut self, event: &Value, now_s: f64) {
        let choice = &event["choices"][0];
        let delta = &choice["delta"];
        let before = self.text.len();
        for field in ["content", "reasoning_content", "reasoning"] {
            self.text.push_str(delta[field].as_str().unwrap_or(""));
        }
        let has_text = self.text.len() > before;
        if has_text {
            self.events += 1;
            self.first_text_s.get_or_insert(now_s);
        }
        if has_text || choice["finish_reason"].is_string() {
            self.end_s = now_s;
        }
        let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) else { return };
        let count = |value: &Value| value.as_u64().unwrap_or(0);
        self.prompt_tokens = count(&usage["prompt_tokens"]);
        self.generated = count(&usage["completion_tokens"]);
        self.cached = count(&usage["prompt_tokens_details"]["cached_tokens"]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::http::tests::serve;
    use super::*;
    use std::io::Write;
    use std::net::TcpStream;

    /// A server that takes 40 ms for a prompt and 5 ms a token, `per_event` tokens an event, the first `silent` tokens
    /// without text.
    fn server(per_event: u64, silent: u64) -> String {
        let address = serve(move |request, stream| {
            let body: Value = serde_json::from_str(request.lines().last().unwrap()).unwrap();
            let tokens = body["max_tokens"].as_u64().unwrap();
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
            stream.write_all(head.as_bytes()).unwrap();
            send(stream, &json!({"choices": [{"delta": {"role": "assistant"}}]}));
            std::thread::sleep(Duration::from_millis(40));
            for i in 0..tokens {
                if i > 0 {
                    std::thread::sleep(Duration::from_millis(5));
                }
                // As a server with an accepting drafter: tokens gather, the first comes alone.
                if i >= silent && (i % per_event == 0 || i + 1 == tokens) {
                    send(stream, &json!({"choices": [{"delta": {"content": "ab"}}]}));
                }
            }
            send(stream, &json!({"choices": [{"delta": {}, "finish_reason": "length"}]}));
            let usage = json!({"prompt_tokens": 100, "completion_tokens": tokens});
            send(stream, &json!({"choices": [], "usage": usage}));
            stream.write_all(b"data: [DONE]\n\n").unwrap();
        });
        address.authority
    }

    fn send(stream: &mut TcpStream, event: &Value) {
        stream.write_all(format!("data: {event}\n\n").as_bytes()).unwrap();
    }

    fn measured(address: &str) -> Result<ServedSpeed, EvalError> {
        let options = ServedOptions {
            generate_tokens: 20,
            prompts: Some(vec!["chat_question".into(), "agent_session".into()]),
            warm_up_limit: Duration::ZERO,
            ..ServedOptions::new(2_048, 1)
        };
        let mut context =
            ServedContext { count_tokens: &|text| text.len() / 4, counts_are_exact: false, stats: None, ceiling: None };
        measure(address, &options, &mut context, &|_| {})
    }

    #[test]
    fn one_figure_however_tokens_are_packed_into_events() {
        for (per_event, silent) in [(1, 0), (4, 0), (1, 7)] {
            let speed = measured(&server(per_event, silent)).unwrap();
            let decode = speed.decode_tok_s.unwrap();
            // 19 tokens of 5 ms or, on a busy machine, more: never above 200 tokens a second. The clock of a one-token
            // request differs by a few ms from that of a longer one, which 19 tokens feel as a few per cent.
            assert!((90.0..=215.0).contains(&decode), "{per_event} an event, {silent} silent: {decode}");
            let prefill = speed.prefill_tok_s.unwrap();
            assert!((1_200.0..=2_500.0).contains(&prefill), "{prefill}");
        }
    }

    #[test]
    fn a_prompt_longer_than_the_context_is_skipped_and_named() {
        let speed = measured(&server(1, 0)).unwrap();
        assert_eq!(speed.prompts.len(), 1);
        assert_eq!(speed.skipped[0].name, "agent_session");
        assert!(speed.skipped[0].why.contains("2048"));
    }

    /// A server that streams one word a token and tells `usage`, if any.
    fn teller(usage: impl Fn(u64) -> Option<u64> + Send + 'static) -> String {
        let address = serve(move |request, stream| {
            let body: Value = serde_json::from_str(request.lines().last().unwrap()).unwrap();
            let tokens = body["max_tokens"].as_u64().unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n").unwrap();
            for _ in 0..tokens {
                std::thread::sleep(Duration::from_millis(2));
                send(stream, &json!({"choices": [{"delta": {"content": "word "}}]}));
            }
            if let Some(told) = usage(tokens) {
                let usage = json!({"prompt_tokens": 100, "completion_tokens": told});
                send(stream, &json!({"choices": [], "usage": usage}));
            }
            stream.write_all(b"data: [DONE]\n\n").unwrap();
        });
        address.authority
    }

    fn told(address: &str, counts_are_exact: bool) -> Result<ServedSpeed, EvalError> {
        let options = ServedOptions {
            generate_tokens: 40,
            repeats: 1,
            prompts: Some(vec!["chat_question".into()]),
            warm_up_limit: Duration::ZERO,
            ..ServedOptions::new(2_048, 1)
        };
        let count = |text: &str| text.split_whitespace().count();
        let mut context = ServedContext { count_tokens: &count, counts_are_exact, stats: None, ceiling: None };
        measure(address, &options, &mut context, &|_| {})
    }

    #[test]
    fn a_server_without_usage_is_counted_with_the_models_tokenizer_or_not_at_all() {
        let speed = told(&teller(|_| None), true).unwrap();
        assert_eq!(speed.prompts[0].generated_tokens, [40]);
        assert!(speed.prompts[0].notes[0].contains("no usage"));
        assert!(told(&teller(|_| None), false).unwrap_err().to_string().contains("usage"));
    }

    #[test]
    fn an_empty_answer_now_and_then_is_asked_again_and_nothing_but_them_is_an_error() {
        let empty_first = |every: usize| {
            let asked = std::sync::atomic::AtomicUsize::new(0);
            serve(move |_, stream| {
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
                if asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % every == every - 1 {
                    std::thread::sleep(Duration::from_millis(3));
                    (0..4).for_each(|_| send(stream, &json!({"choices": [{"delta": {"content": "word "}}]})));
                }
                stream.write_all(b"data: [DONE]\n\n").unwrap();
            })
            .authority
        };
        assert_eq!(told(&empty_first(3), true).unwrap().prompts[0].generated_tokens, [4]);
        assert!(told(&empty_first(1_000), true).unwrap_err().to_string().contains("answered nothing"));
    }

    #[test]
    fn a_server_that_claims_more_tokens_than_its_text_has_is_invalid() {
        let honest = told(&teller(Some), true).unwrap();
        assert_eq!((honest.state, honest.prompts[0].notes.len()), (None, 0));
        let inflated = told(&teller(|tokens| Some(4 * tokens)), true).unwrap();
        assert_eq!(inflated.state, Some(ShareState::Invalid));
        assert!(inflated.reason.unwrap().contains("160"));
    }

    #[test]
    fn a_prompt_the_server_refuses_is_skipped_with_its_words() {
        let address = serve(|request, stream| {
            let answer = if request.len() > 4_000 { "HTTP/1.1 400 Bad Request\r\n\r\ncontext too long" } else { "" };
            stream.write_all(answer.as_bytes()).unwrap();
            if answer.is_empty() {
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
                send(stream, &json!({"choices": [{"delta": {"content": "a"}}]}));
                send(stream, &json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}));
                stream.write_all(b"data: [DONE]\n\n").unwrap();
            }
        });
        let options = ServedOptions {
            prompts: Some(vec!["chat_question".into(), "long_code".into()]),
            warm_up_limit: Duration::ZERO,
            ..ServedOptions::new(1 << 20, 1)
        };
        let mut context =
            ServedContext { count_tokens: &|text| text.len() / 4, counts_are_exact: false, stats: None, ceiling: None };
        let speed = measure(&address.authority, &options, &mut context, &|_| {}).unwrap();
        assert_eq!((speed.prompts.len(), speed.skipped.len()), (1, 1));
        assert!(speed.skipped[0].why.contains("context too long"));
    }

    #[test]
    fn a_stream_that_breaks_off_or_fails_is_an_error() {
        let cut = serve(|_, stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\ndata: {\"choices\":[]}\n\n").unwrap();
        });
        assert!(measured(&cut.authority).unwrap_err().to_string().contains("[DONE]"));
        let failing = serve(|_, stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\ndata: {\"error\":{\"message\":\"engine gone\"}}\n\n").unwrap();
        });
        assert!(measured(&failing.authority).unwrap_err().to_string().contains("engine gone"));
        assert!(measured("127.0.0.1:1").is_err());
    }
}
