//! Keeps the streams of the MCP server to the protocol alone.
//!
//! The protocol's descriptors are moved away from 0 and 1, so that a library that prints or a child that reads its
//! standard input can neither garble an answer nor eat a request: descriptor 1 becomes standard error, descriptor 0 is
//! empty.

use rustix::stdio;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

/// The streams of the protocol.
pub struct Streams {
    /// Requests.
    pub requests: OwnedFd,
    /// Answers.
    pub answers: OwnedFd,
}

/// Takes standard input and output for the protocol.
///
/// # Errors
/// A descriptor cannot be duplicated.
pub fn take() -> io::Result<Streams> {
    // Close-on-exec, so that no child gets them.
    let requests = rustix::io::fcntl_dupfd_cloexec(stdio::stdin(), 3)?;
    let answers = rustix::io::fcntl_dupfd_cloexec(stdio::stdout(), 3)?;
    stdio::dup2_stdin(File::open("/dev/null")?)?;
    stdio::dup2_stdout(stdio::stderr())?;
    Ok(Streams { requests, answers })
}
