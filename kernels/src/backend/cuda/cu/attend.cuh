// Attention over pages: plain, split for few tokens, tiled for many.
//
// Both tensor-core kernels load operands with an order of the summed index that suits 16-byte loads: within 32 elements
// of a head, lane q (of 4) takes elements 8q .. 8q + 7, which are its parts of two products; queries and keys agree in that
// order, so the sum is the same. Keys and turned values (see heads.cu) are read as they lie.
#pragma once
#include "heads.cuh"

struct AttendArgs {
    const f16* q;        // [T][q_stride]
    u64 q_stride;
    const u8* pages;
    u64 block_bytes, head_bytes, values_at;
    bf16* out;           // [T][out_stride]
    u64 out_stride;
    const float* sinks;  // [heads] or null
    u32 heads, group;    // query heads; of one key/value head
    u32 dim_k, dim_v;
    u32 window, chunk;   // 0: none
    float scale, softcap;
    float* partial;      // split: [T][kv heads * row groups][splits][16][DV + 4]
    u32* arrived;        // split: [T][kv heads * row groups], zero between launches
    u32 splits;
    const u32* tiles;    // tiled: [n][2] sequence and first token within it
};

DEV u32 first_visible(const AttendArgs& a, u32 position) {
    u32 w = a.window && position + 1 > a.window ? position + 1 - a.window : 0;
    u32 c = a.chunk ? position - position % a.chunk : 0;
    return max(w, c);
}
DEV float exp_2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
#define LOG2E 1.4426950408889634f

// A score in units of the base-2 exponent.
DEV float score(const AttendArgs& a, float dot) {
    float s = dot * a.scale;
    if (a.softcap > 0.0f) s = a.softcap * tanhf(s / a.softcap);
    return s * LOG2E;
}

