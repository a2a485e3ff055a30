//! How byte-level vocabularies cut text before merging, by the name in a GGUF file's `tokenizer.ggml.pre`.
//!
//! A file names its way and does not spell it out, so an unknown name cannot be guessed: text cut the wrong way gives
//! ids that the model never saw.

use serde_json::Value;

/// A way to cut.
pub(super) struct Way {
    /// The names that files use for it, sorted.
    pub(super) names: &'static [&'static str],
    /// Patterns applied in turn, each to the pieces the one before left.
    pub(super) splits: &'static [&'static str],
    /// Whether GPT-2's own pattern is applied last.
    pub(super) then_gpt2: bool,
    /// Whether a word that is a token as a whole is taken without merging.
    pub(super) whole_words: bool,
    /// Whether a beginning-of-text token is put in front unless the file says otherwise.
    pub(super) adds_bos: bool,
    /// Whether text is brought to Unicode's composed form first. Files do not say; the models' makers do.
    pub(super) composes: bool,
}

/// One part of a pattern for words of cased scripts: marks and letters without case count as either case.
macro_rules! cased_words {
    ($suffix:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $suffix,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $suffix
        )
    };
}

/// Contractions of English in either case.
macro_rules! contractions {
    () => {
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    };
}

/// Line ends with the space before them, and runs of space without the last one, which belongs to the next word.
macro_rules! space {
    () => {
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}

/// Words with one character in front, numbers of the given form, punctuation, space.
macro_rules! words {
    ($numbers:literal) => {
        concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|", $numbers, r"| ?[^\s\p{L}\p{N}]+[\r\n]*", space!())
    };
}

const PLAIN: Way =
    Way { names: &[], splits: &[], then_gpt2: false, whole_words: false, adds_bos: false, composes: false };

/// All ways, sorted by their first name.
pub(super) const WAYS: &[Way] = &[
    Way { names: &["chatglm-bpe", "dbrx", "smaug-bpe"], splits: &[words!(r"\p{N}{1,3}")], ..PLAIN },
    Way {
        names: &["command-r", "exaone", "refact", "smollm", "starcoder"],
        splits: &[r"\p{N}"],
        then_gpt2: true,
        ..PLAIN
    },
    Way { names: &["deepseek-r1-qwen", "qwen2"], splits: &[words!(r"\p{N}")], composes: true, ..PLAIN },
    Way {
        names: &["deepseek-v3", "hunyuan-dense"],
        splits: &[
            r"\p{N}{1,3}",
            "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+",
            concat!(
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"##,
                space!()
            ),
        ],
        ..PLAIN
    },
    Way {
        names: &["falcon-h1", "falcon3", "lfm2", "llama-bpe", "llama-v3", "llama3", "pixtral"],
        splits: &[words!(r"\p{N}{1,3}")],
        whole_words: true,
        adds_bos: true,
        ..PLAIN
    },
    Way { names: &["glm4"], splits: &[words!(r"\p{N}{1,3}")], whole_words: true, ..PLAIN },
    Way { names: &["gpt-2", "jais", "mpt", "olmo"], then_gpt2: true, ..PLAIN },
    Way {
        names: &["gpt-4o", "kanana2", "llama4", "minimax-m2"],
        splits: &[concat!(
            cased_words!(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"),
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*",
            space!()
        )],
        ..PLAIN
    },
    Way { names: &["hunyuan", "megrez", "stablelm2"], splits: &[words!(r"\p{N}")], ..PLAIN },
    Way {
        names: &["qwen35"],
        splits: &[concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
            space!()
        )],
        composes: true,
        ..PLAIN
    },
    Way {
        names: &["tekken"],
        splits: &[concat!(cased_words!(""), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*", space!())],
        whole_words: true,
        adds_bos: true,
        ..PLAIN
    },
];

/// The way with this name.
pub(super) fn find(name: &str) -> Option<&'static Way> {
    WAYS.iter().find(|way| way.names.contains(&name))
}

/// The names that most readers of files know a way by, where it has several.
const USUAL: &[&str] = &["gpt-2", "gpt-4o", "llama-bpe", "qwen2"];

/// The name of the way that a tokenizer.json spells out.
///
/// # Errors
/// The patterns, if no way has them.
pub(crate) fn name_of(tokenizer: &Value) -> Result<&'static str, String> {
    let mut splits = Vec::new();
    let mut then_gpt2 = false;
    collect(&tokenizer["pre_tokenizer"], &mut splits, &mut then_gpt2);
    let whole_words = tokenizer["model"]["ignore_merges"] == true;
    let composes = tokenizer["normalizer"]["type"] == "NFC";
    let fits = |way: &&Way| way.splits == splits && way.then_gpt2 == then_gpt2 && way.whole_words == whole_words;
    // How text is composed stands in no file, so it decides only between ways that are else alike.
    let way = WAYS.iter().filter(fits).min_by_key(|way| way.composes != composes);
    let way = way.ok_or_else(|| splits.join(" then "))?;
    Ok(way.names.iter().find(|name| USUAL.contains(name)).unwrap_or(&way.names[0]))
}

fn collect<'a>(part: &'a Value, splits: &mut Vec<&'a str>, then_gpt2: &mut bool) {
    match part["type"].as_str() {
        Some("Sequence") => {
            part["pretokenizers"].as_array().into_iter().flatten().for_each(|one| collect(one, splits, then_gpt2));
        }
        Some("Split") => splits.push(part["pattern"]["Regex"].as_str().unwrap_or("a literal text")),
        Some("Digits") if part["individual_digits"] == true => splits.push(r"\p{N}"),
        Some("ByteLevel") => *then_gpt2 = part["use_regex"] != false,
        Some(other) => splits.push(other),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_sorted() {
        let firsts: Vec<_> = WAYS.iter().map(|way| way.names[0]).collect();
        assert!(firsts.is_sorted(), "{firsts:?}");
        let mut all: Vec<_> = WAYS.iter().flat_map(|way| way.names).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(WAYS.iter().all(|way| way.names.is_sorted()));
    }
}
