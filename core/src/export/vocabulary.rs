//! Vocabularies: of tokenizer.json as GGUF metadata, and made up for models without one.

use super::error::ExportError;
use super::gguf::Pair;
use crate::files::{Checkpoint, FileError, token_text};
use crate::json::{self, Config, Limits};
use crate::text::pre_tokenizer_name;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};

/// Largest tokenizer.json that is read: those of 262,144 tokens have 33 MB.
const MAX_TOKENIZER_BYTES: u64 = 256 << 20;

/// What the numbers in `token_type` mean.
mod kind {
    pub(super) const NORMAL: i32 = 1;
    pub(super) const UNKNOWN: i32 = 2;
    pub(super) const CONTROL: i32 = 3;
    pub(super) const USER_DEFINED: i32 = 4;
    pub(super) const UNUSED: i32 = 5;
    pub(super) const BYTE: i32 = 6;
}

/// Score of tokens that no merge makes.
const NO_SCORE: f32 = -1e9;

/// Metadata for the tokenizer and the template of `checkpoint`, whose embedding has `rows` rows; none if it has neither
/// tokenizer.json nor metadata.
pub(super) fn pairs(checkpoint: &Checkpoint, rows: usize) -> Result<Vec<(String, Pair)>, ExportError> {
    let Some(path) = checkpoint.tokenizer_json() else {
        return Err(ExportError::unsupported(
            format!("{} has no tokenizer.json, and a GGUF file needs a vocabulary", checkpoint.path().display()),
            "put the tokenizer.json that belongs to the model beside its weights",
        ));
    };
    let origin = path.display().to_string();
    let bytes = json::read_bounded(path, MAX_TOKENIZER_BYTES)?;
    let limits = Limits { max_bytes: MAX_TOKENIZER_BYTES, ..Limits::default() };
    let tokenizer = json::parse_within(&bytes, &origin, limits)?;
    let damaged = |what: &str| ExportError::File(FileError::Damaged { path: path.into(), what: what.into() });
    let model = &tokenizer["model"];
    if model["type"] != "BPE" {
        return Err(ExportError::unsupported(
            format!("{origin}: a vocabulary of kind {} cannot be written as GGUF", model["type"]),
            "write safetensors instead",
        ));
    }
    let mut tokens = Tokens::read(&tokenizer, rows).ok_or_else(|| damaged("its vocabulary is not as BPE's are"))?;
    let merges = merges(model).ok_or_else(|| damaged("its merges are not pairs of tokens"))?;
    let mut out: Vec<(String, Pair)> = Vec::new();
    let mut set = |key: &str, value: Pair| out.push((format!("tokenizer.{key}"), value));
    if mentions(&tokenizer["pre_tokenizer"], "ByteLevel") {
        set("ggml.model", "gpt2".into());
        set("ggml.pre", pre_tokenizer_name(&tokenizer).map_err(|what| unknown_way(&origin, &what))?.into());
    } else {
        tokens.score(&merges);
        set("ggml.model", "llama".into());
        set("ggml.pre", "default".into());
        set("ggml.scores", Pair::F32s(std::mem::take(&mut tokens.scores)));
        set("ggml.add_space_prefix", Pair::Bool(mentions(&tokenizer["normalizer"], "Prepend")));
    }
    let config = checkpoint.tokenizer_config();
    let id = |key: &str| config.and_then(|config| token_text(config, key)).and_then(|text| tokens.id(&text));
    let is_end = |id: &u32| (*id as usize) < rows;
    let first = id("eos_token").or_else(|| checkpoint.eos_ids().iter().copied().find(is_end));
    let other = checkpoint.eos_ids().iter().copied().filter(is_end).find(|id| Some(*id) != first);
    for (key, id) in [
        ("bos", checkpoint.bos_id().filter(is_end)),
        ("eos", first),
        ("eot", other),
        ("padding", id("pad_token")),
        ("unknown", id("unk_token").or_else(|| tokens.id(model["unk_token"].as_str()?))),
    ] {
        if let Some(id) = id {
            set(&format!("ggml.{key}_token_id"), Pair::U32(id));
        }
    }
    let (adds_bos, adds_eos) = around(&tokenizer, config)?;
    set("ggml.add_bos_token", Pair::Bool(adds_bos));
    set("ggml.add_eos_token", Pair::Bool(adds_eos));
    if let Some(template) = template(checkpoint)? {
        set("chat_template", Pair::Str(template));
    }
    set("ggml.tokens", Pair::Strs(tokens.texts));
    set("ggml.token_type", Pair::I32s(tokens.kinds));
    set("ggml.merges", Pair::Strs(merges.into_iter().map(|(a, b)| format!("{a} {b}")).collect()));
    Ok(out)
}

