// Products of few activations with a weight: y[m][n] = sum_k w[n][k] x[m][k], once through the weight.
//
// A block takes a run of rows. TPR of its THR working threads share a row, each with the same NCH chunks of every row, so
// the activation stays in registers as `Piece`s; THR / TPR rows go on at a time. Partial sums of warps meet in shared
// memory and are added in a fixed order: the same bits at every run and for every number of activations.
// Two ways to fetch: `gemv_stream` (compute capability 9.0 on) has one more warp copy whole rows into a ring of
// stages, beginning before the kernel's inputs are there; `gemv_plain` reads global memory where it computes.
#pragma once
#include "forms.cuh"

struct GemvArgs {
    const u8* w;             // rows of `row_bytes`
    const void* x;           // [M] activations, f32 or bf16
    const float* norm;       // weight of an rms norm before the product, or null
    const float* bias;       // [rows], or null
    const float* residual;   // added to the scaled product, or null
    void* out;
    u64 residual_stride, out_stride, x_stride;
    u32 rows;                // rows of out; with a gate the weight has twice as many: gate rows, then up rows
    u32 row_bytes, k, chunks, columns;
    int x_f32, out_f32;
    int gate;                // activation of the gate, or -1
    float eps, scale;
    // Experts: block row y works on choice y; `chosen` [choices] names the expert whose weight it is, 0 means all the same.
    const float* chosen;
    u64 expert_bytes;
    u32 experts, per_x;      // choices that read the same x
    u32 top_k, chosen_stride;
};

// The arguments of block row y.
DEV GemvArgs of_choice(GemvArgs a) {
    if (a.chosen) {
        u32 y = blockIdx.y;
        // Rows that pad a step name anything: they must only not lead astray.
        float named = a.chosen[(u64)(y / a.top_k) * a.chosen_stride + y % a.top_k];
        u32 expert = named >= 0.0f && named < (float)a.experts ? (u32)named : 0;
        a.w += expert * a.expert_bytes;
        u64 x = (u64)(y / a.per_x) * a.x_stride;
        a.x = a.x_f32 ? (const void*)((const float*)a.x + x) : (const void*)((const bf16*)a.x + x);
        u64 o = (u64)y * a.out_stride;
        a.out = a.out_f32 ? (void*)((float*)a.out + o) : (void*)((bf16*)a.out + o);
    }
    return a;
}

// Where byte b of a staged activation lies: 16 bytes are left out after each 128, so that threads whose pieces lie 128 bytes or a part
// of that from each other meet in no bank.
DEV u32 staged(u32 b) { return b + (b >> 7) * 16; }

// Sum over the block's THR working threads. One barrier: the room is not used again before the next.
template <int THR> DEV float sum_working(float v, float* room) {
    v = warp_sum(v);
    if ((threadIdx.x & 31) == 0) room[threadIdx.x >> 5] = v;
    asm volatile("bar.sync 1, %0;" ::"n"(THR) : "memory");
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < THR / 32; i++) sum += room[i];
    return sum;
}

// Brings activation m to shared memory as it is stored, f32 ones times the norm's weights, 8 elements a thread at a time; returns the
// factor of the norm. Threads of a warp read side by side, which their later pieces would not.
template <int THR> DEV float stage(const GemvArgs& a, u32 m, u8* room, float* part) {
    float squares = 0.0f;
    for (u32 at = threadIdx.x * 8; at < a.k; at += THR * 8) {
        if (a.x_f32) {
            float v[8], g[8];
            if (a.norm) load8(a.norm + at, g);
            load8((const float*)a.x + m * a.x_stride + at, v);
            if (a.norm)
#pragma unroll
                for (int i = 0; i < 8; i++) { squares += v[i] * v[i]; v[i] *= g[i]; }
            *(float4*)(room + staged(at * 4)) = make_float4(v[0], v[1], v[2], v[3]);
            *(float4*)(room + staged(at * 4 + 16)) = make_float4(v[4], v[5], v[6], v[7]);
        } else *(uint4*)(room + staged(at * 2)) = *(const uint4*)((const bf16*)a.x + m * a.x_stride + at);
    }
    // Norms are of f32 activations.
    float total = sum_working<THR>(squares, part);
    return a.norm ? rsqrtf(total / (float)a.k + a.eps) : 1.0f;
}
// Eight of its elements.
DEV void from_stage(const GemvArgs& a, const u8* room, u32 at, float scale, float* v) {
    if (a.x_f32) {
        float4 l = *(const float4*)(room + staged(at * 4)), h = *(const float4*)(room + staged(at * 4 + 16));
        v[0] = l.x * scale; v[1] = l.y * scale; v[2] = l.z * scale; v[3] = l.w * scale;
        v[4] = h.x * scale; v[5] = h.y * scale; v[6] = h.z * scale; v[7] = h.w * scale;
    } else load8((const bf16*)(room + staged(at * 2)), v);
}

