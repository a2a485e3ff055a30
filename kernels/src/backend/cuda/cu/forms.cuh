// How a row of weights lies in device memory, and its product with a piece of an activation.
//
// A form cuts a row into chunks whose codes fill 16 bytes. `load` fetches a chunk with its scales, from global or shared
// memory; `Piece` is what an activation becomes once before many rows pass by; `dot` joins both; `decode` gives values.
// Rows of all forms begin at multiples of 16 bytes. Integer forms take activations as 15-bit codes in two planes of 8
// bits (16 or 32 of them to a scale), so that products of four are one instruction and the activation keeps more
// precision than bf16 has.
#include "crit.cuh"

DEV int dp4a(u32 a, u32 b, int c) { int d; asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c)); return d; }

// N values as codes: value = (256 hi + lo) * scale.
template <int N> struct Codes {
    u32 hi[N / 4], lo[N / 4];
    float scale;
    MEM void set(const float* x) {
        float top = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) top = fmaxf(top, fabsf(x[i]));
        scale = top * (1.0f / 32512.0f);
        float inv = top > 0.0f ? 32512.0f / top : 0.0f;
#pragma unroll
        for (int w = 0; w < N / 4; w++) {
            // Added to 1.5 * 2^23 a value is rounded to a whole number, whose two's complement are the low bits.
            u32 q[4], r[4];
#pragma unroll
            for (int b = 0; b < 4; b++) {
                q[b] = __float_as_uint(fmaf(x[4 * w + b], inv, 12582912.0f));
                r[b] = q[b] + 128u;
            }
            lo[w] = __byte_perm(__byte_perm(q[0], q[1], 0x0040), __byte_perm(q[2], q[3], 0x0040), 0x5410);
            hi[w] = __byte_perm(__byte_perm(r[0], r[1], 0x0051), __byte_perm(r[2], r[3], 0x0051), 0x5410);
        }
    }
    // Sum of the codes of words [from, to).
    MEM int sum(int from, int to) const {
        int h = 0, l = 0;
        for (int w = from; w < to; w++) { h = dp4a(0x01010101u, hi[w], h); l = dp4a(0x01010101u, lo[w], l); }
        return h * 256 + l;
    }
};

// bf16 as stored.
struct FormBf16 {
    static const int ELEMS = 8;
    struct Chunk { uint4 v; };
    struct Piece { u32 v[4]; };
    DEV Chunk load(const u8* row, u32, u32 chunk) { Chunk c; c.v = *(const uint4*)(row + chunk * 16); return c; }
    DEV void take(Piece& p, const float* x) {
#pragma unroll
        for (int i = 0; i < 4; i++) p.v[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
    }
    DEV float dot(const Chunk& c, const Piece& p) {
        u32 w[4] = {c.v.x, c.v.y, c.v.z, c.v.w};
        float a = 0.0f, b = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) { a += lo_bf16(w[i]) * lo_bf16(p.v[i]); b += hi_bf16(w[i]) * hi_bf16(p.v[i]); }
        return a + b;
    }
    DEV void decode(const u8* row, u32 k, u32 chunk, float* o) { load8((const bf16*)(row + chunk * 16), o); }
};

// f16 as stored; activations beyond its range are held at its largest.
struct FormF16 {
    static const int ELEMS = 8;
    struct Chunk { uint4 v; };
    struct Piece { u32 v[4]; };
    DEV Chunk load(const u8* row, u32, u32 chunk) { Chunk c; c.v = *(const uint4*)(row + chunk * 16); return c; }
    DEV void take(Piece& p, const float* x) {
#pragma unroll
        for (int i = 0; i < 4; i++) p.v[i] = pack_f16(x[2 * i], x[2 * i + 1]);
    }
    DEV float dot(const Chunk& c, const Piece& p) {
        u32 w[4] = {c.v.x, c.v.y, c.v.z, c.v.w};
        float a = 0.0f, b = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) { a += lo_f16(w[i]) * lo_f16(p.v[i]); b += hi_f16(w[i]) * hi_f16(p.v[i]); }
        return a + b;
    }
    DEV void decode(const u8* row, u32 k, u32 chunk, float* o) { load8((const f16*)(row + chunk * 16), o); }
};

// Q8_0: all codes of the row, then one f16 scale for each 32 of them.
struct FormQ8 {
    static const int ELEMS = 16;
    struct Chunk { uint4 v; float scale; };
    typedef Codes<16> Piece;
    DEV Chunk load(const u8* row, u32 k, u32 chunk) {
        Chunk c;
        c.v = *(const uint4*)(row + chunk * 16);
        c.scale = half_bits(*(const u16*)(row + k + (chunk >> 1) * 2));
        return c;
    }
    DEV void take(Piece& p, const float* x) { p.set(x); }
    DEV float dot(const Chunk& c, const Piece& p) {
        u32 w[4] = {c.v.x, c.v.y, c.v.z, c.v.w};
        int h = 0, l = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) { h = dp4a(w[i], p.hi[i], h); l = dp4a(w[i], p.lo[i], l); }
        return (float)(h * 256 + l) * (p.scale * c.scale);
    }
    DEV void decode(const u8* row, u32 k, u32 chunk, float* o) {
        Chunk c = load(row, k, chunk);
        u32 w[4] = {c.v.x, c.v.y, c.v.z, c.v.w};
#pragma unroll
        for (int i = 0; i < 16; i++) o[i] = (float)(i8)(w[i / 4] >> (8 * (i & 3))) * c.scale;
    }
};

