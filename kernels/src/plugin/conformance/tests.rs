//! The contracts can say no: plugins broken on purpose, each in one way.

use super::{drafter, kv_cache, op, prefix_cache};
use crate::exec::{Kernel, KvF16, KvFormat, Lowering, OpPlugin, StepCx};
use crit_core::model::program::ValueId;
use crit_core::plugin::{Draft, Drafter, Manifest, PrefixCache, PrefixHit};
use crit_core::runtime::EngineError;

fn manifest(claims: &[&str]) -> Manifest {
    serde_json::from_value(serde_json::json!({
        "name": "broken", "version": "1.0.0", "summary": "s", "slot": "op", "backends": ["cpu"], "claims": claims,
        "changes_output": true
    }))
    .unwrap()
}

/// Proposes one token; more than asked for, or from memory of what it was to forget.
#[derive(Default)]
struct BadDrafter {
    greedy: bool,
    remembers: bool,
    calls: u32,
}

impl Drafter for BadDrafter {
    fn propose(&mut self, _: u64, _: &[u32], limit: usize) -> Draft {
        self.calls += 1;
        let count = if self.greedy { limit + 1 } else { limit.min(1) };
        Draft { tokens: vec![if self.remembers { self.calls } else { 7 }; count], probs: None }
    }

    fn accepted(&mut self, _: u64, _: usize, _: usize) {}

    fn forget(&mut self, _: u64) {}
}

#[test]
fn drafters() {
    drafter::check(&mut BadDrafter::default()).unwrap();
    let rule = drafter::check(&mut BadDrafter { greedy: true, ..Default::default() }).unwrap_err();
    assert!(rule.contains("none are wanted"), "{rule}");
    let rule = drafter::check(&mut BadDrafter { remembers: true, ..Default::default() }).unwrap_err();
    assert!(rule.contains("after `forget`"), "{rule}");
}

/// Knows a beginning by its last block alone.
#[derive(Default)]
struct BadCache {
    known: Vec<(Vec<u32>, u32)>,
}

impl PrefixCache for BadCache {
    fn lookup(&mut self, tokens: &[u32], block_tokens: usize) -> PrefixHit {
        let find = |part: &[u32]| self.known.iter().find(|(known, _)| known == part).map(|(_, block)| *block);
        PrefixHit { blocks: tokens.chunks_exact(block_tokens).map_while(find).collect() }
    }

    fn insert(&mut self, tokens: &[u32], blocks: &[u32], block_tokens: usize) -> Vec<u32> {
        let known = self.lookup(tokens, block_tokens).blocks.len();
        let new = tokens.chunks_exact(block_tokens).zip(blocks).skip(known);
        self.known.extend(new.clone().map(|(part, block)| (part.to_vec(), *block)));
        new.map(|(_, block)| *block).collect()
    }

    fn evict(&mut self, wanted: usize, _: &dyn Fn(u32) -> bool) -> Vec<u32> {
        (0..wanted).map_while(|_| self.known.pop()).map(|(_, block)| block).collect()
    }

    fn len(&self) -> usize {
        self.known.len()
    }
}

#[test]
fn prefix_caches() {
    assert!(prefix_cache::check(&mut BadCache::default()).is_err());
}

/// f16 that drops its last element, or scales what is large.
struct BadFormat {
    leaves: bool,
}

impl KvFormat for BadFormat {
    fn name(&self) -> &str {
        "bad"
    }

    fn row_bytes(&self, dim: usize) -> usize {
        2 * dim
    }

    fn write(&self, row: &[f32], out: &mut [u8]) {
        let end = row.len() - usize::from(self.leaves);
        KvF16.write(&row[..end], &mut out[..2 * end]);
    }

    fn read(&self, rows: &[u8], dim: usize, out: &mut [f32]) {
        KvF16.read(rows, dim, out);
        out.iter_mut().for_each(|v| *v *= 1.02);
    }
}

#[test]
fn kv_formats() {
    let good = manifest(&[]);
    kv_cache::check(&KvF16, &good).unwrap();
    let rule = kv_cache::check(&BadFormat { leaves: false }, &good).unwrap_err();
    assert!(rule.contains("ppm off"), "{rule}");
    let loose = Manifest { error_ppm: Some(900_000), ..good };
    let rule = kv_cache::check(&BadFormat { leaves: true }, &loose).unwrap_err();
    assert!(rule.contains("what lay there before"), "{rule}");
}

/// Claims gated activations and leaves the gate out.
struct BadOp;

struct BadKernel(ValueId, ValueId);

impl Kernel for BadKernel {
    fn name(&self) -> &str {
        "broken"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let up = cx.values.get(self.0).to_vec();
        let mut out = cx.values.take(self.1);
        out[..up.len()].copy_from_slice(&up);
        cx.values.put(self.1, out);
        Ok(())
    }
}

impl OpPlugin for BadOp {
    fn lower(&self, node: &Lowering<'_>) -> Result<Option<Box<dyn Kernel>>, EngineError> {
        let parts = node.view.node;
        let claimed = parts.op.name() == "gated_act";
        Ok(claimed.then(|| Box::new(BadKernel(parts.reads[1], parts.writes[0])) as Box<dyn Kernel>))
    }
}

#[test]
fn op_plugins() {
    let rule = op::check(&BadOp, &manifest(&["gated_act"])).unwrap_err();
    assert!(rule.contains("off the plain reference"), "{rule}");
    let rule = op::check(&BadOp, &manifest(&["linear"])).unwrap_err();
    assert!(rule.contains("does not name among its claims"), "{rule}");
}
