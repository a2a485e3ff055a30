//! The contract of an op plugin: what it claims, it computes as the op's plain reference does, within the error its
//! manifest declares, twice the same, for one token and for many.
//!
//! Tried on single ops with random weights. An op it claims that is not among them, or claims only with weights in
//! another format, is for the plugin's own tests.

use super::{Numbers, Verdict, distance_ppm, require};
use crate::cpu::{Isa, Pool};
use crate::exec::{KvF32, KvStore, Lowering, OpPlugin, RecurrentStore, StepCx, Values};
use crit_core::files::StoredTensor;
use crit_core::model::program::op::NodeView;
use crit_core::model::program::ops::gated_act::{Activation, GatedAct};
use crit_core::model::program::ops::linear::Linear;
use crit_core::model::program::ops::rms_norm::RmsNorm;
use crit_core::model::program::{
    Axis, Block, BlockUse, Entry, NodeRef, Op, OpNode, PlainCx, Program, ValueDecl, ValueId, WeightDecl, WeightId,
};
use crit_core::plugin::Manifest;
use crit_core::runtime::StepBatch;
use std::sync::Arc;

/// Activations rounded to 8 bits, as the base kernels of block formats do, take about 0.5 %.
const DEFAULT_PPM: u32 = 10_000;

/// An op alone, with its weights.
struct Case {
    name: String,
    program: Program,
    weights: Vec<StoredTensor>,
}

pub(super) fn check(plugin: &dyn OpPlugin, manifest: &Manifest) -> Verdict {
    let pool = Pool::new(2).map_err(|error| error.to_string())?;
    let limit = manifest.error_ppm.unwrap_or(DEFAULT_PPM);
    for case in cases().map_err(|error| format!("the cases cannot be made: {error}"))? {
        let Some(outputs) = run(plugin, &case, &pool)? else { continue };
        let name = &case.name;
        let op = case.program.blocks[0].ops[0].op.name();
        require(manifest.claims.iter().any(|claim| claim == op), || {
            format!("it claims `{op}`, which its plugin.json does not name among its claims")
        })?;
        for (tokens, first, second, expected) in outputs {
            require(first == second, || format!("{name} with {tokens} tokens: two runs differ"))?;
            let ppm = distance_ppm(&first, &expected);
            require(ppm <= u64::from(limit), || {
                format!("{name} with {tokens} tokens is {ppm} ppm off the plain reference, at most {limit} are allowed")
            })?;
        }
    }
    Ok(())
}

type Outputs = Vec<(usize, Vec<f32>, Vec<f32>, Vec<f32>)>;

/// Two runs and the reference for several token counts; `None` if the plugin does not claim the case.
fn run(plugin: &dyn OpPlugin, case: &Case, pool: &Pool) -> Result<Option<Outputs>, String> {
    const MOST: usize = 9;
    let (program, block) = (&case.program, &case.program.blocks[0]);
    let place = program.entries[0].uses[0];
    let view = NodeView { program, block, place, node: &block.ops[0] };
    let lowering = Lowering {
        turns: Default::default(),
        products: Default::default(),
        threads: pool.threads(),
        view,
        at: NodeRef { use_index: 0, op_index: 0, place },
        weights: case.weights.clone(),
        isa: Isa::detect(),
        kv: Arc::new(KvF32),
    };
    let Some(mut kernel) = plugin.lower(&lowering).map_err(|error| error.to_string())? else { return Ok(None) };
    kernel.prepare(MOST, MOST).map_err(|error| error.to_string())?;
    let mut kv = KvStore::new(program, Arc::new(KvF32), 16, 1);
    let mut recurrent = RecurrentStore::new(program, 1);
    let mut numbers = Numbers(5);
    let mut outputs = Vec::new();
    for tokens in [1, 4, MOST] {
        let mut batch = StepBatch::default();
        batch.push(&vec![0; tokens], 0, vec![0], 0, 0..tokens as u32);
        let inputs: Vec<Vec<f32>> =
            program.values.iter().map(|v| (0..tokens * v.width).map(|_| numbers.normal()).collect()).collect();
        let mut once = || {
            let mut values = Values::new(program, MOST, MOST);
            values.begin(tokens, tokens);
            for (id, input) in inputs.iter().enumerate() {
                let id = ValueId(id as u32);
                let mut buffer = values.take(id);
                buffer[..input.len()].copy_from_slice(input);
                values.put(id, buffer);
            }
            let mut cx = StepCx { batch: &batch, values: &mut values, kv: &mut kv, recurrent: &mut recurrent, pool };
            kernel.enqueue(&mut cx).map_err(|error| error.to_string())?;
            Ok::<_, String>(values.get(program.logits).to_vec())
        };
        let (first, second) = (once()?, once()?);
        outputs.push((tokens, first, second, plain(case, view, &batch, inputs)?));
    }
    Ok(Some(outputs))
}

