//! gemma3n: several residual streams of which each layer works on one and predicts the others (altup), a low-rank path
//! beside attention (laurel), per-layer embeddings, sparse gates in the first layers, and keys and values of earlier
//! layers in the last ones.
//!
//! Reference: transformers `models/gemma3n/modeling_gemma3n.py`; altup is Baykal et al. 2023, arXiv:2301.13310, laurel
//! Menghani et al. 2024, arXiv:2411.07501. Norm weights are stored as they are used.

use super::builder::{BlockBuilder, Map, ProgramBuilder, Sizes};
use super::dense::{Dense, LAYER, known_activation};
use super::gemma3::cap;
use super::parts::kinds::{kinds, owners, skip_shared};
use super::parts::norm::weightless;
use super::parts::per_layer::{PerLayer, PerLayerValues};
use super::parts::stream::{Ends, Stream, head_name};
use super::parts::{Attend, AttentionShape, AttentionValues, Mlp, MlpValues, Norm, NormOver};
use super::rope::{OldKeys, RopeTable, table};
use super::{ArchError, Family, Source};
use crate::model::program::ops::act::Act;
use crate::model::program::ops::add::Add;
use crate::model::program::ops::altup_correct::AltupCorrect;
use crate::model::program::ops::altup_predict::AltupPredict;
use crate::model::program::ops::gated_act::Activation;
use crate::model::program::ops::linear::Linear;
use crate::model::program::ops::match_rms::MatchRms;
use crate::model::program::ops::rope::RopePairs;
use crate::model::program::ops::scale::Scale;
use crate::model::program::ops::select_rows::SelectRows;
use crate::model::program::ops::softcap::Softcap;
use crate::model::program::ops::sparsify::Sparsify;
use crate::model::program::{Program, ValueId};

/// The family.
pub const FAMILY: Family = Family { name: "gemma3n", model_types: &["gemma3n_text", "gemma3n"], program };

/// Layers whose description is the same share a block.
#[derive(Clone, PartialEq)]
struct Kind {
    windowed: bool,
    owner: Option<usize>,
    /// Standard deviations above the mean that a gate needs, if gates are sparse.
    deviations: Option<f32>,
}

struct Model {
    shape: AttentionShape,
    mlp: Mlp,
    norm: Norm,
    eps: f32,
    /// Streams and the one that layers work on.
    streams: usize,
    active: usize,
    scaled: bool,
    laurel_rank: usize,
    per_layer: PerLayer,
    window: usize,
    ropes: [RopeTable; 2],
}

struct Values {
    stream: Stream,
    attention: AttentionValues,
    mlp: MlpValues,
    per_layer: PerLayerValues,
    /// The streams between layers, and as a layer predicts them. `stream.x` is what the layer makes of the active one.
    now: Vec<ValueId>,
    predicted: Vec<ValueId>,
    modalities: ValueId,
    predict: ValueId,
    correct: ValueId,
    low: ValueId,
    laurel: ValueId,
}

