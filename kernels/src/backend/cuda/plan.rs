//! From a program to units: where values lie, which nodes are done together, which kernels that needs.
//!
//! The planner walks the step's nodes in order. At each it tries the fusions whose strategies are on, in the order of [`Planner::next`];
//! what none takes is lowered by itself from the list in [`single`]. A fusion may leave out a value only if nobody reads it before it is
//! written again.

pub mod single;

use super::device::Device;
use super::error::CudaError;
use super::memory::{Buffer, Ledger, Purpose};
use super::strategy::Strategy;
use super::unit::attention::{Attend, AttendArgs, HeadArgs, Heads, SPLIT_TOKENS, SPLITS};
use super::unit::elementwise::GatedAct;
use super::unit::gemv::{COLUMNS, Spec};
use super::unit::norm::RmsNorm;
use super::unit::project::{Before, Gate, Group, Project};
use super::unit::{KernelId, Place, Unit};
use super::weights::{Form, Loader, Matrix};
use crit_core::files::StoredTensor;
use crit_core::model::Model;
use crit_core::model::program::ops::add::Add;
use crit_core::model::program::ops::attention::Attention;
use crit_core::model::program::ops::gated_act::{Activation, GatedAct as GatedActOp};
use crit_core::model::program::ops::kv_write::KvWrite;
use crit_core::model::program::ops::linear::Linear;
use crit_core::model::program::ops::rms_norm::RmsNorm as RmsNormOp;
use crit_core::model::program::ops::rope::{Rope, RopePairs};
use crit_core::model::program::{Axis, NodeRef, OpNode, Program, StateKind, ValueId};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Sizes of an executor's steps and state.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Most tokens of a step.
    pub tokens: usize,
    /// Most rows whose logits are wanted.
    pub rows: usize,
    /// Blocks of the cache.
    pub blocks: usize,
}

/// Positions of a block: what the layout of pages is made for.
pub const BLOCK_TOKENS: usize = 16;

/// The kernels a plan needs.
#[derive(Default)]
pub struct Book {
    names: Vec<(String, u32)>,
    specs: BTreeMap<String, Spec>,
    attends: BTreeMap<String, String>,
}

impl Book {
    /// A kernel of a file, with the dynamic shared memory it may be given.
    pub fn kernel(&mut self, name: &str, shared: u32) -> KernelId {
        if let Some(at) = self.names.iter().position(|(known, _)| known == name) {
            self.names[at].1 = self.names[at].1.max(shared);
            return KernelId(at);
        }
        self.names.push((name.into(), shared));
        KernelId(self.names.len() - 1)
    }

    /// A product's kernel.
    pub fn gemv(&mut self, spec: Spec, shared: u32) -> KernelId {
        self.specs.insert(spec.name(), spec);
        self.kernel(&spec.name(), shared)
    }

    /// An attention kernel for heads of these sizes.
    pub fn attend(&mut self, way: &str, bounds: &str, (dim_k, dim_v): (usize, usize), shared: u32) -> KernelId {
        let name = format!("attend_{way}_{dim_k}_{dim_v}");
        let head = format!("extern \"C\" __global__ void __launch_bounds__({bounds}) {name}");
        let text = match way {
            "plain" => format!("{head}(const __grid_constant__ AttendArgs a, Tables t) {{ attend_plain(a, t); }}\n"),
            "own" => format!(
                "{head}(const __grid_constant__ AttendArgs a, const __grid_constant__ HeadsArgs h, Tables t) \
                 {{ attend_few<{dim_k}, {dim_v}, true>(a, h, t); }}\n"
            ),
            way => format!(
                "{head}(const __grid_constant__ AttendArgs a, Tables t) {{ attend_{way}<{dim_k}, {dim_v}>(a, t); }}\n"
            ),
        };
        self.attends.insert(name.clone(), text);
        self.kernel(&name, shared)
    }

    /// Names with their shared memory, by [`KernelId`].
    pub fn names(&self) -> &[(String, u32)] {
        &self.names
    }

    /// The files to compile.
    pub fn sources(&self) -> Vec<(String, String)> {
        let file = |name: &str| (name.to_string(), super::compile::text(name));
        let mut out: Vec<_> = ["elementwise.cu", "heads.cu", "moe.cu", "unpack.cu"].map(file).into();
        for spec in self.specs.values() {
            out.push((format!("{}.cu", spec.name()), super::compile::text("gemv.cuh") + &spec.text()));
        }
        for (name, text) in &self.attends {
            out.push((format!("{name}.cu"), super::compile::text("attend.cuh") + text));
        }
        out
    }
}