fn unknown_way(origin: &str, what: &str) -> ExportError {
    ExportError::unsupported(
        format!("{origin}: it cuts text in a way that GGUF has no name for: {what}"),
        "write safetensors instead",
    )
}

struct Tokens {
    texts: Vec<String>,
    kinds: Vec<i32>,
    scores: Vec<f32>,
    ids: HashMap<String, u32>,
}

impl Tokens {
    /// The tokens by id, ids without one filled, as many as the embedding has rows.
    fn read(tokenizer: &Value, rows: usize) -> Option<Self> {
        let mut out = Self {
            texts: (0..rows).map(|i| format!("[PAD{i}]")).collect(),
            kinds: vec![kind::UNUSED; rows],
            scores: Vec::new(),
            ids: HashMap::new(),
        };
        let is_byte = |text: &str| text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
        let fallback = tokenizer["model"]["byte_fallback"] == true;
        for (text, id) in tokenizer["model"]["vocab"].as_object()? {
            let kind = if fallback && is_byte(text) { kind::BYTE } else { kind::NORMAL };
            out.put(usize::try_from(id.as_u64()?).ok()?, text, kind)?;
        }
        for token in tokenizer["added_tokens"].as_array().into_iter().flatten() {
            let (id, text) = (usize::try_from(token["id"].as_u64()?).ok()?, token["content"].as_str()?);
            let is_unknown = tokenizer["model"]["unk_token"] == text;
            let kind = match (is_unknown, token["special"] == true) {
                (true, _) => kind::UNKNOWN,
                (false, true) => kind::CONTROL,
                (false, false) => kind::USER_DEFINED,
            };
            out.put(id, text, kind)?;
        }
        Some(out)
    }

    fn put(&mut self, id: usize, text: &str, kind: i32) -> Option<()> {
        *self.texts.get_mut(id)? = text.into();
        self.kinds[id] = kind;
        self.ids.insert(text.into(), u32::try_from(id).ok()?);
        Some(())
    }

    fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// Scores that make greedy merging by score what merging by rank is: the earlier the merge, the higher.
    fn score(&mut self, merges: &[(String, String)]) {
        self.scores = vec![NO_SCORE; self.texts.len()];
        for (kind, score) in self.kinds.iter().zip(&mut self.scores) {
            if *kind != kind::NORMAL {
                *score = 0.0;
            }
        }
        for (rank, (a, b)) in merges.iter().enumerate() {
            if let Some(id) = self.ids.get(&format!("{a}{b}")) {
                let score = &mut self.scores[*id as usize];
                *score = score.max(-(rank as f32));
            }
        }
    }
}

fn merges(model: &Value) -> Option<Vec<(String, String)>> {
    let pair = |merge: &Value| match merge {
        Value::String(text) => {
            let start = text.chars().next().map_or(0, char::len_utf8);
            let at = start + text[start..].find(' ')?;
            Some((text[..at].to_string(), text[at + 1..].to_string()))
        }
        Value::Array(pair) => Some((pair.first()?.as_str()?.to_string(), pair.get(1)?.as_str()?.to_string())),
        _ => None,
    };
    model["merges"].as_array()?.iter().map(pair).collect()
}

/// Whether a part or one of a sequence of parts is of type `kind`.
fn mentions(part: &Value, kind: &str) -> bool {
    let inner = ["normalizers", "pretokenizers", "processors"].iter().filter_map(|key| part[*key].as_array()).flatten();
    part["type"] == kind || inner.into_iter().any(|part| mentions(part, kind))
}

/// Whether a token is put before a text, and after it.
fn around(tokenizer: &Value, config: Option<&Config>) -> Result<(bool, bool), ExportError> {
    fn templates(part: &Value) -> Option<&Vec<Value>> {
        let inner = part["processors"].as_array().into_iter().flatten();
        part["single"].as_array().or_else(|| inner.into_iter().find_map(templates))
    }
    let is_special = |piece: Option<&Value>| piece.is_some_and(|piece| !piece["SpecialToken"].is_null());
    let single = templates(&tokenizer["post_processor"]);
    let flag = |key| config.map_or(Ok(None), |config| config.opt_bool(key));
    let (first, last) = (single.and_then(|s| s.first()), single.and_then(|s| s.last()));
    Ok((
        flag("add_bos_token")?.unwrap_or(false) || is_special(first),
        flag("add_eos_token")?.unwrap_or(false) || is_special(last),
    ))
}