const STREAMS: [&str; 8] = ["x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7"];
const PREDICTED: [&str; 8] = ["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"];
const LAST: [&str; 8] = ["last0", "last1", "last2", "last3", "last4", "last5", "last6", "last7"];

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let dense = Dense::from_config_with("gemma3n", source, intermediate(source)?)?;
    let Dense { hidden, intermediate, heads, kv_heads, head_dim, vocab, max_context, eps, .. } = dense;
    let layers = dense.layers.len();
    let activation =
        known_activation("hidden_activation", config.opt_str("hidden_activation")?.unwrap_or("gelu_pytorch_tanh"))?;
    let (streams, active) = (config.usize_or("altup_num_inputs", 4)?, config.usize_or("altup_active_idx", 0)?);
    if !(1..=STREAMS.len()).contains(&streams) || active >= streams {
        let why = format!("{streams} streams with {active} active; 1 to {} are supported", STREAMS.len());
        return Err(ArchError::Value { key: "altup_num_inputs".into(), why });
    }
    let full = OldKeys { theta: "rope_theta", default_theta: 1_000_000.0, scaled: true };
    let local = OldKeys { theta: "rope_local_base_freq", default_theta: 10_000.0, scaled: false };
    let model = Model {
        shape: AttentionShape { hidden, heads, kv_heads, head_dim },
        mlp: Mlp { hidden, intermediate, activation, bias: false },
        norm: Norm::Rms { eps, offset: 0.0 },
        eps,
        streams,
        active,
        scaled: config.bool_or("altup_correct_scale", true)?,
        laurel_rank: config.usize_or("laurel_rank", 64)?,
        per_layer: PerLayer {
            hidden,
            width: config.usize_or("hidden_size_per_layer_input", 256)?,
            layers,
            vocab: config.usize_or("vocab_size_per_layer_input", 262_144)?,
            eps,
            activation,
        },
        window: config.usize_or("sliding_window", 512)?,
        ropes: [
            table(source, "full_attention", head_dim, &full)?,
            table(source, "sliding_attention", head_dim, &local)?,
        ],
    };
    let windowed = kinds(source, "layer_types", &["full_attention", "sliding_attention"], layers, |i| {
        usize::from((i + 1) % 5 != 0)
    })?;
    let owners = owners(source, &windowed, 15)?;
    let sparse = sparsity(source, layers)?;
    let kind = |i: usize| Kind { windowed: windowed[i] == 1, owner: owners[i], deviations: sparse[i] };

    let mut builder = ProgramBuilder::new("gemma3n");
    builder.skip_other_modalities();
    skip_shared(&mut builder, &owners);
    if !model.scaled {
        builder.skip("*.altup.correct_output_scale");
    }
    let ends = Ends { hidden, vocab };
    let values = model.values(&mut builder, ends);
    let prologue = builder.add(model.prologue(&values, ends));
    builder.place(prologue, None);
    let mut known: Vec<(Kind, usize)> = Vec::new();
    for layer in 0..layers {
        let kind = kind(layer);
        let block = match known.iter().find(|(other, _)| *other == kind) {
            Some((_, block)) => *block,
            None => {
                let block = builder.add(model.layer(&values, &kind, dense.qkv_bias));
                known.push((kind, block));
                block
            }
        };
        builder.place(block, Some(layer));
    }
    let cap = cap(source, "final_logit_softcapping", 30.0)?;
    let lasts: Vec<ValueId> = LAST[..streams].iter().map(|name| builder.rows(name, hidden)).collect();
    let sum = builder.rows("last_sum", hidden);
    let mut epilogue = model.epilogue(&values, &lasts, sum);
    let head = epilogue.weight("lm_head", head_name(source.tied_head()?), &[vocab, hidden], Some(0));
    let Stream { last, logits, .. } = values.stream;
    epilogue.op(Linear { bias: false }, &[last], &[logits], &[head]);
    if let Some(cap) = cap {
        epilogue.op(Softcap { cap }, &[logits], &[logits], &[]);
    }
    let epilogue = builder.add(epilogue);
    builder.place(epilogue, None);
    builder.finish(&Sizes { vocab, hidden, layers, max_context }, values.stream.logits)
}

impl Model {
    fn values(&self, builder: &mut ProgramBuilder, ends: Ends) -> Values {
        let hidden = ends.hidden;
        let mut named = |names: &[&'static str]| -> Vec<ValueId> {
            names[..self.streams].iter().map(|name| builder.tokens(name, hidden)).collect()
        };
        let (now, predicted) = (named(&STREAMS), named(&PREDICTED));
        let stream = ends.values(builder);
        Values {
            stream,
            attention: self.shape.values(builder),
            mlp: MlpValues::new(builder, self.mlp.intermediate),
            per_layer: self.per_layer.values(builder),
            now,
            predicted,
            modalities: builder.tokens("modalities", self.streams),
            predict: builder.tokens("prediction", self.streams * self.streams),
            correct: builder.tokens("correction", self.streams),
            low: builder.tokens("laurel_low", self.laurel_rank),
            laurel: builder.tokens("laurel", hidden),
        }
    }

    fn prologue(&self, v: &Values, ends: Ends) -> BlockBuilder {
        let first = Stream { x: v.now[0], ..v.stream };
        let mut block = ends.embed("model.embed_tokens", (ends.hidden as f32).sqrt(), first);
        self.per_layer.embed(&mut block, v.per_layer, first);
        for (i, to) in v.now.iter().enumerate().skip(1) {
            let map = Map::columns(ends.hidden, ends.hidden);
            block.linear("altup", &format!("model.altup_projections.{}", i - 1), map, v.now[0], *to);
            block.op(MatchRms, &[v.now[0], *to], &[*to], &[]);
        }
        block
    }

    /// What kind of token a stream holds, which decides how streams mix.
    fn modalities(&self, block: &mut BlockBuilder, v: &Values, from: ValueId) {
        let (hidden, normed) = (self.shape.hidden, v.stream.normed);
        self.norm.put(block, "altup.router_norm", "router_norm", hidden, (from, normed));
        block.op(Scale { factor: 1.0 / hidden as f32 }, &[normed], &[normed], &[]);
        let map = Map::columns(self.streams, hidden);
        block.linear("modality_router", "altup.modality_router", map, normed, v.modalities);
        block.op(Act { activation: Activation::Tanh }, &[v.modalities], &[v.modalities], &[]);
    }

