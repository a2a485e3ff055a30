//! The job folders of a workspace: made, read and changed here and nowhere else.

use super::process::ProcessId;
use super::{JobState, Request, State, now_ms};
use crate::error::ToolError;
use crate::next::Next;
use crate::workspace::Workspace;
use crit_core::error::ErrorKind;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Time a runner has from being started to having said who it is.
const START_GRACE_MS: u64 = 10_000;

/// The jobs of a workspace.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

/// A job as read.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its id.
    pub id: String,
    /// Its folder.
    pub folder: PathBuf,
    /// What was asked.
    pub request: Request,
    /// Where it stands.
    pub state: State,
}

impl Job {
    /// What the runner and its children printed.
    pub fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// The tool's output, of a job that is done.
    ///
    /// # Errors
    /// The file is missing or damaged.
    pub fn result(&self) -> Result<Value, ToolError> {
        read(&self.folder.join("result.json"))
    }

    /// Its runner, once known.
    pub fn runner(&self) -> Option<ProcessId> {
        read(&self.folder.join("runner.json")).ok()
    }
}

impl Store {
    /// The jobs of `workspace`.
    pub fn of(workspace: &Workspace) -> Self {
        Self { folder: workspace.jobs() }
    }

    /// The folder of job `id`.
    ///
    /// # Errors
    /// There is no such job.
    pub fn folder(&self, id: &str) -> Result<PathBuf, ToolError> {
        // Only ids we could have made name a folder, so that no id reaches elsewhere.
        let known = uuid::Uuid::parse_str(id).ok().map(|id| self.folder.join(id.to_string()));
        known.filter(|folder| folder.join("request.json").is_file()).ok_or_else(|| {
            ToolError::new(ErrorKind::Input, format!("there is no job `{}`", crate::text::clean(id, 80)))
                .with_hint("call `job_status` without `job_id` to list the jobs")
                .with_next(Next::call("job_status"))
        })
    }

    /// Makes the folder of a new job in state queued; returns its id.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn create(&self, request: &Request) -> Result<String, ToolError> {
        let id = uuid::Uuid::new_v4().to_string();
        let folder = self.folder.join(&id);
        std::fs::create_dir_all(&folder).map_err(|error| ToolError::io("create", &folder, &error))?;
        write(&folder.join("state.json"), &State::queued())?;
        write(&folder.join("request.json"), request)?;
        Ok(id)
    }

    /// Job `id` as it stands; a job whose runner is gone is written down as failed first.
    ///
    /// # Errors
    /// There is no such job, or its files are damaged.
    pub fn load(&self, id: &str) -> Result<Job, ToolError> {
        let job = self.read(id)?;
        if job.state.state.is_final() || !is_dead(&job) {
            return Ok(job);
        }
        // The runner may have ended well between the two looks.
        let job = self.read(id)?;
        if !job.state.state.is_final() {
            self.bury(&job)?;
        }
        self.read(id)
    }

    fn read(&self, id: &str) -> Result<Job, ToolError> {
        let folder = self.folder(id)?;
        let request = read(&folder.join("request.json"))?;
        let state = read(&folder.join("state.json"))?;
        Ok(Job { id: id.to_string(), folder, request, state })
    }

    /// Writes down that the runner is gone, and ends what it left running.
    fn bury(&self, job: &Job) -> Result<(), ToolError> {
        if let Some(runner) = job.runner() {
            runner.signal_group(rustix::process::Signal::KILL);
        }
        let tail = super::watch::tail(&job.log(), 12);
        let message = match tail.is_empty() {
            true => "the job's process ended without a result; its log is empty".to_string(),
            false => format!("the job's process ended without a result; its log ends:\n{}", tail.join("\n")),
        };
        self.finish(
            &job.id,
            JobState::Failed,
            Some(ToolError::new(ErrorKind::Engine, message).with_hint("call the tool again to start a new job")),
        )
    }

    /// All jobs, newest first. A damaged one does not hide the others.
    pub fn list(&self) -> Vec<Job> {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return Vec::new() };
        let mut jobs: Vec<Job> =
            entries.filter_map(|entry| self.load(entry.ok()?.file_name().to_str()?).ok()).collect();
        jobs.sort_by(|a, b| b.request.created_ms.cmp(&a.request.created_ms).then(a.id.cmp(&b.id)));
        jobs
    }

    /// The newest job with `key` that is live or done.
    pub fn find(&self, key: &str) -> Option<Job> {
        self.list()
            .into_iter()
            .find(|job| job.request.key == key && !matches!(job.state.state, JobState::Failed | JobState::Cancelled))
    }

    /// Changes the state of a job that is not final; returns whether it did.
    ///
    /// # Errors
    /// The state cannot be read or written.
    pub fn update(&self, id: &str, change: impl FnOnce(&mut State)) -> Result<bool, ToolError> {
        let folder = self.folder(id)?;
        let _guard = lock(&folder.join("lock"))?;
        let path = folder.join("state.json");
        let mut state: State = read(&path)?;
        if state.state.is_final() {
            return Ok(false);
        }
        change(&mut state);
        write(&path, &state)?;
        Ok(true)
    }

    /// Ends a job. The first end counts.
    ///
    /// # Errors
    /// The state cannot be written.
    pub fn finish(&self, id: &str, end: JobState, error: Option<ToolError>) -> Result<(), ToolError> {
        self.update(id, |state| {
            state.state = end;
            state.waiting_for = None;
            state.ended_ms = Some(now_ms());
            state.error = error;
        })?;
        Ok(())
    }

    /// Writes who runs the job.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set_runner(&self, id: &str, runner: &ProcessId) -> Result<(), ToolError> {
        write(&self.folder(id)?.join("runner.json"), runner)
    }

    /// Writes the output, before the job is finished.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set_result(&self, id: &str, result: &Value) -> Result<(), ToolError> {
        write(&self.folder(id)?.join("result.json"), result)
    }

    /// Keeps other processes from starting jobs while the guard lives.
    ///
    /// # Errors
    /// The lock file cannot be made.
    pub fn lock(&self) -> Result<File, ToolError> {
        lock(&self.folder.join(".lock"))
    }
}

fn is_dead(job: &Job) -> bool {
    match job.runner() {
        Some(runner) => !runner.is_alive(),
        None => now_ms().saturating_sub(job.request.created_ms) > START_GRACE_MS,
    }
}

fn lock(path: &Path) -> Result<File, ToolError> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(|error| ToolError::io("open", path, &error))?;
    file.lock().map_err(|error| ToolError::io("lock", path, &error))?;
    Ok(file)
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T, ToolError> {
    let bytes = std::fs::read(path).map_err(|error| ToolError::io("read", path, &error))?;
    serde_json::from_slice(&bytes).map_err(|error| {
        ToolError::new(ErrorKind::Environment, format!("{} is damaged: {error}", path.display()))
            .with_hint("remove the job's folder")
    })
}

/// Writes `value` so that a reader sees the old file or the new one, never a part.
fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), ToolError> {
    let io = |error: &std::io::Error| ToolError::io("write", path, error);
    let bytes = serde_json::to_vec(value)
        .map_err(|error| ToolError::new(ErrorKind::Internal, format!("cannot write {}: {error}", path.display())))?;
    let part = path.with_extension(format!("{}.part", uuid::Uuid::new_v4().simple()));
    let written = File::create(&part).and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_data()));
    written.and_then(|()| std::fs::rename(&part, path)).map_err(|error| {
        let _ = std::fs::remove_file(&part);
        io(&error)
    })
}
