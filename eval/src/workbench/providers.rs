//! Where kernels can be had: what each provider covers and how an engine would call it.
//!
//! Facts to find one's way by, not measurements: what a provider's own documentation says of itself. None is fetched or
//! linked here; the ones marked `bench` can be timed on this machine if it has them.

use serde::Serialize;

/// A source of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Provider {
    /// Its name.
    pub name: &'static str,
    /// What it computes.
    pub covers: &'static str,
    /// Number formats.
    pub dtypes: &'static str,
    /// Where it runs.
    pub runs_on: &'static str,
    /// Its licence.
    pub licence: &'static str,
    /// How an engine calls it.
    pub call: &'static str,
    /// Whether `crit kernels bench` times it here when it is installed, as which yardstick.
    pub bench: Option<&'static str>,
}

/// The providers, sorted by name.
pub const PROVIDERS: &[Provider] = &[
    Provider {
        name: "CUTLASS",
        covers: "matrix products and grouped products, epilogue fusion, attention examples",
        dtypes: "f32 tf32 bf16 f16 fp8 int8 int4 mxfp4 nvfp4",
        runs_on: "NVIDIA GPUs",
        licence: "BSD-3-Clause",
        call: "C++ templates or the CuTe DSL; compile a .cu and load its cubin",
        bench: None,
    },
    Provider {
        name: "Composable Kernel",
        covers: "matrix products, fused attention, normalisation, convolutions",
        dtypes: "f32 bf16 f16 fp8 int8",
        runs_on: "AMD GPUs (CDNA, RDNA)",
        licence: "MIT",
        call: "C++ templates instantiated at build time, HIP",
        bench: None,
    },
    Provider {
        name: "FlashAttention",
        covers: "attention forward and backward, paged and split-KV decoding",
        dtypes: "bf16 f16, fp8 in version 3",
        runs_on: "NVIDIA GPUs from Ampere on; AMD through Composable Kernel",
        licence: "BSD-3-Clause",
        call: "C++ behind a Python extension; the .cu files can be compiled alone",
        bench: None,
    },
    Provider {
        name: "FlashInfer",
        covers: "attention for serving (paged, ragged, cascade, MLA), sampling, norms, rotary, MoE",
        dtypes: "bf16 f16 fp8 nvfp4",
        runs_on: "NVIDIA GPUs from Turing on",
        licence: "Apache-2.0",
        call: "header-only CUDA, compiled at run time; plan and run calls",
        bench: None,
    },
    Provider {
        name: "Hugging Face Kernel Hub",
        covers: "community kernels of every kind, by repository",
        dtypes: "by kernel",
        runs_on: "NVIDIA, AMD, Apple, Intel, by kernel",
        licence: "by kernel",
        call: "prebuilt shared libraries for Python; sources beside them",
        bench: None,
    },
    Provider {
        name: "MLX",
        covers: "matrix products, quantised products, attention, norms",
        dtypes: "f32 bf16 f16, 2 to 8 bit groups",
        runs_on: "Apple silicon",
        licence: "MIT",
        call: "C++ library or its Metal kernel sources",
        bench: None,
    },
    Provider {
        name: "Marlin",
        covers: "products of 4-bit weights and 16-bit activations, sparse and FP8 variants",
        dtypes: "int4 and fp8 weights, bf16 and f16 activations",
        runs_on: "NVIDIA GPUs from Ampere on",
        licence: "Apache-2.0",
        call: "one .cu file; weights are repacked once",
        bench: None,
    },
    Provider {
        name: "Metal Performance Shaders",
        covers: "matrix products, convolutions, graphs",
        dtypes: "f32 bf16 f16 int8",
        runs_on: "Apple GPUs",
        licence: "Apple's SDK licence",
        call: "Objective-C or Swift framework of the system",
        bench: None,
    },
    Provider {
        name: "OpenBLAS",
        covers: "dense linear algebra: products of matrices and vectors",
        dtypes: "f32 f64, bf16 products on some machines",
        runs_on: "CPUs: x86, ARM, POWER, RISC-V, LoongArch",
        licence: "BSD-3-Clause",
        call: "C library, cblas_sgemm",
        bench: Some("openblas"),
    },
    Provider {
        name: "Triton",
        covers: "whatever is written in its language: products, attention, fused element-wise",
        dtypes: "f32 tf32 bf16 f16 fp8 int8 mxfp4",
        runs_on: "NVIDIA and AMD GPUs",
        licence: "MIT",
        call: "compile ahead of time to a cubin and launch it through the driver",
        bench: None,
    },
    Provider {
        name: "cuBLASLt",
        covers: "matrix products with epilogues, chosen by heuristics",
        dtypes: "f32 tf32 bf16 f16 fp8 int8 nvfp4",
        runs_on: "NVIDIA GPUs",
        licence: "NVIDIA's EULA, free to link",
        call: "C library of the CUDA toolkit, cublasLtMatmul",
        bench: None,
    },
    Provider {
        name: "cuDNN",
        covers: "attention, convolutions, norms, as fused graphs",
        dtypes: "f32 tf32 bf16 f16 fp8 int8",
        runs_on: "NVIDIA GPUs",
        licence: "NVIDIA's EULA",
        call: "C library with a graph API",
        bench: None,
    },
    Provider {
        name: "flash-linear-attention",
        covers: "linear attention and state space layers: gated delta nets, Mamba-2, RWKV",
        dtypes: "f32 bf16 f16",
        runs_on: "NVIDIA, AMD and Intel GPUs through Triton",
        licence: "MIT",
        call: "Triton kernels behind Python; cubins can be kept",
        bench: None,
    },
    Provider {
        name: "ggml",
        covers: "quantised matrix products, attention, everything a transformer needs",
        dtypes: "f32 bf16 f16, 1.5 to 8 bit blocks, mxfp4",
        runs_on: "CPUs, NVIDIA, AMD, Apple, Intel and Vulkan GPUs",
        licence: "MIT",
        call: "C library; operates on its own graph",
        bench: None,
    },
    Provider {
        name: "hipBLASLt",
        covers: "matrix products with epilogues",
        dtypes: "f32 bf16 f16 fp8 int8",
        runs_on: "AMD GPUs (CDNA)",
        licence: "MIT",
        call: "C library of ROCm, like cuBLASLt",
        bench: None,
    },
    Provider {
        name: "oneDNN",
        covers: "matrix products with post-operations, attention pieces, norms",
        dtypes: "f32 bf16 f16 int8, fp8 on some machines",
        runs_on: "CPUs (x86, ARM), Intel GPUs",
        licence: "Apache-2.0",
        call: "C and C++ library, dnnl_sgemm or its primitives",
        bench: Some("onednn"),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorted_whole_and_each_once() {
        assert!(PROVIDERS.is_sorted_by(|a, b| a.name < b.name));
        for one in PROVIDERS {
            let facts = [one.covers, one.dtypes, one.runs_on, one.licence, one.call];
            assert!(facts.iter().all(|fact| !fact.is_empty()), "{}", one.name);
        }
    }
}