    fn layer(&self, v: &Values, kind: &Kind, bias: bool) -> BlockBuilder {
        let name = if kind.windowed { "layer.window" } else { "layer.full" };
        let mut block = BlockBuilder::under(name, LAYER);
        let (n, hidden) = (self.streams, self.shape.hidden);
        let Stream { x, normed, sublayer, .. } = v.stream;
        self.modalities(&mut block, v, v.now[self.active]);
        block.linear("prediction_coefs", "altup.prediction_coefs", Map::columns(n * n, n), v.modalities, v.predict);
        let reads = [&v.now[..], &[v.predict]].concat();
        block.op(AltupPredict { streams: n }, &reads, &v.predicted, &[]);

        self.norm.put(&mut block, "input_layernorm", "input_layernorm", hidden, (v.predicted[self.active], normed));
        self.laurel(&mut block, v);
        self.attention(&mut block, v, kind, bias);
        self.norm.put(&mut block, "post_attention_layernorm", "post_attention_layernorm", hidden, (sublayer, sublayer));
        block.op(Add::SUM, &[v.predicted[self.active], sublayer], &[x], &[]);
        block.op(Add::SUM, &[x, v.laurel], &[x], &[]);
        block.op(Scale { factor: std::f32::consts::FRAC_1_SQRT_2 }, &[x], &[x], &[]);
        self.norm.put(&mut block, "pre_feedforward_layernorm", "pre_feedforward_layernorm", hidden, (x, normed));
        self.mlp(&mut block, v, kind);
        let name = "post_feedforward_layernorm";
        self.norm.put(&mut block, name, name, hidden, (sublayer, sublayer));
        block.op(Add::SUM, &[x, sublayer], &[x], &[]);

        self.modalities(&mut block, v, x);
        block.linear("correction_coefs", "altup.correction_coefs", Map::columns(n, n), v.modalities, v.correct);
        let reads = [&v.predicted[..], &[x, v.correct]].concat();
        block.op(AltupCorrect { streams: n, active: self.active }, &reads, &v.now, &[]);

        let weights: Vec<_> = match self.scaled {
            true => vec![block.weight("correct_output_scale", "altup.correct_output_scale", &[hidden], None)],
            false => Vec::new(),
        };
        block.op(Scale { factor: 1.0 }, &[v.now[self.active]], &[normed], &weights);
        self.per_layer.gate(&mut block, v.per_layer, (normed, sublayer));
        for stream in &v.now[1..] {
            block.op(Add::SUM, &[*stream, sublayer], &[*stream], &[]);
        }
        block
    }

    fn laurel(&self, block: &mut BlockBuilder, v: &Values) {
        let (rank, hidden, normed) = (self.laurel_rank, self.shape.hidden, v.stream.normed);
        block.linear("laurel_left", "laurel.linear_left", Map::columns(rank, hidden), normed, v.low);
        block.linear("laurel_right", "laurel.linear_right", Map::gather(hidden, rank), v.low, v.laurel);
        self.norm.put(block, "laurel.post_laurel_norm", "post_laurel_norm", hidden, (v.laurel, v.laurel));
        block.op(Add::SUM, &[v.laurel, normed], &[v.laurel], &[]);
    }

    fn attention(&self, block: &mut BlockBuilder, v: &Values, kind: &Kind, bias: bool) {
        let (shape, values, from) = (self.shape, v.attention, v.stream.normed);
        let rope = &self.ropes[usize::from(kind.windowed)];
        let how = Attend::full(1.0).window(Some(self.window).filter(|_| kind.windowed));
        match kind.owner {
            None => {
                shape.project(block, "self_attn", bias, from, values);
                shape.norm_queries_and_keys(block, "self_attn", (self.norm, NormOver::Head), values);
                weightless(block, self.eps, shape.head_dim, (values.v, values.v));
                shape.rotate(block, rope, RopePairs::HalfSplit, values);
                shape.attend(block, how, values);
            }
            Some(owner) => {
                let map = Map::columns(shape.q_width(), shape.hidden).with_bias(bias);
                block.linear("q_proj", "self_attn.q_proj", map, from, values.q);
                self.norm.put(block, "self_attn.q_norm", "q_norm", shape.head_dim, (values.q, values.q));
                shape.rotate_one(block, rope, RopePairs::HalfSplit, values.q);
                shape.attend_shared(block, how, owner, values);
            }
        }
        shape.gather(block, "self_attn.o_proj", bias, values, v.stream.sublayer);
    }

