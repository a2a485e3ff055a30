//! Each reader under a stream of changed files, as long as CI has time: never a panic, and no memory beyond what the file
//! can answer for.
//!
//! The corpus is the committed set of broken files and the small sound ones. A change is one of: bytes set, bits flipped,
//! a run cut out, doubled or moved, numbers at their extremes, two files joined. `CRIT_FUZZ_SECONDS` is the time of each
//! reader, 20 if unset. `fuzz/` drives the same functions with coverage.
#![allow(clippy::print_stderr)]

use crit_core::files::Reader;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// xorshift64*: good enough to choose bytes, the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

fn corpus(folder: &str) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/malformed").join(folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().filter(|path| path.is_file()).map(|path| std::fs::read(path).unwrap()).collect()
}

const EXTREMES: [u64; 8] = [0, 1, 0x7f, 0xff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, 0xffff_ffff_ffff_ffff];

fn change(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(bytes.len());
    let run = 1 + random.below(32);
    let end = (at + run).min(bytes.len());
    match random.below(8) {
        0 | 1 => bytes[at..end].iter_mut().take(2).for_each(|byte| *byte = random.next() as u8),
        2 => bytes[at..end].iter_mut().take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
        3 => drop(bytes.drain(at..end)),
        4 => {
            let doubled = bytes[at..end].to_vec();
            bytes.splice(at..at, doubled);
        }
        5 => {
            let value = EXTREMES[random.below(EXTREMES.len())].to_le_bytes();
            let width = [1, 2, 4, 8][random.below(4)];
            bytes[at..].iter_mut().zip(&value[..width]).for_each(|(byte, value)| *byte = *value);
        }
        6 => bytes.truncate(at),
        _ => {
            let from = random.below(other.len());
            let part = other[from..].iter().take(run).copied().collect::<Vec<u8>>();
            bytes.splice(at..end, part);
        }
    }
}

/// Changes files for as long as there is time and reads them.
fn drive(reader: &str, folder: &str) {
    let reader = Reader::find(reader).expect("a reader of the list");
    let seconds = std::env::var("CRIT_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let end = Instant::now() + Duration::from_secs(seconds);
    let corpus = corpus(folder);
    let mut kept = corpus.clone();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut runs, mut accepted) = (0u64, 0u64);
    while Instant::now() < end {
        let mut bytes = kept[random.below(kept.len())].clone();
        for _ in 0..1 + random.below(4) {
            let other = corpus[random.below(corpus.len())].clone();
            if bytes.is_empty() {
                bytes.push(0);
            }
            change(&mut bytes, &other, &mut random);
        }
        bytes.truncate(1 << 16);
        runs += 1;
        let Ok(tensors) = reader.read(Path::new("there-is-no-such-file"), bytes.clone()) else { continue };
        accepted += 1;
        for tensor in tensors.iter().filter(|tensor| tensor.row_len() <= 1 << 20) {
            let mut row = vec![0.0; tensor.row_len()];
            let _ = tensor.dequant_rows(0..1, &mut row);
        }
        // What is still accepted is a start for the next changes.
        if kept.len() < 4096 {
            kept.push(bytes);
        }
    }
    eprintln!("{}: {runs} files, {accepted} of them read", reader.name);
    assert!(runs > 0 && (seconds < 2 || accepted > 0), "the corpus holds sound files, some changes leave them so");
}

#[test]
fn gguf() {
    drive("gguf", "gguf");
}

#[test]
fn onnx() {
    drive("onnx", "onnx");
}

#[test]
fn pytorch() {
    drive("pytorch", "pickle");
}

#[test]
fn safetensors() {
    drive("safetensors", "safetensors");
}
