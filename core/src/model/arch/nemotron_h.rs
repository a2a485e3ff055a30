//! nemotron_h: one mixer a layer, each with a norm before and a residual around it: Mamba-2, attention without positions,
//! an MLP, or routed experts with one for every token. MLPs and experts have no gate.
//!
//! Reference: transformers `models/nemotron_h/modeling_nemotron_h.py`; NVIDIA 2025, arXiv:2504.03624. With
//! `moe_latent_size` the routed experts work on a narrower map of the stream.

use super::builder::{BlockBuilder, Map, ProgramBuilder, Sizes};
use super::dense::known_activation;
use super::hybrid::{conv_shape_at, divides};
use super::parts::mamba::{Mixer, MixerValues, OutputNorm};
use super::parts::moe::{ExpertTensors, Moe, MoeValues};
use super::parts::stream::{self, Ends, Stream};
use super::parts::{Attend, AttentionShape, AttentionValues, Norm};
use super::{ArchError, Family, Source};
use crate::model::program::ops::act::Act;
use crate::model::program::ops::add::Add;
use crate::model::program::ops::gated_act::Activation;
use crate::model::program::ops::mamba2::Mamba2;
use crate::model::program::ops::moe_experts::{ExpertAct, ExpertMaps, MoeExperts};
use crate::model::program::ops::moe_route::{Groups, MoeRoute, Score};
use crate::model::program::{Program, ValueId};

/// The family.
pub const FAMILY: Family = Family { name: "nemotron_h", model_types: &["nemotron_h"], program };

const LAYER: &str = "backbone.layers.{layer}.";

/// What a layer mixes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Mamba,
    Attention,
    Mlp,
    Experts,
}

/// An MLP without a gate.
#[derive(Clone, Copy)]
struct Plain {
    hidden: usize,
    intermediate: usize,
    activation: Activation,
    bias: bool,
}

struct Nemotron {
    ends: Ends,
    norm: Norm,
    attention: AttentionShape,
    attention_bias: bool,
    mixer: Mixer,
    mlp: Plain,
    shared: Plain,
    moe: Option<Moe>,
    /// Width of what routed experts work on, if it is not the stream's.
    latent: Option<usize>,
}

struct Values {
    stream: Stream,
    attention: AttentionValues,
    mixer: MixerValues,
    up: ValueId,
    shared_up: ValueId,
    routed: ValueId,
    moe: Option<MoeValues>,
    /// What experts read and give.
    latent: Option<[ValueId; 2]>,
}

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let kinds = kinds(source)?;
    let model = Nemotron::new(source, &kinds)?;
    let mut builder = ProgramBuilder::new("nemotron_h");
    builder.skip("mtp.");
    let values = model.values(&mut builder);
    let (stream, Ends { hidden, vocab }) = (values.stream, model.ends);
    let prologue = builder.add(model.ends.embed("backbone.embeddings", 1.0, stream));
    let head = if source.tied_head()? { "backbone.embeddings.weight" } else { "lm_head.weight" };
    let epilogue = builder.add(model.ends.head(model.norm, "backbone.norm_f", head, stream));
    builder.place(prologue, None);
    let mut known: Vec<(Kind, usize)> = Vec::new();
    for (layer, kind) in kinds.iter().enumerate() {
        let found = known.iter().find(|(other, _)| other == kind).map(|(_, block)| *block);
        let block = found.unwrap_or_else(|| {
            let block = builder.add(model.layer(&values, *kind));
            known.push((*kind, block));
            block
        });
        builder.place(block, Some(layer));
    }
    builder.place(epilogue, None);
    let max_context = config.usize_or("max_position_embeddings", 4096)?.max(1);
    builder.finish(&Sizes { vocab, hidden, layers: kinds.len(), max_context }, stream.logits)
}

/// Each layer's mixer: a letter each in older files, a word each in newer ones.
fn kinds(source: &Source<'_>) -> Result<Vec<Kind>, ArchError> {
    let config = source.config;
    let wrong = |key: &str, what: &str| ArchError::Value { key: key.into(), why: format!("`{what}` is no mixer") };
    if let Some(pattern) = config.opt_str("hybrid_override_pattern")? {
        let letter = |letter: char| match letter {
            'M' => Ok(Kind::Mamba),
            '*' => Ok(Kind::Attention),
            '-' => Ok(Kind::Mlp),
            'E' => Ok(Kind::Experts),
            other => Err(wrong("hybrid_override_pattern", &other.to_string())),
        };
        return pattern.chars().map(letter).collect();
    }
    let key = if config.has("layers_block_type") { "layers_block_type" } else { "layer_types" };
    let word = |word: &String| match word.as_str() {
        "mamba" | "mamba2" | "linear_attention" => Ok(Kind::Mamba),
        "attention" | "full_attention" => Ok(Kind::Attention),
        "mlp" => Ok(Kind::Mlp),
        "moe" => Ok(Kind::Experts),
        other => Err(wrong(key, other)),
    };
    let Some(words) = config.opt_str_list(key)? else {
        return Err(ArchError::Value { key: key.into(), why: "nothing says which mixer a layer has".into() });
    };
    words.iter().map(word).collect()
}

