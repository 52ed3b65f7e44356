// The rANS encoder of one warp: 32 interleaved states, four steps a group of 128 symbols (FORMAT.md section 4.2).
//
// The division by a 32-bit reciprocal is exact for 31-bit states.
#pragma once
#include "choice.cuh"

constexpr u32 HALF = 256;       // words that a warp writes out at a time
constexpr u32 PATCH = 1u << 8;  // flag of a table entry: the symbol is not in the table
constexpr u32 GROUP = 128;      // symbols that 32 lanes take in four steps

struct EncodeShared {
    union {
        u32 hist[COPIES * W * 256];
        struct {
            // threshold for emission; reciprocal; bias << 16 | flag | shift; M - f
            uint4 table[256];
            u16 words[WARPS][HALF + GROUP];  // emitted and not yet written out
            u32 patch[WARPS][MAX_PATCHES];
        };
    };
    Verdicts v;
    u32 patches[WARPS];
    u32 dir[256];
    u32 sums[WARPS];
    u32 length[W];
    u32 failed, body;
};
__shared__ EncodeShared sh;

// Where a sub-block's coder stands.
struct Coder {
    u32 x;        // state of this lane
    u32 place;    // where the waiting words begin: an address of shared memory; 0 on the host
    u32 cursor;   // where the next word goes
    u32 flushed;  // words written out

    __device__ __forceinline__ u32 waiting() const { return (cursor - place) / 2; }
    __device__ __forceinline__ u32 words() const { return flushed + waiting(); }
};

__device__ __forceinline__ u32 symbol_of(u32 symbols, u32 j) { return __byte_perm(symbols, 0, 0x4440 + j); }

// Lanes whose state is at or over the threshold emit a word each, in ascending order of lanes.
__device__ __forceinline__ void emit(Coder& k, u16* words, u32 threshold, bool active, u32 below) {
    const bool over = active && k.x >= threshold;
    const u32 who = __ballot_sync(ALL_LANES, over);
    if (over) words[k.waiting() + __popc(who & below)] = (u16)k.x;
    k.cursor += 2 * __popc(who);
    if (over) k.x >>= 16;
}

// The same where all lanes are active. The compiler makes four instructions more of the C++.
__device__ __forceinline__ void emit_all(Coder& k, u16* words, u32 threshold, u32 below) {
#ifdef __CUDA_ARCH__
    asm volatile(
        "{\n\t.reg .pred p;\n\t.reg .b32 t, u;\n\t"
        "setp.ge.u32 p, %0, %2;\n\t"
        "vote.sync.ballot.b32 u, p, 0xffffffff;\n\t"
        "and.b32 t, u, %3;\n\t"
        "popc.b32 t, t;\n\t"
        "mad.lo.u32 t, t, 2, %1;\n\t"
        "@p st.shared.u16 [t], %0;\n\t"
        "popc.b32 u, u;\n\t"
        "mad.lo.u32 %1, u, 2, %1;\n\t"
        "@p shr.u32 %0, %0, 16;\n\t}"
        : "+r"(k.x), "+r"(k.cursor) : "r"(threshold), "r"(below) : "memory");
#else
    emit(k, words, threshold, true, below);
#endif
}

template <bool FULL>
__device__ __forceinline__ void step(Coder& k, u16* words, const uint4& e, bool active, u32 below) {
    if (FULL) emit_all(k, words, e.x, below);
    else emit(k, words, e.x, active, below);
    const u32 coded = k.x + __funnelshift_r(__umulhi(k.x, e.y), 0, e.z) * e.w + (e.z >> 16);
    if (FULL || active) k.x = coded;
}

// Remember the symbols of this lane that are not in the table.
__device__ __noinline__ void note_patches(u32 warp, u32 symbols, u32 at, u32 count) {
    for (u32 j = 0; j < count; ++j) {
        const u32 s = symbol_of(symbols, j);
        if (!(sh.table[s].z & PATCH)) continue;
        const u32 slot = atomicAdd(&sh.patches[warp], 1u);
        if (slot < MAX_PATCHES) sh.patch[warp][slot] = (at + j) | s << 24;
    }
}

// Write out a half, and move what is left to the front.
__device__ __forceinline__ void flush_half(Coder& k, u16* words, u8* out, u32 lane) {
    const uint4 full = *reinterpret_cast<const uint4*>(&words[8 * lane]);
    const uint2 rest = *reinterpret_cast<const uint2*>(&words[HALF + 4 * lane]);
    *global<uint4>(out + 2 * k.flushed + 16 * lane) = full;
    __syncwarp();
    *reinterpret_cast<uint2*>(&words[4 * lane]) = rest;
    k.flushed += HALF;
    k.cursor -= 2 * HALF;
    __syncwarp();
}

// Four steps: the group's symbols, `count` of them in this lane.
template <bool FULL>
__device__ __forceinline__ void code_group(
    Coder& k, u32 warp, u32 lane, u32 symbols, u32 at, u32 count, u8* words) {
    const u32 below = (1u << lane) - 1;
    u32 flags = 0;
    #pragma unroll
    for (u32 j = 0; j < 4; ++j) {
        const uint4 e = sh.table[symbol_of(symbols, j)];
        const bool active = FULL || j < count;
        step<FULL>(k, sh.words[warp], e, active, below);
        if (active) flags |= e.z;
    }
    if (flags & PATCH) note_patches(warp, symbols, at, count);
    __syncwarp();
    if (k.cursor - k.place >= 2 * HALF) flush_half(k, sh.words[warp], words, lane);
}