DEV void mma(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Any sizes: a block of 128 threads a token and head, 128 positions at a time.
DEV void attend_plain(const AttendArgs& a, const Tables& t) {
    extern __shared__ float room[];   // query [dim_k], weights [128], out [dim_v]
    __shared__ float part[32];
    dependents_may_start();
    wait_for_inputs();
    u32 token = blockIdx.x, head = blockIdx.y, kv = head / a.group;
    int seq = t.seq_of[token];
    if (seq < 0) return;
    u32 position = t.positions[token], first = first_visible(a, position);
    float *q = room, *weights = room + a.dim_k, *out = weights + 128;
    for (u32 i = threadIdx.x; i < a.dim_k; i += 128) q[i] = to_f(a.q[token * a.q_stride + head * a.dim_k + i]);
    for (u32 i = threadIdx.x; i < a.dim_v; i += 128) out[i] = 0.0f;
    __syncthreads();
    float top = a.sinks ? a.sinks[head] * LOG2E : -__int_as_float(0x7f800000), total = a.sinks ? 1.0f : 0.0f;
    for (u32 base = first; base <= position; base += 128) {
        u32 at = base + threadIdx.x;
        float s = -__int_as_float(0x7f800000);
        if (at <= position) {
            u32 block = t.blocks[(u64)seq * t.block_stride + (at >> 4)];
            const f16* key = (const f16*)(a.pages + block * a.block_bytes + kv * a.head_bytes) + (at & 15) * a.dim_k;
            float dot = 0.0f;
            for (u32 i = 0; i < a.dim_k; i++) dot += q[i] * to_f(key[i]);
            s = score(a, dot);
        }
        float most = warp_max(s);
        if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = most;
        __syncthreads();
        most = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
        float next = fmaxf(top, most), shrink = exp_2(top - next), w = at <= position ? exp_2(s - next) : 0.0f;
        weights[threadIdx.x] = w;
        __syncthreads();
        total = total * shrink + block_sum(w, part);
        top = next;
        u32 count = min(128u, position - base + 1);
        for (u32 i = threadIdx.x; i < a.dim_v; i += 128) {
            float sum = out[i] * shrink;
            for (u32 j = 0; j < count; j++) {
                u32 p = base + j, block = t.blocks[(u64)seq * t.block_stride + (p >> 4)], r = p & 15;
                u32 slot = r < 8 ? (r >> 1) * 4 + (r & 1) : ((r - 8) >> 1) * 4 + 2 + (r & 1);
                const f16* values = (const f16*)(a.pages + block * a.block_bytes + kv * a.head_bytes + a.values_at);
                sum += weights[j] * to_f(values[i * 16 + slot]);
            }
            out[i] = sum;
        }
        __syncthreads();
    }
    for (u32 i = threadIdx.x; i < a.dim_v; i += 128)
        a.out[token * a.out_stride + head * a.dim_v + i] = from_f<bf16>(total > 0.0f ? out[i] / total : 0.0f);
}

// Few tokens: block (key/value head and up to 16 of its query heads, split, token), 4 warps, each every fourth page of the
// split. Splits depend on the token's own context alone. The last block of a token's head to finish joins the splits.
// With OWN, for steps of one token a sequence, the block norms and turns its queries itself, and the one whose split holds the token
// puts its key and value into the cache first; no other block of the step reads them.
template <int DK, int DV, bool OWN> DEV void attend_few(const AttendArgs& a, const HeadsArgs& own, const Tables& t) {
    extern __shared__ __align__(16) u8 smem[];
    __shared__ float tops[4][16], totals[4][16];
    __shared__ float part_top[32][16], part_total[32][16];
    __shared__ u32 last;
    const float none = -__int_as_float(0x7f800000);
    dependents_may_start();
    // Tables are there before the step's first kernel, and so is all of the cache but this step's positions.
    u32 groups = (a.group + 15) / 16, kv = blockIdx.x / groups, row0 = (blockIdx.x % groups) * 16, token = blockIdx.z;
    u32 rows = min(16u, a.group - row0), warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n = lane >> 2, q4 = lane & 3;
    int seq = t.seq_of[token];
    if (seq < 0) return;
    u32 position = t.positions[token], first = first_visible(a, position);
    u32 block0 = first >> 4, blocks = (position >> 4) + 1 - block0;
    u32 per = max(4u, ((blocks + a.splits - 1) / a.splits + 3) & ~3u), splits = (blocks + per - 1) / per, split = blockIdx.y;
    if (split >= splits) return;
    u32 head0 = kv * a.group + row0;
    const u32* table = t.blocks + (u64)seq * t.block_stride + block0;

    u32 block = split * per + warp, end = min((split + 1) * per, blocks);
    uint4 k[2][DK / 32];
    uint2 v[DV / 8];
    auto fetch = [&]() {
        const u8* page = a.pages + table[block] * a.block_bytes + kv * a.head_bytes;
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int b = 0; b < DK / 32; b++) k[j][b] = *(const uint4*)(page + (j * 8 + n) * DK * 2 + b * 64 + q4 * 16);
#pragma unroll
        for (int d = 0; d < DV / 8; d++) v[d] = *(const uint2*)(page + a.values_at + (d * 8 + n) * 32 + q4 * 8);
    };
    bool fetched = OWN && block < end && block + 1 < blocks;
    if (fetched) fetch();
    const f16* queries = a.q + token * a.q_stride + (u64)head0 * DK;
    if (OWN) {
        // Room: a head of each warp, the turned queries, cosines and sines, both norms' weights.
        const int LONGER = DK > DV ? DK : DV;
        float* mine = (float*)smem + warp * LONGER;
        f16* turned = (f16*)(smem + 4 * 4 * LONGER);
        float2* turns = (float2*)(smem + 4 * 4 * LONGER + 2 * rows * DK);
        float* weights = (float*)(turns + DK / 2);
#pragma unroll 1
        for (u32 i = threadIdx.x; i < DK; i += 128) {
            if (own.part[0].freq && i < own.part[0].pairs) turns[i] = turn_of(own.part[0], t, seq, position, i);
            if (own.part[0].norm) weights[i] = own.part[0].norm[i];
            if (own.part[1].norm) weights[DK + i] = own.part[1].norm[i];
        }
        __syncthreads();
        wait_for_inputs();
        // Queries, then in the block that holds the token its key and its value.
        u32 jobs = rows + ((blocks - 1) / per == split ? 2 : 0);
#pragma unroll 1
        for (u32 job = warp; job < jobs; job += 4) {
            u32 which = job < rows ? 0 : 1 + job - rows;
            const HeadArgs& h = own.part[which];
            u32 head = which ? kv : head0 + job;
            turned_head(h, t, token, head, seq, position, mine, turns, weights + (which ? DK : 0));
            if (which) put_head(h, t, token, head, seq, position, mine);
            else for (u32 i = lane; i < DK; i += 32) turned[job * DK + i] = from_f<f16>(mine[i]);
            __syncwarp();
        }
        __syncthreads();
        queries = turned;
    } else wait_for_inputs();
    uint4 q[2][DK / 32];
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int b = 0; b < DK / 32; b++) {
            u32 row = n + 8 * half;
            q[half][b] = row < rows ? *(const uint4*)(queries + row * DK + b * 32 + q4 * 8) : make_uint4(0, 0, 0, 0);
        }
    if (OWN) __syncthreads();
    float out[DV / 8][4], top[2] = {none, none}, total[2] = {0.0f, 0.0f};
