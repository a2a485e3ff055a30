//! Runs steps on the GPU: tables up, kernels or a captured graph, logits down.

use super::blas::Blas;
use super::compile::{Function, Kernels};
use super::device::Device;
use super::error::CudaError;
use super::graph::Graph;
use super::launch::{Queue, Shape, args};
use super::memory::{Buffer, Ledger, Pinned, Purpose};
use super::plan::{Area, BLOCK_TOKENS, Plan, Sizes, plan};
use super::strategy::Strategy;
use super::unit::{Cx, KernelId, Place, Tables, Unit};
use crit_core::model::Model;
use crit_core::model::program::Precision;
use crit_core::runtime::{EngineError, Executor, ExecutorInfo, OpTime, StepBatch};
use cudarc::driver::{result, sys};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Widest decode step that is captured.
const WIDEST_GRAPH: usize = 64;
/// Tokens of a tile of attention.
const TILE: usize = 64;
/// Most bytes of logits a step hands out.
const LOGITS_BYTES: usize = 256 << 20;

/// Sizes and choices.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// The device's number.
    pub ordinal: usize,
    /// Longest sequence.
    pub max_context: usize,
    /// Most sequences.
    pub max_batch: usize,
    /// Blocks of the cache.
    pub blocks: usize,
    /// Most tokens of a step.
    pub max_step_tokens: usize,
    /// What is on.
    pub strategies: Vec<Strategy>,
    /// Measures each unit of a step; steps are not captured then.
    pub profile: bool,
}

impl CudaOptions {
    /// Everything on, for one model.
    pub fn new(max_context: usize, max_batch: usize) -> Self {
        Self {
            ordinal: 0,
            max_context,
            max_batch,
            blocks: max_context.div_ceil(BLOCK_TOKENS) * max_batch,
            max_step_tokens: 4096,
            strategies: Strategy::ALL.iter().map(|(_, strategy)| *strategy).collect(),
            profile: false,
        }
    }
}

/// A step's tables: on the host, and where they go.
struct Room {
    host: Pinned,
    device: Buffer,
    tokens: usize,
    rows: usize,
    seqs: usize,
}

impl Room {
    fn new(
        device: &Arc<Device>,
        ledger: &Arc<Ledger>,
        (tokens, rows, seqs): (usize, usize, usize),
        blocks: usize,
    ) -> Result<Self, CudaError> {
        let words = 3 * tokens + rows + 4 * seqs + 2 * (tokens / TILE + seqs) + seqs * blocks;
        Ok(Self {
            host: Pinned::new(device, words * 4)?,
            device: Buffer::zeroed(device, ledger, Purpose::Workspace, words as u64 * 4)?,
            tokens,
            rows,
            seqs,
        })
    }

    /// Words at which each table begins, and the tiles' and the blocks'.
    fn layout(&self) -> [usize; 10] {
        let (t, r, s) = (self.tokens, self.rows, self.seqs);
        let sizes = [t, t, t, r, s, s, s, s, 2 * (t / TILE + s)];
        let mut out = [0; 10];
        for (i, size) in sizes.into_iter().enumerate() {
            out[i + 1] = out[i] + size;
        }
        out
    }

    fn tables(&self, block_stride: usize) -> Tables {
        let at = self.layout().map(|word| self.device.ptr() + 4 * word as u64);
        let [tokens, positions, seq_of, rows, seq_first, seq_tokens, seq_past, seq_length, _, blocks] = at;
        let block_stride = block_stride as u32;
        Tables { tokens, positions, seq_of, rows, seq_first, seq_tokens, seq_past, seq_length, blocks, block_stride }
    }

    /// Writes a batch, padded to `width` tokens, rows and sequences if that is more; returns the number of tiles.
    fn fill(&mut self, batch: &StepBatch, width: usize, block_stride: usize) -> usize {
        let [tokens, positions, seq_of, rows, first, count, past, length, tiles, blocks] = self.layout();
        let words = self.host.words();
        words[tokens..tokens + batch.tokens.len()].copy_from_slice(&batch.tokens);
        words[positions..positions + batch.positions.len()].copy_from_slice(&batch.positions);
        words[rows..rows + batch.rows.len()].copy_from_slice(&batch.rows);
        let mut tile = 0;
        for (i, seq) in batch.seqs.iter().enumerate() {
            let range = seq.first as usize..(seq.first + seq.tokens) as usize;
            words[seq_of + range.start..seq_of + range.end].fill(i as u32);
            (words[first + i], words[count + i], words[past + i], words[length + i]) =
                (seq.first, seq.tokens, seq.past, seq.length);
            let at = blocks + i * block_stride;
            let used = seq.blocks.len().min(block_stride);
            words[at..at + used].copy_from_slice(&seq.blocks[..used]);
            // The last tiles see most keys: they begin first.
            for from in (0..seq.tokens).step_by(TILE).rev() {
                (words[tiles + 2 * tile], words[tiles + 2 * tile + 1]) = (i as u32, from);
                tile += 1;
            }
        }
        for i in batch.tokens.len()..width {
            (words[tokens + i], words[positions + i], words[seq_of + i]) = (0, 0, u32::MAX);
        }
        for i in batch.rows.len()..width.min(self.rows) {
            words[rows + i] = 0;
        }
        for i in batch.seqs.len()..width.min(self.seqs) {
            (words[first + i], words[count + i], words[past + i], words[length + i]) = (0, 0, 0, 0);
        }
        tile
    }

