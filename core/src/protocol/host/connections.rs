//! Sockets and threads of a host: frames in become commands, replies become frames out.

use super::HostError;
use crate::error::Failure;
use crate::protocol::frame::{FrameError, parse_frame, read_frame_bytes, write_frame};
use crate::protocol::{Reply, Request};
use std::collections::HashMap;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Replies that may wait for a client to read them; more and it is cut off.
const MOST_UNREAD: usize = 1 << 16;

/// How long the last replies may take to leave when the host ends or a connection is cut off.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What happened on a connection.
pub(super) enum Command {
    /// It is there.
    Connected { connection: u64, link: Link },
    /// A request came.
    Message { connection: u64, request: Box<Request> },
    /// Something else came.
    Malformed { connection: u64, id: Option<u64>, error: Failure },
    /// It ended.
    Gone { connection: u64 },
}

/// The way back to a client.
pub(super) struct Link {
    replies: SyncSender<Reply>,
    stream: UnixStream,
    writer: JoinHandle<()>,
    open: bool,
}

/// The connections there are.
#[derive(Default)]
pub(super) struct Connections {
    links: HashMap<u64, Link>,
}

impl Connections {
    pub(super) fn add(&mut self, connection: u64, link: Link) {
        self.links.insert(connection, link);
    }

    pub(super) fn open(&mut self, connection: u64) {
        if let Some(link) = self.links.get_mut(&connection) {
            link.open = true;
        }
    }

    pub(super) fn is_open(&self, connection: u64) -> bool {
        self.links.get(&connection).is_some_and(|link| link.open)
    }

    /// Sends without waiting.
    pub(super) fn send(&self, connection: u64, reply: Reply) {
        if let Some(link) = self.links.get(&connection)
            && link.replies.try_send(reply).is_err()
        {
            // It does not read. Its reader thread notices and reports it gone.
            let _ = link.stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Lets the replies that wait leave, then ends the connection.
    pub(super) fn remove(&mut self, connection: u64) {
        if let Some(link) = self.links.remove(&connection) {
            // The writer ends, and closes the socket, when its last reply is out.
            let _ = link.stream.set_write_timeout(Some(LAST_WORDS));
            drop(link.replies);
        }
    }

    /// Ends all connections after their last replies.
    pub(super) fn finish(&mut self) {
        let links: Vec<Link> = self.links.drain().map(|(_, link)| link).collect();
        for link in links {
            let _ = link.stream.set_write_timeout(Some(LAST_WORDS));
            drop(link.replies);
            let _ = link.writer.join();
        }
    }
}

/// A listening socket with its thread.
pub(super) struct Listening {
    socket: PathBuf,
    stopped: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Listening {
    /// Stops listening and removes the socket.
    pub(super) fn stop(self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Wakes the thread from `accept`.
        let _ = UnixStream::connect(&self.socket);
        let _ = self.thread.join();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Listens on a socket; what happens on its connections goes to `commands`.
pub(super) fn listen(socket: &Path, commands: Sender<Command>) -> Result<Listening, HostError> {
    let error = |source| HostError::Listen { socket: socket.to_path_buf(), source };
    let listener = match UnixListener::bind(socket) {
        Err(found) if found.kind() == io::ErrorKind::AddrInUse => {
            if UnixStream::connect(socket).is_ok() {
                return Err(HostError::InUse { socket: socket.to_path_buf() });
            }
            // Left behind by an engine that was killed.
            std::fs::remove_file(socket).map_err(error)?;
            UnixListener::bind(socket).map_err(error)?
        }
        other => other.map_err(error)?,
    };
    let stopped = Arc::new(AtomicBool::new(false));
    let stopped_too = Arc::clone(&stopped);
    let thread = std::thread::Builder::new()
        .name("accept".into())
        .spawn(move || accept(&listener, &commands, &stopped_too))
        .map_err(error)?;
    Ok(Listening { socket: socket.to_path_buf(), stopped, thread })
}

fn accept(listener: &UnixListener, commands: &Sender<Command>, stopped: &AtomicBool) {
    for (connection, stream) in (1..).zip(listener.incoming()) {
        if stopped.load(Ordering::SeqCst) {
            return;
        }
        match stream.and_then(|stream| attend(connection, stream, commands)) {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                // Out of file descriptors or threads: others may end meanwhile.
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// Starts the threads of a connection.
fn attend(connection: u64, stream: UnixStream, commands: &Sender<Command>) -> io::Result<()> {
    let (replies, outbox) = sync_channel(MOST_UNREAD);
    let (for_writer, for_reader) = (stream.try_clone()?, stream.try_clone()?);
    let writer = std::thread::Builder::new()
        .name(format!("write-{connection}"))
        .spawn(move || write_replies(for_writer, &outbox))?;
    let _ = commands.send(Command::Connected { connection, link: Link { replies, stream, writer, open: false } });
    let commands = commands.clone();
    std::thread::Builder::new().name(format!("read-{connection}")).spawn(move || {
        read_requests(connection, for_reader, &commands);
        let _ = commands.send(Command::Gone { connection });
    })?;
    Ok(())
}

fn write_replies(mut stream: UnixStream, outbox: &Receiver<Reply>) {
    while let Ok(reply) = outbox.recv() {
        if let Err(error) = write_frame(&mut stream, &reply) {
            tracing::debug!(%error, "a client is gone");
            break;
        }
    }
    let _ = stream.shutdown(std::net::Shutdown::Both);
}

fn read_requests(connection: u64, mut stream: UnixStream, commands: &Sender<Command>) {
    loop {
        let command = match read_frame_bytes(&mut stream) {
            Ok(None) => return,
            Ok(Some(frame)) => match parse_frame::<Request>(&frame) {
                Ok(request) => Command::Message { connection, request: Box::new(request) },
                Err(error) => Command::Malformed { connection, id: id_of(&frame), error: error.into() },
            },
            Err(error) => {
                // Where the next frame begins is unknown.
                if !matches!(error, FrameError::Io(_)) {
                    let _ = commands.send(Command::Malformed { connection, id: None, error: error.into() });
                }
                return;
            }
        };
        if commands.send(command).is_err() {
            return;
        }
    }
}

/// The id in a message that is otherwise no request, so that whoever waits for it hears of it.
fn id_of(frame: &[u8]) -> Option<u64> {
    serde_json::from_slice::<serde_json::Value>(frame).ok()?.get("id")?.as_u64()
}

/// Ends this process when the process `user`, for whom it runs, is gone. `user` is this process's parent unless it was
/// started through a wrapper, which must be there too then.
pub(super) fn watch_parent(user: u32) {
    let parent = std::os::unix::process::parent_id();
    let watch = move || {
        while std::os::unix::process::parent_id() == parent && exists(user) {
            std::thread::sleep(Duration::from_millis(250));
        }
        tracing::info!(user, "the process that uses this engine is gone");
        // The engine may be in the middle of a long step, for nobody.
        std::process::exit(0);
    };
    if let Err(error) = std::thread::Builder::new().name("parent".into()).spawn(watch) {
        tracing::warn!(%error, "cannot watch the parent process");
    }
}

fn exists(process: u32) -> bool {
    let process = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
    // A process one may not signal is there all the same.
    process.is_some_and(|process| rustix::process::test_kill_process(process) != Err(rustix::io::Errno::SRCH))
}
