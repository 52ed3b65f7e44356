// Decode chunks: blobs -> planes -> [undo delta] -> words, one block a chunk; or compare with the words.
//
// Everything a blob says is validated before it is used (FORMAT.md section 4.2); a damaged blob gives a
// status, never an access out of bounds: table slots are masked to the table, cursors to the ring, and
// every load from the stream is bounded by lengths that were checked. With -DS4_VERIFY=1 the same way is
// taken and the planes are compared with those of the words instead.
//
// Most chunks of weights have plane 0 in rans and all others raw: a kernel of their own, which needs fewer
// registers. Elsewhere a chunk takes one pass for each rans plane; the coded words then lie in the
// destination between passes, and the last pass undoes the delta.
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
    const u32* patches[WARPS];  // of each warp's sub-block
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

// Four symbols of a bitpack plane.
__device__ __noinline__ u32 unpack(u32 p, u32 at) {
    const u32 w = sh.width[p];
    const u64 bit = (u64)at * w;
    const u8* from = sh.blob[p] + 16 + bit / 8;
    u32 v = 0;
    // 4 w <= 28 bits and a shift of 0 or 4: at most 4 bytes. The blob's padding keeps them inside.
    for (u32 i = 0; i < (4 * w + (bit & 7) + 7) / 8; ++i)
        if (from + i < sh.blob[p] + sh.length[p]) v |= (u32)from[i] << (8 * i);
    v >>= bit & 7;
    u32 symbols = 0;
    for (u32 j = 0; j < 4; ++j) symbols |= (u32)sh.expand[p][v >> (w * j) & ((1u << w) - 1)] << (8 * j);
    return symbols;
}

// Where the planes of a pass that are not rans come from; in registers.
struct Others {
    const u8* raw[W];
    Planes fill;
    u32 raws, packed;  // which are raw, and bitpack

    __device__ __forceinline__ void load(u32 raw_planes, u32 packed_planes) {
        raws = raw_planes;
        packed = packed_planes;
        #pragma unroll
        for (int p = 0; p < W; ++p) {
            raw[p] = sh.blob[p];
            fill.p[p] = sh.fill[p];
        }
    }
    // The raw planes; PLAIN: all but plane 0, which is left as it is.
    template <bool PLAIN> __device__ __forceinline__ void read(Planes& s, int at) const {
        #pragma unroll
        for (int p = PLAIN ? 1 : 0; p < W; ++p) {
            if (!PLAIN) s.p[p] = fill.p[p];
            if (PLAIN || (raws >> p & 1)) s.p[p] = *global<const u32>(raw[p] + at);
        }
    }
    // Move on by `by` symbols, so that addresses of reads are constants.
    template <bool PLAIN> __device__ __forceinline__ void move(int by) {
        #pragma unroll
        for (int p = PLAIN ? 1 : 0; p < W; ++p) raw[p] += by;
    }
    // The planes that were not read ahead.
    template <bool PLAIN> __device__ __forceinline__ void complete(Planes& s, u32 at) const {
        if (PLAIN || !packed) return;
        #pragma unroll
        for (int p = 0; p < W; ++p)
            if (packed >> p & 1) s.p[p] = unpack(p, at);
    }
};

// What a pass needs from memory for four words beside the rans plane's symbols.
struct Near {
    Planes others;
    Quad seen;  // VERIFY: the words; else, after the first pass: what is in the destination
    Quad base;
};

// WHOLE: the pass yields all planes, so it is the first and the last.
template <bool TAIL, bool WHOLE>
__device__ __forceinline__ void look(Near& near, const Chunk& c, const Pass& pass, u32 at, u32 count) {
    const u8* words = global<const u8>(c.words) + (u64)at * W;
    const u8* base = global<const u8>(c.base) + (u64)at * W;
    if (VERIFY || (!WHOLE && !pass.first)) near.seen = TAIL ? load_tail(words, count) : load_quad(words);
    if (DELTA != 0 && (VERIFY || WHOLE || pass.last)) near.base = TAIL ? load_tail(base, count) : load_quad(base);
}

