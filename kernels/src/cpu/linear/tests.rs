//! Every format, at every instruction set, against a plain f64 loop on odd sizes.

use super::*;
use crate::cpu::isa::IsaLevel;

/// Numbers in -1..1 that look random and are the same in every run.
struct Noise(u64);

impl Noise {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn value(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Weights whose every field is random; half-precision factors lie in a sane range.
fn weights(format: &StoredFormat, n: usize, k: usize, noise: &mut Noise) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..n * format.row_bytes(k)).map(|_| noise.bits() as u8).collect();
    let factors: &[usize] = match format.name {
        "Q8_0" | "Q4_0" | "Q5_0" => &[0],
        "Q4_K" | "Q5_K" => &[0, 2],
        "Q6_K" => &[208],
        _ => &[],
    };
    for block in bytes.chunks_exact_mut(format.block_bytes) {
        for at in factors {
            let factor = half::f16::from_f32(noise.value() * 0.01);
            block[*at..at + 2].copy_from_slice(&factor.to_le_bytes());
        }
        match format.name {
            "F32" => block.copy_from_slice(&noise.value().to_le_bytes()),
            "F16" => block.copy_from_slice(&half::f16::from_f32(noise.value()).to_le_bytes()),
            "BF16" => block.copy_from_slice(&half::bf16::from_f32(noise.value()).to_le_bytes()),
            _ => {}
        }
    }
    bytes
}

/// The activation values that a form stands for.
fn meant(act: &Act<'_>, i: usize) -> f64 {
    match act.data {
        ActData::F32(x) => f64::from(x[i]),
        ActData::Bf16(x) => half::bf16::from_bits(x[i]).to_f64(),
        ActData::Q8 { block, codes, scales, .. } => f64::from(codes[i]) * f64::from(scales[i / block]),
    }
}

struct Case {
    format: &'static StoredFormat,
    n: usize,
    k: usize,
    tokens: usize,
    threads: usize,
    isa: Isa,
    bias: bool,
}

/// Runs a case; checks it against f64; returns the results.
fn run(case: &Case) -> Vec<f32> {
    let Case { format, n, k, tokens, threads, isa, bias } = *case;
    let mut noise = Noise(n as u64 * 31 + k as u64);
    // One byte in front, so that nothing is aligned.
    let mut data = vec![0u8];
    data.extend(weights(format, n, k, &mut noise));
    let matrix = Matrix::new(format, n, k, &data[1..]).unwrap();
    let x: Vec<f32> = (0..tokens * k).map(|_| noise.value()).collect();
    let bias: Option<Vec<f32>> = bias.then(|| (0..n).map(|_| noise.value()).collect());
    let pool = Pool::new(threads).unwrap();
    let mut scratch = Scratch::new(threads, format.scratch_bytes(k, isa));
    let mut buf = ActBuf::default();
    let act = buf.fill((format.act)(isa), &x, k, isa, &pool).unwrap();
    let mut out = vec![f32::NAN; tokens * n];
    let product = Product { weight: matrix, bias: bias.as_deref(), out: &mut out };
    multiply(isa, &pool, &mut scratch, act, &mut [product]).unwrap();
    let mut row = vec![0.0; k];
    for r in 0..n {
        matrix.dequant_row(r, &mut row);
        for t in 0..tokens {
            let terms = || row.iter().enumerate().map(|(i, w)| f64::from(*w) * meant(&act, t * k + i));
            let start = bias.as_ref().map_or(0.0, |bias| f64::from(bias[r]));
            let (sum, size) = (terms().sum::<f64>() + start, terms().map(f64::abs).sum::<f64>() + start.abs());
            // f32 sums of k terms round each to 2^-24 of the running size, which is at most `size`; minimums of
            // k-quants are a difference of two such sums, a few times larger than their result.
            let tolerance = size * 2f64.powi(-24) * (k as f64).sqrt() * 4.0 + 1e-7;
            let got = f64::from(out[t * n + r]);
            let error = (got - sum).abs();
            assert!(error <= tolerance, "{} {n}x{k} T{tokens} {} [{t},{r}]: {got} for {sum}", format.name, isa.name());
        }
    }
    out
}

#[test]
fn all_formats_match_f64_on_odd_sizes() {
    for format in FORMATS {
        let ks: &[usize] = match format.block_elems {
            1 => &[1, 15, 33, 100, 515],
            32 => &[32, 96, 640],
            _ => &[256, 768],
        };
        for isa in Isa::testable() {
            for k in ks {
                for (n, tokens) in [(1, 1), (5, 2), (17, 3), (24, 4), (37, 13), (50, 7)] {
                    run(&Case { format, n, k: *k, tokens, threads: 2, isa, bias: n % 2 == 1 });
                }
            }
        }
    }
}

#[test]
fn a_token_gives_the_same_bits_alone_and_among_others_with_any_threads() {
    for format in FORMATS {
        let k = 512;
        for isa in Isa::testable() {
            let case = |tokens, threads| Case { format, n: 45, k, tokens, threads, isa, bias: true };
            let whole = run(&case(11, 1));
            assert_eq!(whole, run(&case(11, 3)), "{} threads", format.name);
            // The same noise makes the same weights and the same first tokens.
            let bias_is_drawn_after_x = [1, 2, 3, 4, 9];
            for tokens in bias_is_drawn_after_x {
                let fewer = run(&Case { bias: false, ..case(tokens, 2) });
                let all = run(&Case { bias: false, ..case(11, 1) });
                assert_eq!(fewer[..], all[..tokens * 45], "{} {} T{tokens}", format.name, isa.name());
            }
        }
    }
}

#[test]
fn several_products_share_a_run() {
    let isa = Isa::at_most(IsaLevel::Avx512);
    let format = format("Q8_0").unwrap();
    let (k, tokens) = (64, 5);
    let mut noise = Noise(7);
    let (a, b) = (weights(format, 19, k, &mut noise), weights(format, 3, k, &mut noise));
    let (a, b) = (Matrix::new(format, 19, k, &a).unwrap(), Matrix::new(format, 3, k, &b).unwrap());
    let x: Vec<f32> = (0..tokens * k).map(|_| noise.value()).collect();
    let pool = Pool::new(2).unwrap();
    let mut scratch = Scratch::new(2, format.scratch_bytes(k, isa));
    let mut buf = ActBuf::default();
    let act = buf.fill(ActKind::Q8x32, &x, k, isa, &pool).unwrap();
    let mut alone = [vec![0.0; 19 * tokens], vec![0.0; 3 * tokens]];
    for (weight, out) in [a, b].into_iter().zip(&mut alone) {
        multiply(isa, &pool, &mut scratch, act, &mut [Product { weight, bias: None, out }]).unwrap();
    }
    let mut both = [vec![0.0; 19 * tokens], vec![0.0; 3 * tokens]];
    let [first, second] = &mut both;
    let products = &mut [Product { weight: a, bias: None, out: first }, Product { weight: b, bias: None, out: second }];
    multiply(isa, &pool, &mut scratch, act, products).unwrap();
    assert_eq!(alone, both);
}

#[test]
fn wrong_sizes_are_refused() {
    let format = format("Q4_K").unwrap();
    assert!(Matrix::new(format, 2, 100, &[0; 288]).is_none());
    assert!(Matrix::new(format, 2, 256, &[0; 287]).is_none());
    assert!(Matrix::new(format, usize::MAX, 256, &[]).is_none());
    assert!(Matrix::new(format, 2, 256, &[0; 288]).is_some());
}

#[test]
fn the_list_is_sorted() {
    assert!(FORMATS.windows(2).all(|pair| pair[0].name < pair[1].name));
}
