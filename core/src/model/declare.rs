//! The weights that a checkpoint of a configuration holds, without a checkpoint: from the program's own declarations.

use super::arch::{self, ArchError, Source};
use super::program::{Program, WeightId};
use crate::files::{DType, StorageFacts, StoredTensor};
use crate::json::Config;

/// A tensor that the checkpoint of a configuration has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Its Hugging Face name.
    pub name: String,
    /// Its shape as stored, PyTorch order.
    pub shape: Vec<usize>,
}

/// The program of `config` (the text model's) and the tensors it reads, in the order it reads them.
///
/// Where a family looks at tensors to choose between forms of storage it finds none, so the usual form is declared; the
/// output head is there unless the configuration ties it to the embedding, as it does by saying nothing.
///
/// # Errors
/// A configuration that is not of a supported family.
pub fn declared(config: &Config) -> Result<(Program, Vec<Declared>), ArchError> {
    let untied = !config.bool_or("tie_word_embeddings", true)?;
    let head = StoredTensor::from_bytes("lm_head.weight", DType::U8, &[0], Vec::new())?;
    let source = Source {
        config,
        storage: &StorageFacts::of_safetensors(config),
        tensor: &|name| (untied && name == head.name()).then(|| head.clone()),
    };
    let program = (arch::family(config)?.program)(&source)?;
    let mut out: Vec<Declared> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for place in program.entries.iter().flat_map(|entry| &entry.uses) {
        for (i, weight) in program.blocks[place.block].weights.iter().enumerate() {
            let name = program.stored_name(*place, WeightId(i as u32));
            if seen.insert(name.clone()) {
                let shape = weight.view.as_ref().map_or(&weight.shape, |view| &view.stored).clone();
                out.push(Declared { name, shape });
            }
        }
    }
    Ok((program, out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_declares_its_tensors_and_the_head_iff_untied() {
        let config = |tied: bool| {
            let text = format!(
                r#"{{"model_type":"qwen3","hidden_size":64,"intermediate_size":96,"num_hidden_layers":2,
                "num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,"vocab_size":300,
                "max_position_embeddings":128,"rms_norm_eps":1e-6,"rope_theta":1e4,"tie_word_embeddings":{tied}}}"#
            );
            Config::parse(text.as_bytes(), "test").unwrap()
        };
        let (_, tied) = declared(&config(true)).unwrap();
        let (_, untied) = declared(&config(false)).unwrap();
        assert_eq!(tied.len(), 2 + 2 * 11);
        assert_eq!(untied.len(), tied.len() + 1);
        let find = |name: &str| untied.iter().find(|weight| weight.name == name).map(|weight| weight.shape.clone());
        assert_eq!(find("lm_head.weight"), Some(vec![300, 64]));
        assert_eq!(find("model.layers.1.self_attn.k_proj.weight"), Some(vec![32, 64]));
    }
}
