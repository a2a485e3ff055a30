//! Kernel text to machine code: NVRTC, and a cache of cubins.
//!
//! A cubin is named by the digest of everything it depends on: the text with its includes, options, architecture and NVRTC's
//! version. The cache is a folder; it may be deleted at any time. Includes are the files of `cu/` and are put in place here, so
//! that no header of a toolkit is needed.

use super::device::{Absent, Device};
use super::error::CudaError;
use crit_core::digest::Digest;
use cudarc::driver::{result, sys};
use cudarc::nvrtc::sys as nvrtc;
use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};
use std::sync::Arc;

macro_rules! files {
    ($($name:literal),+ $(,)?) => { &[$(($name, include_str!(concat!("cu/", $name)))),+] };
}

/// The kernel files.
pub const FILES: &[(&str, &str)] = files![
    "attend.cuh",
    "crit.cuh",
    "elementwise.cu",
    "forms.cuh",
    "gemv.cuh",
    "heads.cu",
    "heads.cuh",
    "moe.cu",
    "probe.cu",
    "unpack.cu"
];

/// The text of a kernel file with its includes in place, each once.
///
/// # Panics
/// A file that is not in [`FILES`].
pub fn text(name: &str) -> String {
    let mut out = String::new();
    put(name, &mut Vec::new(), &mut out);
    out
}

fn put<'a>(name: &'a str, seen: &mut Vec<&'a str>, out: &mut String) {
    if seen.contains(&name) {
        return;
    }
    seen.push(name);
    let (_, text) = FILES.iter().find(|(file, _)| *file == name).unwrap_or_else(|| panic!("no kernel file {name}"));
    let mut line = 1;
    out.push_str(&format!("#line {line} \"{name}\"\n"));
    for text in text.lines() {
        line += 1;
        match text.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"')) {
            Some(included) => {
                put(included, seen, out);
                out.push_str(&format!("#line {line} \"{name}\"\n"));
            }
            None if text.trim() == "#pragma once" => out.push('\n'),
            None => {
                out.push_str(text);
                out.push('\n');
            }
        }
    }
}

/// Where cubins are kept: `CRIT_CACHE`, else the user's cache folder.
pub fn cache_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("CRIT_CACHE").or_else(|| set("XDG_CACHE_HOME").map(|base| base.join("crit")));
    Some(base.or_else(|| set("HOME").map(|home| home.join(".cache/crit")))?.join("cubin"))
}

/// NVRTC's version.
///
/// # Errors
/// It is not there.
pub fn nvrtc_version() -> Result<(i32, i32), CudaError> {
    // SAFETY: looks for the library, then asks it for two numbers.
    unsafe {
        if !nvrtc::is_culib_present() {
            return Err(Absent::NoLibrary("NVRTC (libnvrtc)").into());
        }
        let (mut major, mut minor) = (0, 0);
        let _ = nvrtc::nvrtcVersion(&mut major, &mut minor);
        Ok((major, minor))
    }
}