template <class F, int THR, int TPR, int NCH, int M> struct Activations {
    typename F::Piece piece[M][NCH];
    // `room` is what `stage` fills; sums of rows may lie there once this is done.
    MEM void load(const GemvArgs& a, u32 lane, u8* room, float* part) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            float scale = m < a.columns ? stage<THR>(a, m, room, part + THR / 32 * (m & 1)) : 0.0f;
#pragma unroll
            for (int c = 0; c < NCH; c++) {
                u32 chunk = c * TPR + lane;
                float values[F::ELEMS];
#pragma unroll
                for (int i = 0; i < F::ELEMS; i += 8) {
                    if (chunk < a.chunks && m < a.columns) from_stage(a, room, chunk * F::ELEMS + i, scale, values + i);
                    else
#pragma unroll
                        for (int j = 0; j < 8; j++) values[i + j] = 0.0f;
                }
                F::take(piece[m][c], values);
            }
            asm volatile("bar.sync 1, %0;" ::"n"(THR) : "memory");
        }
    }
};

// What the thread's first result is added to.
template <int M> DEV float gemv_residual(const GemvArgs& a, u32 first, u32 n) {
    u32 row = threadIdx.x / M, m = threadIdx.x % M;
    return a.residual && row < n && m < a.columns ? a.residual[m * a.residual_stride + first + row] : 0.0f;
}

// Sums of warps to results: thread i takes result i, i + THR, ...
template <int WPR, int M, int THR> DEV void gemv_finish(const GemvArgs& a, const float* sums, u32 first, u32 n, float residual) {
    for (u32 i = threadIdx.x; i < n * M; i += THR) {
        u32 row = i / M, m = i % M;
        if (m >= a.columns) continue;
        u32 kinds = a.gate >= 0 ? 2 : 1;
        float y[2];
        for (u32 kind = 0; kind < kinds; kind++) {
            const float* p = sums + ((u64)(kind * n + row) * M + m) * WPR;
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < WPR; w++) sum += p[w];
            y[kind] = sum + (a.bias ? a.bias[kind * a.rows + first + row] : 0.0f);
        }
        float value = kinds == 2 ? activate(a.gate, y[0]) * y[1] : y[0];
        u64 at = m * a.out_stride + first + row;
        if (a.residual) value = (i < THR ? residual : a.residual[m * a.residual_stride + first + row]) + a.scale * value;
        if (a.out_f32) ((float*)a.out)[at] = value; else ((bf16*)a.out)[at] = from_f<bf16>(value);
    }
}

#if __CUDA_ARCH__ >= 900
DEV u32 shared_at(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEV void barrier_init(u64* b, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(b)), "r"(count) : "memory"); }
DEV void barrier_arrive(u64* b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_at(b)) : "memory"); }
DEV void barrier_expect(u64* b, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(b)), "r"(bytes) : "memory"); }
DEV void barrier_wait(u64* b, u32 phase) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra DONE;\nbra AGAIN;\nDONE:\n}"
        ::"r"(shared_at(b)), "r"(phase) : "memory");
}
DEV void bulk_copy(void* to, const void* from, u32 bytes, u64* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        ::"r"(shared_at(to)), "l"(from), "r"(bytes), "r"(shared_at(b)) : "memory");
}