impl Nemotron {
    fn new(source: &Source<'_>, kinds: &[Kind]) -> Result<Self, ArchError> {
        let config = source.config;
        let hidden = config.positive("hidden_size")?;
        let eps = config.f64_or("layer_norm_epsilon", config.f64_or("norm_eps", 1e-5)?)? as f32;
        let heads = config.positive("num_attention_heads")?;
        let kv_heads = config.usize_or("num_key_value_heads", heads)?.max(1);
        divides("num_attention_heads", heads, "num_key_value_heads", kv_heads)?;
        let activation = known_activation("mlp_hidden_act", config.opt_str("mlp_hidden_act")?.unwrap_or("relu2"))?;
        let (intermediate, bias) =
            (config.usize_or("intermediate_size", 21_504)?.max(1), config.bool_or("mlp_bias", false)?);
        let shared = config.usize_or("moe_shared_expert_intermediate_size", 7688)?.max(1);
        let latent = config.opt_usize("moe_latent_size")?.filter(|width| *width > 0);
        let sparse = kinds.contains(&Kind::Experts);
        let head_dim = config.usize_or("head_dim", config.usize_or("attention_head_dim", 128)?)?.max(1);
        Ok(Self {
            ends: Ends { hidden, vocab: config.positive("vocab_size")? },
            norm: Norm::Rms { eps, offset: 0.0 },
            attention: AttentionShape { hidden, heads, kv_heads, head_dim },
            attention_bias: config.bool_or("attention_bias", false)?,
            mixer: mixer(source, hidden, eps, kinds)?,
            mlp: Plain { hidden, intermediate, activation, bias },
            shared: Plain { hidden, intermediate: shared, activation, bias },
            moe: if sparse { Some(moe(source, latent.unwrap_or(hidden), activation)?) } else { None },
            latent: latent.filter(|_| sparse),
        })
    }

    fn values(&self, builder: &mut ProgramBuilder) -> Values {
        let mut optional = |name, width| builder.tokens(name, width);
        let (up, shared_up) = (optional("up", self.mlp.intermediate), optional("shared_up", self.shared.intermediate));
        let routed = optional("routed", self.ends.hidden);
        let latent = self.latent.map(|width| [optional("latent", width), optional("latent_routed", width)]);
        Values {
            stream: self.ends.values(builder),
            attention: self.attention.values(builder),
            mixer: self.mixer.values(builder),
            up,
            shared_up,
            routed,
            moe: self.moe.as_ref().map(|moe| moe.values(builder)),
            latent,
        }
    }

    fn layer(&self, values: &Values, kind: Kind) -> BlockBuilder {
        let name = match kind {
            Kind::Mamba => "layer.mamba",
            Kind::Attention => "layer.full",
            Kind::Mlp => "layer.mlp",
            Kind::Experts => "layer.moe",
        };
        let mut block = BlockBuilder::under(name, LAYER);
        let Stream { x, normed, sublayer, .. } = values.stream;
        self.norm.put(&mut block, "norm", "norm", self.ends.hidden, (x, normed));
        match kind {
            Kind::Mamba => self.mixer.put(&mut block, "mixer", values.mixer, (normed, sublayer)),
            Kind::Attention => self.attend(&mut block, values),
            Kind::Mlp => self.mlp.put(&mut block, "mixer", values.up, (normed, sublayer)),
            Kind::Experts => self.experts(&mut block, values),
        }
        stream::join(&mut block, 1.0, values.stream);
        block
    }

    fn attend(&self, block: &mut BlockBuilder, values: &Values) {
        let (shape, inner, Stream { normed, sublayer, .. }) = (self.attention, values.attention, values.stream);
        shape.project(block, "mixer", self.attention_bias, normed, inner);
        shape.attend(block, Attend::full(shape.usual_scale()), inner);
        shape.gather(block, "mixer.o_proj", self.attention_bias, inner, sublayer);
    }

