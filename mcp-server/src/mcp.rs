//! The MCP server: `crit mcp`, over standard input and output.
//!
//! It lists the tools, runs each call on a thread of its own and answers. It holds no state: jobs, runs and records
//! live in the workspace, so a server that was killed and started again knows all the one before knew.

use crate::guard::{self, Streams};
use crit_core::error::ErrorKind;
use crit_tools::{Context, Effect, Entry, ToolError, jobs, schema, tool};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, InitializeResult,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt};
use serde_json::{Map, Value};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a client shows the model first. Some show only the first 240 characters.
pub const INSTRUCTIONS: &str = "crit builds, benchmarks and serves a bespoke LLM inference engine for one model \
checkpoint on this machine (CPU, GPU), as measured candidates with quality checks. Start with `recon`; every answer \
ends with `next`, the call to make next.\n\n\
Order: recon (machine, model, ceilings) → plan (hypothesis, plugins) → build_candidate (freezes engine/) → smoke → \
ablate → eval (speed, quality) → repeat from plan, or seal the best. `inference_search` finds strategies to plan with; \
`run_status` says where the run stands and what to do next.\n\n\
Long tools run as jobs: they answer at once with a job_id; then call `job_status` with `wait_s` (it waits on the \
server, so never sleep). The same call on the same inputs finds the same job; a lost or cancelled call loses nothing; \
only `job_cancel` ends a job.\n\n\
Numbers come from the tools alone: records are written by them and sealed by digest. A faster candidate that fails \
quality is no win, and above the ceiling is invalid.\n\n\
Edit engine/ in the workspace with your own tools; everything else (serve, logits, records, probes) is the `crit` \
command line.";

/// Serves MCP until the client hangs up.
///
/// # Errors
/// The streams cannot be taken or the runtime cannot start.
pub fn serve(context: Context) -> std::io::Result<()> {
    let streams = guard::take()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(talk(context, streams));
    // A wait may still sit on a thread; nobody is left to answer.
    runtime.shutdown_background();
    outcome
}

async fn talk(context: Context, streams: Streams) -> std::io::Result<()> {
    let requests = tokio::fs::File::from_std(streams.requests.into());
    let answers = tokio::fs::File::from_std(streams.answers.into());
    let server = Server { context };
    // A client that hangs up before or after the handshake is an ordinary end.
    if let Ok(running) = server.serve((requests, answers)).await {
        let _ = running.waiting().await;
    }
    Ok(())
}

/// The handler.
pub struct Server {
    context: Context,
}

impl Server {
    /// Runs a call on a thread of its own.
    async fn run(
        &self,
        entry: &'static Entry,
        arguments: Value,
        request: RequestContext<RoleServer>,
    ) -> CallToolResult {
        let client = request.client_info().map(|info| info.name).unwrap_or_default();
        let context = self.context.for_client(&client);
        let cancelled = context.cancelled.clone();
        let work = tokio::task::spawn_blocking(move || {
            catch_unwind(AssertUnwindSafe(|| entry.answer(&context, &arguments))).unwrap_or_else(|panic| {
                let text = jobs::runner::panic_text(&*panic);
                Err(ToolError::new(ErrorKind::Internal, format!("{} failed inside: {text}", entry.name))
                    .with_hint("this is a fault of crit; other calls still work"))
            })
        });
        let outcome = tokio::select! {
            outcome = work => outcome,
            () = request.ct.cancelled() => {
                // Ends the wait; a job goes on.
                cancelled.store(true, Ordering::Relaxed);
                return failed(&ToolError::new(ErrorKind::Check, "the call was cancelled; a job it started goes on"));
            }
        };
        match outcome {
            Ok(Ok(answer)) => CallToolResult::structured(answer),
            Ok(Err(error)) => failed(&error),
            Err(_) => failed(&ToolError::new(ErrorKind::Internal, format!("{} ended without an answer", entry.name))),
        }
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> InitializeResult {
        let me = Implementation::new("crit", env!("CARGO_PKG_VERSION"));
        InitializeResult::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(me)
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.context.tools.iter().map(describe).collect()))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        request: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = Value::Object(call.arguments.unwrap_or_default());
        let result = match tool::find(self.context.tools, &call.name) {
            Ok(entry) => self.run(entry, arguments, request).await,
            Err(error) => failed(&error),
        };
        Ok(result.into())
    }
}

/// A tool as listed.
pub fn describe(entry: &Entry) -> Tool {
    let (read_only, idempotent) = match entry.effect {
        Effect::Reads => (true, true),
        Effect::Adds { idempotent } => (false, idempotent),
    };
    // All four are said: clients take what is unsaid for destructive and open.
    let annotations = ToolAnnotations::from_raw(
        Some(entry.title.into()),
        Some(read_only),
        Some(false),
        Some(idempotent),
        Some(false),
    );
    let mut tool = Tool::new(entry.name, entry.description, Arc::new(entry.input_schema()));
    tool.title = Some(entry.title.into());
    tool.output_schema = Some(Arc::new(schema::short(entry.output_schema())));
    tool.annotations = Some(annotations);
    tool
}

/// An error for the model: some clients show it the text, some the structured half, so each says all.
fn failed(error: &ToolError) -> CallToolResult {
    let json = serde_json::to_value(error).unwrap_or_else(|_| Value::Object(Map::new()));
    let mut result = CallToolResult::structured_error(json.clone());
    result.content = vec![ContentBlock::text(json.to_string())];
    result
}
