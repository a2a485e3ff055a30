//! Plugin slots, manifests and the assembly of an engine.
//!
//! A plugin fills a slot: op plugins claim ops of the program on a backend (their code side is in `crit-kernels`),
//! policy plugins decide. Core knows manifests, policies and the rules of an assembly; which plugins exist is a list
//! handed in by the executable.

pub mod assembly;
pub mod manifest;
pub mod policy;

pub use assembly::{Assembly, AssemblyError, Options, PluginUse, QualityMode, ResolvedPlugin, resolve};
pub use manifest::{Manifest, OptionSpec, Slot};
pub use policy::{Draft, Drafter, PrefixCache, PrefixHit};
