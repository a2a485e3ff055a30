//! Warm-up: runs until times stop falling.

use crate::error::EvalError;
use std::time::{Duration, Instant};

/// Runs agree within this share when the engine is warm.
const AGREE: f64 = 0.02;

/// Runs `run` (which answers its own time in seconds) until its last three times agree, at least twice and for at most
/// `limit`; answers whether they did.
pub(crate) fn warm_up(limit: Duration, mut run: impl FnMut() -> Result<f64, EvalError>) -> Result<bool, EvalError> {
    let start = Instant::now();
    let mut times: Vec<f64> = Vec::new();
    loop {
        times.push(run()?);
        if let [.., a, b, c] = times[..] {
            let (low, high) = (a.min(b).min(c), a.max(b).max(c));
            if high <= low * (1.0 + AGREE) {
                return Ok(true);
            }
        }
        if times.len() >= 2 && start.elapsed() >= limit {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_while_times_fall_and_stops_when_they_agree() {
        let times = [9.0, 5.0, 2.0, 1.0, 1.01, 1.0, 0.5];
        let mut calls = 0;
        let warm = warm_up(Duration::from_secs(60), || {
            calls += 1;
            Ok(times[calls - 1])
        });
        assert_eq!((warm.unwrap(), calls), (true, 6));
    }

    #[test]
    fn it_gives_up_at_the_limit_and_says_so() {
        let mut time = 1.0;
        let warm = warm_up(Duration::ZERO, || {
            time *= 0.5;
            Ok(time)
        });
        assert!(!warm.unwrap());
    }
}
