//! From tokens to what a client may see: bytes → whole characters → stop strings, and the log-probs that belong to the
//! visible text. One pipe serves one choice. The result does not depend on how tokens arrive in batches.

use crate::stop::StopMatcher;
use crate::text::{Text, TextDecoder};
use crit_core::protocol::TokenLogprobs;
use std::collections::VecDeque;
use std::sync::Arc;

/// A token with its true bytes and log-prob.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredToken {
    /// The bytes it stands for, which need not be valid text alone.
    pub bytes: Vec<u8>,
    /// Natural log-prob.
    pub logprob: f32,
}

/// A generated token, its log-prob and the alternatives.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEntry {
    /// The token.
    pub token: ScoredToken,
    /// The most likely tokens, best first.
    pub top: Vec<ScoredToken>,
}

/// Text that became visible.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// The text.
    pub text: String,
    /// The tokens that begin in it, if log-probs were asked for.
    pub tokens: Vec<TokenEntry>,
}

impl Piece {
    /// Whether there is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.tokens.is_empty()
    }
}

/// The pipe of one choice.
pub struct Pipe {
    text: Arc<dyn Text>,
    decoder: Box<dyn TextDecoder>,
    stops: StopMatcher,
    end_ids: Vec<u32>,
    decoded_bytes: usize,
    shown_bytes: usize,
    waiting: VecDeque<(usize, TokenEntry)>,
    tokens: u32,
    ended: bool,
}

impl Pipe {
    /// A pipe that ends at `stops`; `end_ids` are tokens without text.
    pub fn new(text: Arc<dyn Text>, stops: Vec<String>, end_ids: Vec<u32>) -> Self {
        Self {
            decoder: text.decoder(),
            text,
            stops: StopMatcher::new(stops),
            end_ids,
            decoded_bytes: 0,
            shown_bytes: 0,
            waiting: VecDeque::new(),
            tokens: 0,
            ended: false,
        }
    }

    /// Tokens taken so far, end tokens among them, none after a stop string.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Whether a stop string was found.
    pub fn stopped(&self) -> bool {
        self.ended
    }

    /// Takes tokens that arrived together.
    pub fn push(&mut self, tokens: &[u32], logprobs: Vec<TokenLogprobs>) -> Piece {
        let mut piece = Piece::default();
        let mut logprobs = logprobs.into_iter();
        for &id in tokens {
            if self.ended {
                break;
            }
            self.push_one(id, logprobs.next(), &mut piece);
        }
        piece
    }

    /// The end of the tokens: what was held back becomes visible.
    pub fn finish(&mut self) -> Piece {
        if std::mem::replace(&mut self.ended, true) {
            return Piece::default();
        }
        let rest = self.decoder.finish();
        let scanned = self.stops.push(&rest);
        let mut text = scanned.text;
        if scanned.stop.is_none() {
            text.push_str(&self.stops.finish());
            let tokens = self.waiting.drain(..).map(|(_, entry)| entry).collect();
            return Piece { text, tokens };
        }
        let mut piece = Piece::default();
        self.show(text, &mut piece);
        piece
    }

    fn push_one(&mut self, id: u32, logprobs: Option<TokenLogprobs>, piece: &mut Piece) {
        self.tokens += 1;
        if self.end_ids.contains(&id) {
            return;
        }
        if let Some(logprobs) = logprobs {
            self.waiting.push_back((self.decoded_bytes, self.entry(id, logprobs)));
        }
        let text = self.decoder.push(id);
        self.decoded_bytes += text.len();
        let scanned = self.stops.push(&text);
        self.ended = scanned.stop.is_some();
        self.show(scanned.text, piece);
    }

    fn show(&mut self, text: String, piece: &mut Piece) {
        self.shown_bytes += text.len();
        piece.text.push_str(&text);
        while let Some((_, entry)) = self.waiting.pop_front_if(|(start, _)| *start < self.shown_bytes) {
            piece.tokens.push(entry);
        }
    }

    fn entry(&self, id: u32, logprobs: TokenLogprobs) -> TokenEntry {
        let scored = |id, logprob| ScoredToken { bytes: self.text.token_bytes(id), logprob };
        TokenEntry {
            token: scored(id, logprobs.logprob),
            top: logprobs.top.into_iter().map(|(id, logprob)| scored(id, logprob)).collect(),
        }
    }
}