/// A state's pages.
pub struct Area {
    /// All blocks.
    pub buffer: Arc<Buffer>,
    /// Bytes from block to block.
    pub block_bytes: u64,
    /// Bytes from head to head.
    pub head_bytes: u64,
    /// Where a head's values begin.
    pub values_at: u64,
}

/// What a plan is.
pub struct Plan {
    /// In order.
    pub units: Vec<Box<dyn Unit>>,
    /// Kernels they need.
    pub book: Book,
    /// Pages by state.
    pub areas: Vec<Area>,
    /// Where the logits are.
    pub logits: Place,
    /// Everything else on the device that units point into.
    pub keeps: Vec<Buffer>,
    /// Tensors stored otherwise than in the checkpoint, with their bytes.
    pub told: Vec<(String, u64)>,
}

/// Units, and how many nodes they do.
type Taken = (Vec<Box<dyn Unit>>, usize);

/// Makes a plan.
pub struct Planner<'a> {
    pub(super) model: &'a Model,
    pub(super) program: &'a Program,
    pub(super) device: &'a Arc<Device>,
    pub(super) ledger: &'a Arc<Ledger>,
    strategies: &'a [Strategy],
    sizes: Sizes,
    nodes: Vec<(NodeRef, &'a OpNode)>,
    pub(super) places: Vec<Place>,
    areas: Vec<Area>,
    area_of: HashMap<(usize, usize), usize>,
    pub(super) book: Book,
    pub(super) loader: Loader,
    matrices: HashMap<String, Arc<Matrix>>,
    vectors: HashMap<String, Arc<Buffer>>,
    keeps: Vec<Buffer>,
    scratch: Place,
    scratch_f16: Place,
    q_f16: (u64, usize),
    ring: u64,
    partial: (u64, u64),
    pub(super) experts_room: Option<(Place, Place)>,
}

/// Whether the backend has a kernel for every op of the program's step; needs no GPU.
///
/// # Errors
/// The first op without one.
pub fn covers(program: &Program) -> Result<(), CudaError> {
    let nodes: Vec<_> = program.nodes(program.step()).collect();
    single::check(program, &nodes)
}

/// Plans the step of `model`'s program.
///
/// # Errors
/// An op without a kernel, or memory that does not suffice.
pub fn plan(
    model: &Model,
    device: &Arc<Device>,
    ledger: &Arc<Ledger>,
    strategies: &[Strategy],
    sizes: Sizes,
) -> Result<Plan, CudaError> {
    let program = &*model.program;
    let nodes: Vec<_> = program.nodes(program.step()).collect();
    single::check(program, &nodes)?;
    let mut planner = Planner {
        model,
        program,
        device,
        ledger,
        strategies,
        sizes,
        nodes,
        places: Vec::new(),
        areas: Vec::new(),
        area_of: HashMap::new(),
        book: Book::default(),
        loader: Loader::new(device, ledger),
        matrices: HashMap::new(),
        vectors: HashMap::new(),
        keeps: Vec::new(),
        scratch: Place::default(),
        scratch_f16: Place::default(),
        q_f16: (0, 0),
        ring: 0,
        partial: (0, 0),
        experts_room: None,
    };
    planner.place_values()?;
    planner.place_states()?;
    planner.place_scratch()?;
    let mut units = Vec::new();
    let mut at = 0;
    while at < planner.nodes.len() {
        let (unit, taken) = planner.next(at)?;
        units.extend(unit);
        at += taken;
    }
    let Planner { book, areas, places, keeps, loader, matrices, vectors, .. } = planner;
    drop((matrices, vectors));
    Ok(Plan { units, book, areas, logits: places[program.logits.at()], keeps, told: loader.told() })
}

impl<'a> Planner<'a> {
    pub(super) fn on(&self, strategy: Strategy) -> bool {
        self.strategies.contains(&strategy)
    }

    /// Units of the node at `at` and of what is done with it, and how many nodes that is.
    fn next(&mut self, at: usize) -> Result<Taken, CudaError> {
        if self.on(Strategy::FusedNorm)
            && let Some(fused) = self.norm_and_maps(at)?
        {
            return Ok(fused);
        }
        if self.on(Strategy::FusedHeads)
            && let Some(fused) = self.heads_and_attention(at)?
        {
            return Ok(fused);
        }
        if self.nodes[at].1.op.name() == "linear" {
            let maps = self.maps_from(at);
            return self.project(None, at, maps);
        }
        Ok((self.single(at)?, 1))
    }

    pub(super) fn node(&self, at: usize) -> (NodeRef, &'a OpNode) {
        self.nodes[at]
    }