    fn upload(&self, seqs: usize, block_stride: usize, stream: sys::CUstream) -> Result<(), CudaError> {
        let words = self.layout()[9] + seqs * block_stride;
        self.host.upload(self.device.ptr(), words * 4, stream)
    }

    fn tiles(&self) -> u64 {
        self.device.ptr() + 4 * self.layout()[8] as u64
    }
}

/// The executor.
pub struct CudaExecutor {
    graphs: BTreeMap<usize, Graph>,
    /// Widths that have run once outside a graph, so that nothing is loaded for the first time in a capture.
    warm: Vec<usize>,
    units: Vec<Box<dyn Unit>>,
    functions: Vec<Function>,
    copy: KernelId,
    areas: Vec<Area>,
    logits_at: Place,
    logits: Pinned,
    few: Room,
    many: Room,
    block_stride: usize,
    captures: bool,
    queue: Queue,
    profile: bool,
    times_us: Vec<f32>,
    info: ExecutorInfo,
    blas: Blas,
    _keeps: Vec<Buffer>,
    _kernels: Kernels,
    device: Arc<Device>,
}

// SAFETY: all handles belong to the device's context, and one thread at a time uses them.
unsafe impl Send for CudaExecutor {}

/// Builds an executor of `model` on a GPU.
///
/// # Errors
/// No GPU, an op without a kernel, memory that does not suffice, a kernel that does not compile.
pub fn build(model: &Model, options: &CudaOptions) -> Result<CudaExecutor, CudaError> {
    let device = Device::open(options.ordinal)?;
    let ledger = Arc::new(Ledger::default());
    let program = &model.program;
    let tokens = options.max_step_tokens.clamp(1, 1 << 16).min(options.max_context.next_multiple_of(64).max(64));
    let rows = tokens.min((LOGITS_BYTES / (4 * program.vocab.max(1))).max(options.max_batch.max(1)));
    let sizes =
        Sizes { tokens: tokens.max(options.max_batch), rows: rows.max(options.max_batch), blocks: options.blocks };
    check_memory(model, &device, sizes)?;
    let blas = Blas::open(&device, &ledger)?;
    let made = plan(model, &device, &ledger, &options.strategies, sizes)?;
    let Plan { units, mut book, areas, logits, keeps, told } = made;
    let copy = book.kernel("copy_block", 0);
    let kernels = Kernels::load(&device, &book.sources())?;
    let function = |(name, shared): &(String, u32)| kernels.get_with_shared(name, *shared);
    let functions = book.names().iter().map(function).collect::<Result<Vec<_>, _>>()?;
    let block_stride = options.max_context.div_ceil(BLOCK_TOKENS).max(1);
    let width = options.max_batch.next_power_of_two().min(WIDEST_GRAPH);
    let few = Room::new(&device, &ledger, (width, width, width), block_stride)?;
    let many = Room::new(&device, &ledger, (sizes.tokens, sizes.rows, options.max_batch), block_stride)?;
    let host = Pinned::new(&device, sizes.rows * program.vocab * 4)?;
    tune(&blas, &units, sizes)?;
    device.wait()?;
    let mut stored: BTreeMap<String, u64> = model.stored_bytes().into_iter().collect();
    stored.extend(told);
    let info = ExecutorInfo {
        name: format!("cuda:{}", options.ordinal),
        vocab: program.vocab,
        block_tokens: BLOCK_TOKENS,
        blocks: options.blocks,
        slots: options.max_batch,
        max_context: options.max_context,
        max_step_tokens: sizes.tokens,
        max_step_rows: sizes.rows,
        slot_bytes: 0,
        drafts: false,
        long_above: program.long_above(),
        kv_row_bytes: program.kv_row_bytes(|dim| 2 * dim),
        stored_bytes: stored.into_iter().collect(),
        precision: (Precision::Bf16, Precision::Bf16),
        memory: ledger.told(),
    };
    let on = |strategy| options.strategies.contains(&strategy);
    // Kernels on packed weights are so short that setting the next one up beside them costs more than it gives (seen on an H200:
    // 567 against 591 us a step of six layers in Q4_K_M, 678 against 700 in Q8_0; bf16 gains, 986 against 1,021).
    let plain = ledger.told().weights_bytes >= ledger.told().packs_bytes;
    let early = on(Strategy::EarlyStart) && plain && device.facts.capability >= (9, 0);
    let queue = Queue { stream: device.stream, early };
    let times_us = vec![0.0; units.len()];
    Ok(CudaExecutor {
        graphs: BTreeMap::new(),
        warm: Vec::new(),
        units,
        functions,
        copy,
        areas,
        logits_at: logits,
        logits: host,
        few,
        many,
        block_stride,
        captures: on(Strategy::GraphStep) && !options.profile,
        queue,
        profile: options.profile,
        times_us,
        info,
        blas,
        _keeps: keeps,
        _kernels: kernels,
        device,
    })
}