// Q4_K: for each 256 a head of 16 bytes (d, dmin as f16; eight 12-bit pairs of scale and minimum), then the nibbles of the
// row: byte j of a chunk holds elements j and j + 16 of its 32.
struct FormQ4K {
    static const int ELEMS = 32;
    struct Chunk { uint4 v; float scale, min; };
    struct Piece { Codes<32> x; float sum; };
    DEV Chunk load(const u8* row, u32 k, u32 chunk) {
        Chunk c;
        c.v = *(const uint4*)(row + (k >> 4) + chunk * 16);
        uint4 head = *(const uint4*)(row + (chunk >> 3) * 16);
        u32 bit = (chunk & 7) * 12, word = bit >> 5, shift = bit & 31;
        u32 a = word == 0 ? head.y : (word == 1 ? head.z : head.w);
        u32 b = word == 0 ? head.z : head.w;
        u32 pair = __funnelshift_r(a, b, shift) & 0xfffu;
        c.scale = lo_f16(head.x) * (float)(pair & 63u);
        c.min = hi_f16(head.x) * (float)(pair >> 6);
        return c;
    }
    DEV void take(Piece& p, const float* x) { p.x.set(x); p.sum = (float)p.x.sum(0, 8) * p.x.scale; }
    DEV float dot(const Chunk& c, const Piece& p) {
        u32 w[4] = {c.v.x, c.v.y, c.v.z, c.v.w};
        int h = 0, l = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 a = w[i] & 0x0f0f0f0fu, b = (w[i] >> 4) & 0x0f0f0f0fu;
            h = dp4a(a, p.x.hi[i], h); l = dp4a(a, p.x.lo[i], l);
            h = dp4a(b, p.x.hi[i + 4], h); l = dp4a(b, p.x.lo[i + 4], l);
        }
        return (float)(h * 256 + l) * (p.x.scale * c.scale) - c.min * p.sum;
    }
    DEV void decode(const u8* row, u32 k, u32 chunk, float* o) {
        Chunk c = load(row, k, chunk);
        u32 w[4] = {c.v.x, c.v.y, c.v.z, c.v.w};
#pragma unroll
        for (int i = 0; i < 16; i++) {
            u32 byte = w[i / 4] >> (8 * (i & 3));
            o[i] = c.scale * (float)(byte & 15u) - c.min;
            o[i + 16] = c.scale * (float)((byte >> 4) & 15u) - c.min;
        }
    }
};

// Q6_K: nibbles of the row as in Q4_K, then 8 bytes of high bits for each 32 (bits 2i of byte b belong to element 4i + b
// of each half: first 4 bytes the first half), then an i8 scale for each 16, then an f16 d for each 256.
struct FormQ6K {
    static const int ELEMS = 32;
    struct Chunk { uint4 v; uint2 high; float a, b; };
    struct Piece { Codes<32> x; int first, second; };
    DEV Chunk load(const u8* row, u32 k, u32 chunk) {
        Chunk c;
        c.v = *(const uint4*)(row + chunk * 16);
        c.high = *(const uint2*)(row + (k >> 1) + chunk * 8);
        u16 scales = *(const u16*)(row + (k >> 1) + (k >> 2) + chunk * 2);
        float d = half_bits(*(const u16*)(row + (k >> 1) + (k >> 2) + (k >> 4) + (chunk >> 3) * 2));
        c.a = d * (float)(i8)(scales & 255);
        c.b = d * (float)(i8)(scales >> 8);
        return c;
    }
    DEV void take(Piece& p, const float* x) { p.x.set(x); p.first = p.x.sum(0, 4); p.second = p.x.sum(4, 8); }
    DEV float dot(const Chunk& c, const Piece& p) {
        u32 w[4] = {c.v.x, c.v.y, c.v.z, c.v.w};
        int ha = 0, la = 0, hb = 0, lb = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 a = (w[i] & 0x0f0f0f0fu) | (((c.high.x >> (2 * i)) & 0x03030303u) << 4);
            u32 b = ((w[i] >> 4) & 0x0f0f0f0fu) | (((c.high.y >> (2 * i)) & 0x03030303u) << 4);
            ha = dp4a(a, p.x.hi[i], ha); la = dp4a(a, p.x.lo[i], la);
            hb = dp4a(b, p.x.hi[i + 4], hb); lb = dp4a(b, p.x.lo[i + 4], lb);
        }
        float first = (float)(ha * 256 + la - 32 * p.first), second = (float)(hb * 256 + lb - 32 * p.second);
        return (first * c.a + second * c.b) * p.x.scale;
    }
    DEV void decode(const u8* row, u32 k, u32 chunk, float* o) {
        Chunk c = load(row, k, chunk);
        u32 w[4] = {c.v.x, c.v.y, c.v.z, c.v.w};
#pragma unroll
        for (int i = 0; i < 16; i++) {
            u32 byte = w[i / 4] >> (8 * (i & 3));
            u32 ha = (c.high.x >> (2 * (i / 4) + 8 * (i & 3))) & 3u, hb = (c.high.y >> (2 * (i / 4) + 8 * (i & 3))) & 3u;
            o[i] = c.a * (float)((int)((byte & 15u) | (ha << 4)) - 32);
            o[i + 16] = c.b * (float)((int)(((byte >> 4) & 15u) | (hb << 4)) - 32);
        }
    }
};
