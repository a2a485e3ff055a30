//! A tokenizer from the metadata of a GGUF file.
//!
//! Two kinds of vocabulary are read: byte-level pairs with their merges in order (`gpt2`), and SentencePiece pairs
//! (`llama`), where the score of the merged token decides. The second becomes a list of merges too: every pair of tokens
//! that makes a token, the best score first.

use super::error::TextError;
use super::pretokenizers::{self, WAYS};
use crate::files::{FileError, Metadata};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokenizers::models::bpe::BPE;
use tokenizers::{AddedToken, Tokenizer};

/// What the numbers in `token_type` mean.
mod token_type {
    pub(super) const UNKNOWN: i64 = 2;
    pub(super) const CONTROL: i64 = 3;
    pub(super) const USER_DEFINED: i64 = 4;
    pub(super) const BYTE: i64 = 6;
}

/// The vocabulary as the file has it.
struct Vocabulary<'a> {
    metadata: &'a Metadata,
    tokens: Vec<String>,
    types: Vec<i64>,
    ids: HashMap<String, u32>,
}

/// The tokenizer that `metadata` describe.
pub(super) fn tokenizer(metadata: &Metadata) -> Result<Tokenizer, TextError> {
    let vocabulary = Vocabulary::read(metadata)?;
    match metadata.str("tokenizer.ggml.model") {
        Some("gpt2") => byte_level(&vocabulary),
        Some("llama") => sentencepiece(&vocabulary),
        other => {
            let what = format!("vocabulary kind `{}`; supported: gpt2 llama", other.unwrap_or("unnamed"));
            Err(vocabulary.fault(what))
        }
    }
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self, TextError> {
        let tokens = metadata.strings("tokenizer.ggml.tokens")?;
        let tokens = tokens.ok_or_else(|| TextError::NoTokenizer { path: metadata.path().into() })?;
        let types = metadata.numbers("tokenizer.ggml.token_type")?;
        let types = types.map_or_else(|| vec![1; tokens.len()], |types| types.iter().map(|t| *t as i64).collect());
        if types.len() != tokens.len() {
            let what = format!("has {} entries for {} tokens", types.len(), tokens.len());
            return Err(metadata.fault("tokenizer.ggml.token_type", &what).into());
        }
        if u32::try_from(tokens.len()).is_err() {
            return Err(metadata.fault("tokenizer.ggml.tokens", "is longer than ids reach").into());
        }
        // A token without text can never be met; its place is kept under a name of its own.
        let named = |(i, text): (usize, &&str)| if text.is_empty() { format!("[EMPTY {i}]") } else { text.to_string() };
        let tokens: Vec<String> = tokens.iter().enumerate().map(named).collect();
        let mut ids = HashMap::with_capacity(tokens.len());
        for (id, token) in tokens.iter().enumerate() {
            ids.entry(token.clone()).or_insert(id as u32);
        }
        Ok(Self { metadata, tokens, types, ids })
    }

    fn fault(&self, what: String) -> TextError {
        TextError::Tokenizer { path: self.metadata.path().into(), what }
    }

    fn id(&self, name: &str) -> Option<u32> {
        self.metadata.id(&format!("tokenizer.ggml.{name}_token_id")).filter(|id| (*id as usize) < self.tokens.len())
    }

    fn flag(&self, name: &str) -> Option<bool> {
        self.metadata.bool(&format!("tokenizer.ggml.{name}"))
    }

    /// Builds the tokenizer from a model and the rest as tokenizer.json would describe it.
    fn assemble(&self, model: BPE, parts: Parts) -> Result<Tokenizer, TextError> {
        let mut tokenizer = Tokenizer::new(model);
        let fault = |what: &dyn std::fmt::Display| self.fault(what.to_string());
        let normalizer: Option<tokenizers::NormalizerWrapper> = part(parts.normalizer).map_err(|e| fault(&e))?;
        tokenizer.with_normalizer(normalizer).map_err(|e| fault(&e))?;
        let pre: Option<tokenizers::PreTokenizerWrapper> = part(parts.pre_tokenizer).map_err(|e| fault(&e))?;
        tokenizer.with_pre_tokenizer(pre);
        let decoder: Option<tokenizers::DecoderWrapper> = part(parts.decoder).map_err(|e| fault(&e))?;
        tokenizer.with_decoder(decoder);
        let post: Option<tokenizers::PostProcessorWrapper> =
            part(self.surroundings(parts.bos, parts.eos)).map_err(|e| fault(&e))?;
        tokenizer.with_post_processor(post);
        let added = self.tokens.iter().zip(&self.types).filter_map(|(text, kind)| {
            let special = match *kind {
                token_type::UNKNOWN | token_type::CONTROL => true,
                token_type::USER_DEFINED => false,
                _ => return None,
            };
            Some(AddedToken::from(text.clone(), special).normalized(false))
        });
        tokenizer.add_tokens(added).map_err(|e| fault(&e))?;
        Ok(tokenizer)
    }

    /// A post-processor that puts these tokens around a text.
    fn surroundings(&self, bos: Option<u32>, eos: Option<u32>) -> Option<Value> {
        let text = |id: u32| &self.tokens[id as usize];
        let piece = |id: u32| json!({"SpecialToken": {"id": text(id), "type_id": 0}});
        let sequence = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
        let around = |inner: &[&str]| -> Vec<Value> {
            let inner = inner.iter().map(|name| sequence(name));
            bos.map(piece).into_iter().chain(inner).chain(eos.map(piece)).collect()
        };
        let special: serde_json::Map<String, Value> = [bos, eos]
            .into_iter()
            .flatten()
            .map(|id| (text(id).clone(), json!({"id": text(id), "ids": [id], "tokens": [text(id)]})))
            .collect();
        (!special.is_empty()).then(|| {
            let (single, pair) = (around(&["A"]), around(&["A", "B"]));
            json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special})
        })
    }

    /// Merges as pairs of texts, each checked to make a token out of tokens.
    fn stated_merges(&self) -> Result<Vec<(String, String)>, TextError> {
        let key = "tokenizer.ggml.merges";
        let merges = self.metadata.strings(key)?;
        let merges = merges.ok_or_else(|| TextError::File(self.metadata.fault(key, "is missing")))?;
        let fault = |merge: &str| -> FileError {
            self.metadata.fault(key, &format!("has `{merge}`, which does not make a token out of two"))
        };
        let mut out = Vec::with_capacity(merges.len());
        for merge in merges {
            // The first token may itself begin with a space.
            let start = merge.chars().next().map_or(0, char::len_utf8);
            let (left, right) = merge[start..]
                .find(' ')
                .map(|at| (&merge[..start + at], &merge[start + at + 1..]))
                .ok_or_else(|| fault(merge))?;
            let known = [left, right, &format!("{left}{right}")].iter().all(|text| self.ids.contains_key(*text));
            if !known {
                return Err(fault(merge).into());
            }
            out.push((left.to_string(), right.to_string()));
        }
        Ok(out)
    }

    /// Every pair of tokens that makes a token, the merged token's best score first.
    fn scored_merges(&self) -> Result<Vec<(String, String)>, TextError> {
        let key = "tokenizer.ggml.scores";
        let scores = self.metadata.numbers(key)?;
        let scores = scores.ok_or_else(|| TextError::File(self.metadata.fault(key, "is missing")))?;
        if scores.len() != self.tokens.len() {
            let what = format!("has {} entries for {} tokens", scores.len(), self.tokens.len());
            return Err(self.metadata.fault(key, &what).into());
        }
        let mut merges = Vec::new();
        for (i, token) in self.tokens.iter().enumerate() {
            let is_text = !matches!(self.types[i], token_type::UNKNOWN | token_type::CONTROL | token_type::BYTE);
            if !is_text || self.ids.get(token) != Some(&(i as u32)) {
                continue;
            }
            for (at, _) in token.char_indices().skip(1) {
                let (left, right) = token.split_at(at);
                if let (Some(a), Some(b)) = (self.ids.get(left), self.ids.get(right)) {
                    merges.push((scores[i], *a, *b, left, right));
                }
            }
        }
        merges.sort_by(|x, y| y.0.total_cmp(&x.0).then((x.1, x.2).cmp(&(y.1, y.2))));
        Ok(merges.into_iter().map(|(.., left, right)| (left.to_string(), right.to_string())).collect())
    }

    fn model(&self, merges: Vec<(String, String)>, set: impl FnOnce(Builder) -> Builder) -> Result<BPE, TextError> {
        let ids = self.ids.clone().into_iter().collect::<Ids>();
        let builder = set(BPE::builder().vocab_and_merges(ids, merges));
        let built = catch_unwind(AssertUnwindSafe(|| builder.build()));
        let built = built.map_err(|_| self.fault("its merges do not fit its vocabulary".into()))?;
        built.map_err(|error| self.fault(error.to_string()))
    }
}