#pragma unroll
    for (int d = 0; d < DV / 8; d++) out[d][0] = out[d][1] = out[d][2] = out[d][3] = 0.0f;

#pragma unroll 1
    for (; block < end; block += 4) {
        if (!fetched) fetch();
        fetched = false;
        float s[2][4];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
#pragma unroll
            for (int b = 0; b < DK / 32; b++) {
                mma(s[j], q[0][b].x, q[1][b].x, q[0][b].y, q[1][b].y, k[j][b].x, k[j][b].y);
                mma(s[j], q[0][b].z, q[1][b].z, q[0][b].w, q[1][b].w, k[j][b].z, k[j][b].w);
            }
        }
        u32 p0 = (block0 + block) * 16;
        bool whole = p0 >= first && p0 + 15 <= position;
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 p = p0 + j * 8 + q4 * 2 + (i & 1);
                s[j][i] = whole || (p >= first && p <= position) ? score(a, s[j][i]) : none;
            }
        if (!whole) {
            // What lies in positions not yet written must not reach the sum, not even times 0.
            u32 p = p0 + q4 * 2;
            u32 low = (p >= first && p <= position ? 0xffffu : 0u) | (p + 1 >= first && p + 1 <= position ? 0xffff0000u : 0u);
            u32 high = (p + 8 >= first && p + 8 <= position ? 0xffffu : 0u) | (p + 9 >= first && p + 9 <= position ? 0xffff0000u : 0u);
#pragma unroll
            for (int d = 0; d < DV / 8; d++) { v[d].x &= low; v[d].y &= high; }
        }
        float w[2][4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = fmaxf(fmaxf(s[0][2 * half], s[0][2 * half + 1]), fmaxf(s[1][2 * half], s[1][2 * half + 1]));
            most = fmaxf(most, __shfl_xor_sync(FULL, most, 1));
            most = fmaxf(most, __shfl_xor_sync(FULL, most, 2));
            float next = fmaxf(top[half], most);
            float shrink = next == none ? 1.0f : exp_2(top[half] - next), sum = 0.0f;
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float e = next == none ? 0.0f : exp_2(s[j][2 * half + i] - next);
                    w[j][2 * half + i] = e;
                    sum += e;
                }
            sum += __shfl_xor_sync(FULL, sum, 1);
            sum += __shfl_xor_sync(FULL, sum, 2);
            total[half] = total[half] * shrink + sum;
            top[half] = next;
#pragma unroll
            for (int d = 0; d < DV / 8; d++) { out[d][2 * half] *= shrink; out[d][2 * half + 1] *= shrink; }
        }
        u32 a0 = pack_f16_fast(w[0][0], w[0][1]), a1 = pack_f16_fast(w[0][2], w[0][3]);
        u32 a2 = pack_f16_fast(w[1][0], w[1][1]), a3 = pack_f16_fast(w[1][2], w[1][3]);
