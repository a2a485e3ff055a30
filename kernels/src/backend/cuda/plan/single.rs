//! Ops lowered one by one: the base of the backend.

use super::super::error::CudaError;
use super::super::memory::Purpose;
use super::super::unit::attention::Heads;
use super::super::unit::elementwise::{Add, Map, SelectRows};
use super::super::unit::embed::Embed;
use super::super::unit::gemv::Spec;
use super::super::unit::moe::{Experts, Route};
use super::super::unit::{Place, Unit};
use super::super::weights::Form;
use super::{Planner, activation};
use crit_core::files::StoredTensor;
use crit_core::model::program::ops::act::Act;
use crit_core::model::program::ops::add::Add as AddOp;
use crit_core::model::program::ops::embed::Embed as EmbedOp;
use crit_core::model::program::ops::gated_act::GatedAct as GatedActOp;
use crit_core::model::program::ops::kv_write::KvWrite;
use crit_core::model::program::ops::moe_experts::{ExpertAct, ExpertMaps, MoeExperts};
use crit_core::model::program::ops::moe_route::{MoeRoute, Score};
use crit_core::model::program::ops::rms_norm::RmsNorm;
use crit_core::model::program::ops::rope::Rope;
use crit_core::model::program::ops::scale::Scale;
use crit_core::model::program::ops::softcap::Softcap;
use crit_core::model::program::{NodeRef, OpNode, Program};

type Units = Result<Vec<Box<dyn Unit>>, CudaError>;
type Lower = fn(&mut Planner<'_>, usize) -> Units;

/// Ops with kernels, by name in ascending order. `linear` is lowered by the planner itself.
pub const OPS: &[(&str, Lower)] = &[
    ("act", act),
    ("add", add),
    ("attention", attention),
    ("embed", embed),
    ("gated_act", gated_act),
    ("kv_write", kv_write),
    ("linear", linear),
    ("moe_experts", moe_experts),
    ("moe_route", moe_route),
    ("rms_norm", rms_norm),
    ("rope", rope),
    ("scale", scale),
    ("select_rows", select_rows),
    ("softcap", softcap),
];

/// Whether every op has a kernel, and one for its variant.
///
/// # Errors
/// The first that has none.
pub fn check(program: &Program, nodes: &[(NodeRef, &OpNode)]) -> Result<(), CudaError> {
    for (place, node) in nodes {
        let op = node.op.name();
        let block = program.blocks[place.place.block].kind;
        let why = match OPS.iter().any(|(name, _)| *name == op) {
            true => refused(node),
            false => Some("it is not among those written"),
        };
        if let Some(why) = why {
            let why = format!("{why} (block `{block}` of the {} program)", program.arch);
            return Err(CudaError::NoKernel { op: op.into(), why });
        }
    }
    Ok(())
}

/// Why a variant of an op that has a kernel has none.
fn refused(node: &OpNode) -> Option<&'static str> {
    let op = node.op.as_any();
    if let Some(op) = op.downcast_ref::<MoeRoute>() {
        return (op.groups.is_some() || op.by_token).then_some("the choice is limited to groups, or made by a table");
    }
    if let Some(op) = op.downcast_ref::<MoeExperts>() {
        let maps = matches!(op.maps, ExpertMaps::GateAndUp | ExpertMaps::Fused);
        let plain = matches!(op.act, ExpertAct::Plain(_));
        return (op.biased || op.on_input || !maps || !plain).then_some(
            "maps have biases, have no gate or lie in turns, gate and up are bounded, or weights are on the input",
        );
    }
    let write = op.downcast_ref::<KvWrite>();
    write.filter(|op| op.value_dim == 0).map(|_| "values are a part of the keys")
}

fn no_kernel(op: &str, why: &str) -> CudaError {
    CudaError::NoKernel { op: op.into(), why: why.into() }
}

fn one(unit: impl Unit + 'static) -> Units {
    Ok(vec![Box::new(unit)])
}

impl Planner<'_> {
    /// The node by itself.
    pub(super) fn single(&mut self, at: usize) -> Units {
        let op = self.node(at).1.op.name();
        let (_, lower) = OPS.iter().find(|(name, _)| *name == op).ok_or_else(|| no_kernel(op, ""))?;
        lower(self, at)
    }

    fn read(&self, at: usize, i: usize) -> Place {
        self.places[self.node(at).1.reads[i].at()]
    }

    fn written(&self, at: usize, i: usize) -> Place {
        self.places[self.node(at).1.writes[i].at()]
    }

    fn is<T: 'static + Clone>(&self, at: usize) -> Result<T, CudaError> {
        self.op::<T>(at).cloned().ok_or_else(|| no_kernel(self.node(at).1.op.name(), ""))
    }
}

