// Ops that work element by element or row by row: embedding, norms, sums, activations, rows.
#include "crit.cuh"

// Row `token` of a table, times a factor. Table rows are bf16, f16 or f32; packed tables have kernels of their own.
template <class W, class O>
DEV void embed_body(Tables t, const W* table, u32 step, O* out, u32 stride, u32 width, u32 last, float scale) {
    dependents_may_start();
    wait_for_inputs();
    u32 token = min(t.tokens[blockIdx.x], last);
    const W* row = table + (u64)token * step;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) out[(u64)blockIdx.x * stride + i] = from_f<O>(to_f(row[i]) * scale);
}
#define EMBED(name, W) extern "C" __global__ void name(Tables t, const W* table, u32 step, float* out, u32 stride, u32 width, u32 last, float scale) { embed_body<W, float>(t, table, step, out, stride, width, last, scale); }
EMBED(embed_bf16, bf16)
EMBED(embed_f16, f16)

// y = x / sqrt(mean(x^2) + eps) * w over groups of `group` elements; a block a group. `w` repeats every `period` groups.
template <class X, class Y>
DEV void rms_norm_body(const X* x, u32 xs, Y* y, u32 ys, const float* w, u32 group, u32 groups, u32 period, float eps, float* part) {
    dependents_may_start();
    u32 row = blockIdx.x / groups, g = blockIdx.x % groups;
    const float* weight = w ? w + (u64)(g % period) * group : 0;
    wait_for_inputs();
    const X* in = x + (u64)row * xs + (u64)g * group;
    Y* out = y + (u64)row * ys + (u64)g * group;
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < group; i += blockDim.x) { float v = to_f(in[i]); sum += v * v; }
    float scale = rsqrtf(block_sum(sum, part) / (float)group + eps);
    for (u32 i = threadIdx.x; i < group; i += blockDim.x) out[i] = from_f<Y>(to_f(in[i]) * scale * (weight ? weight[i] : 1.0f));
}
#define RMS_NORM(name, X, Y) extern "C" __global__ void name(const X* x, u32 xs, Y* y, u32 ys, const float* w, u32 group, u32 groups, u32 period, float eps) { __shared__ float part[32]; rms_norm_body<X, Y>(x, xs, y, ys, w, group, groups, period, eps, part); }
RMS_NORM(rms_norm_f32_bf16, float, bf16)
RMS_NORM(rms_norm_f32_f32, float, float)
RMS_NORM(rms_norm_bf16_bf16, bf16, bf16)
RMS_NORM(rms_norm_bf16_f32, bf16, float)

// The same for whole rows whose width is a multiple of 8, 16 bytes at a time: a block a row, read once.
template <class X>
DEV void rms_norm_wide(const X* x, u32 xs, bf16* y, u32 ys, const float* w, u32 width, float eps, float* part) {
    dependents_may_start();
    wait_for_inputs();
    const X* in = x + (u64)blockIdx.x * xs;
    bf16* out = y + (u64)blockIdx.x * ys;
    // Up to 4 chunks of 8 a thread stay in registers: rows of 8192 with 256 threads.
    float v[4][8];
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        u32 at = (c * blockDim.x + threadIdx.x) * 8;
        if (at < width) {
            load8(in + at, v[c]);
#pragma unroll
            for (int i = 0; i < 8; i++) sum += v[c][i] * v[c][i];
        }
    }
    float scale = rsqrtf(block_sum(sum, part) / (float)width + eps);
#pragma unroll
    for (int c = 0; c < 4; c++) {
        u32 at = (c * blockDim.x + threadIdx.x) * 8;
        if (at < width) {
            float g[8];
            load8(w + at, g);
            uint4 o;
            o.x = pack_bf16(v[c][0] * scale * g[0], v[c][1] * scale * g[1]);
            o.y = pack_bf16(v[c][2] * scale * g[2], v[c][3] * scale * g[3]);
            o.z = pack_bf16(v[c][4] * scale * g[4], v[c][5] * scale * g[5]);
            o.w = pack_bf16(v[c][6] * scale * g[6], v[c][7] * scale * g[7]);
            *(uint4*)(out + at) = o;
        }
    }
}
extern "C" __global__ void rms_norm_wide_f32(const float* x, u32 xs, bf16* y, u32 ys, const float* w, u32 width, float eps) {
    __shared__ float part[32];
    rms_norm_wide<float>(x, xs, y, ys, w, width, eps, part);
}

