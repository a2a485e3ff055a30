//! From a checkpoint's config to its step program: one file a family, one line in [`FAMILIES`].
//!
//! A family's file reads the config in Hugging Face's keys (GGUF readers translate into them) and describes the
//! program; it never touches weight data except small tables that belong to the description (GGUF's `rope_freqs`).

pub mod bamba;
mod builder;
pub mod cohere2;
pub mod deepseek_v3;
pub mod deepseek_v4;
pub mod dense;
pub mod ernie4_5_moe;
pub mod exaone4;
pub mod falcon_h1;
pub mod gemma2;
pub mod gemma3;
pub mod gemma3n;
pub mod gemma4;
pub mod glm4;
pub mod glm4_moe;
pub mod gpt2;
pub mod gpt_oss;
pub mod granite;
pub mod granitemoehybrid;
pub mod hunyuan_moe;
mod hybrid;
pub mod kimi_linear;
pub mod lfm2;
pub mod llama;
pub mod llama4;
mod mamba;
pub mod minimax_m2;
pub mod mistral;
pub mod mixtral;
pub mod nemotron_h;
pub mod olmo2;
pub mod olmo3;
mod parts;
pub mod phi3;
pub mod qwen2;
pub mod qwen2_moe;
pub mod qwen3;
pub mod qwen3_5;
pub mod qwen3_5_moe;
pub mod qwen3_moe;
pub mod qwen3_next;
pub mod qwen4_exp;
pub mod rope;
pub mod smollm3;

use super::program::{Program, ProgramError};
use crate::error::{Diagnose, ErrorKind, likely_slip};
use crate::files::{StorageFacts, StoredTensor};
use crate::json::{Config, JsonError};

/// An architecture family.
pub struct Family {
    /// Its name, the key of tables and tests.
    pub name: &'static str,
    /// Values of `model_type` in configs that mean it.
    pub model_types: &'static [&'static str],
    /// From config to program.
    pub program: fn(&Source<'_>) -> Result<Program, ArchError>,
}

/// All families, sorted by name.
pub const FAMILIES: &[Family] = &[
    bamba::FAMILY,
    cohere2::FAMILY,
    deepseek_v3::FAMILY,
    deepseek_v3::FAMILY_V32,
    deepseek_v4::FAMILY,
    ernie4_5_moe::FAMILY,
    exaone4::FAMILY,
    falcon_h1::FAMILY,
    gemma2::FAMILY,
    gemma3::FAMILY,
    gemma3n::FAMILY,
    gemma4::FAMILY,
    glm4::FAMILY,
    glm4_moe::FAMILY,
    gpt2::FAMILY,
    gpt_oss::FAMILY,
    granite::FAMILY,
    granitemoehybrid::FAMILY,
    hunyuan_moe::FAMILY,
    kimi_linear::FAMILY,
    lfm2::FAMILY,
    llama::FAMILY,
    llama4::FAMILY,
    minimax_m2::FAMILY,
    mistral::FAMILY,
    mixtral::FAMILY,
    nemotron_h::FAMILY,
    olmo2::FAMILY,
    olmo3::FAMILY,
    phi3::FAMILY,
    qwen2::FAMILY,
    qwen2_moe::FAMILY,
    qwen3::FAMILY,
    qwen3_5::FAMILY,
    qwen3_5_moe::FAMILY,
    qwen3_moe::FAMILY,
    qwen3_next::FAMILY,
    qwen4_exp::FAMILY,
    smollm3::FAMILY,
];

/// What a family may look at.
pub struct Source<'a> {
    /// The text model's config.
    pub config: &'a Config,
    /// How the container stores what families usually store otherwise.
    pub storage: &'a StorageFacts,
    /// A tensor by its Hugging Face name.
    pub tensor: &'a dyn Fn(&str) -> Option<StoredTensor>,
}