    fn mlp(&self, block: &mut BlockBuilder, v: &Values, kind: &Kind) {
        let MlpValues { gate, up } = v.mlp;
        for (role, out) in [("gate_proj", gate), ("up_proj", up)] {
            let map = Map::columns(self.mlp.intermediate, self.mlp.hidden);
            block.linear(role, &format!("mlp.{role}"), map, v.stream.normed, out);
        }
        if let Some(deviations) = kind.deviations {
            block.op(Sparsify { deviations }, &[gate], &[gate], &[]);
        }
        self.mlp.act_and_down(block, "mlp.down_proj", v.mlp, v.stream.sublayer);
    }

    /// The mean of all streams, brought to the magnitude of the first.
    fn epilogue(&self, v: &Values, lasts: &[ValueId], sum: ValueId) -> BlockBuilder {
        let (hidden, Stream { last, .. }) = (self.shape.hidden, v.stream);
        let mut block = BlockBuilder::new("epilogue");
        for (from, to) in v.now.iter().zip(lasts) {
            block.op(SelectRows, &[*from], &[*to], &[]);
        }
        for (i, stream) in lasts.iter().enumerate().skip(1) {
            let module = format!("model.altup_unembed_projections.{}", i - 1);
            block.linear("altup_unembed", &module, Map::columns(hidden, hidden), *stream, last);
            block.op(MatchRms, &[lasts[0], last], &[last], &[]);
            block.op(Add::SUM, &[if i == 1 { lasts[0] } else { sum }, last], &[sum], &[]);
        }
        let from = if self.streams == 1 { lasts[0] } else { sum };
        block.op(Scale { factor: 1.0 / self.streams as f32 }, &[from], &[last], &[]);
        self.norm.put(&mut block, "model.norm", "norm", hidden, (last, last));
        block
    }
}

/// The MLP width: one number, or one a layer, which must then all be the same.
fn intermediate(source: &Source<'_>) -> Result<usize, ArchError> {
    const KEY: &str = "intermediate_size";
    if !source.config.get(KEY).is_some_and(serde_json::Value::is_array) {
        return Ok(source.config.positive(KEY)?);
    }
    let given = source.config.opt_usize_list(KEY)?.unwrap_or_default();
    match given[..] {
        [first, ref rest @ ..] if first > 0 && rest.iter().all(|other| *other == first) => Ok(first),
        _ => Err(ArchError::Value { key: KEY.into(), why: "layers of different widths are not supported".into() }),
    }
}

/// For each layer the standard deviations above the mean that a gate needs: where the normal distribution has the
/// share `activation_sparsity_pattern` below it.
fn sparsity(source: &Source<'_>, layers: usize) -> Result<Vec<Option<f32>>, ArchError> {
    const KEY: &str = "activation_sparsity_pattern";
    let wrong = |why: String| ArchError::Value { key: KEY.into(), why };
    let shares = match source.config.opt_f64_list(KEY)? {
        Some(shares) => shares,
        None => (0..layers).map(|i| if layers > 10 && i < 10 { 0.95 } else { 0.0 }).collect(),
    };
    if shares.len() != layers {
        return Err(wrong(format!("{} entries for {layers} layers", shares.len())));
    }
    if let Some(share) = shares.iter().find(|share| !(0.0..1.0).contains(*share)) {
        return Err(wrong(format!("a share must lie in [0, 1), not {share}")));
    }
    Ok(shares.iter().map(|share| Some(normal_quantile(*share) as f32).filter(|_| *share > 0.0)).collect())
}

/// The x below which the standard normal distribution has the share `p`, by bisection.
fn normal_quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-10.0, 10.0);
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        if normal_share(middle) < p { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

/// The share of the standard normal distribution below x: 1/2 + density(x) (x + x^3/3 + x^5/(3*5) + ...), whose terms are
/// all of one sign.
fn normal_share(x: f64) -> f64 {
    if x < 0.0 {
        return 1.0 - normal_share(-x);
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..400 {
        term *= x * x / (2 * n + 1) as f64;
        sum += term;
    }
    0.5 + sum * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of published tables of the normal distribution.
    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (p, x) in [(0.5, 0.0), (0.95, 1.644_853_627), (0.975, 1.959_963_985), (0.25, -0.674_489_750)] {
            assert!((normal_quantile(p) - x).abs() < 1e-8, "{p}: {}", normal_quantile(p));
        }
    }
}