    pub(super) fn op<T: 'static>(&self, at: usize) -> Option<&'a T> {
        self.nodes.get(at)?.1.op.as_any().downcast_ref()
    }

    /// Whether nobody reads `value` after node `at` before it is written again.
    fn dead_after(&self, at: usize, value: ValueId) -> bool {
        for (_, node) in &self.nodes[at + 1..] {
            if node.reads.contains(&value) {
                return false;
            }
            if node.writes.contains(&value) {
                return true;
            }
        }
        value != self.program.logits
    }

    fn buffer(&mut self, purpose: Purpose, bytes: u64) -> Result<u64, CudaError> {
        let buffer = Buffer::zeroed(self.device, self.ledger, purpose, bytes)?;
        let ptr = buffer.ptr();
        self.keeps.push(buffer);
        Ok(ptr)
    }

    /// f32 where the residual stream, routers and logits are; outputs of maps of one input side by side.
    fn place_values(&mut self) -> Result<(), CudaError> {
        let program = self.program;
        let mut f32 = vec![false; program.values.len()];
        f32[program.logits.at()] = true;
        for (_, node) in &self.nodes {
            match node.op.name() {
                "embed" | "add" | "moe_route" => node.writes.iter().for_each(|id| f32[id.at()] = true),
                _ => {}
            }
            if node.op.name() == "moe_route" {
                f32[node.reads[0].at()] = true;
            }
        }
        // Wanted rows, and what is done in place, follow what they are taken from.
        for _ in 0..2 {
            for (_, node) in &self.nodes {
                if matches!(node.op.name(), "select_rows" | "scale" | "softcap") && f32[node.reads[0].at()] {
                    f32[node.writes[0].at()] = true;
                }
            }
        }
        let mut together: Vec<Vec<ValueId>> = Vec::new();
        if self.on(Strategy::MergedProjections) {
            let mut at = 0;
            while at < self.nodes.len() {
                let maps = self.maps_from(at);
                let values: Vec<ValueId> = (at..at + maps).map(|i| self.nodes[i].1.writes[0]).collect();
                let fresh = |id: &ValueId| !together.iter().flatten().any(|other| other == id);
                let same = values.windows(2).all(|pair| f32[pair[0].at()] == f32[pair[1].at()]);
                let eights = values.iter().all(|id| program.values[id.at()].width.is_multiple_of(8));
                if values.len() > 1 && same && eights && values.iter().all(fresh) {
                    together.push(values);
                }
                at += maps.max(1);
            }
        }
        for id in 0..program.values.len() as u32 {
            if !together.iter().flatten().any(|other| other.0 == id) {
                together.push(vec![ValueId(id)]);
            }
        }
        self.places = vec![Place::default(); program.values.len()];
        for values in together {
            let decl = |id: ValueId| &program.values[id.at()];
            let stride = values.iter().map(|id| decl(*id).width).sum::<usize>().next_multiple_of(8);
            let rows = decl(values[0]).axis == Axis::Rows;
            let size = if f32[values[0].at()] { 4 } else { 2 };
            let count = if rows { self.sizes.rows } else { self.sizes.tokens };
            let mut ptr = self.buffer(Purpose::Activations, (count * stride * size) as u64)?;
            for id in values {
                let width = decl(id).width;
                self.places[id.at()] = Place { ptr, stride, width, f32: f32[id.at()], rows };
                ptr += (width * size) as u64;
            }
        }
        Ok(())
    }

    fn place_states(&mut self) -> Result<(), CudaError> {
        let program = self.program;
        for (use_index, place) in program.step().uses.iter().enumerate() {
            for (state, decl) in program.blocks[place.block].states.iter().enumerate() {
                let StateKind::Kv { heads, key_dim, value_dim, .. } = decl.kind else { continue };
                let (home, of) = program.state_home(use_index, state);
                if let Some(area) = self.area_of.get(&(home, of)) {
                    self.area_of.insert((use_index, state), *area);
                    continue;
                }
                let head_bytes = (BLOCK_TOKENS * (key_dim + value_dim) * 2) as u64;
                let block_bytes = heads as u64 * head_bytes;
                let bytes = block_bytes * self.sizes.blocks as u64;
                let buffer = Arc::new(Buffer::zeroed(self.device, self.ledger, Purpose::State, bytes)?);
                self.area_of.insert((use_index, state), self.areas.len());
                let values_at = (BLOCK_TOKENS * key_dim * 2) as u64;
                self.areas.push(Area { buffer, block_bytes, head_bytes, values_at });
            }
        }
        Ok(())
    }

