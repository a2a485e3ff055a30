//! y = x · Wᵀ (+ bias), W read as stored.
//!
//! Each stored format is one file and one line in [`FORMATS`]. Weights are never copied whole: few tokens multiply rows
//! where they lie ([`rows`]); for many tokens a chunk of rows is rearranged in a worker's scratch memory first
//! ([`panel`]). Both sum in the same order, so a result does not depend on how many tokens a step has:
//!
//! - block formats multiply 8-bit codes of weights with 8-bit codes of activations in whole numbers, exactly, and add
//!   blocks in order, one fused multiply-add each;
//! - float formats keep one vector of partial sums along a row and add its lanes in a fixed tree.
//!
//! Results of different instruction sets differ by rounding (the number of lanes; bf16 products where the machine has
//! them).

#![allow(unsafe_code)]
// In the tiles, counted loops over arrays of vectors are what the compiler unrolls into registers; iterators with a
// counter keep the arrays in memory.
#![allow(clippy::needless_range_loop)]

mod act;
mod bf16;
mod blocks;
mod f16;
mod f32;
mod floats;
mod panel;
mod q4_0;
mod q4_k;
mod q5_0;
mod q5_k;
mod q6_k;
mod q8_0;
mod rows;
mod supers;
#[cfg(test)]
mod tests;

pub use act::{Act, ActBuf, ActData, ActKind};
#[cfg(target_arch = "x86_64")]
pub(crate) use floats::x86::sum4;

use super::isa::Isa;
use super::pool::{Pool, PoolError};
use super::shared::{Scratch, Shared};

/// A stored format's kernels.
pub struct StoredFormat {
    /// The name model files use.
    pub name: &'static str,
    /// Elements of a block (1 for plain numbers).
    pub block_elems: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// The form of activations its kernels multiply with.
    pub act: fn(Isa) -> ActKind,
    /// Multiplies a range of rows where they lie.
    rows: fn(&Work<'_>),
    /// Multiplies 16 rows after rearranging them, if that exists for the instruction set.
    panel: fn(Isa) -> Option<PanelKernel>,
    /// Dequantises one row, for embeddings.
    pub dequant: fn(&[u8], &mut [f32]),
}

struct PanelKernel {
    run: fn(&Work<'_>, &mut [u8]),
    scratch_bytes: fn(usize) -> usize,
}

/// All formats, sorted by name.
pub const FORMATS: &[&StoredFormat] = &[
    &bf16::FORMAT,
    &f16::FORMAT,
    &f32::FORMAT,
    &q4_0::FORMAT,
    &q4_k::FORMAT,
    &q5_0::FORMAT,
    &q5_k::FORMAT,
    &q6_k::FORMAT,
    &q8_0::FORMAT,
];

/// The format called `name` in model files.
pub fn format(name: &str) -> Option<&'static StoredFormat> {
    FORMATS.iter().copied().find(|format| format.name == name)
}

impl std::fmt::Debug for StoredFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl StoredFormat {
    /// Bytes of a row of `k` elements.
    pub fn row_bytes(&self, k: usize) -> usize {
        k / self.block_elems * self.block_bytes
    }

    /// Scratch bytes a worker needs for rows of `k` elements.
    pub fn scratch_bytes(&self, k: usize, isa: Isa) -> usize {
        (self.panel)(isa).map_or(0, |panel| (panel.scratch_bytes)(k))
    }
}

/// A weight as stored: `[n][k]`, rows one after the other, at any alignment.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    format: &'static StoredFormat,
    n: usize,
    k: usize,
    data: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// `n` rows of `k` elements in `data`. `None` if the sizes do not fit together.
    pub fn new(format: &'static StoredFormat, n: usize, k: usize, data: &'a [u8]) -> Option<Self> {
        let whole = k > 0 && k.is_multiple_of(format.block_elems);
        let bytes = (k / format.block_elems).checked_mul(format.block_bytes)?.checked_mul(n)?;
        (whole && bytes == data.len()).then_some(Self { format, n, k, data })
    }

    /// Its format.
    pub fn format(&self) -> &'static StoredFormat {
        self.format
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.n
    }

    /// Elements of a row.
    pub fn row_len(&self) -> usize {
        self.k
    }

    /// Its bytes.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// Row `row` as f32.
    ///
    /// # Panics
    /// No such row, or `out` has not the row's length.
    pub fn dequant_row(&self, row: usize, out: &mut [f32]) {
        let bytes = self.format.row_bytes(self.k);
        assert_eq!(out.len(), self.k, "elements of a row");
        (self.format.dequant)(&self.data[row * bytes..(row + 1) * bytes], out);
    }
}

/// One product of a group that shares its activations.
pub struct Product<'a> {
    /// The weight.
    pub weight: Matrix<'a>,
    /// Added to every row of the result, `[n]`.
    pub bias: Option<&'a [f32]>,
    /// The result, `[tokens][n]`.
    pub out: &'a mut [f32],
}

/// What a kernel works on: rows `first .. first + rows` of a weight, all tokens.
struct Work<'a> {
    isa: Isa,
    weight: Matrix<'a>,
    /// Bytes of a row of the weight.
    row_bytes: usize,
    first: usize,
    rows: usize,
    act: Act<'a>,
    bias: Option<&'a [f32]>,
    out: Shared<'a, f32>,
}

