// What happens to queries, keys and values between their projection and attention: a norm over each head, rotation, and
// where they go. One warp a head of a token.
//
// A page of the cache is a block of 16 positions of one key/value head: keys [16][key_dim], then values turned, [value_dim]
// [16], both f16. The 16 positions of a value row stand in the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15: a lane of the
// tensor cores' second operand finds its four side by side. See attend.cuh.
#pragma once
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

// Cosine and sine of pair i at a position.
DEV float2 turn_of(const HeadArgs& h, const Tables& t, int seq, u32 position, u32 i) {
    const float* freq = h.freq_long && t.seq_length[seq] > h.long_above ? h.freq_long : h.freq;
    u32 at = h.every > 1 ? position - position % h.every : position;
    // The angle less whole turns, in three parts of 2 pi whose products with the number of turns are exact; what is left is within
    // the range where the device's own sine and cosine are good to 2^-20.
    float angle = (float)at * freq[i], turns = rintf(angle * 0.15915494309189535f);
    float left = fmaf(-turns, 6.28125f, angle);
    left = fmaf(-turns, 1.93500518798828125e-3f, left);
    left = fmaf(-turns, 3.0199159819e-7f, left);
    return make_float2(__cosf(left) * h.magnitude, __sinf(left) * h.magnitude);
}

// A warp norms and turns one head of a token of sequence `seq`; `own` is the warp's room for it. `turns` holds cosines and sines of
// all pairs and `weight` the norm's weight, if they are known already.
DEV void turned_head(const HeadArgs& h, const Tables& t, u32 token, u32 head, int seq, u32 position, float* own, const float2* turns = 0, const float* weight = 0) {
    u32 lane = threadIdx.x & 31;
    if (!weight) weight = h.norm;
    const bf16* x = h.x + token * h.stride + head * h.dim;
    float squares = 0.0f;
    for (u32 i = lane; i < h.dim; i += 32) { float v = to_f(x[i]); own[i] = v; squares += v * v; }
    if (h.norm) {
        float scale = rsqrtf(warp_sum(squares) / (float)h.dim + h.eps);
        for (u32 i = lane; i < h.dim; i += 32) own[i] *= scale * weight[i];
    }
    __syncwarp();
    if (h.freq) {
        for (u32 i = lane; i < h.pairs; i += 32) {
            u32 a = h.offset + (h.interleaved ? 2 * i : i), b = h.offset + (h.interleaved ? 2 * i + 1 : i + h.pairs);
            float2 turn = turns ? turns[i] : turn_of(h, t, seq, position, i);
            float c = turn.x, s = turn.y;
            float u = own[a], v = own[b];
            own[a] = u * c - v * s;
            own[b] = v * c + u * s;
        }
    }
    __syncwarp();
}

// And puts it where it belongs.
DEV void put_head(const HeadArgs& h, const Tables& t, u32 token, u32 head, int seq, u32 position, const float* own) {
    u32 lane = threadIdx.x & 31;
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
