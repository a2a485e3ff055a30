//! Activations in the form a weight format's kernel multiplies with.
//!
//! - `F32`: as they are.
//! - `Bf16`: rounded to nearest even.
//! - `Q8x32`, `Q8x256`: 8-bit codes, the largest magnitude of a block of 32 or 256 elements becoming 127; with the sums
//!   of codes that zero points and minimums of the weights need.
//!
//! A token's form depends on that token alone.

use super::super::isa::{Isa, IsaLevel};
use super::super::pool::{Pool, PoolError};
use super::super::shared::Shared;

/// The forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActKind {
    /// f32, as they are.
    F32,
    /// bf16.
    Bf16,
    /// 8-bit codes with a scale for each 32 elements.
    Q8x32,
    /// 8-bit codes with a scale for each 256 elements.
    Q8x256,
}

impl ActKind {
    /// Elements that share a scale (1: none).
    pub const fn block(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 => 1,
            Self::Q8x32 => 32,
            Self::Q8x256 => 256,
        }
    }
}

/// The forms of one value: `tokens` rows of `k` elements. Buffers are kept and reused.
#[derive(Debug, Default)]
pub struct ActBuf {
    bf16: Vec<u16>,
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i16>,
    block_sums: Vec<f32>,
}

/// A borrowed form, ready to multiply with.
#[derive(Clone, Copy, Debug)]
pub struct Act<'a> {
    /// Rows.
    pub tokens: usize,
    /// Elements of a row.
    pub k: usize,
    /// The numbers.
    pub data: ActData<'a>,
}

/// The numbers of an [`Act`].
#[derive(Clone, Copy, Debug)]
pub enum ActData<'a> {
    /// `[tokens][k]`.
    F32(&'a [f32]),
    /// `[tokens][k]`, bf16 bits.
    Bf16(&'a [u16]),
    /// Codes `[tokens][k]`, scales and sums of codes `[tokens][k / block]`, sums of codes `[tokens][k / 16]`.
    Q8 {
        /// Elements that share a scale.
        block: usize,
        /// Codes in -127..=127.
        codes: &'a [i8],
        /// Scales.
        scales: &'a [f32],
        /// Sums of 16 codes each.
        sums: &'a [i16],
        /// Sums of a block's codes, whole numbers.
        block_sums: &'a [f32],
    },
}

impl ActBuf {
    /// Buffers for up to `elems` elements (tokens times width) in any of `kinds`.
    pub fn with_capacity(elems: usize, kinds: &[ActKind]) -> Self {
        let mut buf = Self::default();
        kinds.iter().for_each(|kind| buf.reserve(*kind, elems));
        buf
    }

    /// Makes room for `elems` elements in all (tokens times width) in the form `kind`.
    pub fn reserve(&mut self, kind: ActKind, elems: usize) {
        match kind {
            ActKind::F32 => {}
            ActKind::Bf16 => grow(&mut self.bf16, elems),
            ActKind::Q8x32 | ActKind::Q8x256 => {
                grow(&mut self.codes, elems);
                grow(&mut self.scales, elems / kind.block());
                grow(&mut self.block_sums, elems / kind.block());
                grow(&mut self.sums, elems / 16);
            }
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bf16.capacity() * 2
            + self.codes.capacity()
            + self.scales.capacity() * 4
            + self.block_sums.capacity() * 4
            + self.sums.capacity() * 2
    }

    /// Puts `x`, `[tokens][k]`, into the form `kind`.
    ///
    /// # Errors
    /// A worker panicked.
    ///
    /// # Panics
    /// `x` is no whole number of rows, or `k` no whole number of blocks.
    pub fn fill<'a>(
        &'a mut self,
        kind: ActKind,
        x: &'a [f32],
        k: usize,
        isa: Isa,
        pool: &Pool,
    ) -> Result<Act<'a>, PoolError> {
        assert!(k > 0 && x.len().is_multiple_of(k), "{} elements in rows of {k}", x.len());
        assert!(k.is_multiple_of(kind.block()), "rows of {k} in blocks of {}", kind.block());
        match kind {
            ActKind::F32 => {}
            ActKind::Bf16 => self.fill_bf16(x, k, isa, pool)?,
            ActKind::Q8x32 => self.fill_q8::<32>(x, k, isa, pool)?,
            ActKind::Q8x256 => self.fill_q8::<256>(x, k, isa, pool)?,
        }
        Ok(self.view(kind, x, k))
    }

    /// The form that the last [`ActBuf::fill`] of this kind and `x` made.
    pub fn view<'a>(&'a self, kind: ActKind, x: &'a [f32], k: usize) -> Act<'a> {
        let data = match kind {
            ActKind::F32 => ActData::F32(x),
            ActKind::Bf16 => ActData::Bf16(&self.bf16[..x.len()]),
            ActKind::Q8x32 | ActKind::Q8x256 => ActData::Q8 {
                block: kind.block(),
                codes: &self.codes[..x.len()],
                scales: &self.scales[..x.len() / kind.block()],
                sums: &self.sums[..x.len() / 16],
                block_sums: &self.block_sums[..x.len() / kind.block()],
            },
        };
        Act { tokens: x.len() / k, k, data }
    }

    fn fill_bf16(&mut self, x: &[f32], k: usize, isa: Isa, pool: &Pool) -> Result<(), PoolError> {
        resize(&mut self.bf16, x.len());
        let out = Shared::new(&mut self.bf16);
        each_row_range(x.len() / k, k, pool, &|first, rows| {
            #[expect(unsafe_code, reason = "rows of different chunks do not overlap")]
            // SAFETY: see the reason above.
            let out = unsafe { out.part(first * k, rows * k) };
            round_bf16(isa, &x[first * k..(first + rows) * k], out);
        })
    }

    fn fill_q8<const B: usize>(&mut self, x: &[f32], k: usize, isa: Isa, pool: &Pool) -> Result<(), PoolError> {
        resize(&mut self.codes, x.len());
        resize(&mut self.scales, x.len() / B);
        resize(&mut self.sums, x.len() / 16);
        resize(&mut self.block_sums, x.len() / B);
        let (codes, scales) = (Shared::new(&mut self.codes), Shared::new(&mut self.scales));
        let (sums, block_sums) = (Shared::new(&mut self.sums), Shared::new(&mut self.block_sums));
        each_row_range(x.len() / k, k, pool, &|first, rows| {
            let (start, len) = (first * k, rows * k);
            #[expect(unsafe_code, reason = "rows of different chunks do not overlap")]
            // SAFETY: see the reason above.
            let (codes, scales, sums, block_sums) = unsafe {
                (
                    codes.part(start, len),
                    scales.part(start / B, len / B),
                    sums.part(start / 16, len / 16),
                    block_sums.part(start / B, len / B),
                )
            };
            quantise::<B>(isa, &x[start..start + len], codes, scales, sums);
            for (block, sums) in block_sums.iter_mut().zip(sums.chunks_exact(B / 16)) {
                *block = sums.iter().map(|sum| f32::from(*sum)).sum();
            }
        })
    }
}

