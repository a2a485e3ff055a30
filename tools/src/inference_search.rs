//! `inference_search`: find strategies of the catalogue by words, slot and backend.

use crate::catalog::{self, Document};
use crate::context::Context;
use crate::error::ToolError;
use crate::next::Next;
use crate::tool::{Effect, Runs, Tool};
use crit_core::error::ErrorKind;
use serde::{Deserialize, Serialize};
use tantivy::collector::TopDocs;
use tantivy::query::{AllQuery, BooleanQuery, BoostQuery, Occur, Query, TermQuery};
use tantivy::schema::{Field, INDEXED, IndexRecordOption, STORED, Schema, TextFieldIndexing, TextOptions};
use tantivy::schema::{TantivyDocument, Value as _};
use tantivy::tokenizer::{LowerCaser, RemoveLongFilter, SimpleTokenizer, Stemmer, TextAnalyzer, TokenStream as _};
use tantivy::{Index, Term};

/// Entries of an answer when the call does not say.
const DEFAULT_LIMIT: usize = 5;
/// Most entries of an answer.
const MAX_LIMIT: usize = 20;
/// Most characters of a README in an answer; the sum stays within what clients show.
const NOTES_CHARS: usize = 3000;
/// Memory of the index writer: tantivy's least.
const WRITER_BYTES: usize = 15_000_000;
/// Name of the analyzer.
const WORDS: &str = "words";

/// The tool.
pub struct InferenceSearch;

/// Arguments.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Words to search for: a technique, a bottleneck, a workload. Empty lists all.
    #[serde(default)]
    pub query: String,
    /// Only entries for this slot: `kv_cache`, `prefix_cache`, `drafter`, `op`.
    #[serde(default)]
    pub slot: Option<String>,
    /// Only entries with code for this backend: `cpu`, `cuda`.
    #[serde(default)]
    pub backend: Option<String>,
    /// Show this entry in full, with its notes.
    #[serde(default)]
    pub entry: Option<String>,
    /// Most entries to answer with, at most 20.
    #[serde(default)]
    pub limit: Option<u32>,
}

/// Answer.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Output {
    /// Entries that match, best first.
    pub entries: Vec<Hit>,
    /// Entries there are in all.
    pub catalogue_size: u32,
    /// The notes of the entry asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
    /// What to do next.
    pub next: Next,
}

/// An entry that matches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Hit {
    /// Name, as in engine.json.
    pub name: String,
    /// Title.
    pub title: String,
    /// The idea in one sentence.
    pub summary: String,
    /// The slot it fills.
    pub slot: String,
    /// Backends it has code for.
    pub backends: Vec<String>,
    /// Where it helps.
    pub wins: String,
    /// Where it harms.
    pub hurts: String,
    /// How much to expect.
    pub expected_gain: String,
    /// Options for engine.json, each as `name: what it does (values, default)`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// How well it matches, among the entries of this answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f32>,
}

impl Tool for InferenceSearch {
    const NAME: &'static str = "inference_search";
    const TITLE: &'static str = "Search inference strategies";
    const DESCRIPTION: &'static str = "Search the catalogue of LLM inference optimization strategies (speculative \
        decoding, KV cache quantization, prefix cache, fused kernels) that can be plugged into an engine. Each entry \
        says where it wins, where it hurts and what to expect; name one as `entry` for its full notes and options.";
    const EFFECT: Effect = Effect::Reads;
    const RUNS: Runs = Runs::Inline;
    type Params = Params;
    type Output = Output;

    fn run(_: &Context, params: Params) -> Result<Output, ToolError> {
        let documents = catalog::documents()?;
        answer(&documents, &params)
    }
}

