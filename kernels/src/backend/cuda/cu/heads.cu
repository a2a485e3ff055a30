// What happens to queries, keys and values between their projection and attention: a norm over each head, rotation, and
// where they go. One warp a head of a token.
//
// A page of the cache is a block of 16 positions of one key/value head: keys [16][key_dim], then values turned, [value_dim]
// [16], both f16. The 16 positions of a value row stand in the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15: a lane of the
// tensor cores' second operand finds its four side by side. See attend.cuh.
#include "crit.cuh"

struct HeadArgs {
    const bf16* x;       // [T][stride]
    u64 stride;
    void* out;           // to 0: bf16 [T][out_stride], 1: f16 [T][out_stride], 2: keys of pages, 3: values of pages
    u64 out_stride;
    const float* norm;   // [dim] or null
    const float* freq;   // radians a position for each pair, or null
    const float* freq_long;
    u32 heads, dim, pairs, offset, long_above, every;
    int interleaved, to;
    float eps, magnitude;
    u64 block_bytes, head_bytes, values_at;
};
struct HeadsArgs { HeadArgs part[3]; u32 parts; };

DEV u32 value_slot(u32 t) { return t < 8 ? (t >> 1) * 4 + (t & 1) : ((t - 8) >> 1) * 4 + 2 + (t & 1); }

DEV void one_head(const HeadArgs& h, const Tables& t, u32 token, u32 head, float* own) {
    u32 lane = threadIdx.x & 31;
    int seq = t.seq_of[token];
    if (seq < 0) return;
    u32 position = t.positions[token];
    const bf16* x = h.x + token * h.stride + head * h.dim;
    float squares = 0.0f;
    for (u32 i = lane; i < h.dim; i += 32) { float v = to_f(x[i]); own[i] = v; squares += v * v; }
    if (h.norm) {
        float scale = rsqrtf(warp_sum(squares) / (float)h.dim + h.eps);
        for (u32 i = lane; i < h.dim; i += 32) own[i] *= scale * h.norm[i];
    }
    __syncwarp();
    if (h.freq) {
        const float* freq = h.freq_long && t.seq_length[seq] > h.long_above ? h.freq_long : h.freq;
        float turn = (float)(position - position % h.every);
        for (u32 i = lane; i < h.pairs; i += 32) {
            u32 a = h.offset + (h.interleaved ? 2 * i : i), b = h.offset + (h.interleaved ? 2 * i + 1 : i + h.pairs);
            float s, c;
            sincosf(turn * freq[i], &s, &c);
            s *= h.magnitude;
            c *= h.magnitude;
            float u = own[a], v = own[b];
            own[a] = u * c - v * s;
            own[b] = v * c + u * s;
        }
        __syncwarp();
    }
    if (h.to == 0) {
        bf16* o = (bf16*)h.out + token * h.out_stride + head * h.dim;
        for (u32 i = lane; i < h.dim; i += 32) o[i] = from_f<bf16>(own[i]);
    } else if (h.to == 1) {
        f16* o = (f16*)h.out + token * h.out_stride + head * h.dim;
        for (u32 i = lane; i < h.dim; i += 32) o[i] = from_f<f16>(own[i]);
    } else {
        u32 block = t.blocks[(u64)seq * t.block_stride + (position >> 4)], at = position & 15;
        u8* page = (u8*)h.out + block * h.block_bytes + head * h.head_bytes;
        if (h.to == 2) {
            f16* o = (f16*)page + at * h.dim;
            for (u32 i = lane; i < h.dim; i += 32) o[i] = from_f<f16>(own[i]);
        } else {
            f16* o = (f16*)(page + h.values_at) + value_slot(at);
            for (u32 i = lane; i < h.dim; i += 32) o[i * 16] = from_f<f16>(own[i]);
        }
    }
}

// Grid: (tokens, warps' worth of all parts' heads / 4); 4 warps a block; room for 4 heads.
extern "C" __global__ void heads(const __grid_constant__ HeadsArgs a, Tables t) {
    extern __shared__ float room[];
    dependents_may_start();
    wait_for_inputs();
    u32 head = blockIdx.y * 4 + (threadIdx.x >> 5), dims = 0;
    for (u32 p = 0; p < a.parts; p++) dims = max(dims, a.part[p].dim);
    for (u32 p = 0; p < a.parts; p++) {
        if (head < a.part[p].heads) { one_head(a.part[p], t, blockIdx.x, head, room + (threadIdx.x >> 5) * dims); return; }
        head -= a.part[p].heads;
    }
}

// A block of the cache to another, in one state.
extern "C" __global__ void copy_block(uint4* to, const uint4* from, u32 n) {
    dependents_may_start();
    wait_for_inputs();
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) to[i] = from[i];
}