#pragma unroll
        for (int d = 0; d < DV / 8; d++) mma(out[d], a0, a1, a2, a3, v[d].x, v[d].y);
    }

    // Join the warps: each leaves its rows, then the block adds them in order.
    float* rooms = (float*)smem;   // [4][rows][DV]
    if (q4 == 0) {
        tops[warp][n] = top[0]; totals[warp][n] = total[0];
        tops[warp][n + 8] = top[1]; totals[warp][n + 8] = total[1];
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 row = n + 8 * half;
        if (row < rows)
#pragma unroll
            for (int d = 0; d < DV / 8; d++) {
                float* to = rooms + ((u64)warp * rows + row) * DV + d * 8 + q4 * 2;
                to[0] = out[d][2 * half];
                to[1] = out[d][2 * half + 1];
            }
    }
    __syncthreads();
    u64 unit = (u64)token * gridDim.x + blockIdx.x;
    float* mine = a.partial + (unit * a.splits + split) * 16 * (DV + 4);
#pragma unroll 1
    for (u32 i = threadIdx.x * 4; i < rows * DV; i += 512) {
        u32 row = i / DV, d = i % DV;
        float most = fmaxf(fmaxf(tops[0][row], tops[1][row]), fmaxf(tops[2][row], tops[3][row])), all = 0.0f;
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int w = 0; w < 4; w++) {
            float f = tops[w][row] == none ? 0.0f : exp_2(tops[w][row] - most);
            float4 v = *(const float4*)(rooms + ((u64)w * rows + row) * DV + d);
            sum[0] += f * v.x; sum[1] += f * v.y; sum[2] += f * v.z; sum[3] += f * v.w;
            all += f * totals[w][row];
        }
        if (splits == 1) {
            float f = 1.0f;
            if (a.sinks) {
                float sink = a.sinks[head0 + row] * LOG2E, next = fmaxf(most, sink);
                f = exp_2(most - next);
                all = all * f + exp_2(sink - next);
            }
            f /= all;
            *(uint2*)(a.out + token * a.out_stride + (u64)(head0 + row) * DV + d) = make_uint2(pack_bf16(sum[0] * f, sum[1] * f), pack_bf16(sum[2] * f, sum[3] * f));
        } else {
            *(float4*)(mine + row * (DV + 4) + d) = make_float4(sum[0], sum[1], sum[2], sum[3]);
            if (d == 0) *(float2*)(mine + row * (DV + 4) + DV) = make_float2(most, all);
        }
    }
    if (splits == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(a.arrived + unit, 1u) + 1 == splits;
        if (last) a.arrived[unit] = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    const float* parts = a.partial + unit * a.splits * 16 * (DV + 4);
#pragma unroll 1
    for (u32 i = threadIdx.x; i < splits * rows; i += 128) {
        float2 v = __ldcg((const float2*)(parts + ((i / rows) * 16 + i % rows) * (DV + 4) + DV));
        part_top[i / rows][i % rows] = v.x;
        part_total[i / rows][i % rows] = v.y;
    }
    __syncthreads();
    for (u32 row = threadIdx.x; row < rows; row += 128) {
        float most = a.sinks ? a.sinks[head0 + row] * LOG2E : none;
#pragma unroll 4
        for (u32 s = 0; s < splits; s++) most = fmaxf(most, part_top[s][row]);
        float all = a.sinks ? exp_2(a.sinks[head0 + row] * LOG2E - most) : 0.0f;
#pragma unroll 4
        for (u32 s = 0; s < splits; s++) {
            float f = exp_2(part_top[s][row] - most);
            all += f * part_total[s][row];
            part_top[s][row] = f;
        }
        float inverse = 1.0f / all;
#pragma unroll 4
        for (u32 s = 0; s < splits; s++) part_top[s][row] *= inverse;
    }
    __syncthreads();
#pragma unroll 1
    for (u32 i = threadIdx.x * 4; i < rows * DV; i += 512) {
        u32 row = i / DV, d = i % DV;
        const float* p = parts + row * (DV + 4) + d;
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 8
        for (u32 s = 0; s < splits; s++) {
            float4 v = __ldcg((const float4*)(p + s * 16 * (DV + 4)));
            float f = part_top[s][row];
            sum[0] += f * v.x; sum[1] += f * v.y; sum[2] += f * v.z; sum[3] += f * v.w;
        }
        *(uint2*)(a.out + token * a.out_stride + (u64)(head0 + row) * DV + d) = make_uint2(pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]));
    }
}

