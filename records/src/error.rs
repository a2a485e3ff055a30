//! What can go wrong with records, for whoever has to mend it.

use crate::canonical::CanonicalError;
use crate::format::Kind;
use crit_core::error::{Diagnose, ErrorKind};
use std::path::{Path, PathBuf};

/// A failure of the record store.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The workspace has no record store.
    #[error("no record store in {}", workspace.display())]
    NoStore {
        /// The workspace looked in.
        workspace: PathBuf,
    },
    /// No run has this id.
    #[error("no run `{wanted}`; there {}", known_runs(known))]
    NoSuchRun {
        /// What was asked for.
        wanted: String,
        /// The runs there are, as short ids.
        known: Vec<String>,
    },
    /// No record has this id.
    #[error("no record `{wanted}`; {}", latest_records(known))]
    NoSuchRecord {
        /// What was asked for.
        wanted: String,
        /// The latest records, as `short-id kind`.
        known: Vec<String>,
    },
    /// Several ids begin so.
    #[error("`{wanted}` is ambiguous: it begins {}", matches.join(", "))]
    Ambiguous {
        /// What was asked for.
        wanted: String,
        /// All ids that match.
        matches: Vec<String>,
    },
    /// No stored bytes have this digest.
    #[error("no stored bytes have the digest {sha256}")]
    NoSuchBlob {
        /// The digest asked for.
        sha256: String,
    },
    /// A value that has no canonical form.
    #[error("the {kind} record cannot be written")]
    Canonical {
        /// The kind of the record.
        kind: Kind,
        /// Why.
        #[source]
        source: CanonicalError,
    },
    /// A record's body does not have the shape of its kind.
    #[error("the body of the {kind} record is wrong: {what}")]
    Body {
        /// The kind of the record.
        kind: Kind,
        /// What is wrong.
        what: String,
    },
    /// A record that the rules of a run do not allow here.
    #[error("a record of kind `{kind}` is not allowed here: {what}")]
    Rule {
        /// The kind of the record.
        kind: Kind,
        /// The rule broken.
        what: String,
    },
    /// A record this version cannot read, and why.
    #[error("cannot read the record {place}: {what}")]
    Unreadable {
        /// The record.
        place: String,
        /// Why not.
        what: String,
    },
    /// Stored bytes are not what was written.
    #[error("{place} is damaged: {what}")]
    Damaged {
        /// The file or the record.
        place: String,
        /// What is wrong with it.
        what: String,
    },
    /// Another process holds the store.
    #[error("the record store has been busy for {waited_s} s (held by {holder})")]
    Busy {
        /// Who holds it.
        holder: String,
        /// How long was waited, in seconds.
        waited_s: u64,
    },
    /// The operating system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On which file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// libgit2 refused.
    #[error("cannot {doing}: {source}")]
    Git {
        /// What was tried.
        doing: &'static str,
        /// The reason.
        source: git2::Error,
    },
    /// A source tree that cannot be frozen.
    #[error(transparent)]
    Tree(#[from] crate::tree::TreeError),
}

/// The result of anything that touches records.
pub type Result<T> = std::result::Result<T, RecordError>;

fn known_runs(known: &[String]) -> String {
    match known {
        [] => "are no runs yet".into(),
        [one] => format!("is one run: {one}"),
        many => format!("are the runs {}", many.join(", ")),
    }
}

fn latest_records(known: &[String]) -> String {
    if known.is_empty() { "there are no records yet".into() } else { format!("the latest are {}", known.join(", ")) }
}

impl RecordError {
    /// For `map_err` on file operations.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { doing, path: path.into(), source }
    }

    /// For `map_err` on libgit2 operations.
    pub(crate) fn git(doing: &'static str) -> impl FnOnce(git2::Error) -> Self {
        move |source| Self::Git { doing, source }
    }

    pub(crate) fn damaged(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Damaged { place: place.into(), what: what.into() }
    }
}

impl Diagnose for RecordError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoStore { .. } | Self::NoSuchRun { .. } | Self::NoSuchRecord { .. } => ErrorKind::Input,
            Self::Ambiguous { .. } | Self::NoSuchBlob { .. } | Self::Unreadable { .. } => ErrorKind::Input,
            Self::Canonical { .. } | Self::Body { .. } => ErrorKind::Input,
            Self::Rule { .. } | Self::Damaged { .. } => ErrorKind::Check,
            Self::Busy { .. } | Self::Io { .. } | Self::Git { .. } => ErrorKind::Environment,
            Self::Tree(error) => error.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoStore { .. } => "start a run with `crit recon --model MODEL`, or pass --workspace".into(),
            Self::NoSuchRun { .. } => "list the runs with `crit run list`".into(),
            Self::NoSuchRecord { .. } => "list the records with `crit run show RUN`".into(),
            Self::Ambiguous { .. } => "give more digits".into(),
            Self::Unreadable { .. } => "read it with the crit version that wrote it, or a newer one".into(),
            Self::Damaged { .. } => {
                "see all damage with `crit run verify`; rescue what is left with `crit run doctor`".into()
            }
            Self::Rule { .. } => "`crit run status` says which step is next".into(),
            Self::Busy { .. } => "wait for the other crit process, or end it".into(),
            Self::Git { source, .. } if source.code() == git2::ErrorCode::Owner => {
                "the store belongs to another user; change its owner, or run crit as that user".into()
            }
            Self::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
                "free some disk space".into()
            }
            Self::Tree(error) => return error.hint(),
            _ => return None,
        })
    }
}
