//! `build_candidate`: freeze `engine/`, check its assembly, build what needs building, and name the result by digest.

use crate::assembly::{self, Checked};
use crate::candidate::{Candidate, digest_of};
use crate::context::Context;
use crate::error::ToolError;
use crate::next::Next;
use crate::runs::{self, RunState};
use crate::tool::{Effect, Runs, Tool};
use crit_catalog::host::free_bytes;
use crit_catalog::package;
use crit_core::digest::Digest;
use crit_core::error::ErrorKind;
use crit_core::plugin::Manifest;
use crit_records::candidate::{CandidateParts, PluginCode};
use crit_records::format::{BuildBody, CandidateBody, Form, MEDIA_TEXT, Outcome, REL_PLAN, RecordId};
use crit_records::tree::{self, Frozen};
use crit_records::{Draft, Store, canonical, quantity};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What of `engine/` is no source.
const IGNORED: [&str; 2] = ["target", "**/__pycache__"];

/// The tool.
pub struct BuildCandidate;

/// Arguments.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// A name for it within the run; `c0`, `c1`, … if not given.
    #[serde(default)]
    pub name: Option<String>,
}

/// Answer.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Output {
    /// The candidate digest: over source, checkpoint, resolved assembly, plugin code and executable.
    pub candidate: String,
    /// Its name within the run.
    pub name: String,
    /// `assembly` (plugins compiled into crit), `package` (own Rust), `command` (any program).
    pub form: String,
    /// Plugins that are on, `name@version`.
    pub plugins: Vec<String>,
    /// Digest of the executable.
    pub executable: String,
    /// Files of the frozen source tree.
    pub source_files: u64,
    /// Milliseconds the compiler took; 0 when nothing was compiled.
    pub compile_ms: u64,
    /// Whether this very candidate was built before; then nothing was recorded anew.
    pub known_already: bool,
    /// The run.
    pub run: String,
    /// What to do next.
    pub next: Next,
}

impl Tool for BuildCandidate {
    const NAME: &'static str = "build_candidate";
    const TITLE: &'static str = "Build a candidate";
    const DESCRIPTION: &'static str = "Build, compile and freeze the inference engine in engine/ as a candidate named by \
        its digest. Checks engine.json (plugins, options, conflicts), compiles an engine package if there is own Rust, \
        and records source, checkpoint and executable. Needs a `plan` first; the same tree gives the same digest.";
    const EFFECT: Effect = Effect::Adds { idempotent: true };
    const RUNS: Runs = Runs::Job { deadline_s: 3600, inline_without_workspace: false };
    type Params = Params;
    type Output = Output;

    fn inputs(context: &Context, _: &Params) -> Result<Digest, ToolError> {
        let workspace = context.workspace()?;
        // Here already, so that a call that cannot succeed leaves no job behind.
        assembly::checked(workspace, &own_manifests(workspace.root())?, free_bytes())?;
        Builder::new(context)?;
        let tree = tree::scan(&workspace.engine(), &ignored())?.id()?;
        let tip = runs::tip(context).unwrap_or(tree);
        Ok(Digest::of_parts([tree.bytes().as_slice(), tip.bytes()]))
    }

    fn run(context: &Context, params: Params) -> Result<Output, ToolError> {
        Builder::new(context)?.build(params)
    }
}

fn ignored() -> Vec<String> {
    IGNORED.iter().map(ToString::to_string).collect()
}

/// What runs a candidate.
struct Executable {
    form: Form,
    /// None for crit itself.
    path: Option<PathBuf>,
    digest: Digest,
    compile_ms: u64,
    command: Vec<String>,
    log: Option<PathBuf>,
}

struct Builder<'a> {
    context: &'a Context,
    store: Store,
    state: RunState,
    plan: RecordId,
}

impl<'a> Builder<'a> {
    fn new(context: &'a Context) -> Result<Self, ToolError> {
        let store = runs::store(context)?;
        let state = RunState::read(&store, runs::open(&store)?)?;
        let plan = state.plan.ok_or_else(|| {
            ToolError::new(ErrorKind::Check, "this run has no plan yet; a candidate follows a plan")
                .with_hint("say what you expect before you measure it: call `plan`")
                .with_next(Next::call("plan").with("hypothesis", "base engine, no plugins: the starting point"))
        })?;
        Ok(Self { context, store, state, plan })
    }

