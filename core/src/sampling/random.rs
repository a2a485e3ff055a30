//! The random numbers of a request: a function of its seed, the index of the token and what the number is for.
//!
//! There is no state to advance, so a token drawn again after a preemption, or in another batch, falls the same way.
//! The function is a 64-bit finaliser (two xor-shift-multiply rounds with the constants of David Stafford's "Mix13",
//! as used by SplitMix64), applied once a coordinate, each coordinate offset by a multiple of the odd golden-ratio
//! constant. Good enough for sampling; not for secrets.

/// What a random number is for. Different lanes are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// To draw a token.
    Draw,
    /// To accept or reject a drafted token.
    Accept,
    /// To draw the token that stands in for a rejected one.
    Residual,
}

/// The random numbers of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomStream {
    key: u64,
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl RandomStream {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { key: mix(seed.wrapping_add(GOLDEN)) }
    }

    /// 64 random bits for token `index` of the output.
    pub fn bits(&self, index: u64, lane: Lane) -> u64 {
        let at_index = mix(self.key.wrapping_add(GOLDEN.wrapping_mul(index.wrapping_add(1))));
        mix(at_index.wrapping_add(GOLDEN.wrapping_mul(lane as u64 + 1)))
    }

    /// A number in [0, 1) with 53 random bits for token `index` of the output.
    pub fn uniform(&self, index: u64, lane: Lane) -> f64 {
        (self.bits(index, lane) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_in_every_coordinate() {
        // 64 equal cells over each way to count up; 99.99 % of chi-square with 63 degrees of freedom lies below 110.
        let draws = 64_000u64;
        type Draws = fn(u64) -> f64;
        let ways: [(&str, Draws); 3] = [
            ("index", |i| RandomStream::new(7).uniform(i, Lane::Draw)),
            ("seed", |i| RandomStream::new(i).uniform(3, Lane::Accept)),
            ("both", |i| RandomStream::new(i).uniform(i, Lane::Residual)),
        ];
        for (name, draw) in ways {
            let mut cells = [0f64; 64];
            for i in 0..draws {
                cells[(draw(i) * 64.0) as usize] += 1.0;
            }
            let expected = draws as f64 / 64.0;
            let chi: f64 = cells.iter().map(|c| (c - expected).powi(2) / expected).sum();
            assert!((25.0..110.0).contains(&chi), "{name}: chi-square {chi}");
        }
    }

    #[test]
    fn lanes_and_neighbours_are_uncorrelated() {
        // The correlation of n independent pairs has a standard deviation of 1/sqrt(n) = 0.005; 5 of them.
        let n = 40_000u64;
        let stream = RandomStream::new(11);
        type Pair = fn(&RandomStream, u64) -> (f64, f64);
        let pairs: [Pair; 2] = [
            |s, i| (s.uniform(i, Lane::Draw), s.uniform(i, Lane::Accept)),
            |s, i| (s.uniform(i, Lane::Draw), s.uniform(i + 1, Lane::Draw)),
        ];
        for pair in pairs {
            let sum: f64 = (0..n).map(|i| pair(&stream, i)).map(|(a, b)| (a - 0.5) * (b - 0.5) * 12.0).sum();
            assert!((sum / n as f64).abs() < 0.025, "correlation {}", sum / n as f64);
        }
    }
}
