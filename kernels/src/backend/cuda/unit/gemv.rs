//! Choosing and naming a kernel of `cu/gemv.cuh` for a weight's form and row length.

use super::super::weights::Form;

/// Numbers of activations there are kernels for.
pub const COLUMNS: [usize; 4] = [1, 2, 4, MOST_COLUMNS];
/// Most activations these kernels take at a time.
pub const MOST_COLUMNS: usize = 8;
/// Bytes of a stage to aim at, and of all stages of a block.
const STAGE_BYTES: usize = 32 << 10;
const RING_BYTES: usize = 100 << 10;
/// Registers a thread may spend on activations.
const PIECE_REGISTERS: usize = 112;

/// How a kernel is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// The weight's form.
    pub form: Form,
    /// Working threads of a block.
    pub threads: usize,
    /// Threads that share a row.
    pub threads_per_row: usize,
    /// Chunks of a row each of them takes; of the tensor-core kernel runs of 32 elements.
    pub chunks_each: usize,
    /// Whether that is all of the row, no thread with less.
    pub whole: bool,
    /// Activations.
    pub columns: usize,
    /// How weights are fetched.
    pub way: Way,
}

/// How weights are fetched and multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// From global memory, where they are used.
    Plain,
    /// Whole rows by bulk copies into a ring.
    Stream {
        /// Rows a stage.
        rows: usize,
        /// Stages.
        stages: usize,
    },
    /// The same, multiplied by tensor cores.
    Diagonal {
        /// Rows a stage.
        rows: usize,
        /// Stages.
        stages: usize,
    },
}

impl Spec {
    /// The kernel for rows of `k` elements and `columns` activations; `None` if a thread would have to hold too much.
    pub fn choose(form: Form, k: usize, columns: usize, stream: bool, gated: bool) -> Option<Self> {
        if stream && let Some(spec) = Self::diagonal(form, k, columns, gated) {
            return Some(spec);
        }
        let chunks = k.div_ceil(form.chunk());
        // Blocks and shares of them that leave few threads idle; of those the one with least to hold, then the smaller block.
        let blocks: &[usize] = if stream && !form.plain() { &[256, 384] } else { &[256] };
        let cuts = blocks.iter().flat_map(|threads| {
            (0..5).map(move |halvings| (*threads, threads >> halvings)).filter(|(_, share)| share.is_multiple_of(32))
        });
        let each = |share: usize| chunks.div_ceil(share);
        let used = |share: usize| chunks as f64 / (share * each(share)) as f64;
        let best = cuts.clone().map(|(_, share)| used(share)).fold(0.0, f64::max).min(0.9);
        let fits = cuts.filter(|(_, share)| used(*share) >= best);
        let (threads, threads_per_row) = fits.min_by_key(|(threads, share)| (each(*share), *threads))?;
        let chunks_each = each(threads_per_row);
        let registers = match form {
            Form::Bf16 | Form::F16 => 4,
            Form::Q8 => 9,
            Form::Q4K => 18,
            Form::Q6K => 19,
        };
        if chunks_each * columns * registers > PIECE_REGISTERS {
            return None;
        }
        let way = match stream {
            false => Way::Plain,
            true => {
                let (rows, stages) = ring(form.row_bytes(k), threads / threads_per_row, gated)?;
                Way::Stream { rows, stages }
            }
        };
        let whole = chunks == threads_per_row * chunks_each;
        Some(Self { form, threads, threads_per_row, chunks_each, whole, columns, way })
    }