    fn build(self, params: Params) -> Result<Output, ToolError> {
        let workspace = self.context.workspace()?;
        let report = self.context.report();
        report.phase("check engine.json");
        let own = own_manifests(workspace.root())?;
        let checked = assembly::checked(workspace, &own, free_bytes())?;
        report.phase("digest checkpoint");
        let checkpoint = crate::checkpoint::digest(self.context, &checked.assembly.model)?;
        self.same_checkpoint(&checkpoint)?;
        report.phase("freeze source");
        let frozen = tree::freeze(&self.store, &workspace.engine(), &ignored())?;
        let name = params.name.unwrap_or_else(|| format!("c{}", self.state.candidates.len()));
        report.phase("build executable");
        let built = executable(self.context, &checked);
        let built = match built {
            Ok(built) => built,
            Err(error) => return Err(self.record_failure(&name, &frozen, &checked, error)),
        };
        let after = tree::scan(&workspace.engine(), &ignored())?.id()?;
        if after != frozen.id {
            return Err(ToolError::new(ErrorKind::Check, "engine/ changed while it was built")
                .with_hint("call `build_candidate` again when no one edits engine/"));
        }
        let parts = CandidateParts {
            source: frozen.id,
            checkpoint,
            engine: Digest::of(&canonical::to_bytes(&assembly::resolved(&checked)).map_err(|error| {
                ToolError::new(ErrorKind::Input, format!("engine.json cannot be recorded: {error}"))
                    .with_hint("use whole numbers, words and true or false as option values")
            })?),
            plugins: plugin_code(workspace.root(), &checked)?,
            executable: built.digest,
            cubins: Vec::new(),
        };
        self.finish(name, frozen, checked, built, parts)
    }

    fn same_checkpoint(&self, checkpoint: &Digest) -> Result<(), ToolError> {
        let run = &self.state.info;
        if run.body.checkpoint == *checkpoint {
            return Ok(());
        }
        Err(ToolError::new(
            ErrorKind::Check,
            format!("engine.json names another checkpoint than run {} is about ({})", run.short, run.body.model),
        )
        .with_hint("set `model` in engine/engine.json back, or call `recon` with the other model to begin its run"))
    }

    fn candidate_record(
        &self,
        name: &str,
        frozen: &Frozen,
        form: Form,
        plugins: &[String],
    ) -> Result<RecordId, ToolError> {
        let body = CandidateBody {
            name: name.to_string(),
            source: frozen.id,
            form,
            parents: self.state.candidates.last().map(|one| one.record).into_iter().collect(),
            inspirations: plugins.to_vec(),
        };
        let draft = frozen.attach(Draft::new(&body)?.link(REL_PLAN, self.plan))?;
        Ok(self.store.append(&self.state.info.id, draft)?)
    }

    fn finish(
        self,
        name: String,
        frozen: Frozen,
        checked: Checked,
        built: Executable,
        parts: CandidateParts,
    ) -> Result<Output, ToolError> {
        let workspace = self.context.workspace()?;
        let digest = parts.digest();
        let known = self.state.candidates.iter().find(|one| one.digest == Some(digest)).map(|one| one.name.clone());
        let candidate = Candidate {
            digest,
            name: known.clone().unwrap_or(name),
            form: built.form,
            parts,
            assembly: checked.assembly.clone(),
            executable: built.path.clone(),
            folder: PathBuf::new(),
        };
        let candidate = candidate.save(workspace, |dest| Ok(frozen.materialise(&self.store, dest)?))?;
        let plugins = plugin_names(&checked);
        if known.is_none() {
            self.context.report().phase("record");
            let record = self.candidate_record(&candidate.name, &frozen, built.form, &plugins)?;
            let body = BuildBody {
                candidate: record,
                status: Outcome::Passed,
                package: Some(digest),
                inputs: Some(candidate.parts.clone()),
                failure: None,
                command: built.command.clone(),
                exit: (!built.command.is_empty()).then_some(0),
                toolchain: vec![format!("crit {}", env!("CARGO_PKG_VERSION"))],
                lock: None,
                network: false,
                took: Some(
                    quantity::Quantity::whole(i64::try_from(built.compile_ms).unwrap_or(i64::MAX), "ms")
                        .map_err(|error| ToolError::new(ErrorKind::Internal, error.to_string()))?,
                ),
            };
            let mut draft = Draft::new(&body)?.about(candidate.name.clone(), digest);
            if let Some(log) = built.log.as_ref().and_then(|log| std::fs::read(log).ok()) {
                draft = draft.attach("build.log", MEDIA_TEXT, log);
            }
            self.store.append(&self.state.info.id, draft)?;
        }
        Ok(Output {
            candidate: digest.to_string(),
            name: candidate.name,
            form: form_name(built.form).into(),
            plugins,
            executable: built.digest.to_string(),
            source_files: frozen.manifest.files.len() as u64,
            compile_ms: built.compile_ms,
            known_already: known.is_some(),
            run: self.state.info.short,
            next: Next::call("smoke").with("candidate", digest.to_string()),
        })
    }

