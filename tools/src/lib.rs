//! The tools: what an agent calls over MCP and a person types at the command line, as typed functions.
//!
//! A tool is one file with its `Params`, its `Output` and `run`, and one line in [`TOOLS`]. The MCP server and the
//! command line are thin faces of that list: both start the same jobs, answer the same JSON and fail with the same
//! [`ToolError`]. Work that takes longer than a moment runs as a [job](jobs) in a process of its own, so that a client
//! that times out, cancels or dies ends its wait and never the work.
//!
//! Nothing here prints or knows a protocol.

pub mod assembly;
pub mod bench;
pub mod candidate;
pub mod catalog;
pub mod checkpoint;
pub mod context;
pub mod dequant;
pub mod duel;
pub mod embedded;
pub mod engines;
pub mod error;
pub mod floor;
pub mod gpu;
pub mod host;
pub mod jobs;
pub mod judge;
pub mod limits;
pub mod list;
pub mod logits;
pub mod model;
pub mod next;
pub mod params;
pub mod quantize;
pub mod runs;
pub mod schema;
pub mod speed;
pub mod synth;
pub mod text;
pub mod tool;
pub mod verify;
pub mod workbench;
pub mod workspace;

pub mod ablate;
pub mod build_candidate;
pub mod eval;
pub mod inference_search;
pub mod job_cancel;
pub mod job_status;
pub mod plan;
pub mod recon;
pub mod run_status;
pub mod seal;
pub mod smoke;

pub use context::{Context, Reporter};
pub use error::ToolError;
pub use list::TOOLS;
pub use next::Next;
pub use tool::{Effect, Entry, Runs, Tool};
pub use workspace::Workspace;