template <int NST> DEV void start_ring(u64* full, u64* empty, u32 warps) {
    if (threadIdx.x == 0) {
        for (int s = 0; s < NST; s++) { barrier_init(&full[s], 1); barrier_init(&empty[s], warps); }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
}
// One thread keeps the ring full, with a gate half of each stage gate rows and half up rows.
template <int RS, int NST> DEV void fill_ring(const GemvArgs& a, u8* smem, u64* full, u64* empty, u32 first, u32 end, u32 turns) {
    u32 kinds = a.gate >= 0 ? 2 : 1, per = RS / kinds, stage_bytes = RS * a.row_bytes;
    for (u32 turn = 0; turn < turns; turn++) {
        u32 s = turn % NST;
        if (turn >= NST) barrier_wait(&empty[s], (turn / NST + 1) & 1);
        u32 row = first + turn * per, count = min(per, end - row), bytes = count * a.row_bytes;
        barrier_expect(&full[s], bytes * kinds);
        bulk_copy(smem + s * stage_bytes, a.w + (u64)row * a.row_bytes, bytes, &full[s]);
        if (kinds == 2) bulk_copy(smem + s * stage_bytes + per * a.row_bytes, a.w + (u64)(a.rows + row) * a.row_bytes, bytes, &full[s]);
    }
    // Nothing more to ask for: the next kernel may begin to fill its ring.
    dependents_may_start();
}

// THR threads that compute and a warp that copies. RS rows a stage, NST stages. WHOLE: every thread has NCH chunks.
template <class F, int THR, int TPR, int NCH, int M, bool WHOLE, int RS, int NST> DEV void gemv_stream(const GemvArgs& a) {
    extern __shared__ __align__(128) u8 smem[];
    __shared__ __align__(8) u64 full[NST], empty[NST];
    __shared__ float part[THR / 16];
    const int RG = THR / TPR, WPR = TPR / 32;
    u32 first = (u64)a.rows * blockIdx.x / gridDim.x, end = (u64)a.rows * (blockIdx.x + 1) / gridDim.x, n = end - first;
    u32 kinds = a.gate >= 0 ? 2 : 1, per = RS / kinds, turns = (n + per - 1) / per;
    u32 stage_bytes = RS * a.row_bytes;
    float* sums = (float*)(smem + NST * stage_bytes);
    start_ring<NST>(full, empty, THR / 32);
    if (threadIdx.x >= THR) {
        if (threadIdx.x == THR) fill_ring<RS, NST>(a, smem, full, empty, first, end, turns);
        return;
    }
    u32 lane = threadIdx.x % TPR, group = threadIdx.x / TPR;
    Activations<F, THR, TPR, NCH, M> x;
    wait_for_inputs();
    float residual = gemv_residual<M>(a, first, n);
    x.load(a, lane, (u8*)sums, part);
    for (u32 turn = 0; turn < turns; turn++) {
        u32 s = turn % NST;
        barrier_wait(&full[s], (turn / NST) & 1);
        u32 count = min(per, n - turn * per);
        // Rows past the end are computed from whatever lies there, and left out.
        float acc[RS / RG][M];
#pragma unroll
        for (int r = 0; r < RS / RG; r++) {
            const u8* row = smem + s * stage_bytes + (r * RG + group) * a.row_bytes;
#pragma unroll
            for (int m = 0; m < M; m++) acc[r][m] = 0.0f;
#pragma unroll
            for (int c = 0; c < NCH; c++) {
                u32 chunk = c * TPR + lane;
                if (WHOLE || chunk < a.chunks) {
                    typename F::Chunk w = F::load(row, a.k, chunk);
#pragma unroll
                    for (int m = 0; m < M; m++) acc[r][m] += F::dot(w, x.piece[m][c]);
                }
            }
        }
        // All that lies in the stage has been read.
        __syncwarp();
        if ((threadIdx.x & 31) == 0) barrier_arrive(&empty[s]);
#pragma unroll
        for (int d = 16; d > 0; d >>= 1)
#pragma unroll
            for (int r = 0; r < RS / RG; r++)
#pragma unroll
                for (int m = 0; m < M; m++) acc[r][m] += __shfl_xor_sync(FULL, acc[r][m], d);
        if ((lane & 31) == 0)
#pragma unroll
            for (int r = 0; r < RS / RG; r++) {
                u32 in_stage = r * RG + group, kind = kinds == 2 && 2 * in_stage >= RS, in_kind = in_stage - kind * per;
                if (in_kind < count)
#pragma unroll
                    for (int m = 0; m < M; m++) sums[((kind * n + turn * per + in_kind) * M + m) * WPR + lane / 32] = acc[r][m];
            }
    }
    asm volatile("bar.sync 1, %0;" ::"n"(THR) : "memory");
    gemv_finish<WPR, M, THR>(a, sums, first, n, residual);
}

// Plain forms on the tensor cores, so that next to nothing of the arithmetic is left beside the reading. A warp's piece of a row is
// cut into 8 segments that stand as 8 rows of the first operand, those of the row below as the other 8; the same segments of the
// activation are the 8 columns of the second. On the diagonals of the result stand the products of segments that belong together; what
// stands beside them is left out. WK warps share a row, NCH runs of 32 elements a segment. Within 32 elements lane q (of 4) takes
// 8q .. 8q + 7, the order that suits 16-byte loads; odd segments take their runs in swapped pairs, so that two of them never meet in a bank.
template <class T> DEV u32 pack_plain(float a, float b) { return (u32)from_f<T>(a).v | ((u32)from_f<T>(b).v << 16); }
template <class T> MEM void mma_plain(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1);
template <> MEM void mma_plain<bf16>(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <> MEM void mma_plain<f16>(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}


template <class T, int WK, int NCH, int M, int RS, int NST> DEV void gemv_diagonal(const GemvArgs& a) {
    extern __shared__ __align__(128) u8 smem[];
    __shared__ __align__(8) u64 full[NST], empty[NST];
    __shared__ float part[16];
    const int GROUPS = 8 / WK, SEGMENT = 32 * NCH;
    u32 first = (u64)a.rows * blockIdx.x / gridDim.x, end = (u64)a.rows * (blockIdx.x + 1) / gridDim.x, n = end - first;
    u32 kinds = a.gate >= 0 ? 2 : 1, per = RS / kinds, turns = (n + per - 1) / per, stage_bytes = RS * a.row_bytes;
    float* sums = (float*)(smem + NST * stage_bytes);
    start_ring<NST>(full, empty, 8);
    if (threadIdx.x >= 256) {
        if (threadIdx.x == 256) fill_ring<RS, NST>(a, smem, full, empty, first, end, turns);
        return;
    }
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q4 = lane & 3, group = warp / WK;
    u32 swap = NCH % 2 == 0 ? g & 1 : 0, at = (warp % WK) * 8 * SEGMENT + g * SEGMENT + q4 * 8;
    u32 x[M][NCH][4];
    wait_for_inputs();
    float residual = gemv_residual<M>(a, first, n);
#pragma unroll
    for (int m = 0; m < M; m++) {
        float scale = m < a.columns ? stage<256>(a, m, (u8*)sums, part + 8 * (m & 1)) : 0.0f;
#pragma unroll
        for (int c = 0; c < NCH; c++) {
            float v[8];
            if (m < a.columns) from_stage(a, (u8*)sums, at + (c ^ swap) * 32, scale, v);
            else
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] = 0.0f;
#pragma unroll
            for (int i = 0; i < 4; i++) x[m][c][i] = pack_plain<T>(v[2 * i], v[2 * i + 1]);
        }
        asm volatile("bar.sync 1, 256;" ::: "memory");
    }
    for (u32 turn = 0; turn < turns; turn++) {
        u32 s = turn % NST, count = min(per, n - turn * per);
        barrier_wait(&full[s], (turn / NST) & 1);
        float c[RS / 2 / GROUPS][M][4];
#pragma unroll
        for (int p = 0; p < RS / 2 / GROUPS; p++) {
            const u8* row = smem + s * stage_bytes + (p * GROUPS + group) * 2 * a.row_bytes + at * 2;
#pragma unroll
            for (int m = 0; m < M; m++) c[p][m][0] = c[p][m][1] = c[p][m][2] = c[p][m][3] = 0.0f;
#pragma unroll
            for (int b = 0; b < NCH; b++) {
                uint4 top = *(const uint4*)(row + (b ^ swap) * 64), bottom = *(const uint4*)(row + a.row_bytes + (b ^ swap) * 64);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    mma_plain<T>(c[p][m], top.x, bottom.x, top.y, bottom.y, x[m][b][0], x[m][b][1]);
                    mma_plain<T>(c[p][m], top.z, bottom.z, top.w, bottom.w, x[m][b][2], x[m][b][3]);
                }
            }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&empty[s]);
#pragma unroll
        for (int p = 0; p < RS / 2 / GROUPS; p++)
#pragma unroll
            for (int m = 0; m < M; m++) {
                // The upper row's sum gathers in the lower half of the warp, the lower row's in the upper.
                bool diagonal = q4 == g >> 1;
                float up = diagonal ? (g & 1 ? c[p][m][1] : c[p][m][0]) : 0.0f, low = diagonal ? (g & 1 ? c[p][m][3] : c[p][m][2]) : 0.0f;
                float v = (lane & 16 ? low : up) + __shfl_xor_sync(FULL, lane & 16 ? up : low, 16);
#pragma unroll
                for (int d = 8; d > 0; d >>= 1) v += __shfl_xor_sync(FULL, v, d);
                u32 in_stage = (p * GROUPS + group) * 2 + (lane >> 4), kind = kinds == 2 && 2 * in_stage >= RS, in_kind = in_stage - kind * per;
                if ((lane & 15) == 0 && in_kind < count) sums[((kind * n + turn * per + in_kind) * M + m) * WK + warp % WK] = v;
            }
    }
    asm volatile("bar.sync 1, 256;" ::: "memory");
    gemv_finish<WK, M, 256>(a, sums, first, n, residual);
}
#endif