fn answer(documents: &[Document], params: &Params) -> Result<Output, ToolError> {
    let size = u32::try_from(documents.len()).unwrap_or(u32::MAX);
    if let Some(name) = &params.entry {
        let document = catalog::find(documents, name)?;
        let arguments = serde_json::json!([{"name": document.name}]);
        return Ok(Output {
            entries: vec![hit(document, None)],
            catalogue_size: size,
            notes: Some(crate::text::clean_lines(&document.readme, NOTES_CHARS)),
            next: Next::call("plan").with("plugins", arguments),
        });
    }
    known("slot", params.slot.as_deref(), documents.iter().map(|d| d.slot.as_str()))?;
    known("backend", params.backend.as_deref(), documents.iter().flat_map(|d| d.backends.iter().map(String::as_str)))?;
    let chosen: Vec<&Document> = documents
        .iter()
        .filter(|d| params.slot.as_ref().is_none_or(|slot| *slot == d.slot))
        .filter(|d| params.backend.as_ref().is_none_or(|backend| d.backends.contains(backend)))
        .collect();
    let limit = params.limit.map_or(DEFAULT_LIMIT, |limit| limit as usize).clamp(1, MAX_LIMIT);
    let entries = search(&chosen, &params.query, limit)
        .map_err(|error| ToolError::new(ErrorKind::Internal, format!("the index of the catalogue failed: {error}")))?;
    let next = match entries.first() {
        Some(best) => Next::call("inference_search").with("entry", best.name.clone()),
        None => Next::call("inference_search"),
    };
    Ok(Output { entries, catalogue_size: size, notes: None, next })
}

/// Refuses a filter value that no entry has.
fn known<'a>(what: &str, given: Option<&str>, values: impl Iterator<Item = &'a str>) -> Result<(), ToolError> {
    let values: std::collections::BTreeSet<&str> = values.collect();
    match given {
        Some(given) if !values.contains(given) => {
            let all: Vec<&str> = values.into_iter().collect();
            Err(ToolError::new(ErrorKind::Usage, format!("no entry has the {what} `{given}`"))
                .with_hint(format!("values of `{what}`: {}", all.join(", "))))
        }
        _ => Ok(()),
    }
}

fn hit(document: &Document, score: Option<f32>) -> Hit {
    Hit {
        name: document.name.clone(),
        title: document.title.clone(),
        summary: document.summary.clone(),
        slot: document.slot.clone(),
        backends: document.backends.clone(),
        wins: document.wins.clone(),
        hurts: document.hurts.clone(),
        expected_gain: document.expected_gain.clone(),
        options: document.options.clone(),
        score,
    }
}

struct Fields {
    place: Field,
    name: Field,
    summary: Field,
    notes: Field,
}

/// The documents that match any word of `query`, best first; all of them for an empty one.
fn search(documents: &[&Document], query: &str, limit: usize) -> tantivy::Result<Vec<Hit>> {
    let (index, fields) = index(documents)?;
    let searcher = index.reader()?.searcher();
    let words = words(&index, query);
    if words.is_empty() {
        return Ok(documents.iter().take(limit).map(|document| hit(document, None)).collect());
    }
    let found = searcher.search(&query_of(&words, &fields), &TopDocs::with_limit(limit).order_by_score())?;
    let mut hits = Vec::new();
    for (score, address) in found {
        let stored: TantivyDocument = searcher.doc(address)?;
        let place = stored.get_first(fields.place).and_then(|place| place.as_u64()).unwrap_or_default();
        hits.extend(documents.get(place as usize).map(|document| hit(document, Some(score))));
    }
    Ok(hits)
}

