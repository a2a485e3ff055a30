//! From a checkpoint to a model: its step program bound to its tensors; and the plain reference that judges every
//! kernel.

pub mod arch;
pub mod plain;
pub mod program;

use crate::files::{Checkpoint, StoredTensor};
use arch::{ArchError, Source};
use program::{BlockUse, Program, WeightId};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// A program and the checkpoint whose tensors it names. Cheap to clone.
#[derive(Clone)]
pub struct Model {
    /// What it computes.
    pub program: Arc<Program>,
    /// Where its weights are.
    pub checkpoint: Arc<Checkpoint>,
}

/// Why a path is not a model that can run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The files.
    #[error(transparent)]
    File(#[from] crate::files::FileError),
    /// The architecture.
    #[error(transparent)]
    Arch(#[from] ArchError),
}

impl crate::error::Diagnose for ModelError {
    fn kind(&self) -> crate::error::ErrorKind {
        match self {
            Self::File(error) => error.kind(),
            Self::Arch(error) => error.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::File(error) => error.hint(),
            Self::Arch(error) => error.hint(),
        }
    }
}

impl Model {
    /// Opens a model file or folder and binds its program.
    ///
    /// # Errors
    /// The files cannot be read, or do not make a supported model.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        Ok(Self::bind(Checkpoint::open(path)?)?)
    }

    /// Binds the program of an open checkpoint: every declared weight is there in its shape, every tensor is used or on
    /// the family's skip list.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn bind(checkpoint: Checkpoint) -> Result<Self, ArchError> {
        let program = {
            let config = checkpoint.config()?.text()?;
            let source = Source {
                config: &config,
                storage: checkpoint.storage(),
                tensor: &|name| checkpoint.tensor(name).cloned(),
            };
            (arch::family(&config)?.program)(&source)?
        };
        let model = Self { program: Arc::new(program), checkpoint: Arc::new(checkpoint) };
        let used = model.check_weights()?;
        model.check_all_used(&used)?;
        Ok(model)
    }

    /// The tensor behind a weight. Exists for every weight of a bound model.
    ///
    /// # Panics
    /// A place or weight of another program.
    pub fn weight(&self, place: BlockUse, weight: WeightId) -> StoredTensor {
        let name = self.program.tensor_name(place, weight);
        self.checkpoint.tensor(&name).cloned().expect("a bound model has every declared weight")
    }

    fn check_weights(&self) -> Result<HashSet<String>, ArchError> {
        let mut used = HashSet::new();
        for place in self.program.entries.iter().flat_map(|entry| &entry.uses) {
            for (i, decl) in self.program.blocks[place.block].weights.iter().enumerate() {
                let name = self.program.tensor_name(*place, WeightId(i as u32));
                let Some(tensor) = self.checkpoint.tensor(&name) else {
                    let why = format!("the `{}` program reads it as `{}`", self.program.arch, decl.role);
                    return Err(ArchError::MissingTensor { name, why });
                };
                if tensor.shape() != decl.shape {
                    let found = tensor.shape().to_vec();
                    return Err(ArchError::Shape { name, found, expected: decl.shape.clone() });
                }
                if !(tensor.dtype().is_float() || tensor.dtype().is_quantised()) {
                    return Err(ArchError::Format { name, dtype: tensor.dtype().name().to_string() });
                }
                used.insert(name);
            }
        }
        Ok(used)
    }

    fn check_all_used(&self, used: &HashSet<String>) -> Result<(), ArchError> {
        let skipped = |name: &str| self.program.skip_prefixes.iter().any(|prefix| name.starts_with(prefix));
        let tied_copy = |name: &str| name == "lm_head.weight" && !used.contains(name);
        match self.checkpoint.tensors().find(|t| !used.contains(t.name()) && !skipped(t.name()) && !tied_copy(t.name()))
        {
            Some(tensor) => Err(ArchError::Unused { name: tensor.name().to_string(), arch: self.program.arch }),
            None => Ok(()),
        }
    }
}
