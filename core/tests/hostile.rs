//! Model files changed at random, and sizes that lie: always an answer or an error, never a panic.

use crit_core::files::{Checkpoint, Head};
use crit_core::text::{ChatTemplate, Tokenizer};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

fn committed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/arch").join(name)
}

/// Everything that a caller may do with a checkpoint. The results do not matter here.
fn use_up(path: &Path) {
    let Ok(checkpoint) = Checkpoint::open(path) else { return };
    for tensor in checkpoint.tensors() {
        let mut row = vec![0.0; tensor.row_len()];
        let _ = tensor.dequant_rows(0..1, &mut row);
    }
    let _ = checkpoint.head("lm_head.weight", "model.embed_tokens.weight");
    let _ = checkpoint.model_type();
    if let Ok(config) = checkpoint.config().and_then(|config| Ok(config.text()?)) {
        for key in config.map().keys() {
            let _ = (config.usize(key), config.f64(key), config.ids(key), config.opt_str_list(key));
        }
    }
    if let Ok(tokenizer) = Tokenizer::from_checkpoint(&checkpoint) {
        let ids = tokenizer.encode("Hello <|eot_id|> 123\n", true).unwrap_or_default();
        let _ = tokenizer.decode(&ids, true);
        let mut stream = tokenizer.stream(true);
        ids.iter().for_each(|id| drop(stream.push(*id)));
    }
    if let Ok(Some(template)) = ChatTemplate::from_checkpoint(&checkpoint) {
        let messages = serde_json::json!([{"role": "user", "content": "hi"}]);
        let _ = template.render(&messages, None, true, &Default::default());
    }
}

/// Changes `bytes` at the given places within its first `head` bytes and cuts it at `cut`.
fn changed(bytes: &[u8], head: usize, changes: &[(usize, u8)], cut: Option<usize>) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (at, byte) in changes {
        let at = at % head.min(bytes.len());
        bytes[at] = *byte;
    }
    bytes.truncate(cut.map_or(bytes.len(), |cut| cut % bytes.len()));
    bytes
}

