//! Choosing and naming a kernel of `cu/gemv.cuh` for a weight's form and row length.

use super::super::weights::Form;

/// Working threads of a block.
pub const THREADS: usize = 256;
/// Numbers of activations there are kernels for.
pub const COLUMNS: [usize; 4] = [1, 2, 4, MOST_COLUMNS];
/// Most activations these kernels take at a time.
pub const MOST_COLUMNS: usize = 8;
/// Elements of a row in a stage of the tensor-core kernel, bytes of a stage, and the longest row.
const SLICE: usize = 512;
const CORES_STAGE_BYTES: usize = 16 * (2 * SLICE + 64);
const CORES_LONGEST: usize = 12288;
/// Bytes of a stage to aim at, and of all stages of a block.
const STAGE_BYTES: usize = 16 << 10;
const RING_BYTES: usize = 96 << 10;
/// Registers a thread may spend on activations.
const PIECE_REGISTERS: usize = 112;

/// How a kernel is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// The weight's form.
    pub form: Form,
    /// Threads that share a row.
    pub threads_per_row: usize,
    /// Chunks of a row each of them takes.
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
    /// Slices of 16 rows into a ring, multiplied by tensor cores.
    Cores {
        /// Stages.
        stages: usize,
    },
}

impl Spec {
    /// The kernel for rows of `k` elements and `columns` activations; `None` if a thread would have to hold too much.
    pub fn choose(form: Form, k: usize, columns: usize, stream: bool, gated: bool) -> Option<Self> {
        let chunks = k.div_ceil(form.chunk());
        let used = |threads: usize| chunks as f64 / (threads * chunks.div_ceil(threads)) as f64;
        let candidates = [256, 128, 64, 32];
        let full = candidates.into_iter().find(|threads| used(*threads) >= 0.9);
        let best = || candidates.into_iter().max_by(|a, b| used(*a).total_cmp(&used(*b)).then(a.cmp(b)));
        let threads_per_row = full.or_else(best)?;
        let chunks_each = chunks.div_ceil(threads_per_row);
        let registers = match form {
            Form::Bf16 | Form::F16 => 4,
            Form::Q8 => 9,
            Form::Q4K => 18,
            Form::Q6K => 19,
        };
        if stream && form.plain() && k.is_multiple_of(32) && (SLICE..=CORES_LONGEST).contains(&k) {
            let way = Way::Cores { stages: RING_BYTES / CORES_STAGE_BYTES };
            return Some(Self { form, threads_per_row: THREADS, chunks_each: 0, whole: true, columns: MOST_COLUMNS, way });
        }
        if chunks_each * columns * registers > PIECE_REGISTERS {
            return None;
        }
        let way = match stream {
            false => Way::Plain,
            true => ring(form.row_bytes(k), THREADS / threads_per_row, gated)?,
        };
        let whole = chunks == threads_per_row * chunks_each;
        Some(Self { form, threads_per_row, chunks_each, whole, columns, way })
    }

    /// The kernel's name.
    pub fn name(&self) -> String {
        let Self { form, threads_per_row, chunks_each, columns, way, whole } = self;
        let part = if *whole { "" } else { "_part" };
        let way = match way {
            Way::Plain => "plain".into(),
            Way::Stream { rows, stages } => format!("stream_{rows}_{stages}"),
            Way::Cores { stages } => format!("cores_{stages}"),
        };
        format!("gemv_{}_{threads_per_row}_{chunks_each}_{columns}{part}_{way}", form.name())
    }