    fn place_scratch(&mut self) -> Result<(), CudaError> {
        let (mut widest, mut queries, mut ring, mut partial, mut f16) = (0, 0, 0, (0, 0), false);
        for at in 0..self.nodes.len() {
            let (place, node) = (self.nodes[at].0.place, self.nodes[at].1);
            if node.op.name() == "linear" {
                let weight = self.model.weight(place, node.weights[0]);
                widest = widest.max(weight.row_len());
                let form = Form::of(&weight);
                f16 |= form == Form::F16;
                if !form.plain() {
                    let maps = self.maps_from(at).max(1);
                    let rows: usize = (at..at + maps)
                        .map(|i| self.model.weight(self.nodes[i].0.place, self.nodes[i].1.weights[0]).rows())
                        .sum();
                    ring = ring.max(rows * weight.row_len());
                }
            }
            if let Some(op) = self.op::<Attention>(at) {
                queries = queries.max(op.heads * op.key_dim);
                let units = op.kv_heads * (op.heads / op.kv_heads).div_ceil(16);
                partial.0 = partial.0.max(SPLIT_TOKENS * units * SPLITS as usize * 16 * (op.value_dim + 4) * 4);
                partial.1 = partial.1.max(SPLIT_TOKENS * units * 4);
            }
        }
        let tokens = self.sizes.tokens.max(self.sizes.rows);
        let stride = usize::next_multiple_of(widest.max(8), 8);
        let place = |ptr| Place { ptr, stride, width: widest, f32: false, rows: false };
        self.scratch = place(self.buffer(Purpose::Workspace, (tokens * stride * 2) as u64)?);
        if f16 {
            self.scratch_f16 = place(self.buffer(Purpose::Workspace, (tokens * stride * 2) as u64)?);
        }
        let queries = usize::next_multiple_of(queries.max(8), 8);
        self.q_f16 = (self.buffer(Purpose::Workspace, (tokens * queries * 2) as u64)?, queries);
        self.ring = self.buffer(Purpose::Workspace, (ring * 2) as u64)?;
        self.partial =
            (self.buffer(Purpose::Workspace, partial.0 as u64)?, self.buffer(Purpose::Workspace, partial.1 as u64)?);
        Ok(())
    }

    /// How many nodes from `at` on are maps of one input, of one form of weights where they could be one matrix.
    fn maps_from(&self, at: usize) -> usize {
        let Some((_, first)) = self.nodes.get(at).filter(|(_, node)| node.op.name() == "linear") else { return 0 };
        let input = first.reads[0];
        let block = self.nodes[at].0.use_index;
        let same = |(place, node): &&(NodeRef, &OpNode)| {
            node.op.name() == "linear" && node.reads[0] == input && place.use_index == block && node.writes[0] != input
        };
        if !self.on(Strategy::MergedProjections) {
            return 1;
        }
        self.nodes[at..].iter().take_while(same).count().max(1)
    }

    pub(super) fn weight(&self, at: usize, i: usize) -> StoredTensor {
        let (place, node) = self.nodes[at];
        self.model.weight(place.place, node.weights[i])
    }

    /// Tensors one below the other, brought to the device once.
    pub(super) fn matrix(&mut self, tensors: &[StoredTensor]) -> Result<Arc<Matrix>, CudaError> {
        let key: String = tensors.iter().map(|tensor| format!("{}\n", tensor.name())).collect();
        if let Some(known) = self.matrices.get(&key) {
            return Ok(known.clone());
        }
        let matrix = Arc::new(self.loader.matrix(tensors)?);
        self.matrices.insert(key, matrix.clone());
        Ok(matrix)
    }

    /// A vector with an offset, brought to the device once.
    pub(super) fn vector(&mut self, tensor: &StoredTensor, offset: f32) -> Result<Arc<Buffer>, CudaError> {
        let key = format!("{}+{offset}", tensor.name());
        if let Some(known) = self.vectors.get(&key) {
            return Ok(known.clone());
        }
        let vector = Arc::new(self.loader.vector(std::slice::from_ref(tensor), offset)?);
        self.vectors.insert(key, vector.clone());
        Ok(vector)
    }

    pub(super) fn floats(&mut self, values: &[f32]) -> Result<Arc<Buffer>, CudaError> {
        Ok(Arc::new(self.loader.floats(values, Purpose::Weights)?))
    }

    /// A norm as a unit.
    pub(super) fn norm(
        &mut self,
        op: &RmsNormOp,
        weight: Option<Arc<Buffer>>,
        weight_len: usize,
        from: Place,
        to: Place,
    ) -> RmsNorm {
        let wide = RmsNorm::is_wide(&from, &to, weight.is_some(), op.group);
        let name =
            if wide { "rms_norm_wide_f32".into() } else { format!("rms_norm_{}_{}", from.number(), to.number()) };
        let kernel = self.book.kernel(&name, 0);
        RmsNorm { kernel, from, to, weight, group: op.group, period: weight_len / op.group.max(1), eps: op.eps, wide }
    }

