//! `moe_experts`: expert by expert, the rows of the tokens that chose it together; styles differ in how they multiply.
//!
//! A token's experts are summed in the order of their numbers, so a row does not depend on its batch mates.

use crate::cpu::shared::Shared;
use crate::cpu::{Isa, Pool, PoolError};
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::files::StoredTensor;
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::moe_experts::{ExpertWeights, MoeExperts};
use crit_core::runtime::EngineError;

/// Hidden units of a chunk of work: below this a thread costs more than it saves.
const CHUNK: usize = 4_096;

/// Multiplies rows with weights.
pub(crate) trait Multiply: Send {
    /// Makes room for `rows` rows through weights with rows of up to `k`; returns the bytes.
    fn reserve(&mut self, weights: &[StoredTensor], rows: usize) -> u64;

    /// `out[i]` = x · weights[i]ᵀ for weights of one shape's rows; x `[rows, k]`, out `[rows, n]` each.
    ///
    /// # Errors
    /// A worker failed.
    fn run(
        &mut self,
        pool: &Pool,
        x: &[f32],
        weights: &[&StoredTensor],
        out: &mut [&mut [f32]],
    ) -> Result<(), PoolError>;
}

struct Experts<M> {
    op: MoeExperts,
    weights: Vec<StoredTensor>,
    /// Biases by their place in the op's list; empty for maps.
    biases: Vec<Vec<f32>>,
    multiply: M,
    hidden: usize,
    from: ValueId,
    ids: ValueId,
    shares: ValueId,
    out: ValueId,
    rows: Rows,
}

/// Rows of one expert on their way.
#[derive(Default)]
struct Rows {
    input: Vec<f32>,
    outputs: Vec<f32>,
    units: Vec<f32>,
    given: Vec<f32>,
    /// Places in the lists of ids, by expert.
    places: Vec<Vec<usize>>,
}

/// The kernel that multiplies by `multiply`.
pub(crate) fn lower_with<M: Multiply + 'static>(
    node: Lowering<'_>,
    multiply: M,
) -> Result<Box<dyn Kernel>, EngineError> {
    let op = node.op::<MoeExperts>().clone();
    let bias = |i: usize| if op.biased && i % 2 == 1 { node.weights[i].to_f32() } else { Vec::new() };
    let biases = (0..node.weights.len()).map(bias).collect();
    let (n, hidden) = (node.view.node, node.view.write_width(0));
    Ok(Box::new(Experts {
        op,
        weights: node.weights.clone(),
        biases,
        multiply,
        hidden,
        from: n.reads[0],
        ids: n.reads[1],
        shares: n.reads[2],
        out: n.writes[0],
        rows: Rows::default(),
    }))
}

impl<M: Multiply> Kernel for Experts<M> {
    fn name(&self) -> &str {
        "moe_experts"
    }

    fn prepare(&mut self, tokens: usize, _: usize) -> Result<u64, EngineError> {
        let Rows { input, outputs, units, given, places } = &mut self.rows;
        let widths = [self.hidden, self.op.units(), self.op.intermediate, self.hidden];
        for (buffer, width) in [input, outputs, units, given].into_iter().zip(widths) {
            buffer.resize(tokens * width, 0.0);
        }
        places.resize(self.op.experts, Vec::new());
        let own = tokens * widths.iter().sum::<usize>() * 4;
        Ok(own as u64 + self.multiply.reserve(&self.weights, tokens))
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let n = cx.values.len(self.out);
        out[..n].fill(0.0);
        let (x, ids, shares) = (cx.values.get(self.from), cx.values.get(self.ids), cx.values.get(self.shares));
        let mut places = std::mem::take(&mut self.rows.places);
        places.iter_mut().for_each(Vec::clear);
        ids.iter().enumerate().for_each(|(at, id)| places[*id as usize].push(at));
        let busy = places.iter().enumerate().filter(|(_, places)| !places.is_empty());
        let done = busy
            .into_iter()
            .try_for_each(|(expert, places)| self.expert(cx.pool, expert, places, (x, shares), &mut out[..n]));
        self.rows.places = places;
        cx.values.put(self.out, out);
        done.map_err(|e| EngineError::Kernel { op: "moe_experts".into(), message: e.to_string() })
    }
}

