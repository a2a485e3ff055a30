//! deepseek_v3: latent attention with a rotated part shared by all heads; routed experts chosen by sigmoid, a bias and
//! groups, and a shared one, in all layers but the first. deepseek_v32: the same with an indexer before attention.
//!
//! Reference: transformers `models/deepseek_v3/modeling_deepseek_v3.py`, `models/deepseek_v32`; DeepSeek-AI 2024, arXiv:2412.19437.

use super::builder::{BlockBuilder, ProgramBuilder, Sizes};
use super::dense::{LAYER, known_activation};
use super::glm4_moe::sigmoid_route;
use super::parts::kinds::kinds as kinds_of;
use super::parts::latent::{Indexer, Latent};
use super::parts::moe::{GATE_UP_DOWN, Moe, expert_counts};
use super::parts::shared_expert::SharedExpert;
use super::parts::stream::{self, Ends, head_name};
use super::parts::{Mlp, MlpValues, Norm};
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::json::Config;
use crate::model::program::Program;
use crate::model::program::ops::rope::RopePairs;

/// The family.
pub const FAMILY: Family =
    Family { name: "deepseek_v3", model_types: &["deepseek_v3"], program: |source| program("deepseek_v3", source) };

/// The family with an indexer.
pub const FAMILY_V32: Family =
    Family { name: "deepseek_v32", model_types: &["deepseek_v32"], program: |source| program("deepseek_v32", source) };

fn program(arch: &'static str, source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let (hidden, vocab) = (config.positive("hidden_size")?, config.positive("vocab_size")?);
    let layers = config.positive("num_hidden_layers")?;
    let norm = Norm::Rms { eps: config.f64_or("rms_norm_eps", 1e-6)? as f32, offset: 0.0 };
    let activation = known_activation("hidden_act", config.opt_str("hidden_act")?.unwrap_or("silu"))?;
    let latent = Latent { indexer: indexer(arch, config)?, ..latent(source)? };
    let mlp = Mlp { hidden, intermediate: config.positive("intermediate_size")?, activation, bias: false };
    let units = config.positive("moe_intermediate_size")?;
    let (experts, top_k) = expert_counts(config, "n_routed_experts", ("num_experts_per_tok", 8))?;
    let route = sigmoid_route(config, top_k)?;
    let sizes = (hidden, units, activation);
    let moe = Moe::of_mlps(sizes, experts, route, ("mlp.experts", GATE_UP_DOWN), "mlp.gate");
    let moe =
        Moe { choice_bias: Some(("mlp.gate.e_score_correction_bias", false)), ..moe }.found_in(source, layers - 1);
    let intermediate = units.saturating_mul(config.usize_or("n_shared_experts", 1)?.max(1));
    let shared = SharedExpert { mlp: Mlp { intermediate, ..mlp }, module: "mlp.shared_experts", gate: None };

    let mut builder = ProgramBuilder::new(arch);
    // Drafting layers stand behind the model's own.
    builder.skip(format!("model.layers.{layers}."));
    builder.skip("*.rotary_emb.inv_freq");
    let ends = Ends { hidden, vocab };
    let stream = ends.values(&mut builder);
    let attention = latent.values(&mut builder);
    let (dense_units, choice) = (MlpValues::new(&mut builder, mlp.intermediate), moe.values(&mut builder));
    let shared_values = shared.values(&mut builder);
    let kinds = ["layer", "layer.moe"].map(|name| {
        let mut block = BlockBuilder::under(name, LAYER);
        norm.put(&mut block, "input_layernorm", "input_layernorm", hidden, (stream.x, stream.normed));
        latent.put(&mut block, norm, hidden, &attention, (stream.normed, stream.sublayer));
        stream::join(&mut block, 1.0, stream);
        let io = (stream.normed, stream.sublayer);
        norm.put(&mut block, "post_attention_layernorm", "post_attention_layernorm", hidden, (stream.x, stream.normed));
        if name == "layer" {
            mlp.put(&mut block, "mlp", dense_units, io);
        } else {
            moe.put(&mut block, choice, io);
            shared.join(&mut block, shared_values, io);
        }
        stream::join(&mut block, 1.0, stream);
        builder.add(block)
    });
    let prologue = builder.add(ends.embed("model.embed_tokens", 1.0, stream));
    let epilogue = builder.add(ends.head(norm, "model.norm", head_name(source.tied_head()?), stream));
    let first = config.usize_or("first_k_dense_replace", 3)?;
    let sparse =
        kinds_of(source, "mlp_layer_types", &["dense", "sparse"], layers, |layer| usize::from(layer >= first))?;
    builder.place(prologue, None);
    sparse.iter().enumerate().for_each(|(layer, kind)| builder.place(kinds[*kind], Some(layer)));
    builder.place(epilogue, None);
    let max_context = config.usize_or("max_position_embeddings", 4096)?.max(1);
    builder.finish(&Sizes { vocab, hidden, layers, max_context }, stream.logits)
}

fn latent(source: &Source<'_>) -> Result<Latent, ArchError> {
    let config = source.config;
    let (own, shared) = (config.positive("qk_nope_head_dim")?, config.positive("qk_rope_head_dim")?);
    let old = OldKeys { theta: "rope_theta", default_theta: 10_000.0, scaled: true };
    let pairs = match config.bool_or("rope_interleave", true)? {
        true => RopePairs::Interleaved,
        false => RopePairs::HalfSplit,
    };
    Ok(Latent {
        heads: config.positive("num_attention_heads")?,
        q_rank: config.opt_usize("q_lora_rank")?.filter(|rank| *rank > 0),
        kv_rank: config.positive("kv_lora_rank")?,
        own,
        shared,
        value_dim: config.positive("v_head_dim")?,
        bias: config.bool_or("attention_bias", false)?,
        scale: ((own + shared) as f64).powf(-0.5) as f32 * sharpened(config)?,
        rope: Some((table(source, "full_attention", shared, &old)?, pairs)),
        maps_apart: (source.tensor)("model.layers.0.self_attn.kv_b_proj.weight").is_none(),
        indexer: None,
    })
}

fn indexer(arch: &str, config: &Config) -> Result<Option<Indexer>, ArchError> {
    if arch == "deepseek_v3" {
        return Ok(None);
    }
    if config.opt_usize("q_lora_rank")?.is_none() {
        return Err(ArchError::Value { key: "q_lora_rank".into(), why: "an indexer needs latent queries".into() });
    }
    Ok(Some(Indexer {
        heads: config.positive("index_n_heads")?,
        dim: config.positive("index_head_dim")?,
        top_k: config.positive("index_topk")?,
    }))
}

/// Factor on q·k under yarn: (0.1 mscale_all_dim ln(factor) + 1) squared.
fn sharpened(config: &Config) -> Result<f32, ArchError> {
    let scaling = match config.opt_object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => config.opt_object("rope_scaling")?,
    };
    let Some(scaling) = scaling else { return Ok(1.0) };
    let (all, factor) = (scaling.f64_or("mscale_all_dim", 0.0)?, scaling.f64_or("factor", 1.0)?);
    let magnitude = if all == 0.0 || factor <= 1.0 { 1.0 } else { 0.1 * all * factor.ln() + 1.0 };
    Ok((magnitude * magnitude) as f32)
}
