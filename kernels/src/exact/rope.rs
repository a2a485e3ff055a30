//! `rope` with angles in f64.

use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::rope::Rope;
use crit_core::runtime::EngineError;

struct Rotate {
    rope: Rope,
    from: ValueId,
    out: ValueId,
    width: usize,
    turns: Vec<(f32, f32)>,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let n = node.view.node;
    let rope: Rope = node.op::<Rope>().clone();
    Ok(Box::new(Rotate {
        rope,
        from: n.reads[0],
        out: n.writes[0],
        width: node.view.write_width(0),
        turns: Vec::new(),
    }))
}

impl Kernel for Rotate {
    fn name(&self) -> &str {
        "rope"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let n = cx.values.len(self.out);
        if self.from != self.out {
            out[..n].copy_from_slice(cx.values.get(self.from));
        }
        let lengths = cx.batch.seqs.iter().flat_map(|s| std::iter::repeat_n(s.length as usize, s.tokens as usize));
        for ((row, position), length) in out[..n].chunks_mut(self.width).zip(&cx.batch.positions).zip(lengths) {
            self.turns.clear();
            self.turns.extend(self.rope.angles(length).iter().map(|freq| {
                let turn = self.rope.turn(*position as usize) as f64;
                let (sin, cos) = (turn * f64::from(*freq)).sin_cos();
                let scale = f64::from(self.rope.magnitude);
                ((cos * scale) as f32, (sin * scale) as f32)
            }));
            for head in row.chunks_mut(self.rope.head_dim) {
                for (i, (cos, sin)) in self.turns.iter().enumerate() {
                    let (x, y) = self.rope.pair(i);
                    let (a, b) = (head[x], head[y]);
                    head[x] = a * cos - b * sin;
                    head[y] = b * cos + a * sin;
                }
            }
        }
        cx.values.put(self.out, out);
        Ok(())
    }
}