// Meets four decoded words with memory. VERIFY: returns non-zero where planes differ from the words'.
template <bool TAIL, bool WHOLE>
__device__ __forceinline__ u32 meet(const Near& near, const Chunk& c, const Pass& pass, u32 at, u32 count) {
    Planes s = near.others;
    if constexpr (VERIFY) {
        Quad coded = near.seen;
        if constexpr (DELTA != 0) coded = apply_delta(near.seen, near.base);
        const Planes want = split(coded);
        u32 diff = 0;
        #pragma unroll
        for (int p = 0; p < W; ++p)
            if (WHOLE || (pass.planes >> p & 1)) diff |= s.p[p] ^ want.p[p];
        return TAIL && count < 4 ? diff & ((1u << (8 * count)) - 1) : diff;
    } else {
        if (!WHOLE && !pass.first) {
            const Planes old = split(near.seen);
            #pragma unroll
            for (int p = 0; p < W; ++p)
                if (!(pass.planes >> p & 1)) s.p[p] = old.p[p];
        }
        Quad q = join(s);
        if constexpr (DELTA != 0)
            if (WHOLE || pass.last) q = undo_delta(q, near.base);
        u8* to = global<u8>(c.words) + (u64)at * W;
        if constexpr (TAIL) store_tail(to, q, count);
        else store_quad(to, q);
        return 0;
    }
}

// A pass without a rans plane. All threads.
__device__ __noinline__ u32 pass_without_rans(const Chunk& c, u32 raws, u32 packed) {
    const Pass pass = {W, (1u << W) - 1, true, true};
    Others others;
    others.load(raws, packed);
    u32 diff = 0;
    for (u32 at = 4 * threadIdx.x; at < c.n; at += 4 * THREADS) {
        const u32 count = count_at(at, c.n);
        Near near;
        others.read<false>(near.others, at);
        others.complete<false>(near.others, at);
        look<true, true>(near, c, pass, at, count);
        diff |= meet<true, true>(near, c, pass, at, count);
    }
    return diff;
}

// The words of a sub-block, handed out from the end. The ring holds the half that the cursor is in and the
// one below it; the next one waits in registers.
struct Words {
    u8* ring;      // of this warp, behind the mirror
    u32 place;     // the same as an address of shared memory; 0 on the host
    const u8* from;
    u32 bytes;     // of the words, padded
    int left;      // bytes of the words not handed out yet
    int half;      // number of the half that holds the last of them
    uint4 ahead;   // this lane's part of half - 2

    __device__ __forceinline__ uint4 read(int h, u32 lane) const {
        const u32 at = (u32)h * HALF_BYTES + 16 * lane;
        if (h < 0 || at >= bytes) return make_uint4(0, 0, 0, 0);
        return *global<const uint4>(from + at);
    }
    __device__ __forceinline__ void put(int h, u32 lane, const uint4& v) {
        const u32 at = (u32)(h & 1) * HALF_BYTES + 16 * lane;
        *reinterpret_cast<uint4*>(ring + at) = v;
        if (at >= RING_BYTES - MIRROR_BYTES) *reinterpret_cast<uint4*>(ring + at - RING_BYTES) = v;
    }
    __device__ __forceinline__ void start(uint4* shared, const u8* at, u32 words, u32 lane) {
        ring = reinterpret_cast<u8*>(shared) + MIRROR_BYTES;
#ifdef __CUDA_ARCH__
        place = (u32)__cvta_generic_to_shared(ring);
#else
        place = 0;
#endif
        from = at;
        bytes = pad16(2 * words);
        left = (int)(2 * words);
        half = (left + (int)HALF_BYTES - 1) / (int)HALF_BYTES - 1;
        put(half, lane, read(half, lane));
        put(half - 1, lane, read(half - 1, lane));
        ahead = read(half - 2, lane);
        __syncwarp();
    }
    // Keep the words of one more group in the ring.
    __device__ __forceinline__ void refill(u32 lane) {
        if (left > half * (int)HALF_BYTES) return;
        __syncwarp();
        put(half - 2, lane, ahead);
        --half;
        ahead = read(half - 2, lane);
        __syncwarp();
    }
};

// A lane takes a word if it needs one: of the lanes that do, the highest takes the last word.
__device__ __forceinline__ void renormalise(
    const Words& words, u32& cursor, u32& x, u32 y, bool active, u32 from_here) {
    const bool need = active && y < LOW;
    const u32 who = __ballot_sync(ALL_LANES, need);
    const u32 at = cursor - 2 * __popc(who & from_here);
    const u32 word = *reinterpret_cast<const u16*>(words.ring + (int)(at - words.place));
    cursor -= 2 * __popc(who);
    if (active) x = need ? y << 16 | word : y;
}

