// What every kernel starts from: number types, loads of 16 bytes, sums over threads, programmatic launch.
// No header of the toolkit is used, so that a machine with a driver and NVRTC alone can compile this.

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
#define DEV static __device__ __forceinline__
#define MEM __device__ __forceinline__
#define FULL 0xffffffffu

struct bf16 { u16 v; };
struct f16 { u16 v; };

DEV float to_f(float x) { return x; }
DEV float to_f(bf16 x) { return __uint_as_float((u32)x.v << 16); }
DEV float half_bits(u16 v) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v)); return f; }
DEV float to_f(f16 x) { return half_bits(x.v); }

template <class T> MEM T from_f(float x);
template <> MEM float from_f<float>(float x) { return x; }
template <> MEM bf16 from_f<bf16>(float x) { bf16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.v) : "f"(x)); return r; }
// Values beyond the range of f16 are held at its largest; NaN stays NaN.
template <> MEM f16 from_f<f16>(float x) {
    f16 r;
    float y = x > 65504.0f ? 65504.0f : (x < -65504.0f ? -65504.0f : x);
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.v) : "f"(y));
    return r;
}
DEV u32 pack_f16(float lo, float hi) { return (u32)from_f<f16>(lo).v | ((u32)from_f<f16>(hi).v << 16); }
DEV u32 pack_f16_fast(float lo, float hi) { u32 r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r; }
DEV u32 pack_bf16(float lo, float hi) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r; }
DEV float lo_bf16(u32 v) { return __uint_as_float(v << 16); }
DEV float hi_bf16(u32 v) { return __uint_as_float(v & 0xffff0000u); }
DEV float lo_f16(u32 v) { return half_bits((u16)v); }
DEV float hi_f16(u32 v) { return half_bits((u16)(v >> 16)); }

// Eight consecutive values as floats; the pointer is aligned to their size together.
DEV void load8(const float* p, float* o) {
    float4 a = *(const float4*)p, b = *(const float4*)(p + 4);
    o[0] = a.x; o[1] = a.y; o[2] = a.z; o[3] = a.w; o[4] = b.x; o[5] = b.y; o[6] = b.z; o[7] = b.w;
}
DEV void load8(const bf16* p, float* o) {
    uint4 a = *(const uint4*)p;
    o[0] = lo_bf16(a.x); o[1] = hi_bf16(a.x); o[2] = lo_bf16(a.y); o[3] = hi_bf16(a.y);
    o[4] = lo_bf16(a.z); o[5] = hi_bf16(a.z); o[6] = lo_bf16(a.w); o[7] = hi_bf16(a.w);
}
DEV void load8(const f16* p, float* o) {
    uint4 a = *(const uint4*)p;
    o[0] = lo_f16(a.x); o[1] = hi_f16(a.x); o[2] = lo_f16(a.y); o[3] = hi_f16(a.y);
    o[4] = lo_f16(a.z); o[5] = hi_f16(a.z); o[6] = lo_f16(a.w); o[7] = hi_f16(a.w);
}

DEV float warp_sum(float v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(FULL, v, d);
    return v;
}
DEV float warp_max(float v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v = fmaxf(v, __shfl_xor_sync(FULL, v, d));
    return v;
}
// Sum over the block; `part` has room for 32 floats. Every thread gets it, and may use `part` again after a barrier.
DEV float block_sum(float v, float* part) {
    v = warp_sum(v);
    int warps = (blockDim.x + 31) >> 5;
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < warps; i++) sum += part[i];
    __syncthreads();
    return sum;
}

// Programmatic launch: the next kernel may be set up from here on ...
DEV void dependents_may_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// ... and everything kernels before this one wrote is there from here on. Every kernel calls it before it touches
// anything but weights, so that a kernel's end implies the end of all before it.
DEV void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

DEV float activate(int kind, float x) {
    switch (kind) {
    case 0: return x / (1.0f + __expf(-x));
    case 1: {
        float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
        return 0.5f * x * (1.0f + tanhf(inner));
    }
    case 2: return 1.0f / (1.0f + __expf(-x));
    case 3: { float r = fmaxf(x, 0.0f); return r * r; }
    default: return tanhf(x);
    }
}

// The step's tables; all of it lies in one buffer that the host fills before a step.
struct Tables {
    const u32* tokens;      // [T]
    const u32* positions;   // [T]
    const int* seq_of;      // [T], -1 for padding
    const u32* rows;        // [R]
    const u32* seq_first;   // [S]
    const u32* seq_tokens;  // [S], 0 for padding
    const u32* seq_past;    // [S]
    const u32* seq_length;  // [S]
    const u32* blocks;      // [S][block_stride]
    u32 block_stride;
};