// 256 threads; RU rows of a group in flight.
template <class F, int TPR, int NCH, int M, int RU> DEV void gemv_plain(const GemvArgs& given) {
    extern __shared__ __align__(128) u8 smem[];
    __shared__ float part[16];
    const int RG = 256 / TPR, WPR = TPR / 32;
    dependents_may_start();
    float* sums = (float*)smem;
    u32 lane = threadIdx.x % TPR, group = threadIdx.x / TPR;
    Activations<F, 256, TPR, NCH, M> x;
    wait_for_inputs();
    GemvArgs a = of_choice(given);
    u32 first = (u64)a.rows * blockIdx.x / gridDim.x, end = (u64)a.rows * (blockIdx.x + 1) / gridDim.x, n = end - first;
    float residual = gemv_residual<M>(a, first, n);
    x.load(a, lane, (u8*)sums, part);
    for (u32 kind = 0; kind < (a.gate >= 0 ? 2u : 1u); kind++)
        for (u32 base = group * RU; base < n + RU; base += RG * RU) {
            if (base >= n) break;
            const u8* rows = a.w + (u64)(kind * a.rows + first + base) * a.row_bytes;
            float acc[RU][M];
#pragma unroll
            for (int r = 0; r < RU; r++)
#pragma unroll
                for (int m = 0; m < M; m++) acc[r][m] = 0.0f;
#pragma unroll
            for (int c = 0; c < NCH; c++) {
                u32 chunk = c * TPR + lane;
                if (chunk < a.chunks) {
                    typename F::Chunk w[RU];
#pragma unroll
                    for (int r = 0; r < RU; r++) w[r] = F::load(rows + (u64)min((u32)r, n - 1 - base) * a.row_bytes, a.k, chunk);
#pragma unroll
                    for (int r = 0; r < RU; r++)
#pragma unroll
                        for (int m = 0; m < M; m++) acc[r][m] += F::dot(w[r], x.piece[m][c]);
                }
            }
#pragma unroll
            for (int r = 0; r < RU; r++)
#pragma unroll
                for (int m = 0; m < M; m++) {
                    float sum = warp_sum(acc[r][m]);
                    if ((lane & 31) == 0 && base + r < n) sums[((kind * n + base + r) * M + m) * WPR + lane / 32] = sum;
                }
        }
    __syncthreads();
    gemv_finish<WPR, M, 256>(a, sums, first, n, residual);
}
