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
#include "opening.cuh"

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
        if (i < count) sh.patches[warp][i] = list[i];
        if (i >= count) {
            if (list[i]) fault = PADDING;
        } else if (place >= length || (i && (list[i - 1] & 0xffffff) >= place)) {
            fault = PATCHES;
        }
    }
    fault = warp_max(fault);
    if (lane == 0) {
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