type Builder = tokenizers::models::bpe::BpeBuilder;
type Ids = tokenizers::models::bpe::Vocab;

/// The parts around the model, as tokenizer.json describes them, and the tokens around a text.
#[derive(Default)]
struct Parts {
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    decoder: Option<Value>,
    bos: Option<u32>,
    eos: Option<u32>,
}

fn part<T: serde::de::DeserializeOwned>(value: Option<Value>) -> Result<Option<T>, serde_json::Error> {
    value.map(serde_json::from_value).transpose()
}

fn byte_level(vocabulary: &Vocabulary<'_>) -> Result<Tokenizer, TextError> {
    let name = vocabulary.metadata.str("tokenizer.ggml.pre").unwrap_or("unnamed");
    let way = pretokenizers::find(name).ok_or_else(|| {
        let supported: Vec<_> = WAYS.iter().flat_map(|way| way.names).copied().collect();
        vocabulary.fault(format!("pre-tokenizer `{name}` is not known; supported: {}", supported.join(" ")))
    })?;
    let split = |pattern: &&str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let bytes =
        |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
    let steps: Vec<Value> = way.splits.iter().map(split).chain([bytes(way.then_gpt2)]).collect();
    let model = vocabulary.model(vocabulary.stated_merges()?, |builder| builder.ignore_merges(way.whole_words))?;
    let parts = Parts {
        normalizer: way.composes.then(|| json!({"type": "NFC"})),
        pre_tokenizer: Some(json!({"type": "Sequence", "pretokenizers": steps})),
        decoder: Some(bytes(true)),
        bos: vocabulary.id("bos").filter(|_| vocabulary.flag("add_bos_token").unwrap_or(way.adds_bos)),
        eos: vocabulary.id("eos").filter(|_| vocabulary.flag("add_eos_token").unwrap_or(false)),
    };
    vocabulary.assemble(model, parts)
}