/// Compiles `text`, called `file` in messages, for `arch` (`sm_90a`).
///
/// # Errors
/// NVRTC is missing, or the text does not compile; the log names kernel and line.
pub fn compile(file: &str, text: &str, arch: &str) -> Result<Vec<u8>, CudaError> {
    nvrtc_version()?;
    let wrong = |log: String| CudaError::Compile { file: file.into(), arch: arch.into(), log };
    let c = |text: &str| CString::new(text).map_err(|_| wrong("a zero byte in the text".into()));
    let (source, name) = (c(text)?, c(file)?);
    let options = [c(&format!("--gpu-architecture={arch}"))?, c("--std=c++17")?, c("-lineinfo")?];
    let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: all strings live until the program is destroyed; buffers have the sizes NVRTC names.
    unsafe {
        let mut program = std::ptr::null_mut();
        let none = std::ptr::null();
        if nvrtc::nvrtcCreateProgram(&mut program, source.as_ptr(), name.as_ptr(), 0, none, none).result().is_err() {
            return Err(wrong("NVRTC does not take the text".into()));
        }
        let status = nvrtc::nvrtcCompileProgram(program, pointers.len() as i32, pointers.as_ptr()).result();
        let out = if status.is_ok() {
            let mut size = 0;
            let _ = nvrtc::nvrtcGetCUBINSize(program, &mut size);
            let mut cubin = vec![0u8; size];
            match nvrtc::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast()).result() {
                Ok(()) if size > 0 => Ok(cubin),
                _ => Err(wrong("NVRTC gives no machine code".into())),
            }
        } else {
            let mut size = 0;
            let _ = nvrtc::nvrtcGetProgramLogSize(program, &mut size);
            let mut log = vec![0u8; size.max(1)];
            let _ = nvrtc::nvrtcGetProgramLog(program, log.as_mut_ptr().cast());
            Err(wrong(String::from_utf8_lossy(&log).trim_end_matches('\0').trim().into()))
        };
        let _ = nvrtc::nvrtcDestroyProgram(&mut program);
        out
    }
}

fn cached(folder: Option<&Path>, file: &str, text: &str, arch: &str) -> Result<Vec<u8>, CudaError> {
    let (major, minor) = nvrtc_version()?;
    let key = Digest::of_parts([text.as_bytes(), arch.as_bytes(), format!("nvrtc {major}.{minor}, crit 1").as_bytes()]);
    let path = folder.map(|folder| folder.join(format!("{}.cubin", key.to_string().replace(':', "-"))));
    if let Some(cubin) = path.as_ref().and_then(|path| std::fs::read(path).ok()).filter(|cubin| !cubin.is_empty()) {
        return Ok(cubin);
    }
    let cubin = compile(file, text, arch)?;
    if let Some(path) = path {
        keep(&path, &cubin);
    }
    Ok(cubin)
}

/// A cache that cannot be written to is no error: the next start compiles again.
fn keep(path: &Path, cubin: &[u8]) {
    let Some(folder) = path.parent() else { return };
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&part, cubin));
    if written.and_then(|()| std::fs::rename(&part, path)).is_err() {
        let _ = std::fs::remove_file(&part);
        tracing::debug!(path = %path.display(), "cubin not kept");
    }
}

/// A kernel ready to be launched.
#[derive(Clone, Copy, Debug)]
pub struct Function(pub(super) sys::CUfunction);

// SAFETY: a handle into a module that outlives it; launching from any thread is allowed.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// The kernels of an engine, by name.
#[derive(Debug)]
pub struct Kernels {
    device: Arc<Device>,
    modules: Vec<sys::CUmodule>,
    functions: HashMap<String, Function>,
}