    /// A whole-row norm and the maps that read it.
    fn norm_and_maps(&mut self, at: usize) -> Result<Option<Taken>, CudaError> {
        let Some(op) = self.op::<RmsNormOp>(at) else { return Ok(None) };
        let node = self.nodes[at].1;
        let (from, normed) = (node.reads[0], node.writes[0]);
        let whole = op.group == self.program.values[from.at()].width && !node.weights.is_empty();
        let maps = match self.nodes.get(at + 1) {
            Some((_, next)) if next.op.name() == "linear" && next.reads[0] == normed => self.maps_from(at + 1),
            _ => 0,
        };
        if !whole || maps == 0 || !self.dead_after(at + maps, normed) || !self.places[from.at()].aligned() {
            return Ok(None);
        }
        let offset = op.offset;
        let stored = self.weight(at, 0);
        let weight = self.vector(&stored, offset)?;
        let before = Some((op, weight, from));
        let (units, taken) = self.project(before, at + 1, maps)?;
        Ok(Some((units, taken + 1)))
    }

    /// Maps `at .. at + maps` of one input, a norm before them if given, and what follows if it is fused.
    fn project(
        &mut self,
        before: Option<(&RmsNormOp, Arc<Buffer>, ValueId)>,
        at: usize,
        maps: usize,
    ) -> Result<Taken, CudaError> {
        let input = self.nodes[at].1.reads[0];
        let from = self.places[before.as_ref().map_or(input, |(_, _, from)| *from).at()];
        let gate = self.gate_behind(at, maps);
        let residual = if gate.is_none() && maps == 1 { self.residual_behind(at) } else { None };
        let forms: Vec<Form> = (at..at + maps).map(|i| Form::of(&self.weight(i, 0))).collect();
        // Runs of one form whose outputs lie side by side are one matrix.
        let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
        for i in 0..maps {
            let beside = |a: Place, b: Place| {
                a.stride == b.stride && a.f32 == b.f32 && a.ptr + (a.width * if a.f32 { 4 } else { 2 }) as u64 == b.ptr
            };
            let joins = i > 0 && forms[i] == forms[i - 1] && beside(self.output(at + i - 1), self.output(at + i));
            match runs.last_mut() {
                Some(run) if joins => run.end = at + i + 1,
                _ => runs.push(at + i..at + i + 1),
            }
        }
        let gate = gate.filter(|_| runs.len() == 1);
        let mut taken = maps;
        let mut groups = Vec::new();
        for run in runs {
            let mut to = self.output(run.start);
            to.width = run.clone().map(|i| self.output(i).width).sum();
            if let Some((_, place)) = &residual {
                to = *place;
            }
            if let Some((_, out)) = &gate {
                to = *out;
            }
            groups.push(self.group(run, (from, to), gate.is_some())?);
        }
        let number = if forms[0] == Form::F16 { "f16" } else { "bf16" };
        let before = match before {
            None => None,
            Some((op, weight, _)) => {
                let to = Place { width: from.width, rows: from.rows, ..self.scratch };
                let unit = self.norm(op, Some(weight.clone()), from.width, from, to);
                Some(Before { weight, eps: op.eps, unit })
            }
        };
        let input = match (&before, number) {
            (Some(before), "bf16") => Some((before.unit.to, None)),
            (None, "bf16") if !from.f32 => None,
            (_, "bf16") => {
                let kernel = self.book.kernel("map_f32_bf16", 0);
                Some((Place { width: from.width, rows: from.rows, ..self.scratch }, Some(kernel)))
            }
            (before, _) => {
                let source = if before.is_some() { "bf16" } else { from.number() };
                let kernel = self.book.kernel(&format!("map_{source}_f16"), 0);
                Some((Place { width: from.width, rows: from.rows, ..self.scratch_f16 }, Some(kernel)))
            }
        };
        let label = match (&gate, &residual, before.is_some(), from.rows) {
            (_, _, _, true) => "head",
            (Some(_), ..) => "norm+gate+up+act",
            (_, Some(_), ..) => "linear+residual",
            (.., true, _) => "norm+linear",
            _ => "linear",
        };
        let gate = gate.map(|(op, out)| {
            taken += 1;
            let both = Place { width: 2 * out.width, ..self.output(at) };
            let unit = self.gated_act(&op, self.output(at), self.output(at + 1), out);
            Gate { kind: activation(op.activation), both, unit }
        });
        let residual = residual.map(|(op, _)| {
            taken += 1;
            (self.places[self.nodes[at + 1].1.reads[0].at()], op.scale)
        });
        let project = Project {
            label,
            from,
            input,
            before,
            groups,
            gate,
            residual,
            ring: self.ring,
            multiprocessors: self.device.facts.multiprocessors,
        };
        Ok((vec![Box::new(project)], taken))
    }