// The same where all lanes are active. The compiler turns the C++ into two compares and a move more a step.
__device__ __forceinline__ void renormalise_all(const Words& words, u32& cursor, u32& x, u32 y, u32 from_here) {
#ifdef __CUDA_ARCH__
    x = y;
    asm volatile(
        "{\n\t.reg .pred p;\n\t.reg .b32 t, u;\n\t"
        "setp.lt.u32 p, %0, 32768;\n\t"
        "vote.sync.ballot.b32 u, p, 0xffffffff;\n\t"
        "and.b32 t, u, %2;\n\t"
        "popc.b32 t, t;\n\t"
        "mad.lo.s32 t, t, -2, %1;\n\t"
        "ld.shared.u16 t, [t];\n\t"
        "popc.b32 u, u;\n\t"
        "mad.lo.s32 %1, u, -2, %1;\n\t"
        "@p prmt.b32 %0, t, %0, 0x5410;\n\t}"
        : "+r"(x), "+r"(cursor) : "r"(from_here) : "memory");
#else
    renormalise(words, cursor, x, y, true, from_here);
#endif
}

// One step of a lane; returns its table entry, whose top byte is the symbol.
template <bool FULL>
__device__ __forceinline__ u32 step(
    const Words& words, u32& cursor, u32& x, u32 k, u32 mask, bool active, u32 from_here) {
    const u32 e = sh.table[x & mask];
    const u32 y = (e & 0xfff) * (x >> k) + (e >> 12 & 0xfff);
    if (FULL) renormalise_all(words, cursor, x, y, from_here);
    else renormalise(words, cursor, x, y, active, from_here);
    return e;
}

template <bool FULL>
__device__ __forceinline__ u32 group(
    Words& words, u32& x, u32 k, u32 mask, u32 from_here, u32 lane, u32 count) {
    const u32 start = words.place + (words.left & (RING_BYTES - 1));
    u32 cursor = start;
    const u32 e3 = step<FULL>(words, cursor, x, k, mask, count > 3, from_here);
    const u32 e2 = step<FULL>(words, cursor, x, k, mask, count > 2, from_here);
    const u32 e1 = step<FULL>(words, cursor, x, k, mask, count > 1, from_here);
    const u32 e0 = step<FULL>(words, cursor, x, k, mask, count > 0, from_here);
    words.left -= (int)(start - cursor);
    words.refill(lane);
    return __byte_perm(__byte_perm(e0, e1, 0x0073), __byte_perm(e2, e3, 0x0073), 0x5410);
}

// Position of the last patch of this warp's sub-block that is not applied yet, -1 if there is none.
__device__ __forceinline__ int next_patch(u32 warp) {
    const u32 count = sh.patch_count[warp];
    return count ? (int)(sh.patches[warp][count - 1] & 0xffffff) : -1;
}

// Apply the patches at or behind group_at, which come last first as decoding goes backwards. One warp.
__device__ __noinline__ u32 apply_patches(u32 symbols, u32 group_at) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32 count = sh.patch_count[warp];
    for (; count; --count) {
        const u32 t = sh.patches[warp][count - 1], at = t & 0xffffff, bit = 8 * (at & 3);
        if (at < group_at) break;
        if ((at - group_at) >> 2 == lane) symbols = (symbols & ~(255u << bit)) | t >> 24 << bit;
    }
    __syncwarp();
    if (lane == 0) sh.patch_count[warp] = count;
    __syncwarp();
    return symbols;
}

__device__ __forceinline__ u32 patched(int& next, u32 symbols, u32 group_at) {
    if (next < (int)group_at) return symbols;
    symbols = apply_patches(symbols, group_at);
    next = next_patch(threadIdx.x >> 5);
    return symbols;
}

// Check states and patches of a sub-block before they are used. One warp.
__device__ __noinline__ bool open_sub(u32 p, const u8* at, u32 entry, u32 length) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const u32 words = entry & 0xffffff, end = pad16(2 * words), count = entry >> 24;
    const u32 state = reinterpret_cast<const u32*>(at)[lane];
    const u16* word = reinterpret_cast<const u16*>(at + 128);
    const u32* list = reinterpret_cast<const u32*>(at + 128 + end);
    u32 fault = state < LOW || state >> 31 ? STATES : OK;
    if (words + lane < end / 2 && word[words + lane]) fault = PADDING;
    for (u32 i = lane; i < pad16(4 * count) / 4; i += 32) {
        const u32 place = list[i] & 0xffffff;
        if (i >= count) {
            if (list[i]) fault = PADDING;
        } else if (place >= length || (i && (list[i - 1] & 0xffffff) >= place)) {
            fault = PATCHES;
        }
    }
    fault = warp_max(fault);
    if (lane == 0) {
        sh.patches[warp] = list;
        sh.patch_count[warp] = count;
        if (fault) fail(fault, p);
    }
    __syncwarp();
    return fault == 0;
}