impl<M: Multiply> Experts<M> {
    /// Runs one expert on the tokens at `places` of the lists of ids and adds what it gives to `out`.
    fn expert(
        &mut self,
        pool: &Pool,
        expert: usize,
        places: &[usize],
        (x, shares): (&[f32], &[f32]),
        out: &mut [f32],
    ) -> Result<(), PoolError> {
        let (op, hidden, count) = (&self.op, self.hidden, places.len());
        let Rows { input, outputs, units, given, .. } = &mut self.rows;
        for (row, place) in input.chunks_exact_mut(hidden).zip(places) {
            row.copy_from_slice(&x[place / op.top_k * hidden..][..hidden]);
            if op.on_input {
                row.iter_mut().for_each(|v| *v *= shares[*place]);
            }
        }
        let ExpertWeights { maps, down } = op.weights_of(expert);
        let maps_of: Vec<&StoredTensor> = maps.iter().map(|(map, _)| &self.weights[*map]).collect();
        let each = count * op.units() / maps.len();
        let mut parts: Vec<&mut [f32]> = outputs[..count * op.units()].chunks_exact_mut(each).collect();
        self.multiply.run(pool, &input[..count * hidden], &maps_of, &mut parts)?;
        for ((_, bias), part) in maps.iter().zip(&mut parts) {
            add_bias(&self.biases, *bias, part);
        }
        // Outputs lie map by map; a unit wants those of its row side by side.
        let (width, wide) = (op.units() / maps.len(), op.units());
        let (all, first) = (&*outputs, &mut units[..count * op.intermediate]);
        let shared = Shared::new(first);
        let rows = (CHUNK / op.intermediate.max(1)).max(1);
        pool.run(count.div_ceil(rows), &|chunk, _| {
            let mut row = vec![0.0; wide];
            for i in chunk * rows..((chunk + 1) * rows).min(count) {
                for (map, to) in row.chunks_exact_mut(width).enumerate() {
                    to.copy_from_slice(&all[map * each + i * width..][..width]);
                }
                // SAFETY: chunks own disjoint rows.
                let to = unsafe { shared.part(i * op.intermediate, op.intermediate) };
                to.iter_mut().enumerate().for_each(|(unit, v)| *v = op.unit(&row, unit) as f32);
            }
        })?;
        let given = &mut given[..count * hidden];
        self.multiply.run(pool, &units[..count * op.intermediate], &[&self.weights[down.0]], &mut [&mut *given])?;
        add_bias(&self.biases, down.1, given);
        for (row, place) in given.chunks_exact(hidden).zip(places) {
            let share = if op.on_input { 1.0 } else { shares[*place] };
            let to = &mut out[place / op.top_k * hidden..][..hidden];
            to.iter_mut().zip(row).for_each(|(o, v)| *o += share * v);
        }
        Ok(())
    }
}

fn add_bias(biases: &[Vec<f32>], bias: Option<usize>, rows: &mut [f32]) {
    let Some(bias) = bias.map(|at| &biases[at]) else { return };
    rows.chunks_exact_mut(bias.len()).for_each(|row| row.iter_mut().zip(bias).for_each(|(v, b)| *v += b));
}

/// The exact product: rows dequantised by panel.
pub(crate) struct Exactly(pub(crate) Isa);

impl Multiply for Exactly {
    fn reserve(&mut self, _: &[StoredTensor], _: usize) -> u64 {
        0
    }

    fn run(
        &mut self,
        pool: &Pool,
        x: &[f32],
        weights: &[&StoredTensor],
        out: &mut [&mut [f32]],
    ) -> Result<(), PoolError> {
        for (weight, out) in weights.iter().zip(out) {
            let (n, k) = (weight.rows(), weight.row_len());
            let read = |rows: std::ops::Range<usize>, out: &mut [f32]| {
                weight.dequant_rows(rows, out).expect("rows within the tensor's own count");
            };
            crate::exact::gemm::gemm(pool, self.0, (x.len() / k, n, k), x, &read, out)?;
        }
        Ok(())
    }
}
