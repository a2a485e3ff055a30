//! Containers and weight formats: logits of checkpoints against transformers' with the owning libraries' values, and the table
//! of what is read and written.
#![allow(clippy::print_stderr)]

use crit_core::export::SCHEMES;
use crit_core::files::{Container, DType, WEIGHT_FORMATS, gguf_architectures};
use crit_core::model::Model;
use crit_kernels::exec::{ExecOptions, Style, build};
use crit_tests::{Case, Hand, cases, fixtures, folder_from_env, skip, supported};
use safetensors::SafeTensors;
use std::path::Path;

/// Quantised cases in safetensors: the full set if it is there, the committed ones otherwise.
fn quantised() -> Vec<Case> {
    let root = folder_from_env("CRIT_FIXTURES").map(|root| root.join("quant"));
    if root.is_none() {
        skip("the full set of quantised cases", "CRIT_FIXTURES is not set; the committed cases run");
    }
    let mut found = cases(&root.unwrap_or_else(|| fixtures().join("quant")));
    found.retain(supported);
    found
}

fn gguf(case: &Case) -> std::path::PathBuf {
    case.path.join("model.gguf")
}

fn open(case: &Case) -> Model {
    let file = gguf(case);
    let path: &Path = if file.is_file() { &file } else { &case.path };
    Model::open(path).unwrap_or_else(|error| panic!("{}: {error}", case.name))
}

struct Golden {
    ids: Vec<u32>,
    logits: Vec<Vec<f32>>,
}

fn golden(case: &Case) -> Golden {
    let bytes = std::fs::read(case.path.join("golden.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (ids, logits) = (file.tensor("input_ids").unwrap(), file.tensor("logits").unwrap());
    let vocab = *logits.shape().last().unwrap();
    let values = logits.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
    Golden {
        ids: ids.data().as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as u32).collect(),
        logits: values.collect::<Vec<f32>>().chunks(vocab).map(<[f32]>::to_vec).collect(),
    }
}

fn logits(model: &Model, style: Style, ids: &[u32]) -> Vec<Vec<f32>> {
    let mut executor = build(model, ExecOptions::new(style, 64, 1)).unwrap_or_else(|error| panic!("{error}"));
    Hand::new(&mut executor).run(ids, 7)
}

fn log_softmax(row: &[f32]) -> Vec<f64> {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shifted: Vec<f64> = row.iter().map(|value| f64::from(value - largest)).collect();
    let total = shifted.iter().map(|value| value.exp()).sum::<f64>().ln();
    shifted.iter().map(|value| value - total).collect()
}

fn mean_kld(reference: &[Vec<f32>], candidate: &[Vec<f32>]) -> f64 {
    let of_row = |p: &[f32], q: &[f32]| {
        let (p, q) = (log_softmax(p), log_softmax(q));
        p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>()
    };
    reference.iter().zip(candidate).map(|(p, q)| of_row(p, q)).sum::<f64>() / reference.len() as f64
}

#[test]
fn logits_of_quantised_checkpoints() {
    let cases = quantised();
    assert!(cases.len() >= 8, "a case of each family of formats is committed");
    eprintln!("{} cases", cases.len());
    for case in cases {
        let model = open(&case);
        let golden = golden(&case);
        let exact = logits(&model, Style::Exact, &golden.ids);
        let scale = golden.logits.iter().flatten().fold(0f32, |m, v| m.max(v.abs()));
        let off =
            exact.iter().flatten().zip(golden.logits.iter().flatten()).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        // Both sum in f32, in other orders: a thousandth of the largest logit is a hundred times what that costs.
        assert!(off <= 1e-3 * scale, "{}: {off} of {scale}", case.name);
        let base = logits(&model, Style::Base, &golden.ids);
        let kld = mean_kld(&golden.logits, &base);
        // What 8-bit activations and a 16-bit cache cost on random weights, with room; wrong values give whole nats.
        assert!(kld <= 0.01, "{}: mean KLD {kld}", case.name);
    }
}

/// The table of docs/reference/formats.md.
fn table() -> String {
    let mut out = String::from(
        "# Formats\n\nGenerated from the lists by `CRIT_BLESS=1 cargo test --release -p crit-tests --test formats`; a test keeps it true.\n\n",
    );
    out.push_str("## Containers\n\n| container | what is read |\n|---|---|\n");
    for container in Container::ALL {
        out.push_str(&format!("| {} | {} |\n", container.name(), container.about()));
    }
    let archs: Vec<String> = gguf_architectures().map(|name| format!("`{name}`")).collect();
    out.push_str(&format!("\nA GGUF file alone is a model if its architecture is one of {}.\n\n", archs.join(", ")));
    out.push_str("`crit models verify PATH` says whether files are sound and make a model. Weights saved in another order than the program wants\n(transposed matrices of ONNX graphs, strided views of state dicts) are put in order once, in memory; `crit recon` counts them. All others\nare read where they lie in the mapped file.\n\n");
    out.push_str(
        "## Element types\n\n| type | GGUF | safetensors | elements of a block | bytes |\n|---|---|---|---|---|\n",
    );
    for dtype in DType::all().filter(|dtype| *dtype != DType::PACKED) {
        let format = dtype.format();
        let mark = |there: bool| if there { "read" } else { "" };
        out.push_str(&format!(
            "| {} | {} | {} | {} | {} |\n",
            format.name,
            mark(format.gguf_id.is_some()),
            mark(format.in_safetensors),
            format.block_elems,
            format.block_bytes
        ));
    }
    out.push_str("\n## Weights of several tensors\n\nRead row by row as stored; nothing is expanded beforehand. The base engine multiplies them exactly.\n\n");
    out.push_str("| format | written by | how it is stored |\n|---|---|---|\n");
    for format in WEIGHT_FORMATS {
        out.push_str(&format!("| {} | {} | {} |\n", format.name, format.written_by, format.about));
    }
    out.push_str("\n## What `crit models quantize --to` writes\n\n| scheme | what |\n|---|---|\n");
    for scheme in SCHEMES {
        out.push_str(&format!("| {} | {} |\n", scheme.name, scheme.about));
    }
    out
}

#[test]
fn the_table_of_formats_is_true() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/formats.md");
    let table = table();
    if std::env::var_os("CRIT_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &table).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == table, "run with CRIT_BLESS=1 to write docs/reference/formats.md anew");
}
