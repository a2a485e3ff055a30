//! A small seeded random stream, so that resampling, orders and synthetic prompts can be repeated exactly.
//!
//! SplitMix64 (Steele, Lea and Flood 2014): one word of state, passes the usual batteries, and its whole definition is
//! three lines. Nothing secret hangs on it: unpredictable seeds come from the caller.

/// A seeded stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n`; 0 when `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        // Multiply-shift: for n far below 2^64 the bias is far below what any use here could see.
        ((u128::from(self.next_u64()) * n as u128) >> 64) as usize
    }

    /// Uniform in `[0, 1)`.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal (Box-Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// A fair coin.
    pub fn coin(&mut self) -> bool {
        self.next_u64() >> 63 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_words_are_those_of_the_published_generator() {
        // Seed 1234567, from the reference implementation's own test vector.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(
            [rng.next_u64(), rng.next_u64(), rng.next_u64()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        let mut rng = Rng::new(7);
        let n = 20_000;
        let uniform = (0..n).map(|_| rng.uniform()).sum::<f64>() / f64::from(n);
        let normal: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
        let variance = normal.iter().map(|x| x * x).sum::<f64>() / f64::from(n);
        // Four standard errors of the mean at n = 20,000.
        assert!((uniform - 0.5).abs() < 4.0 * 0.289 / 141.0);
        assert!((variance - 1.0).abs() < 4.0 * 1.414 / 141.0);
        assert!((0..1000).all(|_| rng.below(3) < 3));
    }
}