fn changes() -> impl Strategy<Value = (Vec<(usize, u8)>, Option<usize>)> {
    let byte = prop_oneof![Just(0u8), Just(0xff), Just(b'"'), Just(b'9'), any::<u8>()];
    let cut = prop_oneof![4 => Just(None), 1 => any::<usize>().prop_map(Some)];
    (proptest::collection::vec((any::<usize>(), byte), 1..6), cut)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn gguf_changed_at_random((changes, cut) in changes(), gemma in any::<bool>(), head in prop_oneof![Just(400usize), Just(14_000)]) {
        let source = std::fs::read(committed(if gemma { "gemma3" } else { "llama" }).join("model-bf16.gguf")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, changed(&source, head, &changes, cut)).unwrap();
        use_up(&path);
    }

    #[test]
    fn safetensors_changed_at_random((changes, cut) in changes()) {
        let source = std::fs::read(committed("llama").join("model.safetensors")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let bytes = changed(&source, 3000, &changes, cut);
        std::fs::write(&path, &bytes).unwrap();
        use_up(&path);
        // What is accepted here, the format's own library accepts too, with the same tensors.
        if let Ok(checkpoint) = Checkpoint::open(&path) {
            let judge = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            prop_assert_eq!(judge.len(), checkpoint.tensors().len());
            for tensor in checkpoint.tensors() {
                let other = judge.tensor(tensor.name()).unwrap();
                prop_assert_eq!(other.shape(), tensor.shape());
                prop_assert!(other.data() == tensor.bytes());
            }
        }
    }

    #[test]
    fn the_files_beside_the_weights_changed_at_random((changes, cut) in changes(), which in 0usize..5) {
        let names = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"];
        let folder = tempfile::tempdir().unwrap();
        for (i, name) in names.iter().enumerate() {
            let bytes = std::fs::read(committed("llama").join(name)).unwrap();
            let bytes = if i == which { changed(&bytes, bytes.len(), &changes, cut) } else { bytes };
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        use_up(folder.path());
    }
}

/// The parts of a GGUF file: metadata pairs and tensors of F32.
struct Writer {
    pairs: Vec<Vec<u8>>,
    tensors: Vec<(String, Vec<f32>)>,
}

impl Writer {
    fn new() -> Self {
        Self { pairs: Vec::new(), tensors: Vec::new() }
    }

    fn string(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    }

    fn text(mut self, key: &str, value: &str) -> Self {
        self.pairs.push([Self::string(key), 8u32.to_le_bytes().into(), Self::string(value)].concat());
        self
    }

    fn number(mut self, key: &str, value: u32) -> Self {
        self.pairs.push([Self::string(key), 4u32.to_le_bytes().into(), value.to_le_bytes().into()].concat());
        self
    }

    fn texts(mut self, key: &str, values: &[&str]) -> Self {
        let count = (values.len() as u64).to_le_bytes();
        let values = values.iter().flat_map(|value| Self::string(value));
        let head = [Self::string(key), 9u32.to_le_bytes().into(), 8u32.to_le_bytes().into()].concat();
        self.pairs.push(head.into_iter().chain(count).chain(values).collect());
        self
    }

    fn numbers(mut self, key: &str, values: &[u32]) -> Self {
        let head = [Self::string(key), 9u32.to_le_bytes().into(), 4u32.to_le_bytes().into()].concat();
        let values_bytes = values.iter().flat_map(|value| value.to_le_bytes());
        self.pairs.push(head.into_iter().chain((values.len() as u64).to_le_bytes()).chain(values_bytes).collect());
        self
    }

    fn tensor(mut self, name: &str, values: &[f32]) -> Self {
        self.tensors.push((name.into(), values.into()));
        self
    }

    fn write(self, path: &Path) {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        out.extend(self.pairs.concat());
        let mut data = Vec::new();
        for (name, values) in &self.tensors {
            out.extend(Self::string(name));
            out.extend(1u32.to_le_bytes());
            out.extend((values.len() as u64).to_le_bytes());
            out.extend(0u32.to_le_bytes());
            out.extend((data.len() as u64).to_le_bytes());
            data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            data.resize(data.len().next_multiple_of(32), 0);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        std::fs::write(path, [out, data].concat()).unwrap();
    }
}

fn part(number: u32, of: u32) -> Writer {
    Writer::new().number("split.no", number).number("split.count", of)
}

#[test]
fn split_gguf_is_joined_and_a_missing_part_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |part: u32| folder.path().join(format!("m-{part:05}-of-00003.gguf"));
    part(0, 3).text("general.architecture", "llama").number("split.tensors.count", 3).write(&path(1));
    part(1, 3).tensor("output_norm.weight", &[1.0, 2.0]).write(&path(2));
    let error = Checkpoint::open(&path(1)).unwrap_err().to_string();
    assert!(error.contains("part 3 of 3 is not there"), "{error}");
    part(2, 3).tensor("blk.0.attn_norm.weight", &[3.0]).tensor("own.weight", &[4.0]).write(&path(3));
    for opened in [path(1), path(3)] {
        let checkpoint = Checkpoint::open(&opened).unwrap();
        let names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name()).collect();
        assert_eq!(names, ["model.layers.0.input_layernorm.weight", "model.norm.weight", "own.weight"]);
        assert_eq!(checkpoint.model_type().unwrap(), "llama");
        assert_eq!(checkpoint.manifest().unwrap().files.len(), 3);
    }
    part(2, 3).tensor("own.weight", &[4.0]).write(&path(3));
    assert!(Checkpoint::open(&path(1)).unwrap_err().to_string().contains("hold 2 tensors, it states 3"));
    Writer::new().text("general.architecture", "falcon").write(&folder.path().join("f.gguf"));
    let other = Checkpoint::open(&folder.path().join("f.gguf")).unwrap();
    let refused = other.config().unwrap_err().to_string();
    assert!(refused.contains("`falcon` is not supported; supported: ") && refused.contains(" gemma3 "), "{refused}");
}

#[test]
fn layers_behind_the_models_own_are_a_drafting_head() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let writer = |arch: &str| {
        let writer = Writer::new().text("general.architecture", arch).number(&format!("{arch}.block_count"), 2);
        let writer = writer.number(&format!("{arch}.nextn_predict_layers"), 1).tensor("blk.0.attn_q.weight", &[1.0]);
        writer.tensor("blk.1.attn_q.weight", &[2.0]).tensor("blk.1.nextn.eh_proj.weight", &[3.0])
    };
    let names = |path: &Path| -> Vec<String> {
        let checkpoint = Checkpoint::open(path).unwrap();
        assert_eq!(checkpoint.config().unwrap().usize("num_hidden_layers").unwrap(), 1);
        checkpoint.tensors().map(|tensor| tensor.name().to_string()).collect()
    };
    writer("qwen35").write(&path);
    let q = "self_attn.q_proj.weight";
    assert_eq!(names(&path), [format!("model.layers.0.{q}"), "mtp.fc.weight".into(), format!("mtp.layers.0.{q}")]);
    // This family's head is left out, so its parts only have to be told apart.
    writer("qwen4exp").write(&path);
    let own = "mtp.layers.0.nextn.eh_proj.weight";
    assert_eq!(names(&path), [format!("model.layers.0.{q}"), own.into(), format!("mtp.layers.0.{q}")]);
}