fn plain(case: &Case, view: NodeView<'_>, batch: &StepBatch, mut values: Vec<Vec<f32>>) -> Result<Vec<f32>, String> {
    let tensor = |weight: WeightId| case.weights[weight.at()].clone();
    let mut cx = PlainCx {
        view,
        tokens: &batch.tokens,
        carried: &[],
        past: 0,
        length: batch.tokens.len(),
        rows: &batch.rows,
        values: &mut values,
        states: &mut [],
        tensor: &tensor,
    };
    view.node.op.plain(&mut cx).map_err(|error| error.to_string())?;
    Ok(values.swap_remove(case.program.logits.at()))
}

fn cases() -> Result<Vec<Case>, crit_core::files::FileError> {
    let mut numbers = Numbers(29);
    let mut cases = Vec::new();
    for (k, n, axis, bias) in
        [(64, 48, Axis::Tokens, false), (256, 33, Axis::Tokens, true), (96, 70, Axis::Rows, false)]
    {
        let mut shapes = vec![vec![n, k]];
        if bias {
            shapes.push(vec![n]);
        }
        for bf16 in [false, true] {
            let weights = tensors(&shapes, bf16, &mut numbers)?;
            let name = format!("linear {k} to {n}{}", if bf16 { " (bf16)" } else { "" });
            cases.push(case(name, Arc::new(Linear { bias }), axis, &[k], n, weights));
        }
    }
    let norm = RmsNorm { group: 64, eps: 1e-6, offset: 0.0 };
    let weights = tensors(&[vec![64]], false, &mut numbers)?;
    cases.push(case("rms_norm over 64".into(), Arc::new(norm), Axis::Tokens, &[128], 128, weights));
    for activation in [Activation::Silu, Activation::GeluTanh] {
        let op = Arc::new(GatedAct::plain(activation));
        cases.push(case(format!("gated_act {activation:?}"), op, Axis::Tokens, &[48, 48], 48, Vec::new()));
    }
    Ok(cases)
}

fn tensors(
    shapes: &[Vec<usize>],
    bf16: bool,
    numbers: &mut Numbers,
) -> Result<Vec<StoredTensor>, crit_core::files::FileError> {
    let mut out = Vec::new();
    for (i, shape) in shapes.iter().enumerate() {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| numbers.normal() * 0.1).collect();
        let name = format!("weight{i}");
        out.push(match crit_core::files::DType::from_safetensors("BF16").filter(|_| bf16) {
            Some(dtype) => {
                let bytes = values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
                StoredTensor::from_bytes(&name, dtype, shape, bytes)?
            }
            None => StoredTensor::from_f32(&name, shape, &values)?,
        });
    }
    Ok(out)
}

/// A program of one op: reads values `0 ..`, writes the last one.
fn case(name: String, op: Arc<dyn Op>, axis: Axis, reads: &[usize], writes: usize, weights: Vec<StoredTensor>) -> Case {
    let value = |name, width| ValueDecl { name, axis, width };
    let mut values: Vec<ValueDecl> = reads.iter().map(|width| value("in", *width)).collect();
    values.push(value("out", writes));
    let out = ValueId(reads.len() as u32);
    let node = OpNode {
        op,
        reads: (0..reads.len() as u32).map(ValueId).collect(),
        writes: vec![out],
        weights: (0..weights.len() as u32).map(WeightId).collect(),
        states: Vec::new(),
    };
    let decls = weights.iter().map(|tensor| WeightDecl {
        role: "weight",
        tensor: tensor.name().into(),
        shape: tensor.shape().to_vec(),
        shard_axis: None,
        view: None,
    });
    let block = Block { kind: "layer", weights: decls.collect(), states: Vec::new(), ops: vec![node] };
    let program = Program {
        arch: "conformance",
        vocab: 1,
        hidden: reads[0],
        layers: 1,
        max_context: 16,
        values,
        blocks: vec![block],
        entries: vec![Entry { name: "step", uses: vec![BlockUse { block: 0, layer: Some(0) }] }],
        logits: out,
        skips: Vec::new(),
    };
    Case { name, program, weights }
}
