// XXH3-64 with seed 0 and the default secret, from the xxHash specification (doc/xxhash_spec.md).
//
// Inputs of over 240 bytes are hashed by a block of threads, shorter ones by one thread.
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

// Where the bytes of a plain input lie.
struct Plain {
    const u8* from;
    __device__ __forceinline__ const u8* find(u32 place) { return from + place; }
};

constexpr u32 TILE = 64;  // blocks of 1024 bytes that a thread block works on between two barriers

struct HashShared {
    u64 sums[2][TILE][8];  // what each block of a tile adds to the accumulators
};

// Hash n bytes (16-byte aligned, n < 2^32) by one block of 256 threads, and copy them on the way if COPY.
// Within a block of 1024 bytes accumulators only add, so the warps sum blocks independently; one warp then
// goes through the sums, which the scramble puts in order. The result is in thread 0.
template <bool COPY> struct BlockHash {
    HashShared& sh;
    u32 lane, warp;
    u64 key[4];   // secret of this lane's two numbers in both halves of a block
    u64 acc;      // warp 0, lane i: accumulator i & 7

    __device__ __forceinline__ BlockHash(HashShared& shared) : sh(shared) {
        const u64 init[8] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
        lane = threadIdx.x & 31;
        warp = threadIdx.x >> 5;
        acc = 0;
        #pragma unroll
        for (u32 i = 0; i < 8; ++i) acc = (lane & 7) == i ? init[i] : acc;
        #pragma unroll
        for (u32 i = 0; i < 4; ++i) key[i] = secret_at(8 * (8 * (i >> 1) + (lane >> 2) + 2 * (lane & 3) + (i & 1)));
    }

    static __device__ __forceinline__ u64 product(u64 k) { return (u64)(u32)k * (u32)(k >> 32); }

    // Add 16 bytes to this lane's two sums.
    static __device__ __forceinline__ void add(u64& a, u64& b, const uint4& v, u64 ka, u64 kb) {
        const u64 low = (u64)v.y << 32 | v.x, high = (u64)v.w << 32 | v.z;
        a += product(low ^ ka) + high;
        b += product(high ^ kb) + low;
    }

    // Sum over the stripes, which lanes l, l ^ 4, l ^ 8, l ^ 16 hold parts of; a is in lanes 0..3, b in 16..19.
    __device__ __forceinline__ void keep(u64 a, u64 b, u64* sums) const {
        const bool upper = lane & 16;
        const u64 other = __shfl_xor_sync(ALL_LANES, upper ? a : b, 16);
        u64 mine = (upper ? b : a) + other;
        mine += __shfl_xor_sync(ALL_LANES, mine, 8);
        mine += __shfl_xor_sync(ALL_LANES, mine, 4);
        if (!(lane & 12)) sums[2 * (lane & 3) + (lane >> 4)] = mine;
    }

    template <class Source> __device__ __forceinline__ void tile(Source& from, u8* to, u32 first, u32 blocks) {
        constexpr u32 DEEP = 4;
        #pragma unroll 1
        for (u32 i = 0; i < TILE / WARPS; i += DEEP) {
            uint4 v[DEEP][2];
            #pragma unroll
            for (u32 d = 0; d < DEEP; ++d) {
                const u32 b = first + warp + WARPS * (i + d), place = b * BLOCK_BYTES + 16 * lane;
                if (b >= blocks) continue;
                v[d][0] = *global<const uint4>(from.find(place));
                v[d][1] = *global<const uint4>(from.find(place + 512));
            }
            #pragma unroll
            for (u32 d = 0; d < DEEP; ++d) {
                const u32 b = first + warp + WARPS * (i + d), place = b * BLOCK_BYTES + 16 * lane;
                if (b >= blocks) continue;
                if (COPY) {
                    *global<uint4>(to + place) = v[d][0];
                    *global<uint4>(to + place + 512) = v[d][1];
                }
                u64 sa = 0, sb = 0;
                add(sa, sb, v[d][0], key[0], key[1]);
                add(sa, sb, v[d][1], key[2], key[3]);
                keep(sa, sb, sh.sums[first / TILE & 1][b % TILE]);
            }
        }
    }

    // Warp 0: take a tile's sums in order.
    __device__ __forceinline__ void chain(u32 first, u32 blocks) {
        const u64 secret = secret_at(128 + 8 * (lane & 7));
        const u32 count = least(TILE, blocks - first);
        for (u32 b = 0; b < count; ++b) {
            acc += sh.sums[first / TILE & 1][b][lane & 7];
            acc = (acc ^ acc >> 47 ^ secret) * P32_1;
        }
    }

    // Warp 0: the incomplete last block, the last 64 bytes, and the mixing of the accumulators.
    template <class Source> __device__ __forceinline__ u64 finish(Source& from, u8* to, u32 n, u32 blocks) {
        const u32 rest = n - blocks * BLOCK_BYTES, stripes = (rest - 1) / STRIPE;
        u64 sa = 0, sb = 0;
        #pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            const u32 at = 512 * h + 16 * lane, place = blocks * BLOCK_BYTES + at;
            if (at >= rest || (!COPY && at >= STRIPE * stripes)) continue;
            const uint4 v = *global<const uint4>(from.find(place));
            if (COPY) *global<uint4>(to + place) = v;
            if (at < STRIPE * stripes) add(sa, sb, v, key[2 * h], key[2 * h + 1]);
        }
        __syncwarp();
        if (lane < 4) {
            const u8* last;
            if constexpr (COPY) last = to + n - STRIPE + 16 * lane;
            else last = from.from + n - STRIPE + 16 * lane;  // at any address
            const u64 low = bytes_at(last, 8), high = bytes_at(last + 8, 8);
            sa += product(low ^ secret_at(121 + 16 * lane)) + high;
            sb += product(high ^ secret_at(129 + 16 * lane)) + low;
        }
        keep(sa, sb, sh.sums[0][0]);
        __syncwarp();
        const u64 mine = (acc + sh.sums[0][0][lane & 7]) ^ secret_at(11 + 8 * (lane & 7));
        u64 h = fold(mine, __shfl_xor_sync(ALL_LANES, mine, 1));
        h = lane & 1 ? 0 : h;
        h += __shfl_xor_sync(ALL_LANES, h, 2);
        h += __shfl_xor_sync(ALL_LANES, h, 4);
        return avalanche(h + n * P64_1);
    }

    template <class Source> __device__ __forceinline__ u64 run(Source& from, u8* to, u32 n) {
        const u32 blocks = (n - 1) / BLOCK_BYTES;
        for (u32 first = 0; first < blocks; first += TILE) {
            tile(from, to, first, blocks);
            __syncthreads();
            // The next tile's sums go to the other half, so the other warps go on.
            if (warp == 0) chain(first, blocks);
        }
        __syncthreads();
        return warp == 0 ? finish(from, to, n, blocks) : 0;
    }
};