template <int DK, int DV> DEV void attend_split(const AttendArgs& a, const Tables& t) { attend_few<DK, DV, false>(a, HeadsArgs(), t); }

DEV void copy16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}

// Many tokens: block (tile of 64 tokens of a sequence, query head), 4 warps of 16 rows; keys and values pass through shared
// memory 64 positions at a time, the next ones on their way while these are used.
template <int DK, int DV> DEV void attend_tiled(const AttendArgs& a, const Tables& t) {
    extern __shared__ __align__(128) u8 smem[];
    const float none = -__int_as_float(0x7f800000);
    const int STAGE = 64 * DK * 2 + 64 * DV * 2;
    dependents_may_start();
    wait_for_inputs();
    u32 seq = a.tiles[2 * blockIdx.x], in_seq = a.tiles[2 * blockIdx.x + 1], head = blockIdx.y, kv = head / a.group;
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n = lane >> 2, q4 = lane & 3;
    u32 count = t.seq_tokens[seq], past = t.seq_past[seq], token0 = t.seq_first[seq] + in_seq, left = min(64u, count - in_seq);
    u32 lowest = past + in_seq, highest = lowest + left - 1;
    u32 block0 = (first_visible(a, lowest) >> 4) & ~3u, blocks = (highest >> 4) + 1;
    const u32* table = t.blocks + (u64)seq * t.block_stride;
    u32 rows[2] = {warp * 16 + n, warp * 16 + n + 8};

    uint4 q[2][DK / 32];
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int b = 0; b < DK / 32; b++)
            q[half][b] = rows[half] < left ? *(const uint4*)(a.q + (u64)(token0 + rows[half]) * a.q_stride + head * DK + b * 32 + q4 * 8) : make_uint4(0, 0, 0, 0);
    float out[DV / 8][4], top[2] = {none, none}, total[2] = {0.0f, 0.0f};
#pragma unroll
    for (int d = 0; d < DV / 8; d++) out[d][0] = out[d][1] = out[d][2] = out[d][3] = 0.0f;

    auto fetch = [&](u32 block, u8* stage) {
        // 4 pages; those past the end repeat the last, whose positions are masked.
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const u8* page = a.pages + table[min(block + p, blocks - 1)] * a.block_bytes + kv * a.head_bytes;
            for (u32 i = threadIdx.x; i < 16 * DK / 8; i += 128) {
                u32 row = i / (DK / 8), c = i % (DK / 8);
                copy16(stage + ((p * 16 + row) * (DK / 8) + (c ^ ((row & 1) << 2))) * 16, page + i * 16);
            }
            for (u32 i = threadIdx.x; i < 16 * DV / 8; i += 128) copy16(stage + 64 * DK * 2 + p * DV * 32 + i * 16, page + a.values_at + i * 16);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    fetch(block0, smem);
    u32 turn = 0;
    for (u32 block = block0; block < blocks; block += 4, turn ^= 1) {
        u8* stage = smem + turn * STAGE;
        if (block + 4 < blocks) {
            fetch(block + 4, smem + (turn ^ 1) * STAGE);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        float s[8][4];
#pragma unroll
        for (int j = 0; j < 8; j++) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
        // Four products that do not wait for each other follow one another.
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int b = 0; b < DK / 32; b++) {
                uint4 k[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    u32 row = (half * 4 + j) * 8 + n, c = b * 4 + q4;
                    k[j] = *(const uint4*)(stage + (row * (DK / 8) + (c ^ ((row & 1) << 2))) * 16);
                }
#pragma unroll
                for (int j = 0; j < 4; j++) mma(s[half * 4 + j], q[0][b].x, q[1][b].x, q[0][b].y, q[1][b].y, k[j].x, k[j].y);
#pragma unroll
                for (int j = 0; j < 4; j++) mma(s[half * 4 + j], q[0][b].z, q[1][b].z, q[0][b].w, q[1][b].w, k[j].z, k[j].w);
            }
        u32 p0 = block * 16;
        bool whole = p0 + 63 <= lowest && first_visible(a, highest) <= p0;
        if (a.softcap > 0.0f) {
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) s[j][i] = score(a, s[j][i]);
        } else {
            float f = a.scale * LOG2E;
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) s[j][i] *= f;
        }
        if (!whole) {
            u32 position[2] = {past + in_seq + rows[0], past + in_seq + rows[1]};
            u32 seen[2] = {first_visible(a, position[0]), first_visible(a, position[1])};
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    u32 p = p0 + j * 8 + q4 * 2 + (i & 1);
                    if (p > position[i >> 1] || p < seen[i >> 1]) s[j][i] = none;
                }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = none;
