//! Problems: ops on plain slices, each with its reference in f64.

use crate::rng::Rng;

/// The output of a shape's inputs, and for each element the sum of its terms' magnitudes.
pub type Reference = fn(&[usize], &[Vec<f32>]) -> Vec<(f64, f64)>;

/// An op to write a kernel for.
pub struct Problem {
    /// Its name.
    pub name: &'static str,
    /// What it computes.
    pub what: &'static str,
    /// What the numbers of a shape are.
    pub axes: &'static [&'static str],
    /// Lengths of the inputs.
    pub inputs: fn(&[usize]) -> Vec<usize>,
    /// Length of the output.
    pub output: fn(&[usize]) -> usize,
    /// Operations.
    pub flops: fn(&[usize]) -> u64,
    /// Terms that are summed up for an output element: errors grow and average out with them.
    pub terms: fn(&[usize]) -> usize,
    /// The output, and for each element the sum of its terms' magnitudes, which errors are judged by.
    pub reference: Reference,
}

impl Problem {
    /// Bytes that must be moved, everything in f32.
    pub fn bytes(&self, shape: &[usize]) -> u64 {
        4 * ((self.inputs)(shape).iter().sum::<usize>() + (self.output)(shape)) as u64
    }

    /// Content for a shape.
    pub fn content(&self, shape: &[usize], kind: Content, rng: &mut Rng) -> Vec<Vec<f32>> {
        (self.inputs)(shape).into_iter().map(|len| kind.fill(len, rng)).collect()
    }
}

/// What inputs are filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Normal numbers.
    Normal,
    /// Normal numbers, one in a hundred a thousand times as large, as activations have them.
    Outliers,
    /// Large numbers that cancel in sums, and small ones that remain.
    Cancelling,
}

impl Content {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Normal, Self::Outliers, Self::Cancelling];

    fn fill(self, len: usize, rng: &mut Rng) -> Vec<f32> {
        let mut large = 0.0;
        (0..len)
            .map(|i| {
                let normal = rng.normal() as f32;
                match self {
                    Self::Normal => normal,
                    Self::Outliers if rng.below(100) == 0 => 1_000.0 * normal,
                    Self::Cancelling if i % 3 == 0 => {
                        large = 100.0 * normal;
                        large
                    }
                    Self::Cancelling if i % 3 == 1 => -large,
                    _ => normal,
                }
            })
            .collect()
    }
}

/// The problems, sorted by name.
pub const PROBLEMS: &[Problem] = &[
    Problem {
        name: "gated_silu",
        what: "y[t] = silu(a[t]) * b[t]",
        axes: &["elements"],
        inputs: |shape| vec![shape[0]; 2],
        output: |shape| shape[0],
        flops: |shape| 5 * shape[0] as u64,
        terms: |_| 1,
        reference: |_, inputs| {
            let pairs = inputs[0].iter().zip(&inputs[1]).map(|(a, b)| (f64::from(*a), f64::from(*b)));
            pairs
                .map(|(a, b)| {
                    let y = a / (1.0 + (-a).exp()) * b;
                    // An exponential carries the error of its argument; below f32's smallest number nothing is left.
                    (y, (y.abs() * (1.0 + a.abs())).max(1e-30 * b.abs()).max(1e-30))
                })
                .collect()
        },
    },
    Problem {
        name: "linear",
        what: "y[m][n] = sum over k of x[m][k] * w[n][k]",
        axes: &["m", "n", "k"],
        inputs: |shape| vec![shape[0] * shape[2], shape[1] * shape[2]],
        output: |shape| shape[0] * shape[1],
        flops: |shape| 2 * (shape[0] * shape[1] * shape[2]) as u64,
        terms: |shape| shape[2],
        reference: linear,
    },
    Problem {
        name: "rms_norm",
        what: "y[t][d] = x[t][d] / sqrt(mean of x[t]^2 + 1e-6) * w[d]",
        axes: &["tokens", "width"],
        inputs: |shape| vec![shape[0] * shape[1], shape[1]],
        output: |shape| shape[0] * shape[1],
        flops: |shape| 4 * (shape[0] * shape[1]) as u64,
        terms: |_| 1,
        reference: rms_norm,
    },
];

/// The problem called `name`.
pub fn problem(name: &str) -> Option<&'static Problem> {
    PROBLEMS.iter().find(|problem| problem.name == name)
}

fn linear(shape: &[usize], inputs: &[Vec<f32>]) -> Vec<(f64, f64)> {
    let k = shape[2];
    let rows = |values: &'_ [f32]| -> Vec<Vec<f64>> {
        values.chunks(k).map(|row| row.iter().map(|x| f64::from(*x)).collect()).collect()
    };
    let (x, w) = (rows(&inputs[0]), rows(&inputs[1]));
    x.iter()
        .flat_map(|x| {
            w.iter().map(|w| {
                let terms = x.iter().zip(w).map(|(x, w)| x * w);
                terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
            })
        })
        .collect()
}

fn rms_norm(shape: &[usize], inputs: &[Vec<f32>]) -> Vec<(f64, f64)> {
    inputs[0]
        .chunks(shape[1])
        .flat_map(|row| {
            let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / row.len() as f64;
            let scale = 1.0 / (mean + 1e-6).sqrt();
            row.iter().zip(&inputs[1]).map(move |(x, w)| {
                let y = f64::from(*x) * scale * f64::from(*w);
                (y, y.abs().max(1e-30))
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_by_hand() {
        let linear = problem("linear").unwrap();
        let y = (linear.reference)(&[1, 2, 2], &[vec![1.0, -2.0], vec![3.0, 4.0, 0.5, 0.25]]);
        assert_eq!(y, [(-5.0, 11.0), (0.0, 1.0)]);
        assert_eq!((linear.bytes(&[1, 2, 2]), (linear.flops)(&[1, 2, 2])), (32, 8));
        let norm = problem("rms_norm").unwrap();
        let y = (norm.reference)(&[1, 2], &[vec![3.0, 4.0], vec![1.0, 2.0]]);
        assert!((y[0].0 - 3.0 / 12.5f64.sqrt()).abs() < 1e-6 && (y[1].0 - 8.0 / 12.5f64.sqrt()).abs() < 1e-6);
        let silu = problem("gated_silu").unwrap();
        assert!(((silu.reference)(&[1], &[vec![0.0], vec![7.0]])[0].0).abs() < 1e-30);
        assert!(PROBLEMS.is_sorted_by(|a, b| a.name < b.name) && problem("nothing").is_none());
    }

    #[test]
    fn contents_differ_in_kind_and_cancelling_cancels() {
        let mut rng = Rng::new(1);
        let [normal, outliers, cancelling] = Content::ALL.map(|kind| kind.fill(3_000, &mut rng));
        let largest = |values: &[f32]| values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        assert!(largest(&normal) < 10.0 && largest(&outliers) > 500.0);
        let (sum, size) = (cancelling.iter().sum::<f32>().abs(), cancelling.iter().map(|x| x.abs()).sum::<f32>());
        assert!(sum < size / 100.0);
    }
}
