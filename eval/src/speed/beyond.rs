//! Speed beyond the suite's mean, through the same server: other languages and code than the suite's, secret variants drawn
//! after the engine was fixed, decoding at full context, and many requests side by side.
//!
//! None of it enters the score; all of it is shown, so that an engine made for the six prompts is seen to be that.

use super::served::{Client, PromptSpeed, ServedContext, measure_prompt, measure_repeats};
use super::suite::Prompt;
use crate::Progress;
use crate::ceiling::Share;
use crate::error::EvalError;
use crate::quality::texts;
use crit_core::digest::Digest;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Longest time the prompt of the full context may take to read: past it the context is cut, and said so.
const LONGEST_READ_S: f64 = 60.0;
/// Tokens kept free beside prompt and answer: more than common templates add.
const SPARE: u64 = 96;

/// Prompts outside the suite, by name.
const OUTSIDE: [(&str, &str); 5] = [
    ("german", "Erkläre einem Kind in vier Sätzen, warum Schiffe aus Stahl schwimmen, und nenne ein Beispiel."),
    ("spanish", "Escribe una carta breve a un vecino para pedirle que baje la música después de las once de la noche."),
    ("chinese", "请用三句话说明为什么冬天白天比夏天短，并举一个生活中的例子。"),
    (
        "sql",
        "Write one SQL query: for each customer the month with the highest turnover, ties by the earlier month. Tables: \
         customer(id, name), invoice(id, customer_id, issued_on, total).",
    ),
    (
        "c_code",
        "static unsigned popcount(unsigned x) {\n    unsigned n = 0;\n    while (x) { x &= x - 1; n++; }\n    return n;\n}\n\n\
         Rewrite this function without a loop and say why it is right.",
    ),
];

/// How much to measure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BeyondOptions {
    /// Requests side by side, each number of them.
    pub widths: Vec<u32>,
    /// Whether to decode at full context.
    pub full_context: bool,
    /// Whether to run prompts outside the suite and secret variants.
    pub outside: bool,
}

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Beyond {
    /// Digest of the prompts outside the suite.
    pub outside_digest: String,
    /// Prompts outside the suite; the last two are secret variants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outside: Vec<PromptSpeed>,
    /// Decoding with the context full, or as full as could be read in a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_context: Option<DepthSpeed>,
    /// Requests side by side.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub widths: Vec<WidthSpeed>,
    /// What could not be measured, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Decode speed at a depth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DepthSpeed {
    /// Prompt tokens in front.
    pub depth: u64,
    /// Longest sequence the engine holds.
    pub context: u32,
    /// Tokens decoded a second.
    pub decode_tok_s: f64,
    /// Milliseconds to the first token.
    pub first_token_ms: f64,
    /// Beside its ceiling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<Share>,
}

/// Speed of requests side by side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct WidthSpeed {
    /// Requests at a time.
    pub width: u32,
    /// Tokens a second of all together.
    pub total_tok_s: f64,
    /// Of each.
    pub each_tok_s: f64,
    /// Milliseconds to the first token, the slowest of them.
    pub slowest_first_token_ms: f64,
}

/// Digest of the prompts outside the suite.
pub fn outside_digest() -> Digest {
    Digest::of_parts(OUTSIDE.iter().flat_map(|(name, text)| [name.as_bytes(), text.as_bytes()]))
}

/// Prompts outside the suite, and two secret ones like it.
pub fn outside(seed: u64) -> Vec<Prompt> {
    let known = OUTSIDE.iter().map(|(name, text)| Prompt { name, content: (*text).into() });
    let secret = [("secret_short", 400), ("secret_long", 4_000)].map(|(name, bytes)| Prompt {
        name,
        content: format!("{}\nGo on in the same manner.", texts::secret(seed ^ bytes as u64, bytes)),
    });
    known.chain(secret).collect()
}

/// Measures what `wanted` asks for.
///
/// # Errors
/// The server fails.
pub(super) fn measure(
    client: &mut Client<'_>,
    wanted: &BeyondOptions,
    prefill_tok_s: Option<f64>,
    context: &mut ServedContext<'_>,
    progress: Progress<'_>,
) -> Result<Beyond, EvalError> {
    let mut found = Beyond { outside_digest: outside_digest().to_string(), ..Beyond::default() };
    if wanted.outside {
        for prompt in outside(client.options.seed) {
            if client.fits(&prompt, context) {
                found.outside.push(measure_prompt(client, &prompt, context, progress)?);
            } else {
                found.notes.push(format!("{} does not fit the context", prompt.name));
            }
        }
    }
    for width in &wanted.widths {
        progress(&format!("speed: {width} requests side by side"));
        found.widths.push(side_by_side(client, *width, context)?);
    }
    if wanted.full_context {
        match full_context(client, prefill_tok_s, context, progress)? {
            Some(depth) => found.full_context = Some(depth),
            None => found.notes.push("the context is too short to decode at depth".into()),
        }
    }
    Ok(found)
}

