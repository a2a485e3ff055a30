//! Text out of tokens that arrive one by one.

use super::table::Spelling;
use super::tokenizer::Tokenizer;

/// Turns the tokens of a reply into text as they come. What it yields, joined, is the text that continues the prompt:
/// unlike [`Tokenizer::decode`] it never drops a space at the start.
///
/// A character whose bytes are spread over several tokens is held back until it is complete. Bytes that cannot become
/// a character are replaced by U+FFFD.
#[derive(Clone, Debug)]
pub struct TextStream {
    tokenizer: Tokenizer,
    skip_special: bool,
    pending: Vec<u8>,
}

impl TextStream {
    pub(super) fn new(tokenizer: Tokenizer, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, pending: Vec::new() }
    }

    /// Takes the next token and returns the text that is complete by now; often none.
    pub fn push(&mut self, id: u32) -> String {
        if !(self.skip_special && self.tokenizer.is_special(id)) {
            self.pending.extend_from_slice(self.tokenizer.token_bytes(id));
        }
        self.drain(false)
    }

    /// The rest: what was held back, incomplete as it is.
    pub fn finish(mut self) -> String {
        self.drain(true)
    }

    fn drain(&mut self, to_the_end: bool) -> String {
        let mut out = String::new();
        let mut rest = &self.pending[..];
        while !rest.is_empty() {
            let chunk = rest.utf8_chunks().next();
            let Some(chunk) = chunk else { break };
            out.push_str(chunk.valid());
            let incomplete = chunk.valid().len() + chunk.invalid().len() == rest.len()
                && std::str::from_utf8(rest).is_err_and(|error| error.error_len().is_none());
            rest = &rest[chunk.valid().len()..];
            if incomplete && !to_the_end {
                break;
            }
            self.replace(&mut out, chunk.invalid().len());
            rest = &rest[chunk.invalid().len()..];
        }
        self.pending = rest.to_vec();
        out
    }

    /// Stands in for `bytes` bytes that are no character: byte tokens are replaced one by one, others together.
    fn replace(&self, out: &mut String, bytes: usize) {
        let count = if self.tokenizer.spelling() == Spelling::SentencePiece { bytes } else { bytes.min(1) };
        out.extend(std::iter::repeat_n('\u{fffd}', count));
    }
}
