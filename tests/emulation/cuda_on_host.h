// Runs a CUDA kernel on the host, for tests: every thread of a block is a fiber.
//
// Fibers run one after the other and yield inside warp and block collectives, so a kernel's synchronisation
// is exercised as written: a collective that some lane never reaches is reported, not papered over.
// x86-64 only (the switch is seven instructions). One block at a time; shared memory is static memory.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)

struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
struct Index { unsigned x; };
static Index threadIdx, blockIdx;

namespace emu {
constexpr int MAX_THREADS = 1024;
constexpr size_t STACK = 128 * 1024;
struct Warp { unsigned long long slot[2][32]; unsigned arrived, generation; };
static Warp warps[MAX_THREADS / 32];
static void* fibers[MAX_THREADS];
static void* scheduler;
static bool done[MAX_THREADS];
static char* stacks;
static unsigned alive, arrived, generation, moves;
static void (*body)();

extern "C" void emu_switch(void** save, void* load);
asm(".text\n.globl emu_switch\n.type emu_switch,@function\nemu_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

inline void yield() {
    const unsigned me = threadIdx.x;
    emu_switch(&fibers[me], scheduler);
}

inline void entry() {
    body();
    done[threadIdx.x] = true;
    --alive;
    ++moves;
    // A barrier that waits only for threads that have ended is complete.
    if (alive && arrived == alive) { arrived = 0; ++generation; }
    yield();
    abort();
}

inline void wait(unsigned& count, unsigned& gen, unsigned all) {
    const unsigned mine = gen;
    if (++count == all) { count = 0; ++gen; ++moves; return; }
    while (gen == mine) yield();
}

inline unsigned long long* exchange(unsigned long long v) {
    Warp& w = warps[threadIdx.x / 32];
    unsigned long long* slot = w.slot[w.generation & 1];
    slot[threadIdx.x & 31] = v;
    wait(w.arrived, w.generation, 32);
    return slot;
}

inline void start(unsigned t) {
    void** sp = reinterpret_cast<void**>(stacks + (t + 1) * STACK - 64);
    *--sp = nullptr;  // keeps the stack aligned as after a call
    *--sp = reinterpret_cast<void*>(&entry);
    sp -= 6;
    fibers[t] = sp;
    done[t] = false;
}

// Run one block of `threads` threads.
inline void run_block(unsigned block, unsigned threads, void (*kernel)()) {
    if (!stacks)
        stacks = static_cast<char*>(mmap(nullptr, MAX_THREADS * STACK, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    body = kernel;
    alive = threads;
    arrived = 0;
    memset(warps, 0, sizeof warps);
    blockIdx.x = block;
    for (unsigned t = 0; t < threads; ++t) start(t);
    while (alive) {
        const unsigned before = moves;
        for (unsigned t = 0; t < threads; ++t) {
            if (done[t]) continue;
            threadIdx.x = t;
            emu_switch(&scheduler, fibers[t]);
        }
        if (moves == before) { fprintf(stderr, "emulated kernel: deadlock\n"); abort(); }
    }
}
}  // namespace emu

inline void __syncthreads() { emu::wait(emu::arrived, emu::generation, emu::alive); }
inline void __syncwarp() { emu::exchange(0); }
inline unsigned __ballot_sync(unsigned, bool p) {
    const unsigned long long* s = emu::exchange(p);
    unsigned v = 0;
    for (int i = 0; i < 32; ++i) v |= unsigned(s[i]) << i;
    return v;
}
template <class T> T __shfl_xor_sync(unsigned, T v, int d) { return T(emu::exchange(v)[(threadIdx.x & 31) ^ d]); }
template <class T> T __shfl_up_sync(unsigned, T v, int d) {
    const int lane = threadIdx.x & 31;
    return T(emu::exchange(v)[lane >= d ? lane - d : lane]);
}
template <class T> T __shfl_sync(unsigned, T v, int from) { return T(emu::exchange(v)[from]); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __clz(unsigned v) { return v ? __builtin_clz(v) : 32; }
inline int __ffs(unsigned v) { return __builtin_ffs(v); }
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) {
    return unsigned(((unsigned long long)hi << 32 | lo) >> (s & 31));
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    const unsigned long long ab = (unsigned long long)b << 32 | a;
    unsigned v = 0;
    for (int i = 0; i < 4; ++i) v |= unsigned(ab >> (8 * (s >> (4 * i) & 7)) & 255) << (8 * i);
    return v;
}
inline unsigned atomicAdd(unsigned* p, unsigned v) { const unsigned o = *p; *p += v; return o; }
inline unsigned atomicOr(unsigned* p, unsigned v) { const unsigned o = *p; *p |= v; return o; }
inline unsigned atomicMax(unsigned* p, unsigned v) { const unsigned o = *p; if (v > o) *p = v; return o; }
