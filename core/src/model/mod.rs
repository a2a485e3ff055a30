//! From a checkpoint to a model: its step program bound to its tensors; and the plain reference that judges every
//! kernel.

pub mod arch;
pub mod declare;
pub mod plain;
pub mod program;

use crate::files::{Checkpoint, StoredTensor};
use arch::{ArchError, Source};
use program::{BlockUse, Program, WeightId};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A program and the checkpoint whose tensors it names. Cheap to clone.
#[derive(Clone)]
pub struct Model {
    /// What it computes.
    pub program: Arc<Program>,
    /// Where its weights are.
    pub checkpoint: Arc<Checkpoint>,
    /// Weights that are parts of stored tensors or transposed ones, by the weight's name.
    views: Arc<BTreeMap<String, StoredTensor>>,
}

/// Why a path is not a model that can run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The files.
    #[error(transparent)]
    File(#[from] crate::files::FileError),
    /// The architecture.
    #[error("{}", at(path, error))]
    Arch {
        /// The file or folder.
        path: PathBuf,
        /// What does not fit.
        error: Box<ArchError>,
    },
}

/// What does not fit, with the place where the error does not name it itself.
fn at(path: &Path, error: &ArchError) -> String {
    match error {
        ArchError::Config(_) | ArchError::File(_) => error.to_string(),
        _ => format!("{}: {error}", path.display()),
    }
}

impl crate::error::Diagnose for ModelError {
    fn kind(&self) -> crate::error::ErrorKind {
        match self {
            Self::File(error) => error.kind(),
            Self::Arch { error, .. } => error.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::File(error) => error.hint(),
            Self::Arch { error, .. } => error.hint(),
        }
    }
}

/// The role of a table of expert numbers, the one weight that is integers.
pub(crate) const EXPERT_TABLE: &str = "expert_table";

impl Model {
    /// Opens a model file or folder and binds its program.
    ///
    /// # Errors
    /// The files cannot be read, or do not make a supported model.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        Self::bind(Checkpoint::open(path)?)
            .map_err(|error| ModelError::Arch { path: path.into(), error: Box::new(error) })
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
        let mut model =
            Self { program: Arc::new(program), checkpoint: Arc::new(checkpoint), views: Arc::new(BTreeMap::new()) };
        let used = model.check_weights()?;
        model.views = Arc::new(model.make_views()?);
        model.check_all_used(&used)?;
        Ok(model)
    }

    /// The model without its drafting head.
    #[must_use]
    pub fn without_draft(mut self) -> Self {
        if self.program.draft().is_some() {
            Arc::make_mut(&mut self.program).entries.retain(|entry| entry.name != "draft");
        }
        self
    }

    /// The tensor behind a weight. Exists for every weight of a bound model.
    ///
    /// # Panics
    /// A place or weight of another program.
    pub fn weight(&self, place: BlockUse, weight: WeightId) -> StoredTensor {
        let name = self.program.tensor_name(place, weight);
        self.tensor(&name).cloned().expect("a bound model has every declared weight")
    }

    /// A tensor by its name in the checkpoint, or a part of one by the name of the weight it is.
    pub fn tensor(&self, name: &str) -> Option<&StoredTensor> {
        self.views.get(name).or_else(|| self.checkpoint.tensor(name))
    }

    /// Bytes as stored of every tensor and of every weight that is a part of one, by name.
    pub fn stored_bytes(&self) -> Vec<(String, u64)> {
        let all = self.checkpoint.tensors().chain(self.views.values());
        all.map(|tensor| (tensor.name().to_string(), tensor.stored_bytes() as u64)).collect()
    }

    /// Brings its weights into memory with `threads` threads; `progress` hears of bytes done and of all bytes.
    pub fn load(&self, threads: usize, progress: &(dyn Fn(u64, u64) + Sync)) {
        let used: Vec<&StoredTensor> = self.used().collect();
        crate::files::load(&used, threads, progress);
    }

    /// Bytes of memory that weights take beside the files, once all were used: those put in another order.
    pub fn copied_bytes(&self) -> u64 {
        self.used().map(|tensor| tensor.copied_bytes() as u64).sum()
    }

    /// What the program reads: views in the place of the tensors they are of.
    fn used(&self) -> impl Iterator<Item = &StoredTensor> {
        let viewed: HashSet<&str> = self.views.values().map(StoredTensor::stored_name).collect();
        let whole = self.checkpoint.tensors().filter(move |tensor| !viewed.contains(tensor.stored_name()));
        whole.chain(self.views.values())
    }

    /// Every weight that is not a whole tensor as stored.
    fn make_views(&self) -> Result<BTreeMap<String, StoredTensor>, ArchError> {
        let mut views = BTreeMap::new();
        // One transposed copy serves all weights cut from it.
        let mut swapped: BTreeMap<String, StoredTensor> = BTreeMap::new();
        for place in self.program.entries.iter().flat_map(|entry| &entry.uses) {
            for (i, decl) in self.program.blocks[place.block].weights.iter().enumerate() {
                let Some(view) = &decl.view else { continue };
                let (stored, name) = {
                    let id = WeightId(i as u32);
                    (self.program.stored_name(*place, id), self.program.tensor_name(*place, id))
                };
                let Some(whole) = self.checkpoint.tensor(&stored) else { continue };
                let whole = match (view.transposed, swapped.get(&stored)) {
                    (false, _) => whole.clone(),
                    (true, Some(made)) => made.clone(),
                    (true, None) => swapped.entry(stored).or_insert(whole.transposed()?).clone(),
                };
                let part = whole.part(&name, view.rows.clone(), &decl.shape)?;
                views.insert(name, part);
            }
        }
        Ok(views)
    }

    fn check_weights(&self) -> Result<HashSet<String>, ArchError> {
        let mut used = HashSet::new();
        for place in self.program.entries.iter().flat_map(|entry| &entry.uses) {
            for (i, decl) in self.program.blocks[place.block].weights.iter().enumerate() {
                let name = self.program.stored_name(*place, WeightId(i as u32));
                let Some(tensor) = self.checkpoint.tensor(&name) else {
                    let why = format!("the `{}` program reads it as `{}`", self.program.arch, decl.role);
                    return Err(ArchError::MissingTensor { name, why });
                };
                let expected = decl.view.as_ref().map_or(&decl.shape, |view| &view.stored);
                if tensor.shape() != expected {
                    let found = tensor.shape().to_vec();
                    return Err(ArchError::Shape { name, found, expected: expected.clone() });
                }
                if decl.role != EXPERT_TABLE && !(tensor.dtype().is_float() || tensor.dtype().is_quantised()) {
                    return Err(ArchError::Format { name, dtype: tensor.dtype().name().to_string() });
                }
                used.insert(name);
            }
        }
        Ok(used)
    }

    fn check_all_used(&self, used: &HashSet<String>) -> Result<(), ArchError> {
        let skipped = |name: &str| {
            self.program.skips.iter().any(|skip| match skip.strip_prefix('*') {
                Some(end) => name.ends_with(end),
                None => name.starts_with(skip.as_str()),
            })
        };
        let tied_copy = |name: &str| name == "lm_head.weight" && !used.contains(name);
        match self.checkpoint.tensors().find(|t| !used.contains(t.name()) && !skipped(t.name()) && !tied_copy(t.name()))
        {
            Some(tensor) => Err(ArchError::Unused { name: tensor.name().to_string(), arch: self.program.arch }),
            None => Ok(()),
        }
    }
}