#pragma unroll
            for (int j = 0; j < 8; j++) most = fmaxf(most, fmaxf(s[j][2 * half], s[j][2 * half + 1]));
            most = fmaxf(most, __shfl_xor_sync(FULL, most, 1));
            most = fmaxf(most, __shfl_xor_sync(FULL, most, 2));
            float next = fmaxf(top[half], most);
            // Rows that see nothing yet stay as they are.
            float base = next == none ? 0.0f : next, shrink = exp_2(top[half] - base), sum = 0.0f;
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float e = exp_2(s[j][2 * half + i] - base);
                    s[j][2 * half + i] = e;
                    sum += e;
                }
            total[half] = total[half] * shrink + sum;
            top[half] = next;
#pragma unroll
            for (int d = 0; d < DV / 8; d++) { out[d][2 * half] *= shrink; out[d][2 * half + 1] *= shrink; }
        }
        u32 edge = highest + 1;   // positions from here on are not written
#pragma unroll
        for (int p = 0; p < 4; p++) {
            u32 a0 = pack_f16_fast(s[2 * p][0], s[2 * p][1]), a1 = pack_f16_fast(s[2 * p][2], s[2 * p][3]);
            u32 a2 = pack_f16_fast(s[2 * p + 1][0], s[2 * p + 1][1]), a3 = pack_f16_fast(s[2 * p + 1][2], s[2 * p + 1][3]);
            u32 at = p0 + p * 16 + q4 * 2;
            const u8* page = stage + 64 * DK * 2 + p * DV * 32 + n * 32 + q4 * 8;
            if (p0 + p * 16 + 16 <= edge) {
#pragma unroll
                for (int d = 0; d < DV / 8; d++) {
                    uint2 v = *(const uint2*)(page + d * 256);
                    mma(out[d], a0, a1, a2, a3, v.x, v.y);
                }
            } else if (p0 + p * 16 < edge) {
                u32 low = (at < edge ? 0xffffu : 0u) | (at + 1 < edge ? 0xffff0000u : 0u);
                u32 high = (at + 8 < edge ? 0xffffu : 0u) | (at + 9 < edge ? 0xffff0000u : 0u);
#pragma unroll
                for (int d = 0; d < DV / 8; d++) {
                    uint2 v = *(const uint2*)(page + d * 256);
                    mma(out[d], a0, a1, a2, a3, v.x & low, v.y & high);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float all = total[half];
        all += __shfl_xor_sync(FULL, all, 1);
        all += __shfl_xor_sync(FULL, all, 2);
        float f = 1.0f;
        if (a.sinks) {
            float sink = a.sinks[head] * LOG2E, next = fmaxf(top[half], sink);
            f = exp_2(top[half] - next);
            all = all * f + exp_2(sink - next);
        }
        f /= all;
        if (rows[half] < left)
#pragma unroll
            for (int d = 0; d < DV / 8; d++)
                *(u32*)(a.out + (u64)(token0 + rows[half]) * a.out_stride + head * DV + d * 8 + q4 * 2) = pack_bf16(out[d][2 * half] * f, out[d][2 * half + 1] * f);
    }
}