template <bool PLAIN> __device__ __forceinline__ void insert(Planes& s, u32 plane, u32 symbols) {
    #pragma unroll
    for (int p = 0; p < W; ++p)
        if (PLAIN ? p == 0 : plane == (u32)p) s.p[p] = symbols;
}

// Decode one sub-block of the pass's rans plane. One warp. PLAIN: plane 0 is rans and all others are raw.
template <bool PLAIN>
__device__ __forceinline__ u32 decode_sub(const Chunk& c, const Pass& pass, u32 sub, u32 raws, u32 packed) {
    // Registers that one group read ahead takes, and how many groups there is room for.
    constexpr int COST = W - (PLAIN && W > 1) + (VERIFY || !PLAIN ? W : 0) + (DELTA ? W : 0);
    constexpr int ROOM = (W == 8 ? 28 : W == 4 ? 9 : 14) / COST, AHEAD = !PLAIN || ROOM < 1 ? 1 : ROOM > 4 ? 4 : ROOM;
    const u32 lane = threadIdx.x & 31, p = PLAIN ? 0 : pass.rans, k = PLAIN ? K : sh.k;
    const u32 mask = opaque((1u << k) - 1), from_here = opaque(~0u << lane);
    const u32 start = sub * sh.sub, length = least(sh.sub, c.n - start);
    const u8* at = sh.blob[p] + sh.start[sub];
    const u32 entry = *global<const u32>(sh.blob[p] + sh.start[0] - pad16(4 * sh.nsub) + 4 * sub);
    if (!open_sub(p, at, entry, length)) return 0;
    u32 x = *global<const u32>(at + 4 * lane), diff = 0;
    int patch = next_patch(threadIdx.x >> 5);
    Words words;
    words.start(sh.ring[threadIdx.x >> 5], at + 128, entry & 0xffffff, lane);
    Others others;
    others.load(raws, packed);

    u32 g = pieces_of(length, GROUP);
    // A last group that is not full, and groups until a whole number of AHEAD is left.
    for (; g && (g * GROUP > length || g % AHEAD); --g) {
        const u32 first = (g - 1) * GROUP, mine = first + 4 * lane, count = count_at(mine, length);
        Near near;
        if (count) {
            others.read<PLAIN>(near.others, start + mine);
            others.complete<PLAIN>(near.others, start + mine);
            look<true, PLAIN>(near, c, pass, start + mine, count);
        }
        const u32 symbols = group<false>(words, x, k, mask, from_here, lane, count);
        insert<PLAIN>(near.others, p, patched(patch, symbols, first));
        if (count) diff |= meet<true, PLAIN>(near, c, pass, start + mine, count);
    }
    constexpr int FAR = AHEAD * (int)GROUP;
    Near next[AHEAD];
    u32 mine = start + g * GROUP + 4 * lane;  // of the group after the next
    others.template move<PLAIN>((int)mine);
    if (g) {
        #pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            others.read<PLAIN>(next[i].others, -(i + 1) * (int)GROUP);
            look<false, PLAIN>(next[i], c, pass, mine - (i + 1) * GROUP, 4);
        }
    }
    for (; g; g -= AHEAD) {
        const bool more = g > AHEAD;
        others.template move<PLAIN>(-FAR);
        #pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            const u32 at = mine - (i + 1) * GROUP;
            Near near = next[i];
            if (more) {
                others.read<PLAIN>(next[i].others, -(i + 1) * (int)GROUP);
                look<false, PLAIN>(next[i], c, pass, at - FAR, 4);
            }
            others.complete<PLAIN>(near.others, at);
            const u32 symbols = group<true>(words, x, k, mask, from_here, lane, 4);
            insert<PLAIN>(near.others, p, patched(patch, symbols, (g - 1 - i) * GROUP));
            diff |= meet<false, PLAIN>(near, c, pass, at, 4);
        }
        mine -= FAR;
    }
    const u32 bad = warp_or(x != LOW || words.left != 0);
    if (bad && lane == 0) fail(END, p);
    return diff;
}