// SAFETY: handles of the device's context.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Compiles `sources` (file name and text) side by side and loads them.
    ///
    /// # Errors
    /// The first that does not compile or load.
    pub fn load(device: &Arc<Device>, sources: &[(String, String)]) -> Result<Self, CudaError> {
        let (arch, folder) = (device.arch(), cache_folder());
        let cubins: Vec<Result<Vec<u8>, CudaError>> = std::thread::scope(|scope| {
            let one = |(file, text): &(String, String)| cached(folder.as_deref(), file, text, &arch);
            let threads: Vec<_> = sources.iter().map(|source| scope.spawn(move || one(source))).collect();
            let lost = || CudaError::Driver { what: "compiling", why: "a thread ended early".into() };
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(lost()))).collect()
        });
        device.make_current()?;
        let mut kernels = Self { device: device.clone(), modules: Vec::new(), functions: HashMap::new() };
        for ((_, text), cubin) in sources.iter().zip(cubins) {
            let cubin = cubin?;
            // SAFETY: a whole cubin for this device; the module is unloaded in `drop`.
            let module = unsafe { result::module::load_data(cubin.as_ptr().cast()) }
                .map_err(CudaError::driver("loading a cubin"))?;
            kernels.modules.push(module);
            for name in names(text) {
                let symbol = CString::new(name).unwrap_or_default();
                // SAFETY: the module is loaded.
                let function = unsafe { result::module::get_function(module, symbol) }
                    .map_err(CudaError::driver("finding a kernel"))?;
                // A multiprocessor that changes its share of shared memory between kernels has to run empty first.
                let carveout = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
                // SAFETY: a live function; 100 per cent is a valid share.
                unsafe { result::function::set_function_attribute(function, carveout, 100) }
                    .map_err(CudaError::driver("carve-out"))?;
                kernels.functions.insert(name.to_string(), Function(function));
            }
        }
        Ok(kernels)
    }

    /// The kernel called `name`.
    ///
    /// # Errors
    /// It was not compiled.
    pub fn get(&self, name: &str) -> Result<Function, CudaError> {
        let missing = || CudaError::NoKernel { op: name.into(), why: "it was not compiled".into() };
        self.functions.get(name).copied().ok_or_else(missing)
    }

    /// The same, allowed `bytes` of shared memory.
    ///
    /// # Errors
    /// It was not compiled, or the device does not have as much.
    pub fn get_with_shared(&self, name: &str, bytes: u32) -> Result<Function, CudaError> {
        let function = self.get(name)?;
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        self.device.make_current()?;
        // SAFETY: a live function.
        unsafe { result::function::set_function_attribute(function.0, attribute, bytes as i32) }
            .map_err(CudaError::driver("shared memory of a kernel"))?;
        Ok(function)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let _ = self.device.make_current();
        let _ = self.device.wait();
        for module in &self.modules {
            // SAFETY: loaded by `load`, unused from here on.
            let _ = unsafe { result::module::unload(*module) };
        }
    }
}

/// Names of the kernels in a text: what stands after `extern "C" __global__ void` and launch bounds, and what macros make.
fn names(text: &str) -> Vec<&str> {
    let mut macros: Vec<&str> = Vec::new();
    let mut out = Vec::new();
    for line in text.lines() {
        if let Some(definition) = line.strip_prefix("#define ") {
            if definition.contains("extern \"C\" __global__ void name(") {
                macros.extend(definition.split('(').next());
            }
            continue;
        }
        if let Some(rest) = line.strip_prefix("extern \"C\" __global__ void ") {
            let rest = match rest.strip_prefix("__launch_bounds__(") {
                Some(bounds) => bounds.split_once(") ").map_or("", |(_, rest)| rest),
                None => rest,
            };
            out.extend(rest.split('(').next().map(str::trim));
        }
        if let Some((name, rest)) = line.split_once('(')
            && macros.contains(&name)
        {
            out.extend(rest.split(',').next().map(str::trim));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn includes_stand_in_their_place_once_and_kernels_are_named() {
        let text = text("unpack.cu");
        assert_eq!(text.matches("typedef unsigned char u8;").count(), 1);
        assert!(!text.contains("#include") && text.contains("#line 1 \"crit.cuh\""));
        assert_eq!(names(&text), ["unpack_q8", "unpack_q4k", "unpack_q6k", "embed_q8", "embed_q4k", "embed_q6k"]);
        let bound = "extern \"C\" __global__ void __launch_bounds__(128, 3) attend(int x) {}";
        assert_eq!(names(bound), ["attend"]);
    }

    // A check that is skipped says so.
    #[allow(clippy::print_stdout)]
    #[test]
    fn every_file_compiles_and_errors_name_file_and_line() {
        if let Err(error) = nvrtc_version() {
            println!("skipped: {error}");
            return;
        }
        for arch in ["sm_80", "sm_90a"] {
            for (file, _) in FILES.iter().filter(|(file, _)| file.ends_with(".cu")) {
                compile(file, &text(file), arch).unwrap();
            }
        }
        let error =
            compile("broken.cu", "#line 7 \"broken.cu\"\n__global__ void f() { nothing }", "sm_80").unwrap_err();
        assert!(error.to_string().contains("broken.cu(7)"), "{error}");
    }
}
