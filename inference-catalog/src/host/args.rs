//! Arguments of the engine host. Few, and without a parser crate: engine packages build this too.

use super::{ExecutorKind, HostError};
use crit_core::protocol::spawn::{CONFIG_ENV, SOCKET_ENV};
use std::ffi::OsString;
use std::path::PathBuf;

pub(super) const HELP: &str = "\
Runs an engine and serves the engine protocol on a Unix socket.

  --config FILE     engine.json (default: $CRIT_ENGINE_CONFIG)
  --socket PATH     socket to listen on (default: $CRIT_ENGINE_SOCKET)
  --executor KIND   base (default), or a judge: reference, exact, plain
  --describe        print this executable's own plugins as JSON and exit
  --help            print this and exit
";

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Task {
    Help,
    Describe,
    Serve(Args),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Args {
    pub(super) config: PathBuf,
    pub(super) socket: PathBuf,
    pub(super) executor: ExecutorKind,
}

impl Args {
    /// Reads arguments; what they leave out comes from `env`.
    pub(super) fn parse(
        arguments: impl IntoIterator<Item = String>,
        env: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Task, HostError> {
        let usage = |message: String| HostError::Usage { message };
        let (mut config, mut socket, mut executor) = (env(CONFIG_ENV), env(SOCKET_ENV), ExecutorKind::Base);
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| usage(format!("`{argument}` needs a value")));
            match argument.as_str() {
                "--config" => config = Some(value()?.into()),
                "--socket" => socket = Some(value()?.into()),
                "--executor" => executor = ExecutorKind::parse(&value()?)?,
                "--describe" => return Ok(Task::Describe),
                "--help" | "-h" => return Ok(Task::Help),
                other => return Err(usage(format!("`{other}` is not an argument of the engine host"))),
            }
        }
        let config = config.ok_or_else(|| usage(format!("no engine.json: give --config or set {CONFIG_ENV}")))?;
        let socket = socket.ok_or_else(|| usage(format!("no socket: give --socket or set {SOCKET_ENV}")))?;
        Ok(Task::Serve(Self { config: config.into(), socket: socket.into(), executor }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Task, HostError> {
        Args::parse(arguments.iter().map(|a| (*a).to_string()), |name| (name == SOCKET_ENV).then(|| "s".into()))
    }

    #[test]
    fn arguments_win_over_the_environment_and_slips_are_named() {
        let expected = Args { config: "e.json".into(), socket: "s".into(), executor: ExecutorKind::Exact };
        assert_eq!(parse(&["--config", "e.json", "--executor", "reference"]).unwrap(), Task::Serve(expected));
        assert!(parse(&[]).unwrap_err().to_string().contains("CRIT_ENGINE_CONFIG"));
        assert!(parse(&["--config"]).unwrap_err().to_string().contains("needs a value"));
        assert!(parse(&["--conifg", "x"]).unwrap_err().to_string().contains("--conifg"));
        let error = parse(&["--config", "x", "--executor", "fast"]).unwrap_err().to_string();
        assert!(error.contains("base, exact, plain, reference"), "{error}");
    }
}
