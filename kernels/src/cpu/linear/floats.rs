//! Float formats: a tile of rows times a tile of tokens, each result one vector of partial sums along the row.
//!
//! The lanes of the partial sums are added in a fixed tree, so a result depends on its row and its token alone. Weights
//! of 16 bits are widened as they are loaded; with bf16 instructions, pairs of bf16 are multiplied into f32 sums.

use super::Work;
use super::act::ActData;

/// What a vector step multiplies: 16 or 32 elements of a row with as many of a token.
///
/// # Safety
/// Loads read no more than the elements asked for.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe trait Dot512: 'static {
    /// A loaded vector.
    type V: Copy;
    /// Elements of a step.
    const STEP: usize;
    /// Bytes of a weight.
    const W_BYTES: usize;
    /// Bytes of an activation.
    const X_BYTES: usize;
    /// Loads weights; those from `n` on are 0.
    ///
    /// # Safety
    /// `n` weights can be read at `p`.
    unsafe fn w(p: *const u8, n: usize) -> Self::V;
    /// Loads activations; those from `n` on are 0.
    ///
    /// # Safety
    /// `n` activations can be read at `p`.
    unsafe fn x(p: *const u8, n: usize) -> Self::V;
    /// All zero.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn zero() -> Self::V;
    /// acc + w * x.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn madd(acc: std::arch::x86_64::__m512, w: Self::V, x: Self::V) -> std::arch::x86_64::__m512;
}

/// Weights widened to f32.
///
/// # Safety
/// `load8` and `load16` read no more than `n` weights.
pub(super) unsafe trait Widen: 'static {
    /// Bytes of a weight.
    const BYTES: usize;
    /// One weight.
    fn one(bytes: &[u8]) -> f32;
    /// Eight weights.
    ///
    /// # Safety
    /// Eight weights can be read at `p`; the machine has AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load8(p: *const u8) -> std::arch::x86_64::__m256;
    /// Sixteen weights; those from `n` on are 0 and not read.
    ///
    /// # Safety
    /// `n` weights can be read at `p`; the machine has AVX-512.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load16(p: *const u8, n: usize) -> std::arch::x86_64::__m512;
}

pub(super) fn dequant<F: Widen>(bytes: &[u8], out: &mut [f32]) {
    bytes.chunks_exact(F::BYTES).zip(out).for_each(|(bytes, out)| *out = F::one(bytes));
}

/// f32 activations times widened weights.
pub(super) fn rows<F: Widen>(work: &Work<'_>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the Isa proves the machine has the instructions; `Work` proves rows and tokens are there.
    unsafe {
        use crate::cpu::isa::IsaLevel;
        match work.isa.level() {
            IsaLevel::Avx512 => return x86::rows_fma::<x86::Fma<F>>(work),
            IsaLevel::Avx2 => return x86::rows_avx2::<F>(work),
            IsaLevel::Portable => {}
        }
    }
    portable::<F>(work);
}

/// bf16 activations times bf16 weights.
#[cfg(target_arch = "x86_64")]
pub(super) fn rows_bf16(work: &Work<'_>) {
    // SAFETY: called only where the Isa proves bf16 instructions; `Work` proves rows and tokens are there.
    unsafe { x86::rows_bf16::<x86::Bf16Pairs>(work) }
}