    fn experts(&self, block: &mut BlockBuilder, values: &Values) {
        let (Some(moe), Some(choice)) = (&self.moe, values.moe) else { return };
        let Stream { normed, sublayer, .. } = values.stream;
        let hidden = self.ends.hidden;
        // The router reads the stream, whatever the experts read.
        Moe { hidden, ..moe.clone() }.choose(block, choice, normed);
        match (self.latent, values.latent) {
            (Some(width), Some([latent, given])) => {
                let map = Map::columns(width, hidden).with_bias(self.mlp.bias);
                block.linear("fc1_latent_proj", "mixer.fc1_latent_proj", map, normed, latent);
                moe.run(block, choice, (latent, given));
                let map = Map::gather(hidden, width).with_bias(self.mlp.bias);
                block.linear("fc2_latent_proj", "mixer.fc2_latent_proj", map, given, values.routed);
            }
            _ => moe.run(block, choice, (normed, values.routed)),
        }
        self.shared.put(block, "mixer.shared_experts", values.shared_up, (normed, sublayer));
        block.op(Add::SUM, &[sublayer, values.routed], &[sublayer], &[]);
    }
}

impl Plain {
    fn put(&self, block: &mut BlockBuilder, module: &str, up: ValueId, (from, to): (ValueId, ValueId)) {
        let Self { hidden, intermediate, activation, bias } = *self;
        let map = Map::columns(intermediate, hidden).with_bias(bias);
        block.linear("up_proj", &format!("{module}.up_proj"), map, from, up);
        block.op(Act { activation }, &[up], &[up], &[]);
        let map = Map::gather(hidden, intermediate).with_bias(bias);
        block.linear("down_proj", &format!("{module}.down_proj"), map, up, to);
    }
}

fn mixer(source: &Source<'_>, hidden: usize, eps: f32, kinds: &[Kind]) -> Result<Mixer, ArchError> {
    let config = source.config;
    let scan = Mamba2 {
        heads: config.usize_or("mamba_num_heads", 128)?.max(1),
        head_dim: config.usize_or("mamba_head_dim", 64)?.max(1),
        groups: config.usize_or("n_groups", 8)?.max(1),
        state_dim: config.usize_or("ssm_state_size", 128)?.max(1),
        // The reference takes the lower end from here, not from `time_step_limit`.
        dt_min: config.f64_or("time_step_min", 0.001)? as f32,
        dt_max: f32::INFINITY,
        a_is_rate: source.storage.decay_as_rate,
    };
    divides("mamba_num_heads", scan.heads, "n_groups", scan.groups)?;
    let kernel = config.usize_or("conv_kernel", 4)?.max(1);
    let first = kinds.iter().position(|kind| *kind == Kind::Mamba).unwrap_or(0);
    let conv = format!("backbone.layers.{first}.mixer.conv1d.weight");
    Ok(Mixer {
        hidden,
        kernel,
        conv_bias: config.bool_or("use_conv_bias", true)?,
        bias: config.bool_or("use_bias", false)?,
        conv_stored: conv_shape_at(source, &conv, scan.inner() + 2 * scan.shared(), kernel),
        norm: OutputNorm::GateFirst,
        eps,
        multipliers: [1.0; 5],
        scan,
    })
}

fn moe(source: &Source<'_>, width: usize, activation: Activation) -> Result<Moe, ArchError> {
    let config = source.config;
    let (experts, top_k) = (config.positive("n_routed_experts")?, config.usize_or("num_experts_per_tok", 2)?);
    let groups = Groups { count: config.usize_or("n_group", 1)?.max(1), kept: config.usize_or("topk_group", 1)? };
    divides("n_routed_experts", experts, "n_group", groups.count)?;
    if top_k == 0 || top_k > experts / groups.count * groups.kept.min(groups.count) {
        let why = format!("{top_k} of {experts} experts");
        return Err(ArchError::Value { key: "num_experts_per_tok".into(), why });
    }
    let route = MoeRoute {
        score: Score::Sigmoid,
        groups: Some(groups).filter(|groups| groups.count > 1),
        factor: config.f64_or("routed_scaling_factor", 1.0)? as f32,
        biased: true,
        ..MoeRoute::softmax(top_k, config.bool_or("norm_topk_prob", true)?)
    };
    Ok(Moe {
        hidden: width,
        route,
        experts: MoeExperts {
            experts,
            top_k,
            intermediate: config.positive("moe_intermediate_size")?,
            maps: ExpertMaps::Up,
            act: ExpertAct::Plain(activation),
            biased: false,
            on_input: false,
        },
        tensors: ExpertTensors::Each { module: "mixer.experts", names: ["", "up_proj", "down_proj"] },
        router: "mixer.gate",
        router_bias: false,
        choice_bias: Some(("mixer.gate.e_score_correction_bias", false)),
    })
}
