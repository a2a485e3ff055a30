//! Element-wise and row-wise kernels in one shape: copy the value, then change it row by row on all threads.

use crate::cpu::shared::Shared;
use crate::exec::kv::KvStore;
use crate::exec::step::{StepCx, Values};
use crit_core::model::program::ValueId;
use crit_core::runtime::EngineError;

/// Elements of a chunk of work: below this a thread costs more than it saves.
const CHUNK: usize = 8_192;

/// Sets every row of `out` by `make`, given the values, the row's index and the row. Values it reads must not be `out`.
pub(crate) fn make_rows(
    cx: &mut StepCx<'_>,
    op: &'static str,
    out: ValueId,
    width: usize,
    make: &(dyn Fn(&Values, usize, &mut [f32]) + Sync),
) -> Result<(), EngineError> {
    let mut buffer = cx.values.take(out);
    let n = cx.values.len(out);
    let values: &Values = cx.values;
    let rows = (CHUNK / width.max(1)).max(1);
    let size = rows * width.max(1);
    let parts = Shared::new(&mut buffer[..n]);
    let done = cx.pool.run(n.div_ceil(size), &|chunk, _| {
        let start = chunk * size;
        // SAFETY: chunks are disjoint.
        let part = unsafe { parts.part(start, size.min(n - start)) };
        part.chunks_mut(width.max(1)).enumerate().for_each(|(i, row)| make(values, chunk * rows + i, row));
    });
    cx.values.put(out, buffer);
    done.map_err(|e| EngineError::Kernel { op: op.into(), message: e.to_string() })
}

/// Sets every row of `out` by `make`, given what is kept of the sequences, the row's index and the row.
pub(crate) fn place_rows(
    cx: &mut StepCx<'_>,
    op: &'static str,
    out: ValueId,
    width: usize,
    make: &(dyn Fn(&KvStore, usize, &mut [f32]) + Sync),
) -> Result<(), EngineError> {
    let mut buffer = cx.values.take(out);
    let n = cx.values.len(out);
    let kv: &KvStore = cx.kv;
    let parts = Shared::new(&mut buffer[..n]);
    // SAFETY: rows are disjoint.
    let done = cx.pool.run(n / width, &|row, _| make(kv, row, unsafe { parts.part(row * width, width) }));
    cx.values.put(out, buffer);
    done.map_err(|e| EngineError::Kernel { op: op.into(), message: e.to_string() })
}

/// Sets `out` to `from` and then applies `change` to every group of `width` elements, given its index. `change` must not
/// depend on how groups are spread over threads.
pub(crate) fn by_rows(
    cx: &mut StepCx<'_>,
    op: &'static str,
    (from, out): (ValueId, ValueId),
    width: usize,
    change: &(dyn Fn(usize, &mut [f32]) + Sync),
) -> Result<(), EngineError> {
    let mut buffer = cx.values.take(out);
    let n = cx.values.len(out);
    if from != out {
        buffer[..n].copy_from_slice(cx.values.get(from));
    }
    let rows = (CHUNK / width.max(1)).max(1);
    let size = rows * width.max(1);
    let parts = Shared::new(&mut buffer[..n]);
    let done = cx.pool.run(n.div_ceil(size), &|chunk, _| {
        let start = chunk * size;
        // SAFETY: chunks are disjoint.
        let part = unsafe { parts.part(start, size.min(n - start)) };
        part.chunks_mut(width.max(1)).enumerate().for_each(|(i, row)| change(chunk * rows + i, row));
    });
    cx.values.put(out, buffer);
    done.map_err(|e| EngineError::Kernel { op: op.into(), message: e.to_string() })
}