    /// The tensor-core kernel, for plain forms whose rows can be cut into 8 segments a warp.
    fn diagonal(form: Form, k: usize, columns: usize, gated: bool) -> Option<Self> {
        let warps = [8, 4, 2, 1].into_iter().find(|warps| k.is_multiple_of(256 * warps)).filter(|_| form.plain())?;
        let chunks_each = k / (256 * warps);
        let (rows, stages) = ring(form.row_bytes(k), 2 * (8 / warps), gated)?;
        let sums = rows / 2 / (8 / warps) * columns * 4;
        // Pairs of rows so long leave too few stages; one activation is as well off with single rows.
        if stages < 3 && columns == 1 {
            return None;
        }
        if chunks_each * columns * 4 + sums > PIECE_REGISTERS {
            return None;
        }
        let way = Way::Diagonal { rows, stages };
        Some(Self { form, threads: 256, threads_per_row: 32 * warps, chunks_each, whole: true, columns, way })
    }

    /// The kernel's name.
    pub fn name(&self) -> String {
        let Self { form, threads, threads_per_row, chunks_each, columns, way, whole } = self;
        let part = if *whole { "" } else { "_part" };
        let way = match way {
            Way::Plain => "plain".into(),
            Way::Stream { rows, stages } => format!("stream_{rows}_{stages}"),
            Way::Diagonal { rows, stages } => format!("diagonal_{rows}_{stages}"),
        };
        format!("gemv_{}_{threads}_{threads_per_row}_{chunks_each}_{columns}{part}_{way}", form.name())
    }

    /// Its definition.
    pub fn text(&self) -> String {
        let Self { form, threads, threads_per_row, chunks_each, columns, way, whole } = self;
        let (name, form, block) = (self.name(), form.type_name(), self.block());
        let body = match way {
            Way::Plain => {
                let rows = if chunks_each * columns > 4 { 2 } else { 4 };
                format!("gemv_plain<{form}, {threads_per_row}, {chunks_each}, {columns}, {rows}>")
            }
            Way::Stream { rows, stages } => {
                format!(
                    "gemv_stream<{form}, {threads}, {threads_per_row}, {chunks_each}, {columns}, {whole}, {rows}, {stages}>"
                )
            }
            Way::Diagonal { rows, stages } => {
                let number = if self.form == Form::F16 { "f16" } else { "bf16" };
                format!("gemv_diagonal<{number}, {}, {chunks_each}, {columns}, {rows}, {stages}>", threads_per_row / 32)
            }
        };
        format!(
            "extern \"C\" __global__ void __launch_bounds__({block}, 1) {name}(const __grid_constant__ GemvArgs a) {{ {body}(a); }}\n"
        )
    }

    /// Threads of a block: those that work, and a warp that copies.
    pub const fn block(&self) -> u32 {
        let copying = if matches!(self.way, Way::Plain) { 0 } else { 32 };
        (self.threads + copying) as u32
    }

    /// Blocks for `rows` rows on a device of so many multiprocessors.
    pub fn grid(&self, rows: usize, multiprocessors: u32) -> u32 {
        let most = if self.way == Way::Plain { multiprocessors * 4 } else { multiprocessors };
        // Sums of a block's rows lie in shared memory: keep them small.
        let least = (rows * self.columns * (self.threads_per_row / 32) * 4).div_ceil(48 << 10) as u32;
        most.max(least).min(rows.max(1) as u32)
    }

    /// Dynamic shared memory of a block for rows of `k` elements: the ring, and behind it an activation or the sums of warps.
    pub fn shared(&self, rows: usize, k: usize, gated: bool, x_f32: bool, grid: u32) -> u32 {
        let per_block = rows / grid as usize + 1;
        let kinds = if gated { 2 } else { 1 };
        let sums = per_block * kinds * self.columns * (self.threads_per_row / 32) * 4;
        let stages = match self.way {
            Way::Stream { rows, stages } | Way::Diagonal { rows, stages } => rows * stages * self.form.row_bytes(k),
            Way::Plain => 0,
        };
        let bytes = k.next_multiple_of(8) * if x_f32 { 4 } else { 2 };
        let activation = bytes + bytes / 128 * 16 + 32;
        (stages + sums.max(activation)) as u32
    }
}

