//! The evaluator's clock. What an engine says of its own times is never used; tests put a clock of their own here, so that
//! what is told by time is tested without waiting and without luck.

use std::time::{Duration, Instant};

/// Tells and passes time.
pub trait Clock {
    /// Seconds since some moment.
    fn now_s(&self) -> f64;

    /// Lets `seconds` go by.
    fn wait_s(&self, seconds: f64);
}

/// The machine's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct MachineClock(Instant);

impl MachineClock {
    /// From now on.
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for MachineClock {
    fn now_s(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }

    fn wait_s(&self, seconds: f64) {
        std::thread::sleep(Duration::from_secs_f64(seconds.max(0.0)));
    }
}