fn template(checkpoint: &Checkpoint) -> Result<Option<String>, ExportError> {
    if let Some(path) = checkpoint.template_file() {
        let text = std::fs::read_to_string(path).map_err(|source| FileError::Io { path: path.into(), source })?;
        return Ok(Some(text));
    }
    let stated = checkpoint.tokenizer_config().and_then(|config| config.get("chat_template"));
    Ok(stated.and_then(|template| match template {
        Value::String(text) => Some(text.clone()),
        Value::Array(named) => {
            let plain = named.iter().find(|one| one["name"] == "default").or(named.first())?;
            plain["template"].as_str().map(String::from)
        }
        _ => None,
    }))
}

/// A made-up byte-level vocabulary: every byte, pairs of letters, and tokens that no text becomes.
pub(super) struct Synthetic {
    texts: Vec<String>,
    kinds: Vec<i32>,
    merges: Vec<(String, String)>,
    bos: Option<u32>,
    eos: u32,
}

impl Synthetic {
    /// One of `rows` tokens with the special ones where `config` says.
    pub(super) fn new(config: &Config, rows: usize) -> Result<Self, ExportError> {
        let there = |id: &u32| (*id as usize) < rows;
        let eos_ids: Vec<u32> = config.ids("eos_token_id")?.into_iter().filter(there).collect();
        let eos = eos_ids.first().copied().unwrap_or(rows.saturating_sub(1) as u32);
        let bos = config.ids("bos_token_id")?.first().copied().filter(there);
        let mut special: BTreeMap<u32, String> = BTreeMap::new();
        for id in eos_ids.iter().copied().chain([eos]).chain(bos) {
            special.insert(id, format!("<|synthetic_{id}|>"));
        }
        let letters: Vec<String> = (b'a'..=b'z').map(|letter| char::from(letter).to_string()).collect();
        let pairs: Vec<(String, String)> =
            letters.iter().flat_map(|a| letters.iter().map(move |b| (a.clone(), b.clone()))).collect();
        let mut plain = byte_letters().map(String::from).chain(pairs.iter().map(|(a, b)| format!("{a}{b}")));
        let (mut texts, mut kinds) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
        for id in 0..rows as u32 {
            let (text, kind) = match special.get(&id) {
                Some(text) => (text.clone(), kind::CONTROL),
                None => plain.next().map_or((format!("<|unused_{id}|>"), kind::UNUSED), |text| (text, kind::NORMAL)),
            };
            texts.push(text);
            kinds.push(kind);
        }
        let known: std::collections::HashSet<&String> = texts.iter().collect();
        let merges = pairs.iter().filter(|(a, b)| known.contains(&format!("{a}{b}"))).cloned().collect();
        Ok(Self { merges, texts, kinds, bos, eos })
    }

    /// As GGUF metadata.
    pub(super) fn pairs(self) -> Vec<(String, Pair)> {
        let merges = self.merges.iter().map(|(a, b)| format!("{a} {b}")).collect();
        let mut out: Vec<(&str, Pair)> = vec![
            ("ggml.model", "gpt2".into()),
            ("ggml.pre", "gpt-2".into()),
            ("ggml.eos_token_id", Pair::U32(self.eos)),
            ("ggml.add_bos_token", Pair::Bool(false)),
            ("chat_template", TEMPLATE.into()),
            ("ggml.tokens", Pair::Strs(self.texts)),
            ("ggml.token_type", Pair::I32s(self.kinds)),
            ("ggml.merges", Pair::Strs(merges)),
        ];
        out.extend(self.bos.map(|bos| ("ggml.bos_token_id", Pair::U32(bos))));
        out.into_iter().map(|(key, value)| (format!("tokenizer.{key}"), value)).collect()
    }

    /// As tokenizer.json and tokenizer_config.json.
    pub(super) fn files(&self) -> (Value, Value) {
        let mut vocab = Map::new();
        let mut added = Vec::new();
        for (id, (text, kind)) in self.texts.iter().zip(&self.kinds).enumerate() {
            if *kind == kind::CONTROL {
                added.push(json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true}));
            }
            vocab.insert(text.clone(), id.into());
        }
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
            "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocab, "merges": self.merges.iter().map(|(a, b)| json!([a, b])).collect::<Vec<_>>()},
        });
        let text = |id: u32| self.texts.get(id as usize);
        let config = json!({"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": false,
            "bos_token": self.bos.and_then(text), "eos_token": text(self.eos), "chat_template": TEMPLATE});
        (tokenizer, config)
    }
}

/// Messages one after the other.
const TEMPLATE: &str = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}";

/// The letters that stand for the 256 bytes in byte-level vocabularies, in the order of those vocabularies: printable
/// bytes stand for themselves, the others follow from 256 on.
fn byte_letters() -> impl Iterator<Item = char> {
    let is_plain = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let plain: Vec<u8> = (0..=255).filter(is_plain).collect();
    let others = 256 - plain.len() as u32;
    plain.into_iter().map(char::from).chain((0..others).filter_map(|i| char::from_u32(256 + i)))
}