fn linear(planner: &mut Planner<'_>, at: usize) -> Units {
    planner.project(None, at, 1).map(|(units, _)| units)
}

fn act(planner: &mut Planner<'_>, at: usize) -> Units {
    let op: Act = planner.is(at)?;
    map(planner, at, "act", (0, activation(op.activation), 0.0))
}

fn softcap(planner: &mut Planner<'_>, at: usize) -> Units {
    let op: Softcap = planner.is(at)?;
    map(planner, at, "softcap", (2, 0, op.cap))
}

fn map(planner: &mut Planner<'_>, at: usize, op: &'static str, (what, kind, number): (i32, i32, f32)) -> Units {
    let (from, to) = (planner.read(at, 0), planner.written(at, 0));
    let kernel = planner.book.kernel(&format!("map_{}_{}", from.number(), to.number()), 0);
    one(Map { kernel, op, from, to, what, kind, number, weight: None })
}

fn scale(planner: &mut Planner<'_>, at: usize) -> Units {
    let op: Scale = planner.is(at)?;
    let (from, to) = (planner.read(at, 0), planner.written(at, 0));
    let kernel = planner.book.kernel(&format!("map_{}_{}", from.number(), to.number()), 0);
    let weight = match planner.node(at).1.weights.is_empty() {
        true => None,
        false => {
            let stored = planner.weight(at, 0);
            Some((planner.vector(&stored, 0.0)?, stored.elems()))
        }
    };
    one(Map { kernel, op: "scale", from, to, what: 1, kind: 0, number: op.factor, weight })
}

fn add(planner: &mut Planner<'_>, at: usize) -> Units {
    let op: AddOp = planner.is(at)?;
    let (a, b, to) = (planner.read(at, 0), planner.read(at, 1), planner.written(at, 0));
    let kernel = planner.book.kernel(&format!("add_{}_{}_{}", a.number(), b.number(), to.number()), 0);
    one(Add { kernel, a, b, to, scale: op.scale })
}

fn gated_act(planner: &mut Planner<'_>, at: usize) -> Units {
    let op: GatedActOp = planner.is(at)?;
    let (gate, up, to) = (planner.read(at, 0), planner.read(at, 1), planner.written(at, 0));
    if gate.f32 || up.f32 || to.f32 {
        return Err(no_kernel("gated_act", "its values are those of the residual stream"));
    }
    let unit = planner.gated_act(&op, gate, up, to);
    one(unit)
}

fn select_rows(planner: &mut Planner<'_>, at: usize) -> Units {
    let (from, to) = (planner.read(at, 0), planner.written(at, 0));
    if from.f32 != to.f32 {
        return Err(no_kernel("select_rows", "its values have different formats"));
    }
    let kernel = planner.book.kernel(&format!("select_rows_{}", from.number()), 0);
    one(SelectRows { kernel, from, to })
}

fn embed(planner: &mut Planner<'_>, at: usize) -> Units {
    let op: EmbedOp = planner.is(at)?;
    let stored = planner.weight(at, 0);
    if op.past_end.is_some_and(|row| row as usize + 1 != stored.rows()) {
        return Err(no_kernel("embed", "tokens past the table's end have a row of their own"));
    }
    let table = planner.matrix(&[stored])?;
    let kernel = planner.book.kernel(&format!("embed_{}", table.form.name()), 0);
    one(Embed { kernel, table, out: planner.written(at, 0), scale: op.scale })
}

fn rms_norm(planner: &mut Planner<'_>, at: usize) -> Units {
    let op: RmsNorm = planner.is(at)?;
    let (from, to) = (planner.read(at, 0), planner.written(at, 0));
    let (weight, len) = match planner.node(at).1.weights.is_empty() {
        true => (None, op.group),
        false => {
            let stored = planner.weight(at, 0);
            (Some(planner.vector(&stored, op.offset)?), stored.elems())
        }
    };
    let unit = planner.norm(&op, weight, len, from, to);
    one(unit)
}

fn rope(planner: &mut Planner<'_>, at: usize) -> Units {
    let op: Rope = planner.is(at)?;
    let (from, to) = (planner.read(at, 0), planner.written(at, 0));
    if from.f32 || to.f32 {
        return Err(no_kernel("rope", "its values are those of the residual stream"));
    }
    let mut part = planner.head_part(from, from.width / op.head_dim, op.head_dim);
    let mut keeps = Vec::new();
    planner.turn(&op, &mut part, &mut keeps)?;
    (part.to, part.out, part.out_stride) = (0, to.ptr, to.stride as u64);
    let kernel = planner.heads_kernel(&[part]);
    one(Heads { kernel, label: "rope", parts: vec![part], keeps })
}