fn portable<F: Widen>(work: &Work<'_>) {
    let ActData::F32(x) = work.act.data else { unreachable!("checked before the run") };
    let k = work.act.k;
    let bytes = k * F::BYTES;
    let mut row = vec![0.0f32; k];
    for r in work.first..work.first + work.rows {
        dequant::<F>(&work.weight.data[r * bytes..(r + 1) * bytes], &mut row);
        for (t, x) in x.chunks_exact(k).enumerate() {
            let mut lanes = [0.0f32; 8];
            let (w8, x8) = (row.as_chunks::<8>(), x.as_chunks::<8>());
            for (w, x) in w8.0.iter().zip(x8.0) {
                lanes.iter_mut().zip(w).zip(x).for_each(|((lane, w), x)| *lane += w * x);
            }
            let tail: f32 = w8.1.iter().zip(x8.1).map(|(w, x)| w * x).sum();
            work.store(t, r, lanes.iter().sum::<f32>() + tail);
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::super::blocks::token_tiles;
    use super::*;
    use std::arch::x86_64::*;
    use std::marker::PhantomData;

    /// f32 activations, weights widened to f32.
    pub(in super::super) struct Fma<F>(PhantomData<F>);

    // SAFETY: loads are the format's and masked f32 loads.
    unsafe impl<F: Widen> Dot512 for Fma<F> {
        type V = __m512;
        const STEP: usize = 16;
        const W_BYTES: usize = F::BYTES;
        const X_BYTES: usize = 4;

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")]
        unsafe fn w(p: *const u8, n: usize) -> __m512 {
            // SAFETY: by the caller.
            unsafe { F::load16(p, n) }
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")]
        unsafe fn x(p: *const u8, n: usize) -> __m512 {
            // SAFETY: by the caller; lanes that are off are not read.
            unsafe { load_f32(p, n) }
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")]
        unsafe fn zero() -> __m512 {
            _mm512_setzero_ps()
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")]
        unsafe fn madd(acc: __m512, w: __m512, x: __m512) -> __m512 {
            _mm512_fmadd_ps(w, x, acc)
        }
    }

    /// Sixteen f32, those from `n` on 0.
    ///
    /// # Safety
    /// `n` can be read at `p`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(in super::super) unsafe fn load_f32(p: *const u8, n: usize) -> __m512 {
        // SAFETY: by the caller; lanes that are off are not read.
        unsafe { if n >= 16 { _mm512_loadu_ps(p.cast()) } else { _mm512_maskz_loadu_ps((1u16 << n) - 1, p.cast()) } }
    }

    /// Pairs of bf16 into f32 sums.
    pub(in super::super) struct Bf16Pairs;

    impl Bf16Pairs {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
        unsafe fn load(p: *const u8, n: usize) -> __m512i {
            // SAFETY: by the caller; lanes that are off are not read.
            unsafe {
                if n >= 32 { _mm512_loadu_si512(p.cast()) } else { _mm512_maskz_loadu_epi16((1u32 << n) - 1, p.cast()) }
            }
        }
    }

    // SAFETY: loads are masked.
    unsafe impl Dot512 for Bf16Pairs {
        type V = __m512i;
        const STEP: usize = 32;
        const W_BYTES: usize = 2;
        const X_BYTES: usize = 2;

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
        unsafe fn w(p: *const u8, n: usize) -> __m512i {
            // SAFETY: by the caller.
            unsafe { Self::load(p, n) }
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
        unsafe fn x(p: *const u8, n: usize) -> __m512i {
            // SAFETY: by the caller.
            unsafe { Self::load(p, n) }
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
        unsafe fn zero() -> __m512i {
            _mm512_setzero_si512()
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
        unsafe fn madd(acc: __m512, w: __m512i, x: __m512i) -> __m512 {
            // SAFETY: both types are 64 bytes without invalid values.
            let (w, x) =
                unsafe { (std::mem::transmute::<__m512i, __m512bh>(w), std::mem::transmute::<__m512i, __m512bh>(x)) };
            _mm512_dpbf16_ps(acc, w, x)
        }
    }

    /// Sums of the lanes of four vectors.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    pub(crate) fn sum4(p: [__m512; 4]) -> [f32; 4] {
        let pair = |a, b| _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let (low, high) = (_mm512_castps_pd(pair(p[0], p[1])), _mm512_castps_pd(pair(p[2], p[3])));
        let four = _mm512_add_ps(
            _mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
            _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)),
        );
        let eight = _mm256_add_ps(_mm512_castps512_ps256(four), _mm512_extractf32x8_ps::<1>(four));
        let sums = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let mut out = [0.0; 4];
        // SAFETY: four values of a local array.
        unsafe { _mm_storeu_ps(out.as_mut_ptr(), sums) };
        out
    }

    fn x_base(work: &Work<'_>) -> *const u8 {
        match work.act.data {
            ActData::F32(x) => x.as_ptr().cast(),
            ActData::Bf16(x) => x.as_ptr().cast(),
            ActData::Q8 { .. } => unreachable!("checked before the run"),
        }
    }

    /// The row kernel for one set of instructions.
    macro_rules! row_kernel {
        ($rows:ident, $tile:ident, $features:literal) => {
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn $rows<D: Dot512>(work: &Work<'_>) {
                let end = work.first + work.rows;
                if work.act.tokens == 1 {
                    for row in (work.first..end).step_by(8) {
                        // SAFETY: rows of the weight and a token of the activation, of equal length.
                        unsafe { $tile::<D, 8, 1>(work, row, 0) };
                    }
                    return;
                }
                macro_rules! tile {
                    ($n:literal, $t:ident) => {
                        for row in (work.first..end).step_by(4) {
                            // SAFETY: rows of the weight and tokens of the activation, of equal length.
                            unsafe { $tile::<D, 4, $n>(work, row, $t) };
                        }
                    };
                }
                token_tiles!(work.act.tokens, t, [4, 3, 2, 1], tile);
            }

            #[target_feature(enable = $features)]
            unsafe fn $tile<D: Dot512, const R: usize, const N: usize>(work: &Work<'_>, row: usize, t: usize) {
                let k = work.act.k;
                let last = work.first + work.rows - 1;
                let mut w = [std::ptr::null(); R];
                for (i, w) in w.iter_mut().enumerate() {
                    *w = work.row((row + i).min(last));
                }
                let x = x_base(work).wrapping_add(t * k * D::X_BYTES);
                let stride = k * D::X_BYTES;
                let mut x = [x; N];
                for i in 1..N {
                    x[i] = x[i - 1].wrapping_add(stride);
                }
                let mut acc = [[_mm512_setzero_ps(); N]; R];
                macro_rules! step {
                    ($count:expr) => {
                        // SAFETY: so many more elements of every row and token.
                        unsafe {
                            let mut xs = [D::zero(); N];
                            for i in 0..N {
                                xs[i] = D::x(x[i], $count);
                            }
                            for r in 0..R {
                                let w = D::w(w[r], $count);
                                for i in 0..N {
                                    acc[r][i] = D::madd(acc[r][i], w, xs[i]);
                                }
                            }
                        }
                    };
                }
                for _ in 0..k / D::STEP {
                    step!(D::STEP);
                    for i in 0..N {
                        x[i] = x[i].wrapping_add(D::STEP * D::X_BYTES);
                    }
                    for r in 0..R {
                        w[r] = w[r].wrapping_add(D::STEP * D::W_BYTES);
                    }
                }
                let rest = k % D::STEP;
                if rest > 0 {
                    step!(rest);
                }
                for i in 0..N {
                    for four in (0..R).step_by(4) {
                        let sums = sum4([acc[four][i], acc[four + 1][i], acc[four + 2][i], acc[four + 3][i]]);
                        if row + four <= last {
                            work.store_rows(t + i, row + four, &sums);
                        }
                    }
                }
            }
        };
    }

    row_kernel!(rows_fma, tile_fma, "avx512f,avx512bw,avx512vl,avx512dq,f16c,fma");
    row_kernel!(rows_bf16, tile_bf16, "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,f16c,fma");

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn rows_avx2<F: Widen>(work: &Work<'_>) {
        let end = work.first + work.rows;
        macro_rules! tile {
            ($n:literal, $t:ident) => {
                for row in (work.first..end).step_by(4) {
                    // SAFETY: rows of the weight and tokens of the activation, of equal length.
                    unsafe { tile_avx2::<F, $n>(work, row, $t) };
                }
            };
        }
        token_tiles!(work.act.tokens, t, [2, 1], tile);
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile_avx2<F: Widen, const N: usize>(work: &Work<'_>, row: usize, t: usize) {
        let k = work.act.k;
        let last = work.first + work.rows - 1;
        let mut w = [std::ptr::null(); 4];
        for (i, w) in w.iter_mut().enumerate() {
            *w = work.row((row + i).min(last));
        }
        let mut x = [x_base(work).cast::<f32>().wrapping_add(t * k); N];
        for i in 1..N {
            x[i] = x[i - 1].wrapping_add(k);
        }
        let mut acc = [[_mm256_setzero_ps(); N]; 4];
        for _ in 0..k / 8 {
            // SAFETY: eight more elements of every row and token.
            unsafe {
                for r in 0..4 {
                    let vector = F::load8(w[r]);
                    for i in 0..N {
                        acc[r][i] = _mm256_fmadd_ps(vector, _mm256_loadu_ps(x[i]), acc[r][i]);
                    }
                    w[r] = w[r].wrapping_add(8 * F::BYTES);
                }
            }
            for i in 0..N {
                x[i] = x[i].wrapping_add(8);
            }
        }
        for i in 0..N {
            let mut sums = [0.0f32; 4];
            for r in 0..4 {
                let four = _mm_add_ps(_mm256_castps256_ps128(acc[r][i]), _mm256_extractf128_ps::<1>(acc[r][i]));
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                sums[r] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
                for at in 0..k % 8 {
                    // SAFETY: one of the elements left of the row and of the token.
                    unsafe {
                        let weight = F::one(std::slice::from_raw_parts(w[r].add(at * F::BYTES), F::BYTES));
                        sums[r] = weight.mul_add(*x[i].add(at), sums[r]);
                    }
                }
            }
            work.store_rows(t + i, row, &sums);
        }
    }
}
