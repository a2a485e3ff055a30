//! The limits of a GPU, as ceilings need them; kept in the workspace until the machine boots again.

use crate::context::Context;
use crate::error::ToolError;
use crit_core::error::{Diagnose, ErrorKind};
use crit_core::model::program::Precision;
use crit_eval::limits::{ArithmeticLimit, Limits, MemoryLevel, ReadLimit};
use crit_kernels::backend::cuda::blas::Number;
use crit_kernels::backend::cuda::probe::{Probe, median};
use crit_kernels::backend::cuda::{CudaError, DeviceFacts};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Samples of each rate.
const SAMPLES: usize = 15;
/// Samples may stand so far above their median before they are called unsteady.
const SPREAD: f64 = 0.02;

/// What a GPU can do at most.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    /// The device.
    pub device: Device,
    /// Bytes a second of reading memory, median, and the best sample's share above.
    pub read_bytes_s: (f64, f64),
    /// Bytes a second of copying memory, read and written together.
    pub copy_bytes_s: (f64, f64),
    /// Operations a second of bf16 products on random values, median, and the best sample's share above.
    pub bf16_ops_s: (f64, f64),
    /// The same of f16 products.
    pub f16_ops_s: (f64, f64),
    /// The same of f32 products.
    pub f32_ops_s: (f64, f64),
    /// Microseconds of an empty kernel in a graph, and of one set up early.
    pub node_us: (f64, f64),
    /// Bytes a second from pinned memory, and to it.
    pub host_bytes_s: (f64, f64),
    /// Why it was not steady; empty if it was.
    pub unstable: Vec<String>,
}

/// Which device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its number.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Compute capability, `9.0`.
    pub capability: String,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Version of the driver's interface.
    pub driver_version: i32,
}

impl Device {
    fn of(facts: &DeviceFacts) -> Self {
        let (major, minor) = facts.capability;
        Self {
            ordinal: facts.ordinal,
            name: facts.name.clone(),
            capability: format!("{major}.{minor}"),
            memory_bytes: facts.memory_bytes,
            driver_version: facts.driver_version,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Kept {
    version: String,
    boot: String,
    found: Found,
}

/// The limits of device `ordinal`: kept ones if they are of this boot, else measured now.
///
/// # Errors
/// There is no such device, or it cannot be measured.
pub fn measured(context: &Context, ordinal: usize, fresh: bool) -> Result<Found, ToolError> {
    let path = path(context, ordinal);
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_string();
    let kept = path.as_ref().and_then(|path| std::fs::read(path).ok());
    let kept = kept.and_then(|bytes| serde_json::from_slice::<Kept>(&bytes).ok());
    if let Some(kept) = kept.filter(|kept| !fresh && kept.version == crit_eval::EVAL_VERSION && kept.boot == boot) {
        return Ok(kept.found);
    }
    let _alone = context.measure("gpu probe")?;
    context.report().phase("gpu probe");
    let found = probe(ordinal).map_err(told)?;
    if let Some(path) = path {
        context.workspace()?.prepare()?;
        let kept = Kept { version: crit_eval::EVAL_VERSION.into(), boot, found: found.clone() };
        let text = serde_json::to_vec(&kept)
            .map_err(|error| ToolError::new(ErrorKind::Internal, format!("cannot write the probe: {error}")))?;
        let part = path.with_extension("part");
        let written = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, &path));
        written.map_err(|error| ToolError::io("write", &path, &error))?;
    }
    Ok(found)
}

fn path(context: &Context, ordinal: usize) -> Option<PathBuf> {
    Some(context.try_workspace()?.cache().join(format!("probe-cuda-{ordinal}.json")))
}

/// A backend's error as a tool tells it.
pub fn told(error: CudaError) -> ToolError {
    let told = ToolError::new(error.kind(), error.to_string());
    match error.hint() {
        Some(hint) => told.with_hint(hint),
        None => told,
    }
}

fn probe(ordinal: usize) -> Result<Found, CudaError> {
    let probe = Probe::open(ordinal)?;
    let facts = probe.device().facts.clone();
    // Far beyond the cache, and never more than an eighth of the memory.
    let bytes = (facts.l2_bytes * 80).clamp(1 << 30, 8 << 30).min(facts.memory_bytes / 8) / 16 * 16;
    let product = |number| probe.product_flop_s((8192, 8192, 8192), number, SAMPLES);
    let read = spread(&probe.read_bytes_s(bytes, SAMPLES)?);
    let copy = spread(&probe.copy_bytes_s(bytes / 2, SAMPLES)?);
    let (bf16, f16) = (spread(&product(Number::Bf16)?), spread(&product(Number::F16)?));
    let f32 = spread(&probe.product_flop_s((4096, 4096, 4096), Number::F32, SAMPLES)?);
    let node = |early| probe.node_s(early, SAMPLES).map(|times| median(&times) * 1e6);
    let (up, down) = probe.host_bytes_s(256 << 20, 5)?;
    let unsteady = |(_, above): (f64, f64), what: &str| {
        (above > SPREAD).then(|| format!("the best sample of {what} stood {:.1} % above the median", above * 100.0))
    };
    Ok(Found {
        device: Device::of(&facts),
        read_bytes_s: read,
        copy_bytes_s: copy,
        bf16_ops_s: bf16,
        f16_ops_s: f16,
        f32_ops_s: f32,
        node_us: (node(false)?, node(true)?),
        host_bytes_s: (median(&up), median(&down)),
        unstable: [unsteady(read, "reading"), unsteady(bf16, "bf16 products")].into_iter().flatten().collect(),
    })
}

/// The median, and how far the best stands above it as a share.
fn spread(samples: &[f64]) -> (f64, f64) {
    let middle = median(samples);
    let best = samples.iter().copied().fold(middle, f64::max);
    (middle, if middle > 0.0 { best / middle - 1.0 } else { 0.0 })
}

impl Found {
    /// As ceilings take them. A working set of any size counts as read from memory: a model's weights never stay in the cache.
    pub fn limits(&self) -> Limits {
        let (bytes_s, above_share) = self.read_bytes_s;
        let arithmetic =
            |precision, (ops_s, above_share): (f64, f64)| ArithmeticLimit { precision, ops_s, above_share };
        Limits {
            threads: 1,
            read: vec![ReadLimit { working_set_bytes: 1, level: MemoryLevel::Dram, bytes_s, above_share }],
            arithmetic: vec![
                arithmetic(Precision::F32, self.f32_ops_s),
                arithmetic(Precision::Bf16, self.bf16_ops_s),
                arithmetic(Precision::F16, self.f16_ops_s),
            ],
            serial_s: 0.0,
            unstable: self.unstable.clone(),
        }
    }
}
