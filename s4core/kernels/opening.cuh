// What the decoder does with a chunk before it decodes: check every blob, and make its planes ready.
//
// All threads of the block take part in every function here, unless it says otherwise.
#pragma once
#include "words.cuh"

#ifndef S4_VERIFY
#define S4_VERIFY 0
#endif
constexpr bool VERIFY = S4_VERIFY != 0;

constexpr u32 GROUP = 128;          // symbols that 32 lanes take in four steps
constexpr u32 HALF_BYTES = 512;     // of the ring of words; half of it is filled at a time
constexpr u32 RING_BYTES = 2 * HALF_BYTES;
constexpr u32 MIRROR_BYTES = 2 * GROUP;  // the ring's end once more before its start: no wrap within a group

// What can be wrong with a chunk; status = fault | plane << 8. Kept in step with faults.py.
enum Fault : u32 {
    OK = 0, LENGTH, CODEC, HEADER, TABLE, DIRECTORY, STATES, PATCHES, END, PADDING, MISMATCH, CHECKSUM
};

struct DecodeShared {
    u32 table[4096];       // symbol << 24 | (slot - cum) << 12 | f
    uint4 ring[WARPS][(MIRROR_BYTES + RING_BYTES) / 16];
    u32 start[256];        // where each sub-block lies in the blob
    u32 freq[256], cum[256];
    u32 sums[WARPS];
    u8 expand[W][128];     // bitpack: code to symbol
    u32 codec[W], length[W], fill[W], width[W];
    const u8* blob[W];
    u32 patches[WARPS][MAX_PATCHES];  // of each warp's sub-block
    u32 patch_count[WARPS];     // of them not applied yet
    u32 k, nsub, sub;      // of the rans plane of this pass
    u32 fault;
};
__shared__ DecodeShared sh;

// How one pass meets the words.
struct Pass {
    u32 rans;      // the rans plane, W if there is none
    u32 planes;    // the planes this pass yields
    bool first, last;
};

__device__ __forceinline__ void fail(u32 fault, u32 plane) {
    atomicMax(&sh.fault, fault | plane << 8);
}

__device__ __forceinline__ u32 byte_to_word(u32 b) { return (b & 255) * 0x01010101u; }

// Check a raw or bitpack plane and make it ready. All threads.
__device__ __noinline__ void open_raw(u32 n, u32 p) {
    const u32 i = n + threadIdx.x;
    if (sh.length[p] != pad16(n)) fail(LENGTH, p);
    else if (i < pad16(n) && sh.blob[p][i]) fail(PADDING, p);
}

__device__ __noinline__ void open_bitpack(u32 n, u32 p) {
    const u32 tid = threadIdx.x;
    const u8* blob = sh.blob[p];
    if (sh.length[p] < 16) {
        fail(LENGTH, p);
        return;
    }
    const u32* h = reinterpret_cast<const u32*>(blob);
    const u32 mask = blob[0], base = blob[1], w = __popc(mask);
    if (w < 1 || w > 7 || (base & mask) || h[0] >> 16 || h[1] != n || h[2] || h[3]) {
        fail(HEADER, p);
        return;
    }
    const u64 packed = (u64)w * pieces_of(n, 8), bits = (u64)w * n;
    if (sh.length[p] != ((16 + packed + 15) & ~15ull)) {
        fail(LENGTH, p);
        return;
    }
    // Bits after the last symbol: at most 15 bytes of padding and those of absent symbols.
    const u64 at = bits / 8 + tid;
    if (16 + at < sh.length[p]) {
        const u32 v = tid == 0 ? blob[16 + at] >> (bits & 7) : blob[16 + at];
        if (v) fail(PADDING, p);
    }
    if (tid < (1u << w)) {
        u32 s = base, bit = 0;
        for (u32 b = 0; b < 8; ++b)
            if (mask >> b & 1) s |= (tid >> bit++ & 1) << b;
        sh.expand[p][tid] = (u8)s;
    }
    if (tid == 0) sh.width[p] = w;
}

__device__ __forceinline__ void open_plane(u32 n, u32 p, u32 param) {
    const u32 codec = sh.codec[p];
    if (codec == CONST) {
        if (sh.length[p]) fail(LENGTH, p);
        return;
    }
    if (param) fail(CODEC, p);
    if (codec == RAW) open_raw(n, p);
    else if (codec == BITPACK) open_bitpack(n, p);
    else if (codec != RANS) fail(CODEC, p);
}

