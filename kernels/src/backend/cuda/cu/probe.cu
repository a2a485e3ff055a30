// The limits of the device, as bare loops: reading, copying, and doing nothing.
#include "crit.cuh"

// Reads 16 bytes a thread, four in flight, and keeps a sum so that nothing is left out.
extern "C" __global__ void probe_read(const uint4* from, u64 n, u32* sink) {
    u64 step = (u64)gridDim.x * blockDim.x, i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u32 sum = 0;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 a = __ldcs(from + i), b = __ldcs(from + i + step), c = __ldcs(from + i + 2 * step), d = __ldcs(from + i + 3 * step);
        sum ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    for (; i < n; i += step) { uint4 a = from[i]; sum ^= a.x ^ a.y ^ a.z ^ a.w; }
    if (sum == 0x9e3779b9u) *sink = sum;
}

extern "C" __global__ void probe_copy(const uint4* from, uint4* to, u64 n) {
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) __stcs(to + i, __ldcs(from + i));
}

extern "C" __global__ void probe_nothing() {
    dependents_may_start();
    wait_for_inputs();
}

// Values of a normal-like distribution (sum of four uniform numbers), bf16.
extern "C" __global__ void probe_random(bf16* to, u64 n, u32 seed) {
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        u32 h = (u32)i * 2654435761u ^ seed;
        float sum = 0.0f;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            h ^= h >> 16; h *= 0x7feb352du; h ^= h >> 15; h *= 0x846ca68bu; h ^= h >> 16;
            sum += (float)(h >> 8) * (1.0f / 16777216.0f) - 0.5f;
        }
        to[i] = from_f<bf16>(sum);
    }
}