    fn output(&self, at: usize) -> Place {
        self.places[self.nodes[at].1.writes[0].at()]
    }

    fn group(
        &mut self,
        run: std::ops::Range<usize>,
        (input, to): (Place, Place),
        gated: bool,
    ) -> Result<Group, CudaError> {
        let tensors: Vec<StoredTensor> = run.clone().map(|i| self.weight(i, 0)).collect();
        let matrix = self.matrix(&tensors)?;
        let biased = |planner: &Self, i: usize| planner.op::<Linear>(i).is_some_and(|op| op.bias);
        let bias = if run.clone().any(|i| biased(self, i)) {
            let all: Vec<f32> = run
                .clone()
                .flat_map(|i| {
                    if biased(self, i) { self.weight(i, 1).to_f32() } else { vec![0.0; self.weight(i, 0).rows()] }
                })
                .collect();
            Some(self.loader.floats(&all, Purpose::Weights)?)
        } else {
            None
        };
        let stream = self.on(Strategy::StreamGemv) && self.device.facts.capability >= (9, 0);
        let rows = if gated { matrix.rows / 2 } else { matrix.rows };
        let mut few = Vec::new();
        for columns in COLUMNS {
            let Some(spec) = Spec::choose(matrix.form, matrix.k, columns, stream, gated)
                .or_else(|| Spec::choose(matrix.form, matrix.k, columns, false, gated))
                .filter(|_| input.aligned())
            else {
                continue;
            };
            let grid = spec.grid(rows, self.device.facts.multiprocessors);
            let shared = spec.shared(rows, matrix.k, gated, input.f32, grid);
            if shared <= self.device.facts.shared_bytes {
                few.push((columns, spec, self.book.gemv(spec, shared)));
            }
        }
        let unpack = (!matrix.form.plain()).then(|| self.book.kernel(&format!("unpack_{}", matrix.form.name()), 0));
        let add_bias = bias.is_some().then(|| self.book.kernel(&format!("bias_{}", to.number()), 0));
        Ok(Group { matrix, to, bias, few, unpack, add_bias })
    }

    /// The activation behind two maps that are its gate and up, and where it goes.
    fn gate_behind(&self, at: usize, maps: usize) -> Option<(GatedActOp, Place)> {
        let op = self
            .op::<GatedActOp>(at + 2)
            .filter(|op| maps == 2 && op.limit.is_none() && self.on(Strategy::FusedGate))?;
        let (gate, up, act) = (self.nodes[at].1.writes[0], self.nodes[at + 1].1.writes[0], self.nodes[at + 2].1);
        let bare = (at..at + 2).all(|i| self.op::<Linear>(i).is_some_and(|op| !op.bias));
        let reads = act.reads == [gate, up];
        let out = act.writes[0];
        let lost = [gate, up].into_iter().all(|id| id == out || self.dead_after(at + 2, id));
        (bare && reads && lost).then(|| (op.clone(), self.places[out.at()]))
    }

    /// The sum behind a map whose result joins the residual stream, and where it goes.
    fn residual_behind(&self, at: usize) -> Option<(Add, Place)> {
        let op = self.op::<Add>(at + 1).filter(|_| self.on(Strategy::FusedResidual))?;
        let (map, add) = (self.nodes[at].1, self.nodes[at + 1].1);
        let result = map.writes[0];
        let bare = !self.op::<Linear>(at)?.bias;
        let (stream, out) = (self.places[add.reads[0].at()], self.places[add.writes[0].at()]);
        let fits = bare && add.reads[1] == result && add.reads[0] != result && stream.f32 && out.f32;
        (fits && self.dead_after(at + 1, result)).then(|| (op.clone(), out))
    }

    pub(super) fn gated_act(&mut self, op: &GatedActOp, gate: Place, up: Place, to: Place) -> GatedAct {
        let wide = op.limit.is_none() && gate.wide() && up.wide() && to.wide();
        let kernel = self.book.kernel(if wide { "gated_act_wide" } else { "gated_act" }, 0);
        let limit = op.limit.unwrap_or(f32::INFINITY);
        GatedAct { kernel, gate, up, to, kind: activation(op.activation), limit, wide }
    }

    fn area(&self, at: usize) -> &Area {
        let (place, node) = self.nodes[at];
        &self.areas[self.area_of[&(place.use_index, node.states[0].at())]]
    }

