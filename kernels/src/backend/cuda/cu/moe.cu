// Choice of experts, and the sum of what they give. The experts' products are `gemv_plain` over choices.
#include "crit.cuh"

struct RouteArgs {
    const float* logits; u64 stride;
    float* ids; u64 ids_stride;
    float* weights; u64 weights_stride;
    const float* bias;     // of the choice, or null
    const float* factors;  // of each expert, or null
    u32 experts, top_k;
    int score;             // 0 softmax, 1 sigmoid, 2 sqrt(softplus)
    int normalised;
    float factor;
};

// A warp a token; room for the experts' scores and choices. Among equals the lower number comes first.
extern "C" __global__ void moe_route(RouteArgs a, u32 tokens) {
    extern __shared__ float room[];
    dependents_may_start();
    wait_for_inputs();
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, token = blockIdx.x * (blockDim.x >> 5) + warp;
    if (token >= tokens) return;
    const float none = -__int_as_float(0x7f800000);
    const float* x = a.logits + token * a.stride;
    float *scores = room + warp * 2 * a.experts, *choice = scores + a.experts;
    float top = none;
    for (u32 e = lane; e < a.experts; e += 32) top = fmaxf(top, x[e]);
    top = warp_max(top);
    float sum = 0.0f;
    for (u32 e = lane; e < a.experts; e += 32) {
        float v = x[e], s = a.score == 0 ? expf(v - top) : (a.score == 1 ? 1.0f / (1.0f + expf(-v)) : sqrtf(fmaxf(v, 0.0f) + log1pf(expf(-fabsf(v)))));
        scores[e] = s;
        sum += s;
    }
    if (a.score == 0) {
        sum = warp_sum(sum);
        for (u32 e = lane; e < a.experts; e += 32) scores[e] /= sum;
    }
    for (u32 e = lane; e < a.experts; e += 32) choice[e] = scores[e] + (a.bias ? a.bias[e] : 0.0f);
    __syncwarp();
    float all = 0.0f;
    for (u32 k = 0; k < a.top_k; k++) {
        float best = none;
        u32 who = 0xffffffffu;
        for (u32 e = lane; e < a.experts; e += 32) if (choice[e] > best) { best = choice[e]; who = e; }
#pragma unroll
        for (int d = 16; d > 0; d >>= 1) {
            float other = __shfl_xor_sync(FULL, best, d);
            u32 id = __shfl_xor_sync(FULL, who, d);
            if (other > best || (other == best && id < who)) { best = other; who = id; }
        }
        who = min(who, a.experts - 1);
        if (lane == 0) {
            a.ids[token * a.ids_stride + k] = (float)who;
            a.weights[token * a.weights_stride + k] = scores[who];
            choice[who] = none;
        }
        all += scores[who];
        __syncwarp();
    }
    float divisor = a.normalised ? all + 1e-20f : 1.0f;
    for (u32 k = lane; k < a.top_k; k += 32) {
        float* w = a.weights + token * a.weights_stride + k;
        *w = *w / divisor * a.factor * (a.factors ? a.factors[(u32)a.ids[token * a.ids_stride + k]] : 1.0f);
    }
}

// out[t] = sum_k weight[t][k] * given[t * top_k + k]
extern "C" __global__ void moe_join(const float* given, u64 gs, const float* weights, u64 ws, u32 top_k, void* out, u64 os, u32 width, int out_f32) {
    dependents_may_start();
    wait_for_inputs();
    u64 token = blockIdx.y;
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    float sum = 0.0f;
    for (u32 k = 0; k < top_k; k++) sum += weights[token * ws + k] * given[(token * top_k + k) * gs + i];
    if (out_f32) ((float*)out)[token * os + i] = sum; else ((bf16*)out)[token * os + i] = from_f<bf16>(sum);
}
