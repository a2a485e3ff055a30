//! The reference's log-probs, kept on disk row by row.
//!
//! A file holds one text: `[tokens scored, vocab]` f32 little-endian, beside it a small JSON that says what it is and the
//! SHA-256 of the rows. A file is used again only if checkpoint, reference version, token ids and digest all agree.
//! Rows are read one at a time, so memory stays at one row whatever the vocabulary.
//!
//! Writing goes to a temporary name and is renamed at the end: an interrupted run leaves no half text behind.

use super::reduce::compare;
use super::texts::Text;
use crate::error::{EvalError, file_error};
use crate::link::EngineLink;
use crate::quality::plan::{PathKind, PlanLimits, expected_rows};
use crate::rng::Rng;
use crit_core::digest::Digest;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Which reference: the same key gives the same log-probs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferenceKey {
    /// Digest of the checkpoint.
    pub checkpoint: Digest,
    /// Name and version of the reference engine.
    pub version: String,
}

impl ReferenceKey {
    fn of(&self, text: &Text) -> Digest {
        let ids: Vec<u8> = text.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let from = (text.from as u64).to_le_bytes();
        Digest::of_parts([self.checkpoint.bytes().as_slice(), self.version.as_bytes(), &from, &ids])
    }
}

/// What a file of rows is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Label {
    format: u32,
    key: Digest,
    from: u64,
    tokens: u64,
    vocab: u64,
    spread: Option<f64>,
    sha256: Digest,
}

const FORMAT: u32 = 2;

/// The rows of one text.
#[derive(Debug)]
pub struct ReferenceRows {
    file: File,
    path: PathBuf,
    vocab: usize,
    from: usize,
    tokens: usize,
    spread: Option<f64>,
    bytes: Vec<u8>,
}

impl ReferenceRows {
    /// Width of a row.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Where they lie.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Mean divergence of the reference from itself on some of these rows, computed in other steps, nats.
    pub fn spread(&self) -> Option<f64> {
        self.spread
    }

    /// The positions there are rows of.
    pub fn positions(&self) -> impl Iterator<Item = u32> + use<> {
        (self.from..self.tokens).map(|position| position as u32)
    }

