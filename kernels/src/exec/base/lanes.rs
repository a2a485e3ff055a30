//! Element-wise arithmetic written once and compiled for each instruction set.
//!
//! Every function here is `inline(always)` and branch-free, so that inside a function with a target feature the
//! compiler turns its loops into that set's instructions. `FMA` says whether a fused multiply-add is one instruction;
//! where it is not, a call per element would be slower than rounding twice.

/// Lanes of a partial sum: one AVX-512 register.
pub const LANES: usize = 16;

/// a * b + c.
#[inline(always)]
pub fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Sum of the products of two slices of one length, in [`LANES`] partial sums.
#[inline(always)]
pub fn dot<const FMA: bool>(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (a_full, b_full) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a_full.remainder().iter().zip(b_full.remainder()).fold(0.0, |s, (a, b)| fma::<FMA>(*a, *b, s));
    for (a, b) in a_full.zip(b_full) {
        for i in 0..LANES {
            sums[i] = fma::<FMA>(a[i], b[i], sums[i]);
        }
    }
    fold(sums, |a, b| a + b) + rest
}

/// The products of one slice with four, each as [`dot`] would sum it: four chains hide the latency of one.
#[inline(always)]
pub fn dot4<const FMA: bool>(a: &[f32], b: [&[f32]; 4]) -> [f32; 4] {
    let full = a.len() - a.len() % LANES;
    let [b0, b1, b2, b3] = b.map(|b| &b[..full]);
    let (mut s0, mut s1, mut s2, mut s3) = ([0.0f32; LANES], [0.0f32; LANES], [0.0f32; LANES], [0.0f32; LANES]);
    let rows = a[..full].as_chunks::<LANES>().0.iter().zip(b0.as_chunks::<LANES>().0).zip(b1.as_chunks::<LANES>().0);
    for (((a, v0), v1), (v2, v3)) in rows.zip(b2.as_chunks::<LANES>().0.iter().zip(b3.as_chunks::<LANES>().0)) {
        for i in 0..LANES {
            s0[i] = fma::<FMA>(a[i], v0[i], s0[i]);
            s1[i] = fma::<FMA>(a[i], v1[i], s1[i]);
            s2[i] = fma::<FMA>(a[i], v2[i], s2[i]);
            s3[i] = fma::<FMA>(a[i], v3[i], s3[i]);
        }
    }
    let rest = |b: &[f32]| a[full..].iter().zip(&b[full..]).fold(0.0, |s, (a, b)| fma::<FMA>(*a, *b, s));
    let total = |sums, b: &[f32]| fold(sums, |a, b| a + b) + rest(b);
    [total(s0, b[0]), total(s1, b[1]), total(s2, b[2]), total(s3, b[3])]
}

/// Folds the lanes of a partial result in a fixed tree.
#[inline(always)]
pub fn fold(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = join(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Largest of a slice and `start`, lane by lane.
#[inline(always)]
pub fn largest(values: &[f32], start: f32) -> f32 {
    let mut lanes = [start; LANES];
    let full = values.chunks_exact(LANES);
    let rest = full.remainder().iter().fold(start, |a, b| if *b > a { *b } else { a });
    full.for_each(|v| (0..LANES).for_each(|i| lanes[i] = if v[i] > lanes[i] { v[i] } else { lanes[i] }));
    fold(lanes, |a, b| if b > a { b } else { a }).max(rest)
}

/// out += factors[i] * rows[i], in order.
#[inline(always)]
pub fn axpy4<const FMA: bool>(out: &mut [f32], factors: [f32; 4], rows: [&[f32]; 4]) {
    let [f0, f1, f2, f3] = factors;
    let [r0, r1, r2, r3] = rows;
    for ((o, (v0, v1)), (v2, v3)) in out.iter_mut().zip(r0.iter().zip(r1)).zip(r2.iter().zip(r3)) {
        *o = fma::<FMA>(f3, *v3, fma::<FMA>(f2, *v2, fma::<FMA>(f1, *v1, fma::<FMA>(f0, *v0, *o))));
    }
}

/// out += factor * row.
#[inline(always)]
pub fn axpy<const FMA: bool>(out: &mut [f32], factor: f32, row: &[f32]) {
    for (o, v) in out.iter_mut().zip(row) {
        *o = fma::<FMA>(factor, *v, *o);
    }
}

/// e^x, relative error below 2e-7; 0 below -87.3, held at its largest above 88.3.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor polynomial to r⁶ (the next term is below 2e-8).
#[inline(always)]
pub fn exp<const FMA: bool>(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to a whole number in the low bits.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let held = x.clamp(-87.3, 88.3);
    let shifted = fma::<FMA>(held, std::f32::consts::LOG2_E, SHIFT);
    let n = shifted - SHIFT;
    let r = fma::<FMA>(n, -LN2_LOW, fma::<FMA>(n, -LN2_HIGH, held));
    let mut p = 1.0 / 720.0;
    for c in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = fma::<FMA>(p, r, c);
    }
    let power = shifted.to_bits().wrapping_sub(SHIFT.to_bits()).wrapping_add(127) << 23;
    let value = p * f32::from_bits(power);
    if x < -87.3 { 0.0 } else { value }
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<FMA>(-x))
}