// out = a + b * scale
template <class A, class B, class O>
DEV void add_body(const A* a, u32 as, const B* b, u32 bs, O* o, u32 os, u32 width, float scale) {
    dependents_may_start();
    wait_for_inputs();
    u64 row = blockIdx.y;
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < width) o[row * os + i] = from_f<O>(to_f(a[row * as + i]) + to_f(b[row * bs + i]) * scale);
}
#define ADD(name, A, B, O) extern "C" __global__ void name(const A* a, u32 as, const B* b, u32 bs, O* o, u32 os, u32 width, float scale) { add_body<A, B, O>(a, as, b, bs, o, os, width, scale); }
ADD(add_f32_bf16_f32, float, bf16, float)
ADD(add_f32_f32_f32, float, float, float)
ADD(add_bf16_bf16_f32, bf16, bf16, float)
ADD(add_bf16_f32_f32, bf16, float, float)

// out = act(min(gate, limit)) * clamp(up, -limit, limit); without a limit it is infinite.
extern "C" __global__ void gated_act(const bf16* g, u32 gs, const bf16* u, u32 us, bf16* o, u32 os, u32 width, int kind, float limit) {
    dependents_may_start();
    wait_for_inputs();
    u64 row = blockIdx.y;
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < width) {
        float gate = fminf(to_f(g[row * gs + i]), limit), up = to_f(u[row * us + i]);
        up = up > limit ? limit : (up < -limit ? -limit : up);
        o[row * os + i] = from_f<bf16>(activate(kind, gate) * up);
    }
}
// The same 8 elements at a time, without a limit; all strides and the width are multiples of 8.
extern "C" __global__ void gated_act_wide(const bf16* g, u32 gs, const bf16* u, u32 us, bf16* o, u32 os, u32 width, int kind) {
    dependents_may_start();
    wait_for_inputs();
    u64 row = blockIdx.y;
    u32 i = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (i < width) {
        float a[8], b[8];
        load8(g + row * gs + i, a);
        load8(u + row * us + i, b);
#pragma unroll
        for (int j = 0; j < 8; j++) a[j] = activate(kind, a[j]) * b[j];
        uint4 r;
        r.x = pack_bf16(a[0], a[1]); r.y = pack_bf16(a[2], a[3]); r.z = pack_bf16(a[4], a[5]); r.w = pack_bf16(a[6], a[7]);
        *(uint4*)(o + row * os + i) = r;
    }
}

// out = act(x), out = x * factor * w, out = cap * tanh(x / cap), out = x in another format; one kernel each a pair of formats.
template <class X, class O> DEV void map_body(const X* x, u32 xs, O* o, u32 os, u32 width, int op, int kind, float a, const float* w, u32 wn) {
    dependents_may_start();
    wait_for_inputs();
    u64 row = blockIdx.y;
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    float v = to_f(x[row * xs + i]);
    if (op == 0) v = activate(kind, v);
    else if (op == 1) v = v * a * (w ? w[wn == 1 ? 0 : i] : 1.0f);
    else if (op == 2) v = a * tanhf(v / a);
    o[row * os + i] = from_f<O>(v);
}
#define MAP(name, X, O) extern "C" __global__ void name(const X* x, u32 xs, O* o, u32 os, u32 width, int op, int kind, float a, const float* w, u32 wn) { map_body<X, O>(x, xs, o, os, width, op, kind, a, w, wn); }
MAP(map_bf16_bf16, bf16, bf16)
MAP(map_f32_f32, float, float)
MAP(map_f32_bf16, float, bf16)
MAP(map_bf16_f32, bf16, float)
MAP(map_bf16_f16, bf16, f16)
MAP(map_f32_f16, float, f16)

// The rows whose logits are wanted.
template <class X> DEV void select_body(Tables t, const X* x, u32 xs, X* o, u32 os, u32 width) {
    dependents_may_start();
    wait_for_inputs();
    u64 from = t.rows[blockIdx.x];
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) o[(u64)blockIdx.x * os + i] = x[from * xs + i];
}
extern "C" __global__ void select_rows_f32(Tables t, const float* x, u32 xs, float* o, u32 os, u32 width) { select_body<float>(t, x, xs, o, os, width); }
extern "C" __global__ void select_rows_bf16(Tables t, const bf16* x, u32 xs, bf16* o, u32 os, u32 width) { select_body<bf16>(t, x, xs, o, os, width); }

// out += bias, for products whose library call has no place for it.
template <class X> DEV void bias_body(X* x, u32 xs, const float* b, u32 width) {
    dependents_may_start();
    wait_for_inputs();
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < width) { X* at = x + (u64)blockIdx.y * xs + i; *at = from_f<X>(to_f(*at) + b[i]); }
}
extern "C" __global__ void bias_bf16(bf16* x, u32 xs, const float* b, u32 width) { bias_body<bf16>(x, xs, b, width); }
extern "C" __global__ void bias_f32(float* x, u32 xs, const float* b, u32 width) { bias_body<float>(x, xs, b, width); }