    /// Reads the log-probs of the token after `position` into `row`.
    ///
    /// # Errors
    /// The position lies outside the text, or the file cannot be read.
    pub fn read(&mut self, position: u32, row: &mut Vec<f32>) -> Result<(), EvalError> {
        if !(self.from..self.tokens).contains(&(position as usize)) {
            return Err(EvalError::Protocol {
                who: "candidate".into(),
                doing: "scoring".into(),
                what: format!("a row at position {position} of a text scored from {} to {}", self.from, self.tokens),
            });
        }
        let offset = (position as usize - self.from) as u64 * self.bytes.len() as u64;
        self.file.read_exact_at(&mut self.bytes, offset).map_err(file_error(&self.path))?;
        row.clear();
        row.extend(self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        Ok(())
    }

    fn open(dir: &Path, key: Digest, text: &Text) -> Option<Self> {
        let (from, tokens) = (text.from, text.ids.len());
        let label: Label = serde_json::from_slice(&std::fs::read(label_path(dir, key)).ok()?).ok()?;
        let path = rows_path(dir, key);
        let vocab = usize::try_from(label.vocab).ok()?;
        let same = label.tokens == tokens as u64 && label.from == from as u64;
        let fits = label.format == FORMAT && label.key == key && same;
        let file = File::open(&path).ok()?;
        let rows = label.tokens.checked_sub(label.from)?;
        let whole = file.metadata().ok()?.len() == rows.checked_mul(label.vocab)?.checked_mul(4)?;
        if !fits || !whole || Digest::of_reader(&file).ok()? != label.sha256 {
            return None;
        }
        Some(Self { file, path, vocab, from, tokens, spread: label.spread, bytes: vec![0; vocab * 4] })
    }
}

fn rows_path(dir: &Path, key: Digest) -> PathBuf {
    dir.join(format!("reference-{key}.f32"))
}

fn label_path(dir: &Path, key: Digest) -> PathBuf {
    dir.join(format!("reference-{key}.json"))
}

/// The rows of `text` if they were kept.
pub fn kept(dir: &Path, key: &ReferenceKey, text: &Text) -> Option<ReferenceRows> {
    ReferenceRows::open(dir, key.of(text), text)
}

/// Runs the reference over `text` and keeps its rows.
///
/// # Errors
/// The reference fails or leaves rows out, or the folder cannot be written.
pub fn compute(
    dir: &Path,
    key: &ReferenceKey,
    text: &Text,
    reference: &mut dyn EngineLink,
) -> Result<ReferenceRows, EvalError> {
    let digest = key.of(text);
    let info = reference.info().map_err(|failure| failed(text, failure))?;
    std::fs::create_dir_all(dir).map_err(file_error(dir))?;
    let partial = dir.join(format!("reference-{digest}.{}.part", unique()));
    let written = write_rows(&partial, text, info.vocab as usize, PlanLimits::of(&info), reference);
    if written.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    written?;
    finish(dir, digest, text, info.vocab, &partial)?;
    if let Some(mut rows) = ReferenceRows::open(dir, digest, text).filter(|_| text.from == 0) {
        let spread = spread(text, PlanLimits::of(&info), reference, &mut rows)?;
        write_label(dir, digest, &Label { spread: Some(spread), ..read_label(dir, digest)? })?;
    }
    ReferenceRows::open(dir, digest, text).ok_or_else(|| EvalError::File {
        path: rows_path(dir, digest),
        source: std::io::Error::other("the rows just written do not read back"),
    })
}

fn write_rows(
    partial: &Path,
    text: &Text,
    vocab: usize,
    limits: PlanLimits,
    reference: &mut dyn EngineLink,
) -> Result<(), EvalError> {
    let kind = if text.from > 0 { PathKind::DecodeDepth } else { PathKind::Prompt };
    let Some(path) = kind.build(std::slice::from_ref(text), limits, 0, 0).pop() else {
        return Err(EvalError::Request {
            what: format!("text `{}` has {} tokens, too few to score", text.name, text.ids.len()),
            hint: "use a text of at least two tokens".into(),
        });
    };
    let mut out = BufWriter::with_capacity(1 << 20, File::create(partial).map_err(file_error(partial))?);
    let (mut expected, mut trouble) = (expected_rows(&path.plan, &[]).into_iter(), None);
    let outcome = reference.score(&path.plan, &mut |row, values| {
        if trouble.is_some() {
            return;
        }
        if expected.next() != Some(row) || values.len() != vocab {
            trouble = Some(protocol(text, format!("row {row:?} of {} values out of turn", values.len())));
            return;
        }
        let bytes = values.iter().flat_map(|v| v.to_le_bytes());
        if let Err(error) = write_all(&mut out, bytes) {
            trouble = Some(file_error(partial)(error));
        }
    });
    if let Some(trouble) = trouble {
        return Err(trouble);
    }
    outcome.map_err(|failure| failed(text, failure))?;
    if expected.next().is_some() {
        return Err(protocol(text, "rows are missing".into()));
    }
    out.flush().map_err(file_error(partial))
}

fn write_all(out: &mut impl Write, bytes: impl Iterator<Item = u8>) -> std::io::Result<()> {
    let bytes: Vec<u8> = bytes.collect();
    out.write_all(&bytes)
}

fn finish(dir: &Path, key: Digest, text: &Text, vocab: u32, partial: &Path) -> Result<(), EvalError> {
    let sha256 = File::open(partial).and_then(Digest::of_reader).map_err(file_error(partial))?;
    let (from, tokens) = (text.from as u64, text.ids.len() as u64);
    let label = Label { format: FORMAT, key, from, tokens, vocab: u64::from(vocab), spread: None, sha256 };
    let rows = rows_path(dir, key);
    std::fs::rename(partial, &rows).map_err(file_error(&rows))?;
    write_label(dir, key, &label)
}

/// A name no other writer of the folder uses.
fn unique() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

fn write_label(dir: &Path, key: Digest, label: &Label) -> Result<(), EvalError> {
    let path = label_path(dir, key);
    let temporary = dir.join(format!("reference-{key}.{}.label", unique()));
    let json = serde_json::to_vec(label).expect("a label of finite numbers and digests serialises");
    std::fs::write(&temporary, json).map_err(file_error(&temporary))?;
    std::fs::rename(&temporary, &path).map_err(file_error(&path))
}

fn read_label(dir: &Path, key: Digest) -> Result<Label, EvalError> {
    let path = label_path(dir, key);
    let bytes = std::fs::read(&path).map_err(file_error(&path))?;
    serde_json::from_slice(&bytes).map_err(|error| EvalError::File { path, source: std::io::Error::other(error) })
}

/// How far the reference stands from itself when it computes the first rows one token a step.
fn spread(
    text: &Text,
    limits: PlanLimits,
    reference: &mut dyn EngineLink,
    rows: &mut ReferenceRows,
) -> Result<f64, EvalError> {
    let Some(path) = PathKind::Chunks1.build(std::slice::from_ref(text), limits, 0, 0).pop() else { return Ok(0.0) };
    let (mut sum, mut count, mut kept, mut trouble) = (0.0, 0u32, Vec::new(), None);
    let mut rng = Rng::new(0);
    let outcome = reference.score(&path.plan, &mut |row, values| {
        if let Err(error) = rows.read(row.position, &mut kept) {
            trouble = Some(error);
            return;
        }
        match compare(&kept, values, &[], &mut rng) {
            Ok(result) => (sum, count) = (sum + result.kld, count + 1),
            Err(_) => trouble = Some(protocol(text, "rows in single steps are no distributions".into())),
        }
    });
    match trouble {
        Some(trouble) => Err(trouble),
        None => outcome.map(|_| sum / f64::from(count.max(1))).map_err(|failure| failed(text, failure)),
    }
}

fn failed(text: &Text, failure: crit_core::error::Failure) -> EvalError {
    EvalError::Engine { who: "reference".into(), doing: format!("scoring `{}`", text.name), failure }
}

fn protocol(text: &Text, what: String) -> EvalError {
    EvalError::Protocol { who: "reference".into(), doing: format!("scoring `{}`", text.name), what }
}