fn index(documents: &[&Document]) -> tantivy::Result<(Index, Fields)> {
    let mut schema = Schema::builder();
    let indexing = TextFieldIndexing::default().set_tokenizer(WORDS).set_index_option(IndexRecordOption::WithFreqs);
    let text = TextOptions::default().set_indexing_options(indexing);
    let fields = Fields {
        place: schema.add_u64_field("place", INDEXED | STORED),
        name: schema.add_text_field("name", text.clone()),
        summary: schema.add_text_field("summary", text.clone()),
        notes: schema.add_text_field("notes", text),
    };
    let index = Index::create_in_ram(schema.build());
    let analyzer = TextAnalyzer::builder(SimpleTokenizer::default())
        .filter(RemoveLongFilter::limit(40))
        .filter(LowerCaser)
        .filter(Stemmer::default())
        .build();
    index.tokenizers().register(WORDS, analyzer);
    let mut writer = index.writer_with_num_threads(1, WRITER_BYTES)?;
    for (place, document) in documents.iter().enumerate() {
        let mut stored = TantivyDocument::new();
        stored.add_u64(fields.place, place as u64);
        stored.add_text(fields.name, format!("{} {} {}", document.name, document.title, document.tags.join(" ")));
        stored.add_text(fields.summary, format!("{} {} {}", document.summary, document.applies_to, document.wins));
        stored.add_text(fields.notes, &document.readme);
        writer.add_document(stored)?;
    }
    writer.commit()?;
    Ok((index, fields))
}

/// The words of `query` as the index has them.
fn words(index: &Index, query: &str) -> Vec<String> {
    let Some(mut analyzer) = index.tokenizers().get(WORDS) else { return Vec::new() };
    let mut stream = analyzer.token_stream(query);
    let mut words = Vec::new();
    while stream.advance() {
        words.push(stream.token().text.clone());
    }
    words
}

/// Any of `words`; in a name it counts most, in the notes least.
fn query_of(words: &[String], fields: &Fields) -> Box<dyn Query> {
    if words.is_empty() {
        return Box::new(AllQuery);
    }
    let mut parts: Vec<(Occur, Box<dyn Query>)> = Vec::new();
    for word in words {
        for (field, weight) in [(fields.name, 4.0), (fields.summary, 2.0), (fields.notes, 1.0)] {
            let term = TermQuery::new(Term::from_field_text(field, word), IndexRecordOption::WithFreqs);
            parts.push((Occur::Should, Box::new(BoostQuery::new(Box::new(term), weight))));
        }
    }
    Box::new(BooleanQuery::new(parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(name: &str, slot: &str, title: &str, wins: &str, readme: &str) -> Document {
        Document {
            name: name.into(),
            title: title.into(),
            slot: slot.into(),
            wins: wins.into(),
            readme: readme.into(),
            backends: vec!["cpu".into()],
            ..Document::default()
        }
    }

    fn shelf() -> Vec<Document> {
        vec![
            document("ngram_drafter", "drafter", "Prompt lookup", "edits, code", "speculative decoding by copying"),
            document("kv_q8", "kv_cache", "8-bit KV cache", "long contexts", "quantized keys and values"),
            document("prefix_cache", "prefix_cache", "Radix tree", "agents, chats", "reuses cached blocks"),
        ]
    }

    fn names(params: Params) -> Vec<String> {
        answer(&shelf(), &params).expect("it answers").entries.into_iter().map(|hit| hit.name).collect()
    }

    #[test]
    fn words_find_entries_in_any_form_and_filters_narrow() {
        let query = |text: &str| Params { query: text.into(), ..Params::default() };
        assert_eq!(names(query("speculate decode"))[0], "ngram_drafter");
        assert_eq!(names(query("quantizing the KV"))[0], "kv_q8");
        assert_eq!(names(query("agent sessions")), ["prefix_cache"]);
        assert_eq!(names(query("")).len(), 3);
        assert_eq!(names(query("+-: AND ( \"")), names(query("and")), "words are words, never operators");
        assert_eq!(names(Params { slot: Some("kv_cache".into()), ..Params::default() }), ["kv_q8"]);
        assert_eq!(names(Params { limit: Some(1), ..Params::default() }).len(), 1);
    }

    #[test]
    fn unknown_filters_and_entries_name_the_known() {
        let refuse = |params: Params| answer(&shelf(), &params).expect_err("refused").hint.expect("a hint");
        assert!(refuse(Params { slot: Some("kv".into()), ..Params::default() }).contains("kv_cache"));
        assert!(refuse(Params { entry: Some("kv_q4".into()), ..Params::default() }).contains("kv_q8"));
    }
}
