//! Text to token ids and back.

use super::error::TextError;
use super::precheck;
use super::stream::TextStream;
use super::table::{Spelling, TokenTable};
use super::vocabulary;
use crate::files::Checkpoint;
use std::collections::{BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// A checkpoint's tokenizer. Cheap to clone.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    /// Recognises special tokens written in the text.
    parsing: tokenizers::Tokenizer,
    /// Takes them for ordinary text. Made on first use: it is a second copy of the vocabulary.
    literal: OnceLock<tokenizers::Tokenizer>,
    table: TokenTable,
    spelling: Spelling,
    special: HashSet<u32>,
    bos: Option<(u32, String)>,
    eos: BTreeSet<u32>,
}

impl Tokenizer {
    /// The tokenizer of `checkpoint`.
    ///
    /// # Errors
    /// None there, or one that cannot be used.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self, TextError> {
        if let Some(metadata) = checkpoint.metadata() {
            return Self::new(vocabulary::tokenizer(metadata)?, metadata.path(), checkpoint);
        }
        let Some(path) = checkpoint.tokenizer_json() else {
            return Err(TextError::NoTokenizer { path: checkpoint.path().into() });
        };
        let parsing = read_tokenizer_json(path)?;
        Self::new(parsing, path, checkpoint)
    }

    pub(super) fn new(parsing: tokenizers::Tokenizer, path: &Path, checkpoint: &Checkpoint) -> Result<Self, TextError> {
        let decoder = parsing.get_decoder().and_then(|decoder| serde_json::to_value(decoder).ok()).unwrap_or_default();
        let spelling = Spelling::of_decoder(&decoder);
        let added = parsing.get_added_tokens_decoder();
        let vocabulary = parsing.get_vocab(true);
        let size = vocabulary.values().chain(added.keys()).max().map_or(0, |id| *id as usize + 1);
        // An id far beyond the number of tokens would make a table of nothing but gaps.
        if size > vocabulary.len() * 2 + 4096 {
            let what = format!("token id {} in a vocabulary of {} tokens", size - 1, vocabulary.len());
            return Err(TextError::Tokenizer { path: path.into(), what });
        }
        let mut tokens: Vec<Option<(String, bool)>> = vec![None; size];
        for (token, id) in vocabulary {
            tokens[id as usize] = Some((token, false));
        }
        for (id, token) in &added {
            tokens[*id as usize] = Some((token.content.clone(), true));
        }
        let bos = checkpoint.bos_id().and_then(|id| Some((id, tokens.get(id as usize)?.as_ref()?.0.clone())));
        let tokenizer = Self(Arc::new(Inner {
            parsing,
            literal: OnceLock::new(),
            table: TokenTable::new(&tokens, spelling),
            spelling,
            special: added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect(),
            bos,
            eos: checkpoint.eos_ids().clone(),
        }));
        // Some faults of a tokenizer show only when it is used.
        tokenizer.encode("a b\n1", true)?;
        Ok(tokenizer)
    }

    /// The ids of `text`. Special tokens written in it are recognised; `add_special` puts those around it that the
    /// model was trained with (such as the one that begins a text).
    ///
    /// # Errors
    /// A text that the tokenizer refuses.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        encode(&self.0.parsing, text, add_special)
    }

    /// The ids of `text` with nothing put around it. Special tokens written in it are recognised iff
    /// `parse_special`: do not recognise them in text from people.
    ///
    /// # Errors
    /// A text that the tokenizer refuses.
    pub fn encode_with(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, TextError> {
        if parse_special {
            return self.encode(text, false);
        }
        let literal = self.0.literal.get_or_init(|| {
            let mut literal = self.0.parsing.clone();
            literal.set_encode_special_tokens(true);
            literal
        });
        encode(literal, text, false)
    }

    /// The ids of a rendered chat: a template that writes the beginning-of-text token itself must not get a second.
    ///
    /// # Errors
    /// A text that the tokenizer refuses.
    pub fn encode_chat(&self, rendered: &str) -> Result<Vec<u32>, TextError> {
        let has_bos = self.0.bos.as_ref().is_some_and(|(_, text)| rendered.starts_with(text.as_str()));
        self.encode(rendered, !has_bos)
    }

    /// The text of a whole sequence. A space that the tokenizer itself puts before every text is dropped; see
    /// [`Tokenizer::stream`] for the continuation of a text. Ids without a token are passed over.
    ///
    /// # Errors
    /// Tokens that the tokenizer refuses.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TextError> {
        self.0.parsing.decode(ids, skip_special).map_err(|error| TextError::Encode { what: error.to_string() })
    }

    /// Text out of tokens that arrive one by one.
    pub fn stream(&self, skip_special: bool) -> TextStream {
        TextStream::new(self.clone(), skip_special)
    }

    /// The bytes that token `id` stands for; none for an id without a token.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.0.table.get(id).unwrap_or_default()
    }

    /// Ids there are: the largest plus one. The model's own vocabulary may be larger.
    pub fn vocab_size(&self) -> usize {
        self.0.table.len()
    }

    /// The token with exactly this text.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.0.parsing.token_to_id(token)
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.0.bos.as_ref().map(|(id, _)| *id)
    }

    /// The tokens that end a reply.
    pub fn eos(&self) -> &BTreeSet<u32> {
        &self.0.eos
    }

    /// Whether `id` is a special token: one that stands for structure, not for text.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.special.contains(&id)
    }

    /// The special tokens as they are written.
    pub fn special_texts(&self) -> Vec<String> {
        let texts: BTreeSet<String> = self.0.special.iter().filter_map(|id| self.0.parsing.id_to_token(*id)).collect();
        texts.into_iter().filter(|text| !text.is_empty()).collect()
    }

    pub(super) fn spelling(&self) -> Spelling {
        self.0.spelling
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({} tokens)", self.vocab_size())
    }
}

fn encode(tokenizer: &tokenizers::Tokenizer, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
    let encoding = tokenizer.encode_fast(text, add_special);
    encoding.map(|e| e.get_ids().to_vec()).map_err(|error| TextError::Encode { what: error.to_string() })
}

fn read_tokenizer_json(path: &Path) -> Result<tokenizers::Tokenizer, TextError> {
    let fault = |what: String| TextError::Tokenizer { path: path.into(), what };
    let bytes = crate::json::read_bounded(path, 512 << 20).map_err(|error| fault(error.to_string()))?;
    if let Some(what) = precheck::fault(&bytes) {
        return Err(fault(what));
    }
    // A library fault that the look above does not know must still end as an error.
    let parsed = catch_unwind(AssertUnwindSafe(|| tokenizers::Tokenizer::from_bytes(&bytes)));
    let mut tokenizer = match parsed {
        Ok(parsed) => parsed.map_err(|error| fault(error.to_string()))?,
        Err(_) => return Err(fault("the tokenizers library cannot read it".into())),
    };
    // Files may hold the settings of a training run. Nothing is ever cut or padded here.
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|error| fault(error.to_string()))?;
    Ok(tokenizer)
}
