//! Run records: what was tried, measured, decided and sealed, so that it can be checked and replayed.
//!
//! A record is canonical JSON addressed by SHA-256 and chained to the one before it; a run is a chain in a git repository of
//! its own. Start at [`Store`]; the bodies are in [`format`]. Nothing here measures, decides or prints.

mod audit;
pub mod candidate;
pub mod canonical;
mod chain;
mod clock;
pub mod doctor;
mod durable;
mod error;
pub mod format;
mod layout;
mod lock;
pub mod merkle;
mod objects;
pub mod quantity;
mod refs;
mod rules;
mod samples;
mod store;
pub mod tree;
pub mod verify;
mod write;

pub use chain::Stored;
pub use error::{RecordError, Result};
pub use layout::INLINE_BYTES;
pub use store::{RunInfo, Store, StoredBlob, unique_prefix};
pub use write::{Attachment, Content, Draft};
