//! Attention and what leads to it: heads normed, turned and put into the cache.

use super::super::error::CudaError;
use super::super::launch::{Shape, args};
use super::super::memory::Buffer;
use super::{Cx, KernelId, Place, Unit};
use std::sync::Arc;

/// Part of a launch of `heads` in `cu/heads.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadArgs {
    /// bf16 heads.
    pub x: u64,
    /// Elements from token to token.
    pub stride: u64,
    /// Where they go.
    pub out: u64,
    /// Elements from token to token there.
    pub out_stride: u64,
    /// Weight of a norm, or 0.
    pub norm: u64,
    /// Radians a position, or 0.
    pub freq: u64,
    /// The same for long sequences, or 0.
    pub freq_long: u64,
    /// Heads.
    pub heads: u32,
    /// Elements of a head.
    pub dim: u32,
    /// Pairs that turn.
    pub pairs: u32,
    /// First element that turns.
    pub offset: u32,
    /// Tokens above which a sequence is long.
    pub long_above: u32,
    /// Positions that turn alike.
    pub every: u32,
    /// Whether pairs are neighbours.
    pub interleaved: i32,
    /// 0 bf16 value, 1 f16 value, 2 keys of pages, 3 values of pages.
    pub to: i32,
    /// Of the norm.
    pub eps: f32,
    /// On sine and cosine.
    pub magnitude: f32,
    /// Bytes from block to block.
    pub block_bytes: u64,
    /// Bytes from head to head of a block.
    pub head_bytes: u64,
    /// Where a head's values begin.
    pub values_at: u64,
}

/// All of a launch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadsArgs {
    part: [HeadArgs; 3],
    parts: u32,
}

impl HeadsArgs {
    /// Of these runs, at most three.
    pub fn new(parts: &[HeadArgs]) -> Self {
        let mut all = Self { parts: parts.len() as u32, ..Self::default() };
        all.part[..parts.len()].copy_from_slice(parts);
        all
    }
}

/// Up to three runs of heads.
pub struct Heads {
    /// `heads`.
    pub kernel: KernelId,
    /// For times.
    pub label: &'static str,
    /// The runs.
    pub parts: Vec<HeadArgs>,
    /// What the runs' pointers point into.
    pub keeps: Vec<Arc<Buffer>>,
}

impl Unit for Heads {
    fn name(&self) -> &'static str {
        self.label
    }

    fn enqueue(&self, cx: &Cx<'_>) -> Result<(), CudaError> {
        let all = HeadsArgs::new(&self.parts);
        let heads: u32 = self.parts.iter().map(|part| part.heads).sum();
        let dims = self.parts.iter().map(|part| part.dim).max().unwrap_or(0);
        let shape = Shape::plane(cx.tokens as u32, heads.div_ceil(4), 128).with_shared(4 * 4 * dims);
        // SAFETY: arguments of `heads`; values have a row a token, blocks of the tables are blocks of the cache.
        unsafe { cx.launch(self.kernel, shape, args![all, cx.tables]) }
    }
}

/// Arguments of the kernels of `cu/attend.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AttendArgs {
    /// f16 queries.
    pub q: u64,
    /// Elements from token to token.
    pub q_stride: u64,
    /// The state's pages.
    pub pages: u64,
    /// Bytes from block to block.
    pub block_bytes: u64,
    /// Bytes from head to head.
    pub head_bytes: u64,
    /// Where a head's values begin.
    pub values_at: u64,
    /// bf16 result.
    pub out: u64,
    /// Elements from token to token.
    pub out_stride: u64,
    /// f32, one a head, or 0.
    pub sinks: u64,
    /// Query heads.
    pub heads: u32,
    /// Query heads of a key/value head.
    pub group: u32,
    /// Elements of a key.
    pub dim_k: u32,
    /// Elements of a value.
    pub dim_v: u32,
    /// Keys visible, or 0 for all.
    pub window: u32,
    /// Tokens of a chunk, or 0.
    pub chunk: u32,
    /// On q·k.
    pub scale: f32,
    /// Cap on scores, or 0.
    pub softcap: f32,
    /// Results of splits.
    pub partial: u64,
    /// Splits that have arrived.
    pub arrived: u64,
    /// Most splits.
    pub splits: u32,
    /// Tiles.
    pub tiles: u64,
}

