//! Which instructions kernels may use: found once, at run time, or fixed by a test.

/// Instruction sets the kernels are written for, each including the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IsaLevel {
    /// Plain Rust.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl IsaLevel {
    /// All levels, lowest first.
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];
}

/// What this process may execute. Made only by [`Isa::detect`] and [`Isa::at_most`], so that holding one proves that
/// the machine has what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Isa {
    level: IsaLevel,
    vnni: bool,
    bf16: bool,
}

impl Isa {
    /// What the machine has.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("f16c");
            let avx512 = avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
            let level = match (avx2, avx512) {
                (_, true) => IsaLevel::Avx512,
                (true, false) => IsaLevel::Avx2,
                (false, false) => IsaLevel::Portable,
            };
            Self { level, vnni: avx512 && has!("avx512vnni"), bf16: avx512 && has!("avx512bf16") }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Self { level: IsaLevel::Portable, vnni: false, bf16: false }
    }

    /// What the machine has, but nothing above `level`.
    pub fn at_most(level: IsaLevel) -> Self {
        let found = Self::detect();
        let level = found.level.min(level);
        let wide = level == IsaLevel::Avx512;
        Self { level, vnni: found.vnni && wide, bf16: found.bf16 && wide }
    }

    /// Every distinct set this machine can run, lowest first: what a test runs over.
    pub fn testable() -> Vec<Self> {
        let mut all: Vec<Self> = IsaLevel::ALL.into_iter().map(Self::at_most).collect();
        let full = Self::detect();
        all.insert(all.len() - 1, Self { vnni: false, bf16: false, ..full });
        all.dedup();
        all
    }

    /// The level.
    pub fn level(self) -> IsaLevel {
        self.level
    }

    /// Whether 8-bit dot products (AVX-512 VNNI) are there.
    pub fn vnni(self) -> bool {
        self.vnni
    }

    /// Whether bf16 dot products (AVX-512 BF16) are there.
    pub fn bf16(self) -> bool {
        self.bf16
    }

    /// Its name for reports: `avx512+vnni+bf16`.
    pub fn name(self) -> String {
        let base = match self.level {
            IsaLevel::Portable => "portable",
            IsaLevel::Avx2 => "avx2",
            IsaLevel::Avx512 => "avx512",
        };
        let flags = [(self.vnni, "+vnni"), (self.bf16, "+bf16")];
        flags.into_iter().filter(|(on, _)| *on).fold(base.to_string(), |name, (_, flag)| name + flag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_takes_away_and_never_adds() {
        assert_eq!(Isa::at_most(IsaLevel::Portable).name(), "portable");
        assert_eq!(Isa::at_most(IsaLevel::Avx512), Isa::detect());
        let all = Isa::testable();
        assert_eq!(all.last(), Some(&Isa::detect()));
        assert!(all.windows(2).all(|w| w[0] != w[1]));
    }
}
