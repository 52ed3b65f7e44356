// Words to the planes of layout `fields` and back (FORMAT.md section 2), for the profile `nvcomp`.
//
// -DS4_FIELDS: bits of the exponent, 8 (bfloat16, float32) or 5 (float16). Planes lie at chunk.scratch,
// chunk.stride apart, each padded with zeros to a multiple of 16 bytes. With -DS4_VERIFY=1 joined words are
// compared with those in memory instead of written.
#include "words.cuh"

#ifndef S4_FIELDS
#define S4_FIELDS 8
#endif
#ifndef S4_VERIFY
#define S4_VERIFY 0
#endif

constexpr int FIELDS = W == 4 ? 5 : S4_FIELDS == 8 ? 3 : 4;

// Lowest bit in the word, and mask, of a field.
__device__ __forceinline__ u32 field_shift(int f) {
    if (W == 4) return f == 0 ? 31 : f == 1 ? 23 : f == 2 ? 16 : f == 3 ? 8 : 0;
    if (S4_FIELDS == 8) return f == 0 ? 15 : f == 1 ? 7 : 0;
    return f == 0 ? 15 : f == 1 ? 10 : f == 2 ? 8 : 0;
}
__device__ __forceinline__ u32 field_mask(int f) {
    if (W == 4) return f == 0 ? 1 : f == 2 ? 127 : 255;
    if (S4_FIELDS == 8) return f == 0 ? 1 : f == 1 ? 255 : 127;
    return f == 0 ? 1 : f == 1 ? 31 : f == 2 ? 3 : 255;
}

// Field f of four words, a byte each.
__device__ __forceinline__ u32 cut(const Quad& q, int f) {
    const u32 shift = field_shift(f), mask = field_mask(f);
    if constexpr (W == 2) {
        const u32 both = mask | mask << 16;
        return __byte_perm(q.v[0] >> shift & both, q.v[1] >> shift & both, 0x6420);
    } else {
        u32 s = 0;
        #pragma unroll
        for (int j = 0; j < W; ++j) s |= (q.v[j] >> shift & mask) << (8 * j);
        return s;
    }
}

// The inverse: or the field's bits into the words. False if a byte has bits outside the field.
__device__ __forceinline__ bool put(Quad& q, int f, u32 s) {
    const u32 shift = field_shift(f), mask = field_mask(f);
    if constexpr (W == 2) {
        q.v[0] |= __byte_perm(s, 0, 0x4140) << shift;
        q.v[1] |= __byte_perm(s, 0, 0x4342) << shift;
    } else {
        #pragma unroll
        for (int j = 0; j < W; ++j) q.v[j] |= (s >> (8 * j) & 255) << shift;
    }
    return !(s & ~(mask * 0x01010101u));
}

extern "C" __global__ void __launch_bounds__(THREADS) s4_cut_fields(const Chunk* chunks) {
    const Chunk c = chunks[blockIdx.x];
    u8* planes = global<u8>(c.scratch);
    for (u32 at = 4 * threadIdx.x; at < pad16(c.n); at += 4 * THREADS) {
        const u32 count = count_at(at, c.n);
        const Quad q = count == 4 ? coded_quad(c, at) : coded_tail(c, at, count);
        #pragma unroll
        for (int f = 0; f < FIELDS; ++f) *global<u32>(planes + (u64)f * c.stride * 16 + at) = cut(q, f);
    }
}

// status[chunk]: `fault` where words differ (S4_VERIFY), or where a plane's byte does not fit its field.
extern "C" __global__ void __launch_bounds__(THREADS) s4_join_fields(const Chunk* chunks, u32* status, u32 fault) {
    if (status[blockIdx.x]) return;
    const Chunk c = chunks[blockIdx.x];
    const u8* planes = global<const u8>(c.scratch);
    u8* words = global<u8>(c.words);
    const u8* base = global<const u8>(c.base);
    bool good = true;
    for (u32 at = 4 * threadIdx.x; at < c.n; at += 4 * THREADS) {
        const u32 count = count_at(at, c.n);
        Quad q = {};
        #pragma unroll
        for (int f = 0; f < FIELDS; ++f) good &= put(q, f, *global<const u32>(planes + (u64)f * c.stride * 16 + at));
        if (S4_VERIFY) {
            const Quad want = count == 4 ? coded_quad(c, at) : coded_tail(c, at, count);
            #pragma unroll
            for (int i = 0; i < W; ++i) good &= q.v[i] == want.v[i];
            continue;
        }
        if constexpr (DELTA != 0) q = undo_delta(q, load_tail(base + (u64)at * W, count));
        if (count == 4) store_quad(words + (u64)at * W, q);
        else store_tail(words + (u64)at * W, q, count);
    }
    if (!good) atomicMax(&status[blockIdx.x], fault);
}