    /// Norms and rotation of heads, the cache write and attention.
    fn heads_and_attention(&mut self, at: usize) -> Result<Option<Taken>, CudaError> {
        let in_place = |node: &OpNode| node.reads.len() == 1 && node.reads == node.writes;
        let heads = |op: &RmsNormOp, node: &OpNode| op.group < self.program.values[node.reads[0].at()].width;
        let mut end = at;
        while let Some((_, node)) = self.nodes.get(end) {
            let norm = self.op::<RmsNormOp>(end).is_some_and(|op| heads(op, node) && !node.weights.is_empty());
            let rope = self.op::<Rope>(end).is_some();
            if !(in_place(node) && (norm || rope)) {
                break;
            }
            end += 1;
        }
        let (Some(write), Some(attention)) = (self.op::<KvWrite>(end), self.op::<Attention>(end + 1)) else {
            return Ok(None);
        };
        let (q, k, v) = (self.nodes[end + 1].1.reads[0], self.nodes[end].1.reads[0], self.nodes[end].1.reads[1]);
        let same_state = self.nodes[end].1.states == self.nodes[end + 1].1.states;
        let steps: Vec<usize> = (at..end).collect();
        let ours = steps.iter().all(|i| [q, k].contains(&self.nodes[*i].1.reads[0]));
        let f32 = [q, k, v].iter().any(|id| self.places[id.at()].f32);
        if !ours || !same_state || f32 || k == v || !self.dead_after(end + 1, q) || !self.dead_after(end + 1, k) {
            return Ok(None);
        }
        // A norm comes before the rotation, once each.
        let of = |value: ValueId| -> Vec<usize> {
            steps.iter().copied().filter(|i| self.nodes[*i].1.reads[0] == value).collect()
        };
        let kinds = |value| of(value).into_iter().map(|i| self.nodes[i].1.op.name()).collect::<Vec<_>>();
        let fine = |kinds: &[&str]| matches!(kinds, [] | ["rms_norm" | "rope"] | ["rms_norm", "rope"]);
        if !fine(&kinds(q)) || !fine(&kinds(k)) {
            return Ok(None);
        }
        let (q_steps, k_steps) = (of(q), of(k));
        let (of_q, of_k) = (q_steps.clone(), k_steps.clone());
        let mut keeps = Vec::new();
        let mut parts = Vec::new();
        let (q_ptr, q_stride) = self.q_f16;
        for (value, steps, heads, dim) in
            [(q, q_steps, attention.heads, attention.key_dim), (k, k_steps, write.heads, write.key_dim)]
        {
            let mut part = self.head_part(self.places[value.at()], heads, dim);
            for step in steps {
                if let Some(op) = self.op::<RmsNormOp>(step) {
                    if op.group != dim {
                        return Ok(None);
                    }
                    let stored = self.weight(step, 0);
                    if stored.elems() != dim {
                        return Ok(None);
                    }
                    let weight = self.vector(&stored, op.offset)?;
                    (part.norm, part.eps) = (weight.ptr(), op.eps);
                    keeps.push(weight);
                } else if let Some(op) = self.op::<Rope>(step) {
                    self.turn(op, &mut part, &mut keeps)?;
                }
            }
            parts.push(part);
        }
        (parts[0].to, parts[0].out, parts[0].out_stride) = (1, q_ptr, q_stride as u64);
        parts.push(self.head_part(self.places[v.at()], write.heads, write.value_dim));
        self.point_at_pages(end, &mut parts[1..]);
        // One table of angles serves both.
        let angles = |steps: Vec<usize>| steps.into_iter().find_map(|i| self.op::<Rope>(i));
        let turn_alike = angles(of_q) == angles(of_k);
        let kernel = self.heads_kernel(&parts);
        let heads = Heads { kernel, label: "heads", parts, keeps };
        let mut attend = self.attend(end + 1, None)?;
        let own = attend.split.is_some().then(|| {
            let (dim_k, dim_v) = (attention.key_dim, attention.value_dim);
            let shared = Attend::split_shared(dim_k, dim_v, attention.heads / attention.kv_heads);
            self.book.attend("own", "128", (dim_k, dim_v), shared)
        });
        let own = own.filter(|_| turn_alike);
        attend.heads = Some((heads, own));
        Ok(Some((vec![Box::new(attend)], end + 2 - at)))
    }

    pub(super) fn heads_kernel(&mut self, parts: &[HeadArgs]) -> KernelId {
        let dims = parts.iter().map(|part| part.dim).max().unwrap_or(0);
        self.book.kernel("heads", 16 * dims)
    }

