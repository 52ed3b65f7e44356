// What every kernel shares: integer names, the records exchanged with the host, warp primitives.
//
// One module is compiled for one shape of coded words: S4_W bytes a word, S4_LAYOUT (1 float,
// 2 bytes; FORMAT.md section 2), S4_DELTA (0 none, 1 xor, 2 zigzag of floats, 3 zigzag of integers;
// section 3). The sources use nothing but what NVRTC has built in, and no warp primitive newer than
// sm_75. Every warp primitive is called by all 32 lanes.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef S4_W
#define S4_W 2
#endif
#ifndef S4_LAYOUT
#define S4_LAYOUT 1
#endif
#ifndef S4_DELTA
#define S4_DELTA 0
#endif

constexpr int W = S4_W;
constexpr bool FLOAT = S4_LAYOUT == 1;
constexpr int DELTA = S4_DELTA;
static_assert(W == 1 || W == 2 || W == 4 || W == 8, "a word has 1, 2, 4 or 8 bytes");
static_assert(!FLOAT || (W >= 2 && DELTA <= 1), "layout float: words of 2, 4, 8 bytes, no zigzag");

constexpr u32 ALL_LANES = 0xffffffffu;
constexpr int WARPS = 8;
constexpr int THREADS = 32 * WARPS;

// Codecs of FORMAT.md section 4, then what a plane may still need before its codec is known.
constexpr u32 RAW = 1, CONST = 2, BITPACK = 3, RANS = 4;
constexpr u32 NEEDS_VARIES = 100, NEEDS_EXACT = 101;

constexpr u32 K = 12;        // probability bits the encoder uses
constexpr u32 M = 1u << K;
constexpr u32 LOW = 1u << 15;  // smallest state
constexpr u32 MAX_PATCHES = 128;

// Scratch of one plane of one chunk: the head of a rans blob, then its sub-blocks at fixed places.
constexpr u32 HEAD_BYTES = 1600;     // 16 + 32 + 512 + 1024, and 16 for the length of the head
constexpr u32 HEAD_LENGTH_AT = 1584;

struct Chunk {
    u64 words;    // address of the chunk's first word (encode: source; decode: destination)
    u64 base;     // address of the base's word, 0 if there is none
    u64 scratch;  // address of plane 0 of this chunk in the scratch (encode only)
    u32 n;        // words
    u32 sub;      // symbols in a sub-block
    u32 stride;   // bytes of scratch from plane to plane, in units of 16
    u32 reserved;
};

// A record of the shard's index, FORMAT.md section 6.
struct Blob {
    u64 checksum;
    u32 length;
    u8 codec;
    u8 param;
    u16 zero;
};

// Tell the compiler that an address from a table is one of global memory: generic accesses are slower.
template <class T> __device__ __forceinline__ T* global(u64 address) {
    T* p = reinterpret_cast<T*>(address);
#ifdef __CUDA_ARCH__
    __builtin_assume(__isGlobal(p));
#endif
    return p;
}
template <class T> __device__ __forceinline__ T* global(const void* address) {
    return global<T>(reinterpret_cast<u64>(address));
}

// Hide from the compiler how a value came about, so that it keeps it in a register instead of making it
// anew, or folding it into longer sequences.
__device__ __forceinline__ u32 opaque(u32 v) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+r"(v));
#endif
    return v;
}

__device__ __forceinline__ u32 pad16(u32 x) { return (x + 15u) & ~15u; }
__device__ __forceinline__ u32 least(u32 a, u32 b) { return a < b ? a : b; }
__device__ __forceinline__ u32 pieces_of(u32 n, u32 size) { return (n + size - 1) / size; }

// Room for a sub-block of a chunk of n words: 32 states, at most one 16-bit word a symbol, patches.
__device__ __forceinline__ u32 sub_stride(u32 n, u32 sub) {
    return 128u + 2u * least(sub, (n + 127u) & ~127u) + 4u * MAX_PATCHES;
}

__device__ __forceinline__ u32 warp_sum(u32 v) {
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(ALL_LANES, v, d);
    return v;
}
__device__ __forceinline__ u64 warp_sum64(u64 v) {
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(ALL_LANES, v, d);
    return v;
}
__device__ __forceinline__ u32 warp_or(u32 v) {
    for (int d = 16; d; d >>= 1) v |= __shfl_xor_sync(ALL_LANES, v, d);
    return v;
}
__device__ __forceinline__ u32 warp_max(u32 v) {
    for (int d = 16; d; d >>= 1) {
        u32 o = __shfl_xor_sync(ALL_LANES, v, d);
        v = v > o ? v : o;
    }
    return v;
}
// Exclusive prefix sum over the lanes of a warp.
__device__ __forceinline__ u32 warp_prefix(u32 v, u32 lane) {
    u32 sum = v;
    for (int d = 1; d < 32; d <<= 1) {
        u32 o = __shfl_up_sync(ALL_LANES, sum, d);
        if (lane >= (u32)d) sum += o;
    }
    return sum - v;
}