fn side_by_side(client: &mut Client<'_>, width: u32, context: &ServedContext<'_>) -> Result<WidthSpeed, EvalError> {
    let tokens = client.options.generate_tokens;
    let prompts: Vec<Prompt> = (0..width)
        .map(|i| Prompt { name: "side_by_side", content: texts::secret(client.rng.next_u64() ^ u64::from(i), 200) })
        .collect();
    let mut clients: Vec<Client<'_>> = (0..width).map(|_| client.another()).collect();
    let begun = Instant::now();
    let runs = std::thread::scope(|scope| {
        let running: Vec<_> = clients
            .iter_mut()
            .zip(&prompts)
            .map(|(client, prompt)| {
                scope.spawn(move || {
                    let sent_s = begun.elapsed().as_secs_f64();
                    client.request(prompt, tokens).map(|run| (sent_s, run))
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(broken()))).collect::<Result<Vec<_>, _>>()
    })?;
    let mut done = Vec::new();
    for (sent_s, (content, mut run)) in runs {
        client.count(&mut run, &content, context)?;
        let first_s = run.first_text_s.unwrap_or(run.end_s);
        done.push((sent_s + first_s, sent_s + run.end_s, run.generated, first_s));
    }
    let first_s = done.iter().map(|run| run.0).fold(f64::INFINITY, f64::min);
    let end_s = done.iter().map(|run| run.1).fold(0.0, f64::max);
    let total: u64 = done.iter().map(|run| run.2.saturating_sub(1)).sum();
    let total_tok_s = total as f64 / (end_s - first_s).max(1e-9);
    Ok(WidthSpeed {
        width,
        total_tok_s,
        each_tok_s: total_tok_s / f64::from(width),
        slowest_first_token_ms: done.iter().map(|run| run.3).fold(0.0, f64::max) * 1e3,
    })
}

fn broken() -> EvalError {
    EvalError::Machine { what: "a request's thread ended by itself".into(), hint: "measure again".into() }
}

fn full_context(
    client: &mut Client<'_>,
    prefill_tok_s: Option<f64>,
    context: &mut ServedContext<'_>,
    progress: Progress<'_>,
) -> Result<Option<DepthSpeed>, EvalError> {
    let room = u64::from(client.options.context).saturating_sub(u64::from(client.options.generate_tokens) + SPARE);
    let readable = prefill_tok_s.map_or(room, |speed| (speed * LONGEST_READ_S) as u64);
    let wanted = room.min(readable);
    let sample = texts::secret(client.options.seed, 4_096);
    let per_byte = (context.count_tokens)(&sample) as f64 / sample.len() as f64;
    let mut bytes = (wanted as f64 / per_byte.max(0.01)) as usize;
    let content = loop {
        let content = texts::secret(client.options.seed ^ 77, bytes);
        if (context.count_tokens)(&content) as u64 <= wanted {
            break content;
        }
        bytes = bytes * 9 / 10;
        if bytes < 256 {
            return Ok(None);
        }
    };
    progress(&format!("speed: decoding behind about {wanted} tokens"));
    // Once: a long prompt takes long, and a depth's figure is no score.
    let prompt = Prompt { name: "full_context", content };
    let measured = measure_repeats(client, &prompt, 1, context, progress)?;
    let (Some(decode), Some(first)) = (measured.decode_tok_s, measured.first_token_ms) else { return Ok(None) };
    Ok(Some(DepthSpeed {
        depth: measured.prompt_tokens,
        context: client.options.context,
        decode_tok_s: decode.median,
        first_token_ms: first.median,
        decode: measured.decode,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_outside_are_the_published_ones_and_the_secret_ones_change() {
        // A changed prompt is another set: raise the suite's version together with this digest.
        assert_eq!(outside_digest().to_string(), "469831de844306ed376ffe604e0d67debb3d0e427c11aa26604ea428e2582e87");
        let (a, b) = (outside(1), outside(2));
        assert_eq!(a.len(), OUTSIDE.len() + 2);
        assert_eq!(a[0], b[0]);
        assert!(a[5] != b[5] && a[6] != b[6]);
    }
}
