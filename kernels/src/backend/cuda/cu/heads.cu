// Heads by themselves, and blocks of the cache.
#include "heads.cuh"

// Grid: (tokens, warps' worth of all parts' heads / 4); 4 warps a block; room for 4 heads.
extern "C" __global__ void heads(const __grid_constant__ HeadsArgs a, Tables t) {
    extern __shared__ float room[];
    dependents_may_start();
    wait_for_inputs();
    u32 head = blockIdx.y * 4 + (threadIdx.x >> 5), dims = 0, token = blockIdx.x;
    int seq = t.seq_of[token];
    if (seq < 0) return;
    u32 position = t.positions[token];
    for (u32 p = 0; p < a.parts; p++) dims = max(dims, a.part[p].dim);
    for (u32 p = 0; p < a.parts; p++) {
        if (head < a.part[p].heads) {
            float* own = room + (threadIdx.x >> 5) * dims;
            turned_head(a.part[p], t, token, head, seq, position, own);
            put_head(a.part[p], t, token, head, seq, position, own);
            return;
        }
        head -= a.part[p].heads;
    }
}

// A block of the cache to another, in one state.
extern "C" __global__ void copy_block(uint4* to, const uint4* from, u32 n) {
    dependents_may_start();
    wait_for_inputs();
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) to[i] = from[i];
}