fn check_memory(model: &Model, device: &Device, sizes: Sizes) -> Result<(), CudaError> {
    let weights: u64 = model.checkpoint.tensors().map(|tensor| tensor.stored_bytes() as u64).sum();
    let token = model.program.kv_bytes_per_token(|dim| 2 * dim) as u64;
    let needed_bytes = weights.saturating_add(token.saturating_mul((sizes.blocks * BLOCK_TOKENS) as u64));
    let (free_bytes, _) = device.memory()?;
    if needed_bytes > free_bytes {
        let what = format!("the model with {} KV blocks of {BLOCK_TOKENS} tokens", sizes.blocks);
        return Err(CudaError::Memory { what, needed_bytes, free_bytes });
    }
    Ok(())
}

/// Chooses library products for the powers of two that steps of many tokens come near to.
fn tune(blas: &Blas, units: &[Box<dyn Unit>], sizes: Sizes) -> Result<(), CudaError> {
    let mut products = Vec::new();
    let mut rows = 8;
    while rows <= sizes.tokens {
        products.extend(units.iter().flat_map(|unit| unit.products(rows)));
        rows *= 2;
    }
    blas.tune(&products)
}

impl CudaExecutor {
    /// The device it runs on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    fn check(&self, batch: &StepBatch) -> Result<(), EngineError> {
        let within =
            |what, given, limit| if given > limit { Err(EngineError::Capacity { what, given, limit }) } else { Ok(()) };
        within("tokens", batch.tokens.len(), self.info.max_step_tokens)?;
        within("rows", batch.rows.len(), self.info.max_step_rows)?;
        within("sequences", batch.seqs.len(), self.info.slots)?;
        if let Some(row) = batch.rows.iter().find(|row| **row as usize >= batch.tokens.len()) {
            return Err(EngineError::Capacity { what: "row", given: *row as usize, limit: batch.tokens.len() });
        }
        if let Some(token) = batch.tokens.iter().find(|token| **token as usize >= self.info.vocab) {
            return Err(EngineError::Token { token: *token, vocab: self.info.vocab });
        }
        for seq in &batch.seqs {
            let end = seq.past as usize + seq.tokens as usize;
            within("context", end, self.info.max_context)?;
            within("positions of the sequence's blocks", end, seq.blocks.len() * BLOCK_TOKENS)?;
            if let Some(block) = seq.blocks.iter().find(|block| **block as usize >= self.info.blocks) {
                return Err(EngineError::Capacity {
                    what: "block",
                    given: *block as usize,
                    limit: self.info.blocks - 1,
                });
            }
        }
        Ok(())
    }

    fn run(&mut self, batch: &StepBatch) -> Result<(), CudaError> {
        self.device.make_current()?;
        let n = batch.tokens.len();
        let one_each = batch.seqs.len() == n && batch.rows.len() == n;
        let width = n.next_power_of_two();
        if self.captures && one_each && n > 0 && width <= self.few.tokens {
            return self.run_captured(batch, width);
        }
        let tiles = self.many.fill(batch, 0, self.block_stride);
        self.many.upload(batch.seqs.len(), self.block_stride, self.device.stream)?;
        let cx = self.cx(&self.many, (n, batch.rows.len()), tiles, batch.seqs.len() == n);
        if !self.profile {
            return self.units.iter().try_for_each(|unit| unit.enqueue(&cx));
        }
        let times_us = measured(&self.units, &cx, &self.device)?;
        self.times_us = times_us;
        Ok(())
    }

    fn run_captured(&mut self, batch: &StepBatch, width: usize) -> Result<(), CudaError> {
        self.few.fill(batch, width, self.block_stride);
        self.few.upload(width, self.block_stride, self.device.stream)?;
        if let Some(graph) = self.graphs.get(&width) {
            return graph.launch();
        }
        let cx = self.cx(&self.few, (width, width), 0, true);
        let enqueue = || self.units.iter().try_for_each(|unit| unit.enqueue(&cx));
        if !self.warm.contains(&width) {
            enqueue()?;
            self.warm.push(width);
            return Ok(());
        }
        let graph = Graph::capture(&self.device, enqueue)?;
        graph.launch()?;
        self.graphs.insert(width, graph);
        Ok(())
    }

    fn cx<'a>(&'a self, room: &Room, (tokens, wanted): (usize, usize), tiles: usize, one_each: bool) -> Cx<'a> {
        Cx {
            queue: self.queue,
            functions: &self.functions,
            blas: &self.blas,
            tables: room.tables(self.block_stride),
            tokens,
            wanted,
            one_each,
            tiles: (room.tiles(), tiles),
        }
    }

    fn hand_out(&mut self, rows: usize, logits: &mut Vec<f32>) -> Result<(), CudaError> {
        let Place { ptr, stride, width, .. } = self.logits_at;
        self.logits.download(ptr, rows * stride * 4, self.device.stream)?;
        self.device.wait()?;
        logits.clear();
        let all = &self.logits.floats()[..rows * stride];
        if stride == width {
            logits.extend_from_slice(all);
        } else {
            all.chunks_exact(stride).for_each(|row| logits.extend_from_slice(&row[..width]));
        }
        Ok(())
    }
}

