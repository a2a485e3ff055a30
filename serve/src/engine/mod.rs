//! The engine side of the server: how a host process is reached, which generations it is running, and how its replies
//! come to async code. Whether a host is alive is [`crate::supervisor`]'s business.

pub mod link;
pub mod live;
pub mod process;

pub use link::{EngineLauncher, EngineLink, EngineProcess, ReplySource, RequestSink};
pub use live::{EngineEvent, EngineFault, EngineStream};
pub use process::HostLauncher;