#[test]
fn numbers_and_tables_of_hashed_ngrams_come_from_metadata_and_one_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let writer = |with_numbers: bool| {
        let key = |key: &str| format!("qwen4exp.{key}");
        let writer = Writer::new().text("general.architecture", "qwen4exp").number(&key("block_count"), 4);
        let writer = writer.numbers(&key("ple.layers"), &[1]).number(&key("ple.eos_token_id"), 7);
        let writer = writer.numbers(&key("attention.compress_ratios"), &[0, 0, 0, 4]);
        let writer = writer.tensor("blk.3.indexer.q_proj.weight", &[1.0, 2.0]);
        let writer =
            writer.tensor("blk.3.indexer.k_proj.weight", &[3.0, 4.0]).tensor("per_layer_token_embd.weight", &[5.0]);
        if !with_numbers {
            return writer;
        }
        let numbers = ["layer_multipliers", "head_offsets", "head_vocab_sizes"];
        numbers.iter().fold(writer, |writer, name| writer.numbers(&key(&format!("ple.{name}")), &[9, 11]))
    };
    writer(true).write(&path);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let config = checkpoint.config().unwrap();
    assert_eq!(config.opt_usize_list("ple_layer_ids").unwrap(), Some(vec![2]), "they count from 1");
    assert_eq!((config.usize("indexer_compress_ratio").unwrap(), config.usize("eos_token_id").unwrap()), (4, 7));
    let ple = "model.layers.1.ple.ple_embedding";
    let values = |name: &str| checkpoint.tensor(name).unwrap_or_else(|| panic!("no {name}")).to_f32();
    assert_eq!(values(&format!("{ple}.layer_multipliers")), [9.0, 11.0]);
    assert_eq!(values(&format!("{ple}.ngram_embedding.shard_0.weight")), [5.0]);
    assert_eq!(values("model.layers.3.self_attn.indexer.index_qk_proj.weight"), [1.0, 2.0, 3.0, 4.0]);
    writer(false).write(&path);
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("`qwen4exp.ple.layer_multipliers` is no list of numbers"), "{error}");
}

#[test]
fn ends_of_a_reply_are_collected_by_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let eos = |texts: &[&str], types: &[u32], stated: u32| -> Vec<u32> {
        let writer = Writer::new().number("tokenizer.ggml.eos_token_id", stated);
        writer.texts("tokenizer.ggml.tokens", texts).numbers("tokenizer.ggml.token_type", types).write(&path);
        Checkpoint::open(&path).unwrap().eos_ids().iter().copied().collect()
    };
    // `</s>` as a word of the vocabulary ends nothing; a stated id outside the vocabulary is none.
    assert_eq!(eos(&["a", "</s>", "<end_of_turn>", "<|im_end|>"], &[1, 4, 3, 1], 99), [2, 3]);
    // `<|end|>` ends a message, not the reply, where the reply has several.
    assert_eq!(eos(&["<|end|>", "<|return|>", "<|call|>"], &[3, 3, 3], 1), [1, 2]);
    assert_eq!(eos(&["<|end|>", "x"], &[3, 1], 1), [0, 1]);
}