/// Rows a stage and stages: whole groups of rows, gate and up both.
fn ring(row_bytes: usize, groups: usize, gated: bool) -> Option<(usize, usize)> {
    let step = if gated { groups.next_multiple_of(2) } else { groups };
    let rows = (STAGE_BYTES / row_bytes / step).max(1) * step;
    let stages = (RING_BYTES / (rows * row_bytes)).clamp(2, 12);
    // More than two thirds of a multiprocessor's shared memory leaves no room for the next kernel.
    (rows * stages * row_bytes <= 160 << 10).then_some((rows, stages))
}

/// The arguments, as `cu/gemv.cuh` has them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GemvArgs {
    /// Rows of the weight.
    pub w: u64,
    /// Activations.
    pub x: u64,
    /// Weight of a norm before the product, or 0.
    pub norm: u64,
    /// Bias, or 0.
    pub bias: u64,
    /// Added to the product, or 0.
    pub residual: u64,
    /// Result.
    pub out: u64,
    /// Elements from row to row of the residual.
    pub residual_stride: u64,
    /// Of the result.
    pub out_stride: u64,
    /// Of the activations.
    pub x_stride: u64,
    /// Rows of the result.
    pub rows: u32,
    /// Bytes from row to row of the weight.
    pub row_bytes: u32,
    /// Elements of a row.
    pub k: u32,
    /// Chunks of a row.
    pub chunks: u32,
    /// Activations there are.
    pub columns: u32,
    /// Whether activations are f32.
    pub x_f32: i32,
    /// Whether the result is f32.
    pub out_f32: i32,
    /// Activation of the gate, or -1.
    pub gate: i32,
    /// Of the norm.
    pub eps: f32,
    /// On the product, with a residual.
    pub scale: f32,
    /// Experts chosen, or 0.
    pub chosen: u64,
    /// Bytes from expert to expert.
    pub expert_bytes: u64,
    /// Experts there are.
    pub experts: u32,
    /// Choices that read the same activation.
    pub per_x: u32,
    /// Experts a token gets.
    pub top_k: u32,
    /// Elements from token to token of the experts chosen.
    pub chosen_stride: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_shared_out_without_waste_where_that_can_be() {
        let cut = |form, k| {
            let spec = Spec::choose(form, k, 1, true, false).unwrap();
            (spec.threads, spec.threads_per_row, spec.chunks_each)
        };
        assert_eq!(cut(Form::Bf16, 4096), (256, 256, 2));
        assert_eq!(cut(Form::Bf16, 2560), (256, 64, 5));
        assert_eq!(cut(Form::Bf16, 200), (256, 32, 1));
        assert!(matches!(
            Spec::choose(Form::Bf16, 12288, 1, true, false).unwrap().way,
            Way::Stream { rows: 1, stages: 4 }
        ));
        assert_eq!(cut(Form::Q4K, 4096), (256, 128, 1));
        assert_eq!(cut(Form::Q4K, 12288), (384, 384, 1));
        assert_eq!(cut(Form::Q8, 12288), (384, 384, 2));
        for k in (8..20_000).step_by(8) {
            for columns in [1, 2, 4] {
                let Some(spec) = Spec::choose(Form::Bf16, k, columns, true, true) else { continue };
                let groups = spec.threads / spec.threads_per_row;
                match spec.way {
                    Way::Stream { rows, stages } => {
                        assert!(spec.threads_per_row * spec.chunks_each * 8 >= k);
                        assert!(rows % 2 == 0 && stages >= 2 && rows % groups == 0);
                    }
                    Way::Diagonal { rows, stages } => {
                        assert_eq!(spec.threads_per_row / 32 * spec.chunks_each * 256, k);
                        assert!(stages >= 2 && rows % (2 * groups) == 0);
                    }
                    Way::Plain => unreachable!("a stream was asked for"),
                }
            }
        }
        assert!(Spec::choose(Form::Q4K, 12288, 8, true, false).is_none(), "too many registers");
    }
}
