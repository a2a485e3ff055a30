//! What `quantize` can write: one line a scheme.

use crate::files::DType;

/// A way to write a whole checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// Its name.
    pub name: &'static str,
    /// What it is, for help.
    pub about: &'static str,
    /// Container and form.
    pub(super) form: Form,
}

/// Container and form of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A GGUF file of this `general.file_type`.
    Gguf { file_type: u32, base: DType, mixture: bool },
    /// A folder of safetensors.
    Safetensors(Method),
}

/// How linear maps are stored in safetensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// Blocks of 128 by 128 in E4M3.
    Fp8Block,
    /// Rows in E4M3.
    Fp8Channel,
    /// Four bits in groups of 128 columns.
    Int4,
    /// E2M1 in groups of 32.
    Mxfp4,
    /// E2M1 in groups of 16.
    Nvfp4,
}

const fn safetensors(name: &'static str, about: &'static str, method: Method) -> Scheme {
    Scheme { name, about, form: Form::Safetensors(method) }
}

const fn gguf(name: &'static str, about: &'static str, file_type: u32, base: DType, mixture: bool) -> Scheme {
    Scheme { name, about, form: Form::Gguf { file_type, base, mixture } }
}

/// All schemes, sorted by name.
pub const SCHEMES: &[Scheme] = &[
    gguf("bf16", "GGUF, bfloat16", 32, DType::BF16, false),
    gguf("f16", "GGUF, half precision", 1, DType::F16, false),
    safetensors("fp8_block", "safetensors, FP8 in blocks of 128 by 128 (weight_scale_inv)", Method::Fp8Block),
    safetensors("fp8_channel", "safetensors, FP8 with a scale a row (compressed-tensors)", Method::Fp8Channel),
    safetensors("int4", "safetensors, 4 bits in groups (compressed-tensors pack-quantized)", Method::Int4),
    safetensors("mxfp4", "safetensors, MXFP4 (compressed-tensors)", Method::Mxfp4),
    safetensors("nvfp4", "safetensors, NVFP4, weights only (compressed-tensors)", Method::Nvfp4),
    gguf("q4_0", "GGUF, 4 bits in blocks of 32; output head Q6_K", 2, DType::Q4_0, true),
    // The number of the mixture stands for the type alone too: there is none of its own.
    gguf("q4_k", "GGUF, 4 bits in super-blocks of 256, every matrix", 14, DType::Q4_K, false),
    gguf(
        "q4_k_m",
        "GGUF, Q4_K with Q6_K for half of the values, down projections and the output head",
        15,
        DType::Q4_K,
        true,
    ),
    gguf("q6_k", "GGUF, 6 bits in super-blocks of 256", 18, DType::Q6_K, true),
    gguf("q8_0", "GGUF, 8 bits in blocks of 32", 7, DType::Q8_0, true),
];

impl Scheme {
    /// The scheme called `name`, in any case.
    pub fn find(name: &str) -> Option<&'static Self> {
        SCHEMES.iter().find(|scheme| scheme.name.eq_ignore_ascii_case(name))
    }

    /// The container it writes.
    pub fn container(&self) -> &'static str {
        match self.form {
            Form::Gguf { .. } => "gguf",
            Form::Safetensors(_) => "safetensors",
        }
    }
}

/// What a tensor's type depends on beside its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) layers: usize,
    pub(super) experts: usize,
    /// Whether the embedding is the output head too.
    pub(super) tied: bool,
    /// Whether eight query heads share a value head in a model of 80 layers, whose value maps are small.
    pub(super) is_wide_70b: bool,
}

/// The type of the matrix `name` (in GGUF's names) with rows of `width`, for a mixture around `base`.
pub(super) fn matrix_type(name: &str, width: usize, base: DType, mixture: bool, facts: Facts) -> DType {
    let wanted = if mixture { mixed(name, base, facts) } else { base };
    fitting(wanted, width)
}

fn mixed(name: &str, base: DType, facts: Facts) -> DType {
    if matches!(base, DType::Q8_0) {
        return base;
    }
    let is_head = name == "output.weight" || (facts.tied && name == "token_embd.weight");
    if is_head {
        return DType::Q6_K;
    }
    if base != DType::Q4_K {
        return base;
    }
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')?.0.parse::<usize>().ok());
    let more = layer.is_some_and(|layer| deserves_more(layer, facts.layers));
    let of = |part: &str| name.contains(part);
    let eight_experts = facts.experts == 8;
    match () {
        () if of("attn_v.weight") && eight_experts => DType::Q8_0,
        () if of("attn_v.weight") && more => DType::Q6_K,
        () if of("attn_v.weight") && facts.is_wide_70b => DType::Q5_K,
        () if of("attn_k.weight") && eight_experts => DType::Q8_0,
        () if of("attn_output.weight") && eight_experts => DType::Q5_K,
        () if of("ffn_down") && more => DType::Q6_K,
        () => base,
    }
}

/// The layers that get more bits: the first and last eighth, and every third between.
fn deserves_more(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// `wanted`, or the next type whose blocks fill rows of `width`.
fn fitting(wanted: DType, width: usize) -> DType {
    let fits = |dtype: DType| width.is_multiple_of(dtype.block_elems());
    let smaller = match wanted {
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K | DType::Q6_K => DType::Q8_0,
        _ => wanted,
    };
    [wanted, smaller].into_iter().find(|dtype| fits(*dtype)).unwrap_or(DType::F16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_sorted_and_found_in_any_case() {
        assert!(SCHEMES.is_sorted_by_key(|scheme| scheme.name));
        assert_eq!(Scheme::find("Q4_K_M").map(|scheme| scheme.name), Some("q4_k_m"));
        assert!(Scheme::find("q9").is_none());
    }

    #[test]
    fn the_mixture_of_a_deep_model() {
        let facts = Facts { layers: 32, experts: 0, tied: false, is_wide_70b: false };
        let of = |name: &str| matrix_type(name, 4096, DType::Q4_K, true, facts);
        let more: Vec<usize> =
            (0..32).filter(|layer| of(&format!("blk.{layer}.ffn_down.weight")) == DType::Q6_K).collect();
        assert_eq!(more, [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]);
        assert_eq!(of("output.weight"), DType::Q6_K);
        assert_eq!(of("token_embd.weight"), DType::Q4_K);
        assert_eq!(of("blk.0.attn_q.weight"), DType::Q4_K);
        assert_eq!(matrix_type("blk.0.attn_q.weight", 96, DType::Q4_K, true, facts), DType::Q5_0);
        assert_eq!(matrix_type("blk.0.ffn_down.weight", 96, DType::Q4_K, true, facts), DType::Q8_0);
        assert_eq!(matrix_type("blk.0.attn_q.weight", 42, DType::Q8_0, true, facts), DType::F16);
    }
}