/// Microseconds of each unit.
fn measured(units: &[Box<dyn Unit>], cx: &Cx<'_>, device: &Device) -> Result<Vec<f32>, CudaError> {
    let stream = device.stream;
    let event = || result::event::create(sys::CUevent_flags_enum::CU_EVENT_DEFAULT).map_err(CudaError::driver("event"));
    let events = (0..=units.len()).map(|_| event()).collect::<Result<Vec<_>, _>>()?;
    // SAFETY: events just made, on a live stream; destroyed once nothing waits for them.
    unsafe {
        result::event::record(events[0], stream).map_err(CudaError::driver("event"))?;
        for (unit, event) in units.iter().zip(&events[1..]) {
            unit.enqueue(cx)?;
            result::event::record(*event, stream).map_err(CudaError::driver("event"))?;
        }
        device.wait()?;
        let between = |pair: &[sys::CUevent]| result::event::elapsed(pair[0], pair[1]).map(|ms| ms * 1000.0);
        let times = events.windows(2).map(between).collect::<Result<Vec<_>, _>>().map_err(CudaError::driver("event"));
        for event in events {
            let _ = result::event::destroy(event);
        }
        times
    }
}

impl Executor for CudaExecutor {
    fn info(&self) -> &ExecutorInfo {
        &self.info
    }

    fn step(&mut self, batch: &StepBatch, logits: &mut Vec<f32>) -> Result<(), EngineError> {
        self.check(batch)?;
        self.run(batch)?;
        Ok(self.hand_out(batch.rows.len(), logits)?)
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), EngineError> {
        for block in [from, to] {
            if block as usize >= self.info.blocks {
                return Err(EngineError::Capacity {
                    what: "block",
                    given: block as usize,
                    limit: self.info.blocks - 1,
                });
            }
        }
        self.device.make_current()?;
        for area in &self.areas {
            let at = |block: u32| area.buffer.ptr() + u64::from(block) * area.block_bytes;
            let (to, from, n) = (at(to), at(from), (area.block_bytes / 16) as u32);
            // SAFETY: arguments of `copy_block`; both blocks are there, block sizes are multiples of 32 bytes.
            unsafe {
                self.queue.launch(
                    self.functions[self.copy.0],
                    Shape::line(n.div_ceil(256).min(64), 256),
                    args![to, from, n],
                )
            }?;
        }
        Ok(())
    }

    fn last_step_times(&self) -> Vec<OpTime> {
        let mut sums: Vec<(String, f32)> = Vec::new();
        for (unit, time_us) in self.units.iter().zip(&self.times_us) {
            match sums.iter_mut().find(|(op, _)| op == unit.name()) {
                Some((_, sum)) => *sum += time_us,
                None => sums.push((unit.name().into(), *time_us)),
            }
        }
        let told = |(op, us): (String, f32)| OpTime { op, time_us: us.ceil() as u64 };
        sums.into_iter().map(told).filter(|time| time.time_us > 0).collect()
    }
}

impl Drop for CudaExecutor {
    fn drop(&mut self) {
        let _ = self.device.make_current();
        let _ = self.device.wait();
        self.graphs.clear();
    }
}