impl Source<'_> {
    /// Whether the output head is the embedding table: the head tensor is absent.
    ///
    /// # Errors
    /// The config says untied and there is no head.
    pub fn tied_head(&self) -> Result<bool, ArchError> {
        let has_head = (self.tensor)("lm_head.weight").is_some();
        let says_tied = self.config.bool_or("tie_word_embeddings", true)?;
        if !has_head && !says_tied {
            return Err(ArchError::MissingTensor {
                name: "lm_head.weight".into(),
                why: "the config says `tie_word_embeddings: false`".into(),
            });
        }
        Ok(!has_head)
    }
}

/// Why a checkpoint is not a program.
#[derive(Debug, thiserror::Error)]
pub enum ArchError {
    /// No family knows the model type.
    #[error("model_type `{found}` is not supported; supported are {}", supported().join(", "))]
    UnknownType {
        /// What the config says.
        found: String,
    },
    /// A config key is missing or wrong.
    #[error(transparent)]
    Config(#[from] JsonError),
    /// Values that are each fine and do not fit each other, or lie outside what is supported.
    #[error("the config's `{key}`: {why}")]
    Value {
        /// The key.
        key: String,
        /// What is wrong and what is right.
        why: String,
    },
    /// A tensor the program needs is not there.
    #[error("tensor `{name}` is missing: {why}")]
    MissingTensor {
        /// Its name.
        name: String,
        /// Why it is needed.
        why: String,
    },
    /// A tensor has another shape than the config says.
    #[error("tensor `{name}` has shape {found:?}, the config asks for {expected:?}")]
    Shape {
        /// Its name.
        name: String,
        /// As stored.
        found: Vec<usize>,
        /// As the config says.
        expected: Vec<usize>,
    },
    /// A tensor nobody reads.
    #[error("tensor `{name}` is in the checkpoint and the `{arch}` program does not use it")]
    Unused {
        /// Its name.
        name: String,
        /// The family.
        arch: &'static str,
    },
    /// A tensor in a format nothing reads.
    #[error("tensor `{name}` is stored as {dtype}, which cannot be computed with")]
    Format {
        /// Its name.
        name: String,
        /// As stored.
        dtype: String,
    },
    /// A tensor that could not be read.
    #[error(transparent)]
    File(#[from] crate::files::FileError),
    /// The family's own fault.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

impl Diagnose for ArchError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Program(_) => ErrorKind::Internal,
            _ => ErrorKind::Input,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownType { found } => {
                Some(match likely_slip(found, FAMILIES.iter().flat_map(|f| f.model_types.iter().copied())) {
                    Some(near) => format!("did you mean `{near}`? Otherwise use a checkpoint of a supported family"),
                    None => "use a checkpoint of a supported family".into(),
                })
            }
            Self::Config(error) => error.hint(),
            Self::File(error) => error.hint(),
            Self::Value { key, .. } => Some(format!("correct `{key}`, or use the config that belongs to the weights")),
            Self::Shape { .. } | Self::MissingTensor { .. } => {
                Some("check that the config and the weights belong to the same checkpoint".into())
            }
            Self::Unused { .. } => {
                Some("a checkpoint with tensors nobody reads gives wrong output; report the model".into())
            }
            _ => None,
        }
    }
}

fn supported() -> Vec<&'static str> {
    FAMILIES.iter().flat_map(|family| family.model_types.iter().copied()).collect()
}

/// The family of a config.
///
/// # Errors
/// `model_type` is missing or unknown.
pub fn family(config: &Config) -> Result<&'static Family, ArchError> {
    let found = config.str("model_type")?;
    FAMILIES
        .iter()
        .find(|family| family.model_types.contains(&found))
        .ok_or_else(|| ArchError::UnknownType { found: found.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_sorted_and_disjoint() {
        let names: Vec<_> = FAMILIES.iter().map(|f| f.name).collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        assert_eq!(names, sorted, "keep FAMILIES sorted by name");
        let mut types = supported();
        types.sort_unstable();
        types.dedup();
        assert_eq!(types.len(), supported().len(), "a model_type belongs to one family");
    }
}