    /// Its definition.
    pub fn text(&self) -> String {
        let Self { form, threads_per_row, chunks_each, columns, way, whole } = self;
        let (name, form) = (self.name(), form.type_name());
        match way {
            Way::Cores { stages } => {
                let number = if self.form == Form::F16 { "f16" } else { "bf16" };
                format!(
                    "extern \"C\" __global__ void __launch_bounds__(288, 1) {name}(const __grid_constant__ GemvArgs a) {{ \
                     gemv_cores<{number}, {stages}>(a); }}\n"
                )
            }
            Way::Stream { rows, stages } => format!(
                "extern \"C\" __global__ void __launch_bounds__(288, 1) {name}(const __grid_constant__ GemvArgs a) {{ \
                 gemv_stream<{form}, {threads_per_row}, {chunks_each}, {columns}, {whole}, {rows}, {stages}>(a); }}\n"
            ),
            Way::Plain => format!(
                "extern \"C\" __global__ void __launch_bounds__(256) {name}(const __grid_constant__ GemvArgs a) {{ \
                 gemv_plain<{form}, {threads_per_row}, {chunks_each}, {columns}, {}>(a); }}\n",
                if chunks_each * columns > 4 { 2 } else { 4 }
            ),
        }
    }

    /// Threads of a block.
    pub const fn block(&self) -> u32 {
        if matches!(self.way, Way::Plain) { 256 } else { 288 }
    }

    /// Blocks for `rows` rows on a device of so many multiprocessors.
    pub fn grid(&self, rows: usize, multiprocessors: u32) -> u32 {
        let most = if self.way == Way::Plain { multiprocessors * 4 } else { multiprocessors };
        if let Way::Cores { .. } = self.way {
            return most.min(rows.max(1) as u32);
        }
        // Sums of a block's rows lie in shared memory: keep them small.
        let least = (rows * self.columns * (self.threads_per_row / 32) * 4).div_ceil(48 << 10) as u32;
        most.max(least).min(rows.max(1) as u32)
    }

    /// Dynamic shared memory of a block.
    pub fn shared(&self, rows: usize, gated: bool, row_bytes: usize, grid: u32) -> u32 {
        if let Way::Cores { stages } = self.way {
            return (stages * CORES_STAGE_BYTES + self.columns * (row_bytes + 64)) as u32;
        }
        let per_block = rows / grid as usize + 1;
        let kinds = if gated { 2 } else { 1 };
        let sums = per_block * kinds * self.columns * (self.threads_per_row / 32) * 4;
        let stages = match self.way {
            Way::Stream { rows, stages } => rows * stages * row_bytes,
            _ => 0,
        };
        (stages + sums) as u32
    }
}

/// Rows a stage and stages: whole groups of rows, gate and up both.
fn ring(row_bytes: usize, groups: usize, gated: bool) -> Option<Way> {
    let step = if gated { groups.max(2) } else { groups };
    let rows = (STAGE_BYTES / row_bytes / step).max(1) * step;
    let stages = (RING_BYTES / (rows * row_bytes)).clamp(2, 12);
    // More than two thirds of a multiprocessor's shared memory leaves no room for the next kernel.
    (rows * stages * row_bytes <= 160 << 10).then_some(Way::Stream { rows, stages })
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
        let spec = |form, k| Spec::choose(form, k, 1, true, false).unwrap();
        assert!(matches!(spec(Form::Bf16, 4096).way, Way::Cores { .. }));
        assert_eq!((spec(Form::Bf16, 200).threads_per_row, spec(Form::Bf16, 200).chunks_each), (32, 1));
        assert_eq!((spec(Form::Q4K, 4096).threads_per_row, spec(Form::Q4K, 4096).chunks_each), (128, 1));
        assert_eq!((spec(Form::Q4K, 12288).threads_per_row, spec(Form::Q4K, 12288).chunks_each), (128, 3));
        assert_eq!((spec(Form::Q8, 2560).threads_per_row, spec(Form::Q8, 2560).chunks_each), (32, 5));
        for k in (8..20_000).step_by(8) {
            for columns in [1, 2, 4] {
                let Some(spec) = Spec::choose(Form::Bf16, k, columns, true, true) else { continue };
                let Way::Stream { rows, stages } = spec.way else { continue };
                assert!(spec.threads_per_row * spec.chunks_each * 8 >= k);
                assert!(rows % 2 == 0 && stages >= 2 && rows % (THREADS / spec.threads_per_row) == 0);
            }
        }
        assert!(Spec::choose(Form::Q4K, 12288, 4, true, false).is_none(), "too many registers");
    }
}