impl Work<'_> {
    /// Pointer to the bytes of a row.
    fn row(&self, row: usize) -> *const u8 {
        self.weight.data[row * self.row_bytes..].as_ptr()
    }

    /// Stores the result of `row` and `token`.
    fn store(&self, token: usize, row: usize, value: f32) {
        let value = value + self.bias.map_or(0.0, |bias| bias[row]);
        // SAFETY: rows of different chunks do not overlap, so no other thread touches this element.
        unsafe { self.out.set(token * self.weight.n + row, value) }
    }

    /// Stores the results of N rows from `row` on for one token, those within the chunk.
    fn store_rows<const N: usize>(&self, token: usize, row: usize, values: &[f32; N]) {
        let end = self.first + self.rows;
        let count = N.min(end - row);
        // SAFETY: rows of different chunks do not overlap, so no other thread touches these elements.
        let out = unsafe { self.out.part(token * self.weight.n + row, count) };
        match (self.bias, out.first_chunk_mut::<N>()) {
            (Some(bias), _) => out.iter_mut().zip(values).zip(&bias[row..]).for_each(|((o, v), b)| *o = v + b),
            (None, Some(whole)) => *whole = *values,
            (None, None) => out.copy_from_slice(&values[..count]),
        }
    }
}

/// Tokens from which rearranging rows pays for the 8-bit formats.
const PANEL_TOKENS: usize = 4;

/// Multiplies one activation with several weights in one parallel run.
///
/// # Errors
/// A worker panicked.
///
/// # Panics
/// Sizes do not match, the activation has another form than a weight's format wants, or scratch is too small.
pub fn multiply(
    isa: Isa,
    pool: &Pool,
    scratch: &mut Scratch,
    act: Act<'_>,
    products: &mut [Product<'_>],
) -> Result<(), PoolError> {
    let mut works = Vec::with_capacity(products.len());
    multiply_with(isa, pool, scratch, act, products, &mut works)
}

fn multiply_with<'a>(
    isa: Isa,
    pool: &Pool,
    scratch: &mut Scratch,
    act: Act<'a>,
    products: &'a mut [Product<'_>],
    works: &mut Vec<(Work<'a>, usize, Option<PanelKernel>)>,
) -> Result<(), PoolError> {
    if act.tokens == 0 {
        return Ok(());
    }
    let mut chunks = 0;
    for product in products {
        let weight = product.weight;
        check(isa, scratch, &act, product);
        let panel = if act.tokens >= PANEL_TOKENS { (weight.format.panel)(isa) } else { None };
        let rows = chunk_rows(&weight, panel.is_some(), pool.threads());
        let row_bytes = weight.format.row_bytes(weight.k);
        let out = Shared::new(product.out);
        let work = Work { isa, weight, row_bytes, first: 0, rows, act, bias: product.bias, out };
        works.push((work, chunks, panel));
        chunks += weight.n.div_ceil(rows);
    }
    let parts = scratch.share();
    let works = &*works;
    pool.run(chunks, &|chunk, worker| {
        let at = works.partition_point(|(_, first_chunk, _)| *first_chunk <= chunk) - 1;
        let (whole, first_chunk, panel) = &works[at];
        let first = (chunk - first_chunk) * whole.rows;
        let rows = whole.rows.min(whole.weight.n - first);
        let work = Work { first, rows, ..*whole };
        match panel {
            // SAFETY: the piece is this worker's own, and the last chunk that used it has ended.
            Some(panel) => (panel.run)(&work, unsafe { parts.of(worker) }),
            None => (whole.weight.format.rows)(&work),
        }
    })
}

fn check(isa: Isa, scratch: &Scratch, act: &Act<'_>, product: &Product<'_>) {
    let weight = &product.weight;
    assert_eq!(act.k, weight.k, "row lengths of activation and weight");
    assert_eq!(product.out.len(), act.tokens * weight.n, "elements of the result");
    assert!(product.bias.is_none_or(|bias| bias.len() == weight.n), "elements of the bias");
    let wanted = (weight.format.act)(isa);
    let given = match act.data {
        ActData::F32(_) => ActKind::F32,
        ActData::Bf16(_) => ActKind::Bf16,
        ActData::Q8 { block: 32, .. } => ActKind::Q8x32,
        ActData::Q8 { .. } => ActKind::Q8x256,
    };
    assert_eq!(given, wanted, "form of the activation for {}", weight.format.name);
    let bytes = weight.format.scratch_bytes(weight.k, isa);
    assert!(scratch.bytes_per_worker() >= bytes, "scratch of {bytes} bytes for {}", weight.format.name);
}

/// Rows of a chunk: one panel, or about 96 KiB of weights: long enough for memory to stream, short enough for the last
/// chunks of two threads to end together.
fn chunk_rows(weight: &Matrix<'_>, panel: bool, threads: usize) -> usize {
    if panel {
        return panel::ROWS;
    }
    let fair = weight.n.div_ceil(4 * threads).next_multiple_of(8);
    (98_304 / weight.format.row_bytes(weight.k)).clamp(8, 512).next_multiple_of(8).min(fair)
}