/// Most splits of a context.
pub const SPLITS: u32 = 32;
/// Most tokens that attend in splits.
pub const SPLIT_TOKENS: usize = 64;
/// Fewest tokens of a step that attend in tiles.
const TILED_FROM: usize = 17;

/// Attention.
pub struct Attend {
    /// Any sizes.
    pub plain: KernelId,
    /// In splits, if the sizes allow.
    pub split: Option<KernelId>,
    /// In tiles, if the sizes allow.
    pub tiled: Option<KernelId>,
    /// What happens to the heads before, done by a kernel of its own; in steps of one token a sequence the split kernel
    /// for that does it.
    pub heads: Option<(Heads, Option<KernelId>)>,
    /// bf16 queries to f16 ones, if heads do not arrive as these.
    pub convert: Option<(KernelId, Place)>,
    /// What does not change.
    pub args: AttendArgs,
    /// The sinks.
    pub sinks: Option<Buffer>,
}

impl Attend {
    /// Dynamic shared memory of the split kernels: sums of warps, or before that a head of each warp, the turned queries, angles and
    /// the weights of two norms.
    pub fn split_shared(dim_k: usize, dim_v: usize, group: usize) -> u32 {
        let rows = group.min(16);
        (4 * rows * dim_v * 4).max(16 * dim_k.max(dim_v) + 2 * rows * dim_k + 12 * dim_k) as u32
    }

    fn split_shape(&self, cx: &Cx<'_>) -> Shape {
        let a = &self.args;
        let grid = (a.heads / a.group * a.group.div_ceil(16), a.splits, cx.tokens as u32);
        let shared = Self::split_shared(a.dim_k as usize, a.dim_v as usize, a.group as usize);
        Shape { grid, block: 128, shared }
    }

    fn own(&self, cx: &Cx<'_>, kernel: KernelId, parts: &[HeadArgs]) -> Result<(), CudaError> {
        let heads = HeadsArgs::new(parts);
        // SAFETY: arguments of `attend_few`; queries and result have a row a token, tables name blocks of the cache.
        unsafe { cx.launch(kernel, self.split_shape(cx), args![self.args, heads, cx.tables]) }
    }
}

impl Unit for Attend {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn enqueue(&self, cx: &Cx<'_>) -> Result<(), CudaError> {
        let mut a = self.args;
        if let Some((kernel, from)) = &self.convert {
            let (sx, so, width) = (from.stride as u32, a.q_stride as u32, from.width as u32);
            let (what, kind, number, weight, count) = (3i32, 0i32, 0.0f32, 0u64, 0u32);
            let shape = Shape::plane(width.div_ceil(256), cx.tokens as u32, 256);
            // SAFETY: arguments of `map_bf16_f16`; the f16 queries have room for as many tokens as a step has.
            unsafe {
                cx.launch(*kernel, shape, args![from.ptr, sx, a.q, so, width, what, kind, number, weight, count])
            }?;
        }
        if let Some((heads, own)) = &self.heads {
            match own {
                Some(kernel) if cx.one_each && cx.tokens <= SPLIT_TOKENS => return self.own(cx, *kernel, &heads.parts),
                _ => heads.enqueue(cx)?,
            }
        }
        a.tiles = cx.tiles.0;
        // SAFETY: arguments of the kernels of `cu/attend.cuh`; queries and result have a row a token, tables name blocks of the cache.
        unsafe {
            match (self.split, self.tiled) {
                (_, Some(kernel)) if cx.tokens >= TILED_FROM && cx.tiles.1 > 0 => {
                    let shared = 2 * 64 * 2 * (a.dim_k + a.dim_v);
                    let shape = Shape::plane(cx.tiles.1 as u32, a.heads, 128).with_shared(shared);
                    cx.launch(kernel, shape, args![a, cx.tables])
                }
                (Some(kernel), _) if cx.tokens <= SPLIT_TOKENS => {
                    cx.launch(kernel, self.split_shape(cx), args![a, cx.tables])
                }
                _ => {
                    let shape = Shape::plane(cx.tokens as u32, a.heads, 128).with_shared((a.dim_k + a.dim_v + 128) * 4);
                    cx.launch(self.plain, shape, args![a, cx.tables])
                }
            }
        }
    }
}