    /// Records that the build failed; returns the error to tell.
    fn record_failure(&self, name: &str, frozen: &Frozen, checked: &Checked, error: ToolError) -> ToolError {
        let form = if checked.assembly.engine.is_some() { Form::Command } else { Form::Package };
        let record = self.candidate_record(name, frozen, form, &plugin_names(checked)).and_then(|record| {
            let body = BuildBody {
                candidate: record,
                status: Outcome::Failed,
                package: None,
                inputs: None,
                failure: Some(crate::text::clean_lines(&error.message, 4000)),
                command: Vec::new(),
                exit: None,
                toolchain: Vec::new(),
                lock: None,
                network: false,
                took: None,
            };
            Ok(self.store.append(&self.state.info.id, Draft::new(&body)?)?)
        });
        match record {
            Ok(_) => error,
            // The build's own failure is what the caller must mend first.
            Err(other) => {
                self.context.report().log(&format!("the failure could not be recorded: {other}"));
                error
            }
        }
    }
}

/// Manifests of the workspace's own plugins.
fn own_manifests(workspace: &Path) -> Result<Vec<Manifest>, ToolError> {
    if !package::exists(workspace) {
        return Ok(Vec::new());
    }
    Ok(package::plugins(workspace)?.into_iter().map(|own| own.manifest).collect())
}

fn executable(context: &Context, checked: &Checked) -> Result<Executable, ToolError> {
    let workspace = context.workspace()?;
    if let Some(engine) = &checked.assembly.engine {
        let path = program(workspace.root(), &engine.command[0])?;
        return Ok(Executable {
            form: Form::Command,
            digest: digest_of(&path)?,
            path: Some(path),
            compile_ms: 0,
            command: Vec::new(),
            log: None,
        });
    }
    if package::exists(workspace.root()) {
        let begun = Instant::now();
        let built = package::build(workspace.root())?;
        return Ok(Executable {
            form: Form::Package,
            digest: built.digest,
            path: Some(built.executable),
            compile_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            command: ["cargo", "build", "--release"].map(String::from).to_vec(),
            log: Some(built.log),
        });
    }
    Ok(Executable {
        form: Form::Assembly,
        path: None,
        digest: digest_of(&context.program)?,
        compile_ms: 0,
        command: Vec::new(),
        log: None,
    })
}

/// The program of a foreign engine: a path of the workspace, or a name found in PATH.
fn program(root: &Path, name: &str) -> Result<PathBuf, ToolError> {
    let found = if name.contains('/') {
        Some(root.join(name))
    } else {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
    };
    found.and_then(|path| path.canonicalize().ok()).filter(|path| path.is_file()).ok_or_else(|| {
        ToolError::new(ErrorKind::Input, format!("engine.json: the program `{name}` of `engine.command` is not there"))
            .with_hint("give a path relative to the workspace, or the name of a program in PATH")
    })
}

fn plugin_code(workspace: &Path, checked: &Checked) -> Result<Vec<PluginCode>, ToolError> {
    let own = if package::exists(workspace) { package::plugins(workspace)? } else { Vec::new() };
    let code = |name: &str| {
        let mine = own.iter().find(|plugin| plugin.manifest.name == name).map(|plugin| plugin.code_digest);
        mine.or_else(|| {
            crit_catalog::CATALOG
                .iter()
                .find(|plugin| plugin.manifest().is_ok_and(|manifest| manifest.name == name))
                .map(|plugin| plugin.code_digest())
        })
    };
    checked
        .plugins
        .iter()
        .map(|plugin| {
            let (name, version) = (plugin.manifest.name.clone(), plugin.manifest.version.clone());
            let code = code(&name)
                .ok_or_else(|| ToolError::new(ErrorKind::Internal, format!("the code of plugin `{name}` is gone")))?;
            Ok(PluginCode { name, version, code })
        })
        .collect()
}

fn plugin_names(checked: &Checked) -> Vec<String> {
    checked.plugins.iter().map(|plugin| format!("{}@{}", plugin.manifest.name, plugin.manifest.version)).collect()
}

fn form_name(form: Form) -> &'static str {
    match form {
        Form::Assembly => "assembly",
        Form::Package => "package",
        Form::Command => "command",
    }
}