/// x * sigmoid(x).
#[inline(always)]
pub fn silu<const FMA: bool>(x: f32) -> f32 {
    x / (1.0 + exp::<FMA>(-x))
}

/// tanh approximation of GELU, through sigmoid: 0.5 x (1 + tanh u) = x * sigmoid(2u).
#[inline(always)]
pub fn gelu_tanh<const FMA: bool>(x: f32) -> f32 {
    const SCALE: f32 = 1.595_769; // 2 sqrt(2 / pi)
    let twice = SCALE * x * fma::<FMA>(0.044_715 * x, x, 1.0);
    x / (1.0 + exp::<FMA>(-twice))
}

/// Defines `$name`, which runs `$body::<FMA>` compiled for the given [`crate::cpu::Isa`].
macro_rules! per_isa {
    ($(#[$doc:meta])* $vis:vis fn $name:ident = $body:ident($($arg:ident: $kind:ty),* $(,)?) $(-> $ret:ty)?) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(isa: $crate::cpu::Isa, $($arg: $kind),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma,avx2,f16c")]
                #[allow(clippy::too_many_arguments)]
                fn wide($($arg: $kind),*) $(-> $ret)? {
                    $body::<true>($($arg),*)
                }
                #[target_feature(enable = "fma,avx2,f16c")]
                #[allow(clippy::too_many_arguments)]
                fn half($($arg: $kind),*) $(-> $ret)? {
                    $body::<true>($($arg),*)
                }
                match isa.level() {
                    // SAFETY: the level says the machine has AVX-512 F, BW, VL, DQ and what comes before.
                    $crate::cpu::IsaLevel::Avx512 => return unsafe { wide($($arg),*) },
                    // SAFETY: the level says the machine has AVX2, FMA and F16C.
                    $crate::cpu::IsaLevel::Avx2 => return unsafe { half($($arg),*) },
                    $crate::cpu::IsaLevel::Portable => {}
                }
            }
            let _ = isa;
            $body::<false>($($arg),*)
        }
    };
}
pub(crate) use per_isa;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_its_bound() {
        for i in -8_700..=8_829 {
            let x = i as f32 / 100.0 + 0.003;
            for value in [exp::<true>(x), exp::<false>(x)] {
                let exact = f64::from(x).exp();
                // The stated bound, with one rounding of the result beside it.
                assert!((f64::from(value) / exact - 1.0).abs() < 3e-7, "exp({x}) = {value}");
            }
        }
        assert_eq!(exp::<true>(f32::NEG_INFINITY), 0.0);
        assert!(exp::<true>(f32::NAN).is_nan());
    }

    #[test]
    fn activations_follow_their_definitions() {
        use crit_core::model::program::ops::gated_act::Activation;
        for i in -400..=400 {
            let x = i as f32 / 20.0;
            let (silu, gelu) = (silu::<true>(x), gelu_tanh::<true>(x));
            let near = |value: f32, exact: f64| (f64::from(value) - exact).abs() <= 4e-7 * exact.abs() + 1e-7;
            assert!(near(silu, Activation::Silu.eval(f64::from(x))), "silu({x}) = {silu}");
            assert!(near(gelu, Activation::GeluTanh.eval(f64::from(x))), "gelu({x}) = {gelu}");
        }
    }
}