// Read the head of a rans blob. Thread 0; false if it cannot be used.
__device__ __noinline__ bool open_head(u32 n, u32 p, u32& present) {
    const u8* b = sh.blob[p];
    const u32* h = reinterpret_cast<const u32*>(b);
    const u32 length = sh.length[p];
    if (length < 48 || (length & 15)) return false;
    sh.k = b[1];
    sh.nsub = b[2];
    sh.sub = h[2];
    if (b[0] != 2 || sh.k < 8 || sh.k > 12 || b[3] || h[1] != n || h[3]) return false;
    if (sh.sub < GROUP || sh.sub > (1u << 20) || sh.sub % GROUP || sh.nsub != pieces_of(n, sh.sub)) return false;
    present = 0;
    for (u32 i = 0; i < 8; ++i) present += __popc(h[4 + i]);
    return present >= 2 && length >= 48 + pad16(2 * present) + pad16(4 * sh.nsub);
}

// Lengths of the sub-blocks from the directory. Thread 0; false if they do not fill the blob.
__device__ __noinline__ bool open_directory(u32 p, u32 present) {
    const u32 at = 48 + pad16(2 * present);
    const u32* dir = reinterpret_cast<const u32*>(sh.blob[p] + at);
    u64 place = at + pad16(4 * sh.nsub);
    for (u32 i = 0; i < pad16(4 * sh.nsub) / 4; ++i) {
        const u32 d = dir[i];
        if (i >= sh.nsub) {
            if (d) return false;
            continue;
        }
        if (d >> 24 > MAX_PATCHES) return false;
        sh.start[i] = (u32)place;
        place += 128 + pad16(2 * (d & 0xffffff)) + pad16(4 * (d >> 24));
        if (place > sh.length[p]) return false;
    }
    return place == sh.length[p];
}

// Frequencies, checked, and their prefix sums. All threads.
__device__ __forceinline__ void read_table(u32 p, u32 present) {
    const u32 s = threadIdx.x, lane = s & 31, warp = s >> 5;
    const u32* h = reinterpret_cast<const u32*>(sh.blob[p]);
    const u16* f = reinterpret_cast<const u16*>(sh.blob[p] + 48);
    const bool here = h[4 + warp] >> lane & 1;
    u32 rank = __popc(h[4 + warp] & ((1u << lane) - 1));
    for (u32 i = 0; i < warp; ++i) rank += __popc(h[4 + i]);
    const u32 mine = here ? f[rank] : 0;
    if (here && (mine < 1 || mine >= (1u << sh.k))) fail(TABLE, p);
    if (s < (pad16(2 * present) - 2 * present) / 2 && f[present + s]) fail(PADDING, p);
    const u32 inside = warp_prefix(mine, lane);
    if (lane == 31) sh.sums[warp] = inside + mine;
    __syncthreads();
    u32 before = inside, sum = 0;
    for (u32 i = 0; i < WARPS; ++i) {
        if (i < warp) before += sh.sums[i];
        sum += sh.sums[i];
    }
    if (s == 0 && sum != (1u << sh.k)) fail(TABLE, p);
    sh.freq[s] = mine;
    sh.cum[s] = before;
}

// Whether a fault was found so far: the same answer in all threads, before any of them goes on.
__device__ __forceinline__ bool faulty() {
    __syncthreads();
    const bool bad = sh.fault != OK;
    __syncthreads();
    return bad;
}

// Validate the rans blob of plane p and fill the table. All threads; false if it cannot be used.
__device__ __noinline__ bool open_rans(u32 n, u32 p) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 present = 0;
        if (!open_head(n, p, present)) fail(HEADER, p);
        else if (!open_directory(p, present)) fail(DIRECTORY, p);
        sh.sums[0] = present;
    }
    __syncthreads();
    const u32 present = sh.sums[0];
    if (faulty()) return false;
    read_table(p, present);
    if (faulty()) return false;
    for (u32 i = 0; i < 32; ++i) {
        const u32 s = 32 * warp + i, f = sh.freq[s], cum = sh.cum[s];
        for (u32 t = lane; t < f; t += 32) sh.table[cum + t] = s << 24 | t << 12 | f;
    }
    __syncthreads();
    return true;
}