// Set up all planes of a chunk. All threads.
__device__ __noinline__ void open_chunk(
    u32 n, const Blob* blobs, const u64* offsets, const u8* stream) {
    const u32 tid = threadIdx.x;
    if (tid == 0) sh.fault = 0;
    if (tid < W) {
        sh.codec[tid] = blobs[tid].codec;
        sh.length[tid] = blobs[tid].length;
        sh.blob[tid] = stream + offsets[tid];
        sh.fill[tid] = blobs[tid].codec == CONST ? byte_to_word(blobs[tid].param) : 0;
    }
    __syncthreads();
    for (u32 p = 0; p < W; ++p) open_plane(n, p, blobs[p].param);
}

__device__ __forceinline__ u32 planes_of(u32 codec) {
    u32 found = 0;
    for (u32 p = 0; p < W; ++p) found |= (u32)(sh.codec[p] == codec) << p;
    return found;
}

__device__ __forceinline__ u32 decode_passes(const Chunk& c) {
    u32 rans = planes_of(RANS), raws = planes_of(RAW), packed = planes_of(BITPACK), diff = 0;
    Pass pass = {W, ((1u << W) - 1) & ~rans, true, rans == 0};
    if (!rans) return pass_without_rans(c, raws, packed);
    while (rans) {
        pass.rans = __ffs(rans) - 1;
        pass.planes |= 1u << pass.rans;
        rans &= rans - 1;
        pass.last = rans == 0;
        if (!open_rans(c.n, pass.rans)) return diff;
        for (u32 sub = threadIdx.x >> 5; sub < sh.nsub; sub += WARPS)
            diff |= decode_sub<false>(c, pass, sub, raws, packed);
        raws = packed = pass.planes = 0;
        pass.first = false;
        if (faulty()) return diff;
    }
    return diff;
}

// Plane 0 is rans and all others are raw: one pass.
__device__ __forceinline__ u32 decode_plain(const Chunk& c) {
    const Pass pass = {0, (1u << W) - 1, true, true};
    u32 diff = 0;
    if (!open_rans(c.n, 0)) return diff;
    for (u32 sub = threadIdx.x >> 5; sub < sh.nsub; sub += WARPS) diff |= decode_sub<true>(c, pass, sub, 0, 0);
    return diff;
}

__device__ __forceinline__ bool is_plain(const Blob* blobs, const u8* first) {
    bool plain = blobs[0].codec == RANS;
    #pragma unroll
    for (int p = 1; p < W; ++p) plain = plain && blobs[p].codec == RAW;
    // Its table has 2^12 entries, as the encoder makes it; byte 1 of the header.
    return plain && blobs[0].length >= 16 && first[1] == K;
}

template <bool PLAIN>
__device__ __forceinline__ void decode_chunk(
    const Chunk* chunks, const Blob* blobs, const u64* offsets, const u8* stream, u32* status) {
    const u64 first = (u64)blockIdx.x * W;
    // A chunk is no kernel's if its checksum was wrong, and else one kernel's.
    if (status[blockIdx.x] || is_plain(blobs + first, stream + offsets[first]) != PLAIN) return;
    const Chunk c = chunks[blockIdx.x];
    open_chunk(c.n, blobs + first, offsets + first, stream);
    if (!faulty()) {
        const u32 diff = PLAIN ? decode_plain(c) : decode_passes(c);
        if (VERIFY && diff) fail(MISMATCH, 0);
    }
    __syncthreads();
    if (threadIdx.x == 0 && sh.fault) status[blockIdx.x] = sh.fault;
}

// Grid: one block a chunk, for both kernels; each takes the chunks that are its own. blobs, offsets: W a
// chunk. status: one a chunk, zero on entry where to decode.
extern "C" __global__ void __launch_bounds__(THREADS, W <= 4 ? 4 : 2)
s4_decode_plain(const Chunk* chunks, const Blob* blobs, const u64* offsets, const u8* stream, u32* status) {
    decode_chunk<true>(chunks, blobs, offsets, stream, status);
}
extern "C" __global__ void __launch_bounds__(THREADS, W <= 2 ? 4 : W == 4 ? 3 : 2)
s4_decode(const Chunk* chunks, const Blob* blobs, const u64* offsets, const u8* stream, u32* status) {
    decode_chunk<false>(chunks, blobs, offsets, stream, status);
}
