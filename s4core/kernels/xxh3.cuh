// XXH3-64 with seed 0 and the default secret, from the xxHash specification (doc/xxhash_spec.md).
//
// Long inputs (over 240 bytes): one warp. Lane l works on accumulator l & 7 and on stripes l >> 3 modulo 4
// of a block of 16 stripes; within a block accumulators only add, so the lanes' parts are summed once a
// block, before the scramble. Short inputs: one thread.
#pragma once
#include "common.cuh"

constexpr u64 P32_1 = 0x9E3779B1u, P32_2 = 0x85EBCA77u, P32_3 = 0xC2B2AE3Du;
constexpr u64 P64_1 = 0x9E3779B185EBCA87ull, P64_2 = 0xC2B2AE3D27D4EB4Full, P64_3 = 0x165667B19E3779F9ull;
constexpr u64 P64_4 = 0x85EBCA77C2B2AE63ull, P64_5 = 0x27D4EB2F165667C5ull;
constexpr u64 MIX_1 = 0x165667919E3779F9ull, MIX_2 = 0x9FB21C651E98DF25ull;

constexpr u32 STRIPE = 64, BLOCK_BYTES = 1024, MID_SIZE = 240;

__device__ const u8 SECRET[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

__device__ __forceinline__ u64 bytes_at(const u8* p, u32 count) {
    u64 v = 0;
    for (u32 i = 0; i < count; ++i) v |= (u64)p[i] << (8 * i);
    return v;
}
__device__ __forceinline__ u64 secret_at(u32 at) { return bytes_at(SECRET + at, 8); }
__device__ __forceinline__ u64 rotl(u64 v, u32 r) { return v << r | v >> (64 - r); }
__device__ __forceinline__ u64 swap64(u64 v) {
    return (u64)__byte_perm((u32)v, 0, 0x0123) << 32 | __byte_perm((u32)(v >> 32), 0, 0x0123);
}
__device__ __forceinline__ u64 fold(u64 a, u64 b) { return a * b ^ __umul64hi(a, b); }
__device__ __forceinline__ u64 avalanche(u64 h) {
    h ^= h >> 37;
    h *= MIX_1;
    return h ^ h >> 32;
}
__device__ __forceinline__ u64 avalanche64(u64 h) {
    h ^= h >> 33;
    h *= P64_2;
    h ^= h >> 29;
    h *= P64_3;
    return h ^ h >> 32;
}
__device__ __forceinline__ u64 mix16(const u8* p, u32 secret) {
    return fold(bytes_at(p, 8) ^ secret_at(secret), bytes_at(p + 8, 8) ^ secret_at(secret + 8));
}

__device__ __forceinline__ u64 xxh3_tiny(const u8* p, u32 n) {
    if (n == 0) return avalanche64(secret_at(56) ^ secret_at(64));
    if (n <= 3) {
        const u32 v = (u32)p[0] << 16 | (u32)p[n >> 1] << 24 | p[n - 1] | n << 8;
        return avalanche64((u64)v ^ ((u32)secret_at(0) ^ (u32)(secret_at(0) >> 32)));
    }
    if (n <= 8) {
        u64 h = (bytes_at(p + n - 4, 4) + (bytes_at(p, 4) << 32)) ^ secret_at(8) ^ secret_at(16);
        h ^= rotl(h, 49) ^ rotl(h, 24);
        h *= MIX_2;
        h ^= (h >> 35) + n;
        h *= MIX_2;
        return h ^ h >> 28;
    }
    const u64 low = bytes_at(p, 8) ^ secret_at(24) ^ secret_at(32);
    const u64 high = bytes_at(p + n - 8, 8) ^ secret_at(40) ^ secret_at(48);
    return avalanche(n + swap64(low) + high + fold(low, high));
}

// Up to 240 bytes, by one thread.
__device__ __noinline__ u64 xxh3_short(const u8* p, u32 n) {
    if (n <= 16) return xxh3_tiny(p, n);
    u64 h = n * P64_1;
    if (n <= 128) {
        for (u32 i = (n - 1) / 32 + 1; i--;)
            h += mix16(p + 16 * i, 32 * i) + mix16(p + n - 16 * (i + 1), 32 * i + 16);
        return avalanche(h);
    }
    for (u32 i = 0; i < 8; ++i) h += mix16(p + 16 * i, 16 * i);
    h = avalanche(h);
    for (u32 i = 8; i < n / 16; ++i) h += mix16(p + 16 * i, 16 * (i - 8) + 3);
    return avalanche(h + mix16(p + n - 16, 136 - 17));
}

// The accumulators of a long input, block by block. Every lane holds the accumulator of its number & 7.
struct Xxh3 {
    u64 acc;
    u64 key[4];    // secret of this lane's stripes of a block
    u64 scramble;  // and of the scramble
    u32 lane;

    __device__ __forceinline__ void start(u32 l) {
        const u64 init[8] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
        lane = l;
        acc = 0;
        #pragma unroll
        for (u32 i = 0; i < 8; ++i) acc = (l & 7) == i ? init[i] : acc;
        #pragma unroll
        for (u32 t = 0; t < 4; ++t) key[t] = secret_at(8 * (4 * t + (l >> 3) + (l & 7)));
        scramble = secret_at(128 + 8 * (l & 7));
    }
    // Where this lane's t-th number of a block lies in the block.
    __device__ __forceinline__ u32 place(u32 t) const { return 256 * t + 8 * lane; }

    // What the lane's number adds: to its own accumulator, and to its neighbour's.
    static __device__ __forceinline__ void part(u64& own, u64& other, u64 v, u64 secret) {
        const u64 k = v ^ secret;
        own += (u64)(u32)k * (u32)(k >> 32);
        other += v;
    }
    __device__ __forceinline__ void gather(u64 own, u64 other) {
        own += __shfl_xor_sync(ALL_LANES, other, 1);
        own += __shfl_xor_sync(ALL_LANES, own, 8);
        own += __shfl_xor_sync(ALL_LANES, own, 16);
        acc += own;
    }
    __device__ __forceinline__ void whole_block(const u64* v) {
        u64 own = 0, other = 0;
        #pragma unroll
        for (u32 t = 0; t < 4; ++t) part(own, other, v[t], key[t]);
        gather(own, other);
        acc = (acc ^ acc >> 47 ^ scramble) * P32_1;
    }
    // The last, incomplete block: its first `stripes` stripes; then the last 64 bytes of the input.
    __device__ __forceinline__ u64 finish(const u64* v, u32 stripes, u64 last, u64 n) {
        u64 own = 0, other = 0;
        #pragma unroll
        for (u32 t = 0; t < 4; ++t)
            if (4 * t + (lane >> 3) < stripes) part(own, other, v[t], key[t]);
        if (lane < 8) part(own, other, last, secret_at(121 + 8 * lane));
        gather(own, other);
        const u64 mine = acc ^ secret_at(11 + 8 * (lane & 7));
        u64 h = fold(mine, __shfl_xor_sync(ALL_LANES, mine, 1));
        h = lane & 1 ? 0 : h;
        h += __shfl_xor_sync(ALL_LANES, h, 2);
        h += __shfl_xor_sync(ALL_LANES, h, 4);
        return avalanche(h + n * P64_1);  // right in even lanes
    }
};

// XXH3-64 of n bytes at p (16-byte aligned) by one warp; the result is in lane 0.
__device__ __forceinline__ u64 xxh3_warp(const u8* p, u64 n, u32 lane) {
    if (n <= MID_SIZE) return lane == 0 ? xxh3_short(p, (u32)n) : 0;
    Xxh3 h;
    h.start(lane);
    const u64 blocks = (n - 1) / BLOCK_BYTES;
    u64 next[4], v[4];
    #pragma unroll
    for (u32 t = 0; t < 4; ++t) next[t] = blocks ? *reinterpret_cast<const u64*>(p + h.place(t)) : 0;
    for (u64 b = 0; b < blocks; ++b) {
        #pragma unroll
        for (u32 t = 0; t < 4; ++t) {
            v[t] = next[t];
            if (b + 1 < blocks)
                next[t] = *reinterpret_cast<const u64*>(p + (b + 1) * BLOCK_BYTES + h.place(t));
        }
        h.whole_block(v);
    }
    const u32 stripes = (u32)((n - 1 - blocks * BLOCK_BYTES) / STRIPE);
    #pragma unroll
    for (u32 t = 0; t < 4; ++t)
        v[t] = 4 * t + (lane >> 3) < stripes
            ? *reinterpret_cast<const u64*>(p + blocks * BLOCK_BYTES + h.place(t)) : 0;
    return h.finish(v, stripes, lane < 8 ? bytes_at(p + n - STRIPE + 8 * lane, 8) : 0, n);
}
