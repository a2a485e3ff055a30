//! Scoring plans of a host: one runs at a time, the others wait; rows leave as areas of the client's ring get free.

use super::Address;
use super::connections::Connections;
use crate::error::{ErrorKind, Failure};
use crate::protocol::ring::Ring;
use crate::protocol::{Reply, ScorePlan};
use crate::runtime::{Engine, Executor, ScoreRun};
use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;

/// A plan with its way to the client.
struct Score {
    address: Address,
    run: ScoreRun,
    ring: Ring,
    rows_per_chunk: usize,
    /// Rows of the last step that have left.
    sent: usize,
    next_chunk: u64,
    free_slots: Vec<u32>,
    /// Areas the client is reading, by chunk.
    unread: HashMap<u64, u32>,
}

/// The plans there are; the first one runs.
#[derive(Default)]
pub(super) struct Scoring {
    queue: VecDeque<Score>,
}

impl Scoring {
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn has(&self, address: Address) -> bool {
        self.queue.iter().any(|score| score.address == address)
    }

    /// Takes a plan.
    pub(super) fn add<E: Executor>(
        &mut self,
        engine: &Engine<E>,
        address: Address,
        plan: ScorePlan,
        (path, slots, slot_bytes): (PathBuf, u32, u64),
    ) -> Result<(), Failure> {
        let ring = Ring::open(&path, slots, slot_bytes)?;
        let row_bytes = engine.executor().info().vocab as u64 * 4;
        let rows_per_chunk = (slot_bytes / row_bytes.max(1)) as usize;
        if rows_per_chunk == 0 {
            let message = format!("an area of the ring has {slot_bytes} bytes, a row of log-probs has {row_bytes}");
            return Err(Failure::new(ErrorKind::Usage, message));
        }
        let run = engine.score_start(plan)?;
        self.queue.push_back(Score {
            address,
            run,
            ring,
            rows_per_chunk,
            sent: 0,
            next_chunk: 0,
            free_slots: (0..slots).rev().collect(),
            unread: HashMap::new(),
        });
        Ok(())
    }

    /// Does the next bit of work: sends a chunk or runs a step. False if there is none, or the client has to read first.
    pub(super) fn advance<E: Executor>(&mut self, engine: &mut Engine<E>, connections: &mut Connections) -> bool {
        let Some(score) = self.queue.front_mut() else { return false };
        let (connection, id) = score.address;
        let ended = if score.sent < score.run.rows().len() {
            match score.send_chunk(engine.executor().info().vocab) {
                Ok(Some(chunk)) => {
                    connections.send(connection, chunk);
                    return true;
                }
                Ok(None) => return false,
                Err(error) => Err(error),
            }
        } else {
            score.sent = 0;
            match engine.score_step(&mut score.run) {
                Ok(true) => return true,
                Ok(false) => Ok(()),
                Err(error) => Err(error.into()),
            }
        };
        if let Some(score) = self.queue.pop_front() {
            let prefix_hits = engine.score_end(score.run);
            connections.send(
                connection,
                match ended {
                    Ok(()) => Reply::ScoreDone { id, prefix_hits },
                    Err(error) => Reply::Error { id: Some(id), error },
                },
            );
        }
        true
    }

    /// Frees the area of a chunk.
    pub(super) fn acknowledge(&mut self, address: Address, chunk: u64) {
        let score = self.queue.iter_mut().find(|score| score.address == address);
        if let Some(score) = score
            && let Some(slot) = score.unread.remove(&chunk)
        {
            score.free_slots.push(slot);
        }
    }

    /// Ends a plan with an error that says so.
    pub(super) fn cancel<E: Executor>(
        &mut self,
        engine: &mut Engine<E>,
        address: Address,
        connections: &mut Connections,
    ) {
        if self.drop_where(engine, |known| known == address) {
            let error = Failure::new(ErrorKind::Engine, "the score was cancelled");
            connections.send(address.0, Reply::Error { id: Some(address.1), error });
        }
    }

    /// Ends the plans of a connection.
    pub(super) fn forget<E: Executor>(&mut self, engine: &mut Engine<E>, connection: u64) {
        self.drop_where(engine, |known| known.0 == connection);
    }

    fn drop_where<E: Executor>(&mut self, engine: &mut Engine<E>, which: impl Fn(Address) -> bool) -> bool {
        let (dropped, kept): (VecDeque<_>, _) =
            std::mem::take(&mut self.queue).into_iter().partition(|score| which(score.address));
        self.queue = kept;
        let any = !dropped.is_empty();
        dropped.into_iter().for_each(|score| {
            engine.score_end(score.run);
        });
        any
    }
}

impl Score {
    /// Puts the next rows into a free area; `None` if there is none.
    fn send_chunk(&mut self, vocab: usize) -> Result<Option<Reply>, Failure> {
        let Some(slot) = self.free_slots.pop() else { return Ok(None) };
        let end = (self.sent + self.rows_per_chunk).min(self.run.rows().len());
        self.ring.write(slot, &self.run.log_probs()[self.sent * vocab..end * vocab])?;
        let rows = self.run.rows()[self.sent..end].to_vec();
        let chunk = self.next_chunk;
        self.next_chunk += 1;
        self.sent = end;
        self.unread.insert(chunk, slot);
        Ok(Some(Reply::ScoreChunk { id: self.address.1, chunk, slot, rows }))
    }
}
