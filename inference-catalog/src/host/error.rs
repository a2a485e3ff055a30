//! Why an engine host does not serve.

use crit_core::error::{Diagnose, ErrorKind};
use crit_core::json::JsonError;
use crit_core::model::ModelError;
use crit_core::plugin::AssemblyError;
use crit_core::protocol::host::HostError as ServeError;
use crit_core::runtime::EngineError;
use crit_kernels::backend::cuda::CudaError;
use crit_kernels::exec::BuildError;
use crit_kernels::plugin::PluginError;
use std::io;

/// Why an engine host does not serve.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The call.
    #[error("{message}")]
    Usage {
        /// What is wrong with it.
        message: String,
    },
    /// `engine.json` cannot be read.
    #[error(transparent)]
    Config(#[from] JsonError),
    /// `engine.json` breaks a rule.
    #[error("engine.json: {0}")]
    Assembly(#[from] AssemblyError),
    /// The assembly is not for this host.
    #[error("engine.json: `engine.command` names a program of its own; the engine host runs plugins")]
    Foreign,
    /// A plugin that can do nothing for this model.
    #[error("plugin `{plugin}` is not applicable to this model: {why}")]
    NotApplicable {
        /// Its name.
        plugin: String,
        /// Why.
        why: &'static str,
    },
    /// A plugin.
    #[error(transparent)]
    Plugin(#[from] PluginError),
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The executor.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Memory.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The GPU.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The socket.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Nobody to tell.
    #[error("stdout cannot be written: {source}")]
    Stdout {
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl HostError {
    fn cause(&self) -> Option<&dyn Diagnose> {
        match self {
            Self::Config(error) => Some(error),
            Self::Assembly(error) => Some(error),
            Self::Plugin(error) => Some(error),
            Self::Model(error) => Some(error),
            Self::Build(error) => Some(error),
            Self::Engine(error) => Some(error),
            Self::Cuda(error) => Some(error),
            Self::Serve(error) => Some(error),
            Self::Usage { .. } | Self::Foreign | Self::NotApplicable { .. } | Self::Stdout { .. } => None,
        }
    }
}

impl Diagnose for HostError {
    fn kind(&self) -> ErrorKind {
        match (self.cause(), self) {
            (Some(error), _) => error.kind(),
            (None, Self::Stdout { .. }) => ErrorKind::Environment,
            (None, _) => ErrorKind::Usage,
        }
    }

    fn hint(&self) -> Option<String> {
        match (self.cause(), self) {
            (Some(error), _) => error.hint(),
            (None, Self::Usage { .. }) => Some("`--help` lists the arguments".into()),
            (None, Self::NotApplicable { plugin, .. }) => Some(format!("leave out `{plugin}`")),
            (None, Self::Foreign) => Some("start that program itself".into()),
            (None, _) => None,
        }
    }
}
