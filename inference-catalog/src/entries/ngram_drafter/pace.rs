//! How many tokens to propose next, from how the last proposals went.
//!
//! All accepted: twice as many. Some: one more than were accepted. None: one token, and after several such in a row
//! none at all for a while, twice as long each time, so text that does not repeat costs almost nothing.

/// Proposals without any accepted token in a row that are forgiven before pausing.
const PATIENCE: u32 = 2;
/// Longest pause, proposals.
const MAX_PAUSE: u32 = 32;

pub(super) struct Pace {
    max: usize,
    adaptive: bool,
    wanted: usize,
    misses: u32,
    pause: u32,
}

impl Pace {
    pub(super) fn new(max: usize, adaptive: bool) -> Self {
        Self { max, adaptive, wanted: max.min(4), misses: 0, pause: 0 }
    }

    /// How many tokens to propose now.
    pub(super) fn next(&mut self) -> usize {
        if !self.adaptive {
            return self.max;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return 0;
        }
        self.wanted
    }

    /// Learns that `accepted` of `proposed` tokens were right.
    pub(super) fn learn(&mut self, proposed: usize, accepted: usize) {
        if proposed == 0 {
            return;
        }
        if accepted == 0 {
            self.misses += 1;
            self.wanted = 1;
            if let Some(over) = self.misses.checked_sub(PATIENCE) {
                self.pause = MAX_PAUSE.min(1 << over.min(5));
            }
            return;
        }
        self.misses = 0;
        let next = if accepted >= proposed { self.wanted * 2 } else { accepted + 1 };
        self.wanted = next.min(self.max);
    }
}
