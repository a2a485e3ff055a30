//! A built candidate on disk: `.crit/built/<digest>/`, laid out once and never changed.
//!
//! It holds `candidate.json` (what the digest is over, and how to start it), `engine.json` (the assembly with the
//! model's absolute path) and `engine/`, the frozen source tree. A program of the workspace that a candidate runs is
//! started inside this folder, so `engine/…` names the frozen files.

use crate::context::Context;
use crate::error::ToolError;
use crate::next::Next;
use crate::workspace::Workspace;
use crit_core::digest::Digest;
use crit_core::error::ErrorKind;
use crit_core::plugin::Assembly;
use crit_core::protocol::spawn::EngineCommand;
use crit_records::candidate::CandidateParts;
use crit_records::format::Form;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::{Path, PathBuf};

/// A built candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its digest.
    pub digest: Digest,
    /// Its name.
    pub name: String,
    /// How it is an engine.
    pub form: Form,
    /// What the digest is over.
    pub parts: CandidateParts,
    /// Its assembly, the model's path absolute.
    pub assembly: Assembly,
    /// The executable of an engine package, or the program of a foreign engine. None for crit's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executable: Option<PathBuf>,
    /// Its folder.
    #[serde(skip)]
    pub folder: PathBuf,
}

impl Candidate {
    /// The candidate `digest` of `workspace`.
    ///
    /// # Errors
    /// It is not there, or its folder is damaged.
    pub fn load(workspace: &Workspace, digest: &Digest) -> Result<Self, ToolError> {
        let folder = workspace.built().join(digest.to_string());
        let path = folder.join("candidate.json");
        if !path.is_file() {
            return Err(ToolError::new(
                ErrorKind::Input,
                format!("candidate {} is recorded but its files are not in .crit/built", digest.short()),
            )
            .with_hint("call `build_candidate` on the same engine/ to make them again")
            .with_next(Next::call("build_candidate")));
        }
        let value = crit_core::json::parse_file(&path)?;
        let mut found: Self = crit_core::json::from_value(value, &path.display().to_string())?;
        if found.digest != *digest || found.parts.digest() != *digest {
            return Err(ToolError::new(ErrorKind::Check, format!("{} is not that candidate", path.display()))
                .with_hint("the folder was changed; remove it and call `build_candidate` again"));
        }
        found.folder = folder;
        Ok(found)
    }

    /// Something that is no candidate of a run, as one that can be measured: `assembly`, named by `target`.
    ///
    /// # Errors
    /// The workspace cannot be written, or the checkpoint not be read.
    pub fn unrecorded(context: &Context, target: &Path, assembly: Assembly) -> Result<Self, ToolError> {
        let text = serde_json::to_vec_pretty(&assembly)
            .map_err(|error| ToolError::new(ErrorKind::Internal, format!("cannot write an assembly: {error}")))?;
        let engine = Digest::of(&text);
        let parts = CandidateParts {
            source: engine,
            checkpoint: crate::checkpoint::digest(context, &assembly.model)?,
            engine,
            plugins: Vec::new(),
            executable: digest_of(&context.program)?,
            cubins: Vec::new(),
        };
        let digest = parts.digest();
        let workspace = context.workspace()?;
        workspace.prepare()?;
        let folder = workspace.cache().join(format!("unrecorded-{}", digest.short()));
        std::fs::create_dir_all(&folder).map_err(|error| ToolError::io("create", &folder, &error))?;
        let path = folder.join("engine.json");
        std::fs::write(&path, text).map_err(|error| ToolError::io("write", &path, &error))?;
        let name = target.file_stem().map_or_else(|| "engine".into(), |name| name.to_string_lossy().into_owned());
        Ok(Self { digest, name, form: Form::Assembly, parts, assembly, executable: None, folder })
    }

    /// Writes the candidate's folder and lays its source out with `lay_out`; leaves one that is there alone.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn save(
        mut self,
        workspace: &Workspace,
        lay_out: impl FnOnce(&Path) -> Result<(), ToolError>,
    ) -> Result<Self, ToolError> {
        let folder = workspace.built().join(self.digest.to_string());
        self.folder = folder.clone();
        if folder.join("candidate.json").is_file() {
            return Ok(self);
        }
        let part = workspace.built().join(format!(".new-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir_all(&part).map_err(|error| ToolError::io("create", &part, &error))?;
        let made = self.fill(&part, lay_out).and_then(|()| {
            // A folder without candidate.json is what a crash left.
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::rename(&part, &folder).map_err(|error| ToolError::io("write", &folder, &error))
        });
        if made.is_err() {
            let _ = std::fs::remove_dir_all(&part);
        }
        made.map(|()| self)
    }

    fn fill(&self, part: &Path, lay_out: impl FnOnce(&Path) -> Result<(), ToolError>) -> Result<(), ToolError> {
        lay_out(&part.join("engine"))?;
        write(&part.join("engine.json"), &self.assembly)?;
        write(&part.join("candidate.json"), self)
    }

    /// How to start its engine; the log is for the caller to name.
    pub fn command(&self, crit: &Path) -> EngineCommand {
        let config = Some(self.folder.join("engine.json"));
        match (self.form, &self.assembly.engine) {
            (Form::Command, Some(engine)) => EngineCommand {
                program: self.executable.clone().unwrap_or_else(|| engine.command[0].clone().into()),
                args: engine.command[1..].iter().map(Into::into).collect(),
                dir: Some(self.folder.clone()),
                config,
                ..EngineCommand::default()
            },
            (Form::Package, _) => EngineCommand {
                program: self.executable.clone().unwrap_or_default(),
                config,
                ..EngineCommand::default()
            },
            _ => EngineCommand {
                program: crit.into(),
                args: vec!["engine-host".into()],
                config,
                ..EngineCommand::default()
            },
        }
    }

    /// The digest of the executable that would run it now.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn executable_now(&self, crit: &Path) -> Result<Digest, ToolError> {
        digest_of(self.executable.as_deref().unwrap_or(crit))
    }
}

/// The digest of a file.
///
/// # Errors
/// It cannot be read.
pub fn digest_of(path: &Path) -> Result<Digest, ToolError> {
    File::open(path).and_then(Digest::of_reader).map_err(|error| ToolError::io("read", path, &error))
}

fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), ToolError> {
    let text = serde_json::to_vec_pretty(value)
        .map_err(|error| ToolError::new(ErrorKind::Internal, format!("cannot write {}: {error}", path.display())))?;
    std::fs::write(path, text).map_err(|error| ToolError::io("write", path, &error))
}