fn kv_write(planner: &mut Planner<'_>, at: usize) -> Units {
    let op: KvWrite = planner.is(at)?;
    let (keys, values) = (planner.read(at, 0), planner.read(at, 1));
    if keys.f32 || values.f32 {
        return Err(no_kernel("kv_write", "its values are those of the residual stream"));
    }
    let mut parts =
        vec![planner.head_part(keys, op.heads, op.key_dim), planner.head_part(values, op.heads, op.value_dim)];
    planner.point_at_pages(at, &mut parts);
    let kernel = planner.heads_kernel(&parts);
    one(Heads { kernel, label: "kv_write", parts, keeps: Vec::new() })
}

fn attention(planner: &mut Planner<'_>, at: usize) -> Units {
    let queries = planner.read(at, 0);
    if queries.f32 {
        return Err(no_kernel("attention", "its queries are those of the residual stream"));
    }
    let unit = planner.attend(at, Some(queries))?;
    one(unit)
}

fn moe_route(planner: &mut Planner<'_>, at: usize) -> Units {
    let op: MoeRoute = planner.is(at)?;
    let experts = planner.read(at, 0).width;
    let kernel = planner.book.kernel("moe_route", (4 * 2 * 4 * experts) as u32);
    let mut weights = 0..;
    let mut vector = |planner: &mut Planner<'_>, there: bool| -> Result<_, CudaError> {
        if !there {
            return Ok(None);
        }
        let stored = planner.weight(at, weights.next().unwrap_or(0));
        Ok(Some(planner.loader.vector(&[stored], 0.0)?))
    };
    let bias = vector(planner, op.biased)?;
    let factors = vector(planner, op.expert_factors)?;
    one(Route {
        kernel,
        logits: planner.read(at, 0),
        ids: planner.written(at, 0),
        weights: planner.written(at, 1),
        bias,
        factors,
        top_k: op.top_k,
        score: match op.score {
            Score::Softmax => 0,
            Score::Sigmoid => 1,
            Score::SqrtSoftplus => 2,
        },
        normalised: op.normalised,
        factor: op.factor,
    })
}

fn moe_experts(planner: &mut Planner<'_>, at: usize) -> Units {
    let op: MoeExperts = planner.is(at)?;
    let from = planner.read(at, 0);
    let (ExpertAct::Plain(kind), true) = (op.act, from.aligned()) else {
        return Err(no_kernel("moe_experts", "gate and up are bounded, or what is read is not aligned"));
    };
    let mut gate_up: Vec<StoredTensor> = Vec::new();
    let mut down: Vec<StoredTensor> = Vec::new();
    for expert in 0..op.experts {
        let weights = op.weights_of(expert);
        gate_up.extend(weights.maps.iter().map(|(map, _)| planner.weight(at, *map)));
        down.push(planner.weight(at, weights.down.0));
    }
    let matrix = |planner: &mut Planner<'_>, tensors: &[StoredTensor], gated: bool| -> Result<_, CudaError> {
        let same = tensors.iter().all(|tensor| Form::of(tensor) == Form::of(&tensors[0]));
        if !same {
            return Err(no_kernel("moe_experts", "experts are stored in different formats"));
        }
        let matrix = planner.loader.matrix(tensors)?;
        let spec = Spec::choose(matrix.form, matrix.k, 1, false, gated);
        let spec = spec.ok_or_else(|| no_kernel("moe_experts", "rows are too long"))?;
        let rows = matrix.rows / op.experts / if gated { 2 } else { 1 };
        let kernel = planner
            .book
            .gemv(spec, spec.shared(rows, matrix.k, gated, from.f32, 1).min(planner.device.facts.shared_bytes));
        Ok((matrix, spec, kernel))
    };
    let gate_up = matrix(planner, &gate_up, true)?;
    let down = matrix(planner, &down, false)?;
    let hidden = from.width;
    let (middle, given) = match planner.experts_room {
        Some(room) => room,
        None => {
            let choices = planner.sizes.tokens * op.top_k;
            let place =
                |ptr, width: usize, f32| Place { ptr, stride: width.next_multiple_of(8), width, f32, rows: false };
            let middle = place(
                planner.buffer(Purpose::Workspace, (choices * op.intermediate.next_multiple_of(8) * 2) as u64)?,
                op.intermediate,
                false,
            );
            let given = place(
                planner.buffer(Purpose::Workspace, (choices * hidden.next_multiple_of(8) * 4) as u64)?,
                hidden,
                true,
            );
            *planner.experts_room.insert((middle, given))
        }
    };
    let join = planner.book.kernel("moe_join", 0);
    one(Experts {
        gate_up,
        down,
        join,
        from,
        ids: planner.read(at, 1),
        weights: planner.read(at, 2),
        to: planner.written(at, 0),
        experts: op.experts,
        top_k: op.top_k,
        kind: activation(kind),
        hidden: middle,
        given,
        multiprocessors: planner.device.facts.multiprocessors,
    })
}