#[test]
fn paths_that_lead_to_no_model() {
    let folder = tempfile::tempdir().unwrap();
    let message = |path: &Path| Checkpoint::open(path).unwrap_err().to_string();
    assert!(message(&folder.path().join("none")).contains("there is nothing at"));
    assert!(message(folder.path()).contains("no .safetensors, .gguf, .bin"));
    std::fs::write(folder.path().join("pytorch_model.bin"), b"x").unwrap();
    assert!(message(folder.path()).contains("neither an archive nor a state dict"));
    std::fs::remove_file(folder.path().join("pytorch_model.bin")).unwrap();
    std::fs::write(folder.path().join("optimizer.bin"), b"x").unwrap();
    assert!(message(folder.path()).contains("no .safetensors, .gguf, .bin"));
    std::fs::write(folder.path().join("notes.txt"), b"x").unwrap();
    assert!(message(&folder.path().join("notes.txt")).contains("`notes.txt` is no file of weights"));
    for name in ["a.gguf", "b.gguf"] {
        Writer::new().write(&folder.path().join(name));
    }
    assert!(message(folder.path()).contains("2 files could be meant; give one of them: a.gguf, b.gguf"));
}

/// Whether the output head is tied, against what the configuration and the file say.
#[test]
fn tied_heads_are_decided_by_the_tensors() {
    let open = |flag: &str, head: bool| {
        let folder = tempfile::tempdir().unwrap();
        let entry = |at: usize| serde_json::json!({"dtype": "F32", "shape": [1], "data_offsets": [at, at + 4]});
        let mut header = serde_json::json!({"model.embed_tokens.weight": entry(0)});
        if head {
            header["lm_head.weight"] = entry(4);
        }
        let header = header.to_string();
        let data = [0u8; 8];
        let bytes =
            [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data[..if head { 8 } else { 4 }]].concat();
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        std::fs::write(folder.path().join("config.json"), format!("{{{flag}}}")).unwrap();
        Checkpoint::open(folder.path()).unwrap().head("lm_head.weight", "model.embed_tokens.weight")
    };
    let (tied, untied, silent) = (r#""tie_word_embeddings": true"#, r#""tie_word_embeddings": false"#, "");
    for flag in [tied, untied, silent] {
        assert!(matches!(open(flag, true), Ok(Head::Own(_))), "{flag}");
    }
    for flag in [tied, silent] {
        assert!(matches!(open(flag, false), Ok(Head::Tied(_))), "{flag}");
    }
    assert!(open(untied, false).unwrap_err().to_string().contains("not tied"));
}

/// Patterns that look ahead must not make long runs of one character slow or fail.
#[test]
fn long_runs_are_tokenized() {
    for (case, file) in [("llama", "model-bf16.gguf"), ("qwen3", "tokenizer.json"), ("gemma3", "model-bf16.gguf")] {
        let path = if file.ends_with("gguf") { committed(case).join(file) } else { committed(case) };
        let tokenizer = Tokenizer::from_checkpoint(&Checkpoint::open(&path).unwrap()).unwrap();
        for text in
            [" ".repeat(100_000), "a".repeat(100_000), "\n".repeat(100_000), " \n".repeat(50_000), "é".repeat(50_000)]
        {
            let start = std::time::Instant::now();
            let ids = tokenizer.encode(&text, false).unwrap_or_else(|error| panic!("{case}: {error}"));
            let bytes: usize = ids.iter().map(|id| tokenizer.token_bytes(*id).len()).sum();
            assert_eq!(bytes, text.len(), "{case}: {:?}", &text[..2]);
            assert!(start.elapsed().as_secs() < 10, "{case}: {:?}: {:?}", &text[..2], start.elapsed());
        }
    }
}
