//! Random weights at the speed of memory: values are drawn from a table of the normal distribution by 16 random bits
//! each.
//!
//! The table is of the type that is stored, so a draw is a copy. A tensor's pieces have streams of their own: the values
//! depend on the seed and the name, not on the number of threads.

use crate::digest::Digest;

/// Entries of the table.
const ENTRIES: usize = 1 << 16;

/// Values of the normal distribution with this mean and deviation, each as stored.
pub(super) struct Table<const BYTES: usize>(Vec<[u8; BYTES]>);

impl<const BYTES: usize> Table<BYTES> {
    /// The table, its values stored by `store`.
    pub(super) fn new(mean: f64, deviation: f64, store: impl Fn(f32) -> [u8; BYTES]) -> Self {
        // Radii at even steps of the distribution with angles that fill the circle evenly.
        let golden = (5f64.sqrt() - 1.0) / 2.0;
        let values = (0..ENTRIES).map(|i| {
            let radius = (-2.0 * ((i as f64 + 0.5) / ENTRIES as f64).ln()).sqrt();
            let angle = std::f64::consts::TAU * (golden * i as f64).fract();
            store((mean + deviation * radius * angle.cos()) as f32)
        });
        Self(values.collect())
    }

    /// Fills `out` with values of `stream`.
    pub(super) fn fill(&self, stream: &mut Stream, out: &mut [u8]) {
        let (values, _) = out.as_chunks_mut::<BYTES>();
        for four in values.chunks_mut(4) {
            let mut bits = stream.next();
            for value in four {
                *value = self.0[bits as usize & (ENTRIES - 1)];
                bits >>= 16;
            }
        }
    }
}

/// A stream of random bits (xorshift with a multiplier).
pub(super) struct Stream(u64);

impl Stream {
    /// The stream of a piece of the tensor `name`.
    pub(super) fn new(seed: u64, name: &str, piece: usize) -> Self {
        let parts = [&seed.to_le_bytes()[..], name.as_bytes(), &(piece as u64).to_le_bytes()];
        let digest = Digest::of_parts(parts);
        let first = digest.bytes().first_chunk::<8>().copied().unwrap_or_default();
        Self(u64::from_le_bytes(first) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_stated_mean_and_deviation_and_repeat() {
        let table = Table::new(1.0, 0.5, |x: f32| x.to_le_bytes());
        let draw = |piece| {
            let mut out = vec![0; 4 * 100_000];
            table.fill(&mut Stream::new(7, "w", piece), &mut out);
            out.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect::<Vec<f64>>()
        };
        let values = draw(0);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let deviation = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt();
        // 100,000 draws: the mean's own deviation is 0.0016, that of the deviation 0.0011; five times these.
        assert!((mean - 1.0).abs() < 0.008 && (deviation - 0.5).abs() < 0.006, "{mean} {deviation}");
        assert!(values == draw(0) && values != draw(1));
    }
}
