//! What a tool is run with: the workspace, who asks, how to report, how long to wait.

use crate::error::ToolError;
use crate::jobs::lock::MeasureLock;
use crate::tool::Entry;
use crate::workspace::Workspace;
use crit_core::error::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where a running tool tells how far it is. A job writes it to its state and log; elsewhere it goes nowhere.
pub trait Reporter: Send + Sync {
    /// A new phase of the work begins.
    fn phase(&self, name: &str);
    /// `done` of `total` units of the phase.
    fn progress(&self, done: u64, total: u64);
    /// A line for the log.
    fn log(&self, line: &str);
    /// The work waits for a machine that `holder` measures on; `None` when it goes on.
    fn waiting(&self, holder: Option<&crate::jobs::Holder>);
    /// The job this is, if it is one.
    fn job_id(&self) -> Option<String> {
        None
    }
}

/// Reports nowhere.
pub struct Silent;

impl Reporter for Silent {
    fn phase(&self, _: &str) {}
    fn progress(&self, _: u64, _: u64) {}
    fn log(&self, _: &str) {}
    fn waiting(&self, _: Option<&crate::jobs::Holder>) {}
}

/// What a tool is run with.
#[derive(Clone)]
pub struct Context {
    /// Where to work; `None` when crit was started where it must not write.
    workspace: Option<Workspace>,
    /// Name of the client, as it gave it.
    pub client: String,
    /// The executable that runs jobs (`PROGRAM job-run --workspace DIR ID`) and engine hosts.
    pub program: PathBuf,
    /// The tools there are.
    pub tools: &'static [Entry],
    /// Set when the caller no longer waits.
    pub cancelled: Arc<AtomicBool>,
    reporter: Arc<dyn Reporter>,
}

impl Context {
    /// A context for `tools` run by `program` in `workspace`.
    pub fn new(workspace: Option<Workspace>, program: PathBuf, tools: &'static [Entry]) -> Self {
        Self {
            workspace,
            client: String::new(),
            program,
            tools,
            cancelled: Arc::new(AtomicBool::new(false)),
            reporter: Arc::new(Silent),
        }
    }

    /// The same context for the client `name`, with a cancellation flag of its own.
    pub fn for_client(&self, name: &str) -> Self {
        Self { client: name.to_string(), cancelled: Arc::new(AtomicBool::new(false)), ..self.clone() }
    }

    /// The same context reporting to `reporter`.
    pub fn reporting_to(&self, reporter: Arc<dyn Reporter>) -> Self {
        Self { reporter, ..self.clone() }
    }

    /// The workspace, or why there is none and how to get one.
    ///
    /// # Errors
    /// crit was started in a folder that cannot be a workspace.
    pub fn workspace(&self) -> Result<&Workspace, ToolError> {
        self.workspace.as_ref().ok_or_else(|| {
            ToolError::new(ErrorKind::Environment, "there is no workspace: crit was started in `/` without one")
                .with_hint("start the server as `crit mcp --workspace DIR` with a folder that can be written")
        })
    }

    /// The workspace, if there is one.
    pub fn try_workspace(&self) -> Option<&Workspace> {
        self.workspace.as_ref()
    }

    /// Where to report to.
    pub fn report(&self) -> &dyn Reporter {
        &*self.reporter
    }

    /// Whether the caller no longer waits.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Waits until no other job measures on this machine, then keeps others out until the guard is dropped.
    ///
    /// # Errors
    /// The lock file cannot be made.
    pub fn measure(&self, what: &str) -> Result<MeasureLock, ToolError> {
        MeasureLock::acquire(self, what)
    }

    /// The longest server-side wait this client survives, in seconds.
    ///
    /// Clients stop waiting at 120 s (Claude Code moves the call to the background), 300 s (Codex) or 60 s (the
    /// default of the TypeScript SDK); progress messages do not extend that, so each bound stays below its limit.
    pub fn wait_cap_s(&self) -> u32 {
        match self.client.as_str() {
            "claude-code" => 100,
            "codex-mcp-client" => 240,
            "crit-cli" => 3600,
            _ => 45,
        }
    }
}
