//! Matrix products of many activations, by cuBLASLt.
//!
//! y[m][n] = sum_k x[m][k] w[n][k] (+ c[m][n]), all row-major; for the library that is the column-major product wᵀ·x. For each weight
//! shape and power of two of m the library's first proposals are timed once, before the first step, and the best is kept in a file
//! beside the cubins, by device and versions: restarts agree, and start at once. Other m use the choice of the next power of two.

use super::compile::cache_folder;
use super::device::{Absent, Device};
use super::error::CudaError;
use super::memory::{Buffer, Ledger, Purpose};
use cudarc::cublaslt::{result as lt, sys};
use cudarc::driver::{result as driver, sys as cu};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

/// Scratch space the library may use.
const WORKSPACE: u64 = 64 << 20;
/// Proposals that are timed.
const PROPOSALS: i32 = 12;

/// Number formats of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Number {
    /// bf16.
    Bf16,
    /// f16.
    F16,
    /// f32.
    F32,
}

impl Number {
    const fn library(self) -> sys::cudaDataType_t {
        match self {
            Self::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
            Self::F16 => sys::cudaDataType_t::CUDA_R_16F,
            Self::F32 => sys::cudaDataType_t::CUDA_R_32F,
        }
    }
}

/// A product's operands.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Activations, outputs, summed elements.
    pub size: (usize, usize, usize),
    /// Format of weights and activations.
    pub number: Number,
    /// Weight `[n, k]` and elements from row to row.
    pub w: (u64, usize),
    /// Activations `[m, k]` and elements from row to row.
    pub x: (u64, usize),
    /// Result `[m, n]`, elements from row to row, and its format.
    pub y: (u64, usize, Number),
    /// Added to the product, in the result's format and with its own row distance, if any.
    pub c: Option<(u64, usize)>,
    /// Factor on the product.
    pub alpha: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    m: usize,
    n: usize,
    k: usize,
    number: Number,
    out: Number,
    adds: bool,
}

/// The library, opened for one device.
pub struct Blas {
    device: Arc<Device>,
    handle: sys::cublasLtHandle_t,
    workspace: Buffer,
    chosen: Mutex<HashMap<Key, sys::cublasLtMatmulAlgo_t>>,
}

// SAFETY: the handle may be used from any thread, one at a time here.
unsafe impl Send for Blas {}

impl Blas {
    /// Opens the library.
    ///
    /// # Errors
    /// It is not there.
    pub fn open(device: &Arc<Device>, ledger: &Arc<Ledger>) -> Result<Self, CudaError> {
        device.make_current()?;
        // SAFETY: only looks for the library by name.
        if !unsafe { sys::is_culib_present() } {
            return Err(Absent::NoLibrary("cuBLASLt (libcublasLt)").into());
        }
        let handle = lt::create_handle().map_err(CudaError::blas("opening"))?;
        let workspace = Buffer::zeroed(device, ledger, Purpose::Workspace, WORKSPACE)?;
        Ok(Self { device: device.clone(), handle, workspace, chosen: Mutex::default() })
    }

    /// The library's version.
    pub fn version() -> Option<usize> {
        // SAFETY: looks for the library, then asks it for a number.
        unsafe { sys::is_culib_present().then(|| sys::cublasLtGetVersion()) }
    }

    /// Puts the product on the device's stream.
    ///
    /// # Errors
    /// The library has no way to compute it.
    pub fn run(&self, product: &Product) -> Result<(), CudaError> {
        if product.size.0 == 0 {
            return Ok(());
        }
        let call = Call::new(product)?;
        let mut chosen = self.chosen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let key = key(product);
        if let Some(algo) = chosen.get(&key)
            && self.start(product, &call, algo).is_ok()
        {
            return Ok(());
        }
        // A choice made for another number of activations may not do for this one: ask.
        let exact = Key { m: product.size.0, ..key };
        if let Some(algo) = chosen.get(&exact)
            && exact != key
        {
            return self.start(product, &call, algo);
        }
        let first = self.proposals(product, &call, 1)?;
        let algo = first[0].algo;
        chosen.insert(exact, algo);
        self.start(product, &call, &algo)
    }