fn grow<T>(buf: &mut Vec<T>, len: usize) {
    buf.reserve_exact(len.saturating_sub(buf.len()));
}

/// Grows without giving memory back, so that a later step of the same size allocates nothing.
fn resize<T: Copy + Default>(buf: &mut Vec<T>, len: usize) {
    if buf.len() < len {
        buf.resize(len, T::default());
    }
}

/// Runs over rows in chunks of about 16 Ki elements: small enough to share, large enough to be worth a claim.
fn each_row_range(rows: usize, k: usize, pool: &Pool, task: &(dyn Fn(usize, usize) + Sync)) -> Result<(), PoolError> {
    let step = (16_384 / k).max(1);
    pool.run(rows.div_ceil(step), &|chunk, _| {
        let first = chunk * step;
        task(first, step.min(rows - first));
    })
}

fn round_bf16(isa: Isa, x: &[f32], out: &mut [u16]) {
    #[cfg(target_arch = "x86_64")]
    if isa.level() == IsaLevel::Avx512 {
        #[expect(unsafe_code, reason = "the Isa proves the machine has AVX-512")]
        // SAFETY: see the reason above.
        return unsafe { round_bf16_avx512(x, out) };
    }
    let _ = isa;
    round_bf16_body(x, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn round_bf16_avx512(x: &[f32], out: &mut [u16]) {
    round_bf16_body(x, out);
}

#[inline(always)]
fn round_bf16_body(x: &[f32], out: &mut [u16]) {
    for (x, out) in x.iter().zip(out) {
        let bits = x.to_bits();
        // Nearest even; a NaN keeps a set mantissa bit instead of being carried into infinity.
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        *out = if x.is_nan() { (bits >> 16 | 0x40) as u16 } else { rounded as u16 };
    }
}

fn quantise<const B: usize>(isa: Isa, x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [i16]) {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "the Isa proves the machine has the instructions")]
    // SAFETY: see the reason above.
    match isa.level() {
        IsaLevel::Avx512 => return unsafe { quantise_avx512::<B>(x, codes, scales, sums) },
        IsaLevel::Avx2 => return unsafe { quantise_avx2::<B>(x, codes, scales, sums) },
        IsaLevel::Portable => {}
    }
    let _ = isa;
    quantise_body::<B>(x, codes, scales, sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn quantise_avx512<const B: usize>(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [i16]) {
    quantise_body::<B>(x, codes, scales, sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn quantise_avx2<const B: usize>(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [i16]) {
    quantise_body::<B>(x, codes, scales, sums);
}

#[inline(always)]
fn quantise_body<const B: usize>(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [i16]) {
    let blocks = x.as_chunks::<B>().0.iter().zip(codes.as_chunks_mut::<B>().0).zip(scales).zip(sums.chunks_mut(B / 16));
    for (((x, codes), scale), sums) in blocks {
        // Eight running maxima, so that the loop is not one long chain.
        let mut lanes = [0.0f32; 16];
        for part in x.as_chunks::<16>().0 {
            for (lane, x) in lanes.iter_mut().zip(part) {
                let magnitude = x.abs();
                *lane = if magnitude > *lane { magnitude } else { *lane };
            }
        }
        let largest = lanes.iter().fold(0.0f32, |a, b| if *b > a { *b } else { a });
        *scale = largest / 127.0;
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        for ((x, codes), sum) in x.as_chunks::<16>().0.iter().zip(codes.as_chunks_mut::<16>().0).zip(sums) {
            let mut total = 0i32;
            for (x, code) in x.iter().zip(codes) {
                // Adding and taking away 1.5 * 2^23 rounds to the nearest whole number, ties to even.
                let rounded = (x * inverse).clamp(-127.0, 127.0) + 12_582_912.0;
                let value = rounded.to_bits().wrapping_sub(0x4b40_0000) as i32;
                *code = value as i8;
                total = total.wrapping_add(value);
            }
            *sum = total as i16;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_to_nearest_even_at_every_isa() {
        let pool = Pool::new(2).unwrap();
        let x: Vec<f32> =
            (0..1000).map(|i| (i as f32 - 500.0) * 1.37e-3).chain([f32::NAN, f32::INFINITY, 0.0, -0.0]).collect();
        for isa in Isa::testable() {
            let mut buf = ActBuf::default();
            let act = buf.fill(ActKind::Bf16, &x, x.len(), isa, &pool).unwrap();
            let ActData::Bf16(got) = act.data else { unreachable!() };
            for (x, got) in x.iter().zip(got) {
                let expected = half::bf16::from_f32(*x);
                let got = half::bf16::from_bits(*got);
                assert!(got == expected || got.is_nan() && x.is_nan(), "{x}");
            }
        }
    }

    #[test]
    fn codes_are_the_nearest_and_sums_are_theirs() {
        let pool = Pool::new(2).unwrap();
        let mut x: Vec<f32> = (0..2048).map(|i| ((i * 7919) % 1009) as f32 / 100.0 - 5.0).collect();
        x[..256].fill(0.0);
        for isa in Isa::testable() {
            for kind in [ActKind::Q8x32, ActKind::Q8x256] {
                let mut buf = ActBuf::default();
                let act = buf.fill(kind, &x, 1024, isa, &pool).unwrap();
                let ActData::Q8 { block, codes, scales, sums, .. } = act.data else { unreachable!() };
                for (i, x) in x.iter().enumerate() {
                    let error = (f32::from(codes[i]) * scales[i / block] - x).abs();
                    // Half a step, and rounding of the two products.
                    assert!(error <= scales[i / block] * 0.5001, "{} {i}: {x} off by {error}", isa.name());
                }
                for (i, sum) in sums.iter().enumerate() {
                    assert_eq!(i32::from(*sum), codes[i * 16..][..16].iter().map(|c| i32::from(*c)).sum::<i32>());
                }
            }
        }
    }
}
