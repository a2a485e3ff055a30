//! Which passes ran, counted by shape, and where their time went.

use super::OpTime;
use crate::model::program::{Axes, SeqAxes};
use crate::protocol::PassCount;
use std::collections::HashMap;
use std::time::Duration;

/// Positions before a pass are rounded down to a multiple of this, so that decoding gives one shape in 64.
const PAST_QUANTUM: u32 = 64;

/// Shapes counted one by one; later ones are summed in one entry.
const MOST_SHAPES: usize = 4096;

/// Counts of passes and times of ops.
#[derive(Clone, Debug, Default)]
pub(super) struct PassLog {
    shapes: HashMap<Vec<SeqAxes>, (u64, u64)>,
    ops: Vec<OpTime>,
}

impl PassLog {
    /// Counts a pass.
    pub(super) fn record(&mut self, axes: Axes, time: Duration) {
        let mut seqs = axes.seqs;
        seqs.iter_mut().for_each(|seq| seq.past -= seq.past % PAST_QUANTUM);
        seqs.sort_unstable();
        let known = self.shapes.contains_key(&seqs) || self.shapes.len() < MOST_SHAPES;
        let entry = self.shapes.entry(if known { seqs } else { Vec::new() }).or_default();
        entry.0 += 1;
        entry.1 += u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    }

    /// Adds the times of a pass's ops.
    pub(super) fn add_op_times(&mut self, times: Vec<OpTime>) {
        for time in times {
            match self.ops.iter_mut().find(|known| known.op == time.op) {
                Some(known) => known.time_us += time.time_us,
                None => self.ops.push(time),
            }
        }
    }

    /// The counts, in a fixed order.
    pub(super) fn counts(&self) -> Vec<PassCount> {
        let mut counts: Vec<PassCount> = self
            .shapes
            .iter()
            .map(|(seqs, (count, time_us))| PassCount { seqs: seqs.clone(), count: *count, time_us: *time_us })
            .collect();
        counts.sort_by(|a, b| a.seqs.cmp(&b.seqs));
        counts
    }

    /// The times by op.
    pub(super) fn op_times(&self) -> Vec<OpTime> {
        self.ops.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_few_and_no_pass_is_lost() {
        let mut log = PassLog::default();
        for past in 0..640 {
            log.record(Axes::single(1, past), Duration::from_micros(3));
        }
        assert_eq!(log.counts().len(), 10);
        for tokens in 0..10_000 {
            log.record(Axes::single(tokens + 2, 0), Duration::from_micros(1));
        }
        let counts = log.counts();
        assert_eq!(counts.len(), MOST_SHAPES + 1);
        assert_eq!(counts.iter().map(|c| c.count).sum::<u64>(), 10_640);
        assert_eq!(counts.iter().map(|c| c.time_us).sum::<u64>(), 640 * 3 + 10_000);
        assert!(counts[0].seqs.is_empty());
    }

    #[test]
    fn batch_mates_in_any_order_are_one_shape() {
        let mut log = PassLog::default();
        let (a, b) = (SeqAxes { tokens: 1, past: 70, rows: 1 }, SeqAxes { tokens: 1, past: 3, rows: 1 });
        log.record(Axes { seqs: vec![a, b] }, Duration::ZERO);
        log.record(Axes { seqs: vec![b, a] }, Duration::ZERO);
        assert_eq!(log.counts().len(), 1);
    }
}