    fn start(&self, product: &Product, call: &Call, algo: &sys::cublasLtMatmulAlgo_t) -> Result<(), CudaError> {
        let beta = if product.c.is_some() { 1.0f32 } else { 0.0 };
        let c = product.c.map_or(product.y.0, |(c, _)| c);
        // SAFETY: descriptors live; operands are device memory of the sizes the caller states.
        unsafe {
            sys::cublasLtMatmul(
                self.handle,
                call.desc,
                std::ptr::from_ref(&product.alpha).cast(),
                product.w.0 as *const c_void,
                call.a,
                product.x.0 as *const c_void,
                call.b,
                std::ptr::from_ref(&beta).cast(),
                c as *const c_void,
                call.c,
                product.y.0 as *mut c_void,
                call.d,
                algo,
                self.workspace.ptr() as *mut c_void,
                WORKSPACE as usize,
                self.device.stream.cast(),
            )
            .result()
        }
        .map_err(CudaError::blas(format!("product of {:?}", product.size)))
    }

    fn proposals(
        &self,
        product: &Product,
        call: &Call,
        most: i32,
    ) -> Result<Vec<sys::cublasLtMatmulHeuristicResult_t>, CudaError> {
        let what = || format!("product of {:?}", product.size);
        // SAFETY: descriptors live; the array has room for `most` results, of which `found` are written.
        unsafe {
            let preference = lt::create_matmul_pref().map_err(CudaError::blas(what()))?;
            let size = WORKSPACE as usize;
            let bytes = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            let mut done = lt::set_matmul_pref_attribute(preference, bytes, std::ptr::from_ref(&size).cast(), 8);
            use sys::cublasLtMatmulPreferenceAttributes_t as P;
            for (attribute, at, step) in [
                (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, product.w.0, product.w.1 * 2),
                (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, product.x.0, product.x.1 * 2),
                (
                    P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                    product.c.map_or(product.y.0, |c| c.0),
                    product.y.1 * 2,
                ),
                (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, product.y.0, product.y.1 * 2),
            ] {
                let aligned = 1u32 << (at | step as u64 | 256).trailing_zeros().min(8);
                done = done.and_then(|()| {
                    lt::set_matmul_pref_attribute(preference, attribute, std::ptr::from_ref(&aligned).cast(), 4)
                });
            }
            let mut results = vec![std::mem::zeroed::<sys::cublasLtMatmulHeuristicResult_t>(); most as usize];
            let mut found = 0;
            let status = done.and_then(|()| {
                let (a, b, c, d) = (call.a, call.b, call.c, call.d);
                let out = results.as_mut_ptr();
                sys::cublasLtMatmulAlgoGetHeuristic(
                    self.handle,
                    call.desc,
                    a,
                    b,
                    c,
                    d,
                    preference,
                    most,
                    out,
                    &mut found,
                )
                .result()
            });
            let _ = lt::destroy_matmul_pref(preference);
            status.map_err(CudaError::blas(what()))?;
            results.truncate(found as usize);
            results.retain(|one| one.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
            if results.is_empty() {
                return Err(CudaError::Blas { what: what(), why: "the library has no way to compute it".into() });
            }
            Ok(results)
        }
    }

    /// Chooses how to compute each of `products`, by the file of earlier choices or by timing. Results are overwritten.
    ///
    /// # Errors
    /// A product that cannot be computed.
    pub fn tune(&self, products: &[Product]) -> Result<(), CudaError> {
        let path = cache_folder().map(|folder| folder.join(format!("{}.algos", self.identity())));
        let mut known = path.as_ref().map(|path| read(path)).unwrap_or_default();
        let mut chosen = self.chosen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut new = false;
        for product in products {
            let key = key(product);
            if chosen.contains_key(&key) {
                continue;
            }
            let name = format!("{key:?}");
            let algo = match known.get(&name) {
                Some(words) => sys::cublasLtMatmulAlgo_t { data: *words },
                None => {
                    let best = self.best(product)?;
                    known.insert(name, best.data);
                    new = true;
                    best
                }
            };
            chosen.insert(key, algo);
        }
        if let Some(path) = path.filter(|_| new) {
            write(&path, &known);
        }
        Ok(())
    }

    fn best(&self, product: &Product) -> Result<sys::cublasLtMatmulAlgo_t, CudaError> {
        let call = Call::new(product)?;
        let proposals = self.proposals(product, &call, PROPOSALS)?;
        let mut best = (f32::INFINITY, proposals[0].algo);
        for proposal in proposals {
            if self.start(product, &call, &proposal.algo).is_err() {
                continue;
            }
            let time = self.time(|| self.start(product, &call, &proposal.algo))?;
            if time < best.0 {
                best = (time, proposal.algo);
            }
        }
        Ok(best.1)
    }

    /// The least of five times, each of three runs, in milliseconds.
    fn time(&self, run: impl Fn() -> Result<(), CudaError>) -> Result<f32, CudaError> {
        let stream = self.device.stream;
        // SAFETY: events are made, recorded and destroyed here, on a live stream.
        unsafe {
            let flags = cu::CUevent_flags_enum::CU_EVENT_DEFAULT;
            let (a, b) = (driver::event::create(flags), driver::event::create(flags));
            let (a, b) = (a.map_err(CudaError::driver("event"))?, b.map_err(CudaError::driver("event"))?);
            let mut least = f32::INFINITY;
            let mut measure = || -> Result<(), CudaError> {
                for _ in 0..5 {
                    driver::event::record(a, stream).map_err(CudaError::driver("event"))?;
                    for _ in 0..3 {
                        run()?;
                    }
                    driver::event::record(b, stream).map_err(CudaError::driver("event"))?;
                    driver::event::synchronize(b).map_err(CudaError::driver("event"))?;
                    least = least.min(driver::event::elapsed(a, b).map_err(CudaError::driver("event"))?);
                }
                Ok(())
            };
            let done = measure();
            let _ = driver::event::destroy(a);
            let _ = driver::event::destroy(b);
            done.map(|()| least)
        }
    }

    fn identity(&self) -> String {
        let facts = &self.device.facts;
        let name: String = facts.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        format!("{name}-{}-{}", facts.driver_version, Self::version().unwrap_or(0))
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        let _ = self.device.make_current();
        let _ = self.device.wait();
        // SAFETY: made by `open`, no product is under way.
        let _ = unsafe { lt::destroy_handle(self.handle) };
    }
}

fn key(product: &Product) -> Key {
    let (m, n, k) = product.size;
    Key { m: m.next_power_of_two(), n, k, number: product.number, out: product.y.2, adds: product.c.is_some() }
}

type Known = std::collections::BTreeMap<String, [u64; 8]>;

/// Lines of a name and eight numbers; a line that is not that is left out.
fn read(path: &std::path::Path) -> Known {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = |line: &str| {
        let (name, words) = line.split_once('\t')?;
        let words: Vec<u64> = words.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        Some((name.to_string(), words.try_into().ok()?))
    };
    text.lines().filter_map(line).collect()
}

fn write(path: &std::path::Path, known: &Known) {
    let line =
        |(name, words): (&String, &[u64; 8])| format!("{name}\t{}\n", words.map(|word| word.to_string()).join(" "));
    let text: String = known.iter().map(line).collect();
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    if folder.and_then(|()| std::fs::write(&part, text)).and_then(|()| std::fs::rename(&part, path)).is_err() {
        tracing::debug!(path = %path.display(), "choices of products not kept");
    }
}

/// Descriptors of one call.
struct Call {
    desc: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    c: sys::cublasLtMatrixLayout_t,
    d: sys::cublasLtMatrixLayout_t,
}

impl Call {
    fn new(product: &Product) -> Result<Self, CudaError> {
        let (m, n, k) = product.size;
        let wrong = || CudaError::blas(format!("describing a product of {:?}", product.size));
        let (number, out) = (product.number.library(), product.y.2.library());
        let desc = lt::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, Number::F32.library())
            .map_err(wrong())?;
        // CUBLAS_OP_T.
        let turned = 1i32;
        let attribute = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        // SAFETY: a live descriptor and a number of the attribute's size.
        unsafe { lt::set_matmul_desc_attribute(desc, attribute, std::ptr::from_ref(&turned).cast(), 4) }
            .map_err(wrong())?;
        let layout = |number, rows: usize, columns: usize, step: usize| {
            lt::create_matrix_layout(number, rows as u64, columns as u64, step as i64).map_err(wrong())
        };
        Ok(Self {
            desc,
            a: layout(number, k, n, product.w.1)?,
            b: layout(number, k, m, product.x.1)?,
            c: layout(out, n, m, product.c.map_or(product.y.1, |(_, step)| step))?,
            d: layout(out, n, m, product.y.1)?,
        })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // SAFETY: made by `new`; the library keeps nothing of them after a call.
        unsafe {
            for layout in [self.a, self.b, self.c, self.d] {
                let _ = lt::destroy_matrix_layout(layout);
            }
            let _ = lt::destroy_matmul_desc(self.desc);
        }
    }
}