fn sentencepiece(vocabulary: &Vocabulary<'_>) -> Result<Tokenizer, TextError> {
    let prefix = vocabulary.flag("add_space_prefix").unwrap_or(true);
    let id = |name, default: u32| {
        vocabulary.id(name).or(Some(default).filter(|id| (*id as usize) < vocabulary.tokens.len()))
    };
    let unknown = id("unknown", 0).map(|id| vocabulary.tokens[id as usize].clone());
    let model = vocabulary.model(vocabulary.scored_merges()?, |builder| {
        let builder = builder.byte_fallback(true).fuse_unk(true);
        match unknown {
            Some(token) => builder.unk_token(token),
            None => builder,
        }
    })?;
    let escape = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let unescape = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let mut decoders = vec![unescape, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    let mut normalizers = vec![escape];
    if prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let parts = Parts {
        normalizer: Some(json!({"type": "Sequence", "normalizers": normalizers})),
        pre_tokenizer: None,
        decoder: Some(json!({"type": "Sequence", "decoders": decoders})),
        bos: id("bos", 1).filter(|_| vocabulary.flag("add_bos_token").unwrap_or(true)),
        eos: id("eos", 2).filter(|_| vocabulary.flag("add_eos_token").unwrap_or(false)),
    };
    vocabulary.assemble(model, parts)
}
