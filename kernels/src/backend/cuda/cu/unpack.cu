// Packed weights to values: a run of rows into bf16, and rows of an embedding table.
#include "forms.cuh"

template <class F> DEV void unpack_body(const u8* w, u32 row_bytes, u32 k, u32 chunks, u32 rows, bf16* out) {
    dependents_may_start();
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u32 row = at / chunks, chunk = at % chunks;
    float v[F::ELEMS];
    if (row < rows) F::decode(w + (u64)row * row_bytes, k, chunk, v);
    // The ring it writes to was read by a product before.
    wait_for_inputs();
    if (row >= rows) return;
#pragma unroll
    for (int i = 0; i < F::ELEMS; i += 8) {
        uint4 o;
        o.x = pack_bf16(v[i], v[i + 1]); o.y = pack_bf16(v[i + 2], v[i + 3]);
        o.z = pack_bf16(v[i + 4], v[i + 5]); o.w = pack_bf16(v[i + 6], v[i + 7]);
        *(uint4*)(out + (u64)row * k + chunk * F::ELEMS + i) = o;
    }
}
#define UNPACK(name, F) extern "C" __global__ void name(const u8* w, u32 row_bytes, u32 k, u32 chunks, u32 rows, bf16* out) { unpack_body<F>(w, row_bytes, k, chunks, rows, out); }
UNPACK(unpack_q8, FormQ8)
UNPACK(unpack_q4k, FormQ4K)
UNPACK(unpack_q6k, FormQ6K)

template <class F> DEV void embed_packed(Tables t, const u8* w, u32 row_bytes, u32 k, u32 chunks, u32 last, float* out, u32 stride, float scale) {
    dependents_may_start();
    wait_for_inputs();
    const u8* row = w + (u64)min(t.tokens[blockIdx.x], last) * row_bytes;
    for (u32 chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
        float v[F::ELEMS];
        F::decode(row, k, chunk, v);
        for (int i = 0; i < F::ELEMS; i++) out[(u64)blockIdx.x * stride + chunk * F::ELEMS + i] = v[i] * scale;
    }
}
#define EMBED_PACKED(name, F) extern "C" __global__ void name(Tables t, const u8* w, u32 row_bytes, u32 k, u32 chunks, u32 last, float* out, u32 stride, float scale) { embed_packed<F>(t, w, row_bytes, k, chunks, last, out, stride, scale); }
EMBED_PACKED(embed_q8, FormQ8)
EMBED_PACKED(embed_q4k, FormQ4K)
EMBED_PACKED(embed_q6k, FormQ6K)