    pub(super) fn head_part(&self, place: Place, heads: usize, dim: usize) -> HeadArgs {
        HeadArgs {
            x: place.ptr,
            stride: place.stride as u64,
            heads: heads as u32,
            dim: dim as u32,
            every: 1,
            ..HeadArgs::default()
        }
    }

    pub(super) fn turn(
        &mut self,
        op: &Rope,
        part: &mut HeadArgs,
        keeps: &mut Vec<Arc<Buffer>>,
    ) -> Result<(), CudaError> {
        let freq = self.floats(&op.inv_freq)?;
        part.freq = freq.ptr();
        keeps.push(freq);
        if let Some(long) = &op.long {
            let freq = self.floats(&long.inv_freq)?;
            part.freq_long = freq.ptr();
            part.long_above = long.above as u32;
            keeps.push(freq);
        }
        part.pairs = op.inv_freq.len() as u32;
        part.offset = op.offset as u32;
        part.every = op.every as u32;
        part.interleaved = i32::from(op.pairs == RopePairs::Interleaved);
        part.magnitude = op.magnitude;
        Ok(())
    }

    /// Keys and values go to the pages of node `at`'s state.
    pub(super) fn point_at_pages(&self, at: usize, keys_and_values: &mut [HeadArgs]) {
        let area = self.area(at);
        for (part, to) in keys_and_values.iter_mut().zip([2, 3]) {
            part.to = to;
            part.out = area.buffer.ptr();
            part.block_bytes = area.block_bytes;
            part.head_bytes = area.head_bytes;
            part.values_at = area.values_at;
        }
    }

    /// Attention of node `at`; `convert` is where its queries are, if they are not f16 yet.
    pub(super) fn attend(&mut self, at: usize, convert: Option<Place>) -> Result<Attend, CudaError> {
        let op = self
            .op::<Attention>(at)
            .cloned()
            .ok_or_else(|| CudaError::NoKernel { op: "attention".into(), why: String::new() })?;
        let out = self.output(at);
        if out.f32 {
            return Err(CudaError::NoKernel {
                op: "attention".into(),
                why: "its result joins the residual stream".into(),
            });
        }
        let sinks = match op.sinks {
            true => Some(self.loader.vector(&[self.weight(at, 0)], 0.0)?),
            false => None,
        };
        let (dim_k, dim_v) = (op.key_dim, op.value_dim);
        let group = op.heads / op.kv_heads;
        let area = self.area(at);
        let args = AttendArgs {
            q: self.q_f16.0,
            q_stride: self.q_f16.1 as u64,
            pages: area.buffer.ptr(),
            block_bytes: area.block_bytes,
            head_bytes: area.head_bytes,
            values_at: area.values_at,
            out: out.ptr,
            out_stride: out.stride as u64,
            sinks: sinks.as_ref().map_or(0, Buffer::ptr),
            heads: op.heads as u32,
            group: group as u32,
            dim_k: dim_k as u32,
            dim_v: dim_v as u32,
            window: op.window.unwrap_or(0) as u32,
            chunk: op.chunk.unwrap_or(0) as u32,
            scale: op.scale,
            softcap: op.softcap.unwrap_or(0.0),
            partial: self.partial.0,
            arrived: self.partial.1,
            splits: SPLITS,
            tiles: 0,
        };
        let cores = dim_k.is_multiple_of(64) && dim_k <= 256 && dim_v.is_multiple_of(16) && dim_v <= 256;
        let shared = Attend::split_shared(dim_k, dim_v, group);
        let bounds = if dim_k.max(dim_v) <= 128 { "128, 3" } else { "128" };
        let tile_bytes = (2 * 64 * 2 * (dim_k + dim_v)) as u32;
        let split =
            (cores && self.on(Strategy::SplitDecode)).then(|| self.book.attend("split", "128", (dim_k, dim_v), shared));
        let tiled = (cores && self.on(Strategy::FlashPrefill) && tile_bytes <= self.device.facts.shared_bytes)
            .then(|| self.book.attend("tiled", bounds, (dim_k, dim_v), tile_bytes));
        let plain = self.book.attend("plain", "128", (dim_k, dim_v), ((dim_k + dim_v + 128) * 4) as u32);
        let convert = convert.map(|place| (self.book.kernel("map_bf16_f16", 0), place));
        Ok(Attend { plain, split, tiled, heads: None, convert, args, sinks })
    }
}

/// The activation's number in `cu/crit.cuh`.
pub(super) const fn activation(activation: Activation) -> i32 {
    match activation {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
        Activation::Sigmoid => 2,
        Activation::Relu2 => 3,
        Activation::Tanh => 4,
    }
}
