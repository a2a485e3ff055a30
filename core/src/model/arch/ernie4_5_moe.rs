//! ernie4_5_moe: rotary positions in neighbouring pairs, biases by option, routed experts chosen with a bias and a shared
//! one in a range of layers.
//!
//! Reference: transformers `models/ernie4_5_moe/modeling_ernie4_5_moe.py`; Baidu 2025.

use super::dense::{Dense, LayerKind};
use super::parts::Mlp;
use super::parts::moe::{GATE_UP_DOWN, Moe, expert_counts};
use super::parts::shared_expert::SharedExpert;
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;
use crate::model::program::ops::moe_route::MoeRoute;
use crate::model::program::ops::rope::RopePairs;

/// The family.
pub const FAMILY: Family = Family { name: "ernie4_5_moe", model_types: &["ernie4_5_moe"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let mut dense = Dense::from_config("ernie4_5_moe", source)?;
    let bias = config.bool_or("use_bias", false)?;
    (dense.qkv_bias, dense.o_bias, dense.mlp_bias) = (bias, bias, bias);
    dense.head_bias = bias && (source.tensor)("lm_head.bias").is_some();
    dense.pairs = RopePairs::Interleaved;
    let old = OldKeys { theta: "rope_theta", default_theta: 500_000.0, scaled: true };
    let rope = Some(table(source, "full_attention", dense.head_dim, &old)?);
    dense.kinds = vec![LayerKind { name: "layer", rope, window: None, experts: false }];
    let (experts, top_k) = expert_counts(config, "moe_num_experts", ("moe_k", 6))?;
    let intermediate = config.positive("moe_intermediate_size")?;
    let (hidden, activation, layers) = (dense.hidden, dense.activation, dense.layers.len());
    let route = MoeRoute { biased: true, ..MoeRoute::softmax(top_k, true) };
    let sizes = (hidden, intermediate, activation);
    let moe = Moe::of_mlps(sizes, experts, route, ("mlp.experts", GATE_UP_DOWN), "mlp.gate");
    let moe = Moe { choice_bias: Some(("mlp.moe_statics.e_score_correction_bias", true)), ..moe };
    let width = intermediate * config.usize_or("moe_num_shared_experts", 2)?;
    let shared = SharedExpert {
        mlp: Mlp { hidden, intermediate: width, activation, bias },
        module: "mlp.shared_experts",
        gate: None,
    };
    let first = config.usize_or("moe_layer_start_index", 1)?;
    // -1 stands for the last layer.
    let last = config.opt_i64("moe_layer_end_index")?.and_then(|last| usize::try_from(last).ok());
    let (last, step) = (last.unwrap_or(layers - 1), config.usize_or("moe_layer_interval", 1)?.max(1));
    let has = |i: usize| (i + 1).is_multiple_of(step) && (first..=last).contains(&i);
    dense.with_experts(moe, Some(shared).filter(|_| width > 0), has);
    dense.program(source)
}
