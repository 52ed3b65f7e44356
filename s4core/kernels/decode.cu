// Decode chunks: blobs -> planes -> [undo delta] -> words, one block a chunk; or compare with the words.
//
// Everything a blob says is validated before it is used (FORMAT.md section 4.2); a damaged blob gives a
// status, never an access out of bounds: table slots are masked to the table, cursors to the ring, and
// every load from the stream is bounded by lengths that were checked. s4_decode writes words. s4_verify
// takes the same way and compares the planes with those of the words instead.
//
// A chunk with several rans planes takes one pass for each. In s4_decode the coded words then lie in
// the destination between passes, and the last pass undoes the delta.
#include "words.cuh"

constexpr u32 RING = 512, GROUP = 128;
constexpr int AHEAD = W <= 4 ? 4 : 2;

// What can be wrong with a chunk; status = fault | plane << 8. Kept in step with faults.py.
enum Fault : u32 {
    OK = 0, LENGTH, CODEC, HEADER, TABLE, DIRECTORY, STATES, PATCHES, END, PADDING, MISMATCH, CHECKSUM
};

struct DecodeShared {
    u32 table[4096];       // symbol << 24 | (slot - cum) << 12 | f
    u16 ring[WARPS][RING];
    u32 start[256];        // where each sub-block lies in the blob
    u32 freq[256], cum[256];
    u32 sums[WARPS];
    u8 expand[W][128];     // bitpack: code to symbol
    u32 codec[W], length[W], fill[W], width[W];
    const u8* blob[W];
    u32 k, nsub, sub;      // of the rans plane of this pass
    u32 fault;
};

// How one pass meets the words.
struct Pass {
    u32 rans;      // the rans plane, W if there is none
    u32 planes;    // the planes this pass yields
    bool first, last;
};

__device__ __forceinline__ void fail(DecodeShared& sh, u32 fault, u32 plane) {
    atomicMax(&sh.fault, fault | plane << 8);
}

__device__ __forceinline__ u32 byte_to_word(u32 b) { return (b & 255) * 0x01010101u; }

// Check a raw or bitpack plane and make it ready. All threads.
__device__ __noinline__ void open_raw(DecodeShared& sh, u32 n, u32 p) {
    const u32 i = n + threadIdx.x;
    if (sh.length[p] != pad16(n)) fail(sh, LENGTH, p);
    else if (i < pad16(n) && sh.blob[p][i]) fail(sh, PADDING, p);
}

__device__ __noinline__ void open_bitpack(DecodeShared& sh, u32 n, u32 p) {
    const u32 tid = threadIdx.x;
    const u8* blob = sh.blob[p];
    if (sh.length[p] < 16) {
        fail(sh, LENGTH, p);
        return;
    }
    const u32* h = reinterpret_cast<const u32*>(blob);
    const u32 mask = blob[0], base = blob[1], w = __popc(mask);
    if (w < 1 || w > 7 || (base & mask) || h[0] >> 16 || h[1] != n || h[2] || h[3]) {
        fail(sh, HEADER, p);
        return;
    }
    const u64 packed = (u64)w * pieces_of(n, 8), bits = (u64)w * n;
    if (sh.length[p] != ((16 + packed + 15) & ~15ull)) {
        fail(sh, LENGTH, p);
        return;
    }
    // Bits after the last symbol: at most 15 bytes of padding and those of absent symbols.
    const u64 at = bits / 8 + tid;
    if (16 + at < sh.length[p]) {
        const u32 v = tid == 0 ? blob[16 + at] >> (bits & 7) : blob[16 + at];
        if (v) fail(sh, PADDING, p);
    }
    if (tid < (1u << w)) {
        u32 s = base, bit = 0;
        for (u32 b = 0; b < 8; ++b)
            if (mask >> b & 1) s |= (tid >> bit++ & 1) << b;
        sh.expand[p][tid] = (u8)s;
    }
    if (tid == 0) sh.width[p] = w;
}

__device__ __forceinline__ void open_plane(DecodeShared& sh, u32 n, u32 p, u32 param) {
    const u32 codec = sh.codec[p];
    if (codec == CONST) {
        if (sh.length[p]) fail(sh, LENGTH, p);
        return;
    }
    if (param) fail(sh, CODEC, p);
    if (codec == RAW) open_raw(sh, n, p);
    else if (codec == BITPACK) open_bitpack(sh, n, p);
    else if (codec != RANS) fail(sh, CODEC, p);
}

// Read the head of a rans blob. Thread 0; false if it cannot be used.
__device__ __noinline__ bool open_head(DecodeShared& sh, u32 n, u32 p, u32& present) {
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
__device__ __noinline__ bool open_directory(DecodeShared& sh, u32 p, u32 present) {
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
__device__ __forceinline__ void read_table(DecodeShared& sh, u32 p, u32 present) {
    const u32 s = threadIdx.x, lane = s & 31, warp = s >> 5;
    const u32* h = reinterpret_cast<const u32*>(sh.blob[p]);
    const u16* f = reinterpret_cast<const u16*>(sh.blob[p] + 48);
    const bool here = h[4 + warp] >> lane & 1;
    u32 rank = __popc(h[4 + warp] & ((1u << lane) - 1));
    for (u32 i = 0; i < warp; ++i) rank += __popc(h[4 + i]);
    const u32 mine = here ? f[rank] : 0;
    if (here && (mine < 1 || mine >= (1u << sh.k))) fail(sh, TABLE, p);
    if (s < (pad16(2 * present) - 2 * present) / 2 && f[present + s]) fail(sh, PADDING, p);
    const u32 inside = warp_prefix(mine, lane);
    if (lane == 31) sh.sums[warp] = inside + mine;
    __syncthreads();
    u32 before = inside, sum = 0;
    for (u32 i = 0; i < WARPS; ++i) {
        if (i < warp) before += sh.sums[i];
        sum += sh.sums[i];
    }
    if (s == 0 && sum != (1u << sh.k)) fail(sh, TABLE, p);
    sh.freq[s] = mine;
    sh.cum[s] = before;
}

// Whether a fault was found so far: the same answer in all threads, before any of them goes on.
__device__ __forceinline__ bool faulty(const DecodeShared& sh) {
    __syncthreads();
    const bool bad = sh.fault != OK;
    __syncthreads();
    return bad;
}

// Validate the rans blob of plane p and fill the table. All threads; false if it cannot be used.
__device__ __noinline__ bool open_rans(DecodeShared& sh, u32 n, u32 p) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 present = 0;
        if (!open_head(sh, n, p, present)) fail(sh, HEADER, p);
        else if (!open_directory(sh, p, present)) fail(sh, DIRECTORY, p);
        sh.sums[0] = present;
    }
    __syncthreads();
    const u32 present = sh.sums[0];
    if (faulty(sh)) return false;
    read_table(sh, p, present);
    if (faulty(sh)) return false;
    for (u32 i = 0; i < 32; ++i) {
        const u32 s = 32 * warp + i, f = sh.freq[s], cum = sh.cum[s];
        for (u32 t = lane; t < f; t += 32) sh.table[cum + t] = s << 24 | t << 12 | f;
    }
    __syncthreads();
    return true;
}

// Four symbols of a bitpack plane.
__device__ __noinline__ u32 unpack(const DecodeShared& sh, u32 p, u32 at) {
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

// The planes of a pass that are not rans: `raw` holds those read ahead.
template <bool TAIL>
__device__ __forceinline__ Planes other_planes(
    const DecodeShared& sh, const Planes& raw, u32 packed, u32 raws, u32 at, u32 count) {
    Planes s;
    #pragma unroll
    for (int p = 0; p < W; ++p) {
        s.p[p] = raws >> p & 1 ? raw.p[p] : sh.fill[p];
        if ((packed >> p & 1) && (!TAIL || count)) s.p[p] = unpack(sh, p, at);
    }
    return s;
}

__device__ __forceinline__ Planes read_raw(const DecodeShared& sh, u32 raws, u32 at) {
    Planes s;
    #pragma unroll
    for (int p = 0; p < W; ++p) {
        s.p[p] = 0;
        if (raws >> p & 1) s.p[p] = *reinterpret_cast<const u32*>(sh.blob[p] + at);
    }
    return s;
}

// Meets four decoded words with memory. VERIFY: returns non-zero where planes differ from the words'.
template <bool VERIFY, bool TAIL>
__device__ __forceinline__ u32 meet(const Chunk& c, const Pass& pass, Planes s, u32 at, u32 count) {
    if constexpr (VERIFY) {
        const Planes want = split(TAIL ? coded_tail(c, at, count) : coded_quad(c, at));
        u32 diff = 0;
        const u32 keep = count == 4 ? ~0u : (1u << (8 * count)) - 1;
        #pragma unroll
        for (int p = 0; p < W; ++p)
            if (pass.planes >> p & 1) diff |= s.p[p] ^ want.p[p];
        return TAIL ? diff & keep : diff;
    } else {
        u8* to = reinterpret_cast<u8*>(c.words) + (u64)at * W;
        const u8* base = reinterpret_cast<const u8*>(c.base) + (u64)at * W;
        if (!pass.first) {
            const Planes old = split(TAIL ? load_tail(to, count) : load_quad(to));
            #pragma unroll
            for (int p = 0; p < W; ++p)
                if (!(pass.planes >> p & 1)) s.p[p] = old.p[p];
        }
        Quad q = join(s);
        if constexpr (DELTA != 0)
            if (pass.last) q = undo_delta(q, TAIL ? load_tail(base, count) : load_quad(base));
        if constexpr (TAIL) store_tail(to, q, count);
        else store_quad(to, q);
        return 0;
    }
}

// A pass without a rans plane. All threads.
template <bool VERIFY>
__device__ __noinline__ u32 plain_pass(DecodeShared& sh, const Chunk& c, const Pass& pass, u32 raws, u32 packed) {
    u32 diff = 0;
    for (u32 at = 4 * threadIdx.x; at < c.n; at += 4 * THREADS) {
        const u32 count = count_at(at, c.n);
        const Planes raw = read_raw(sh, raws, at);
        const Planes s = other_planes<true>(sh, raw, packed, raws, at, count);
        diff |= count == 4 ? meet<VERIFY, false>(c, pass, s, at, 4) : meet<VERIFY, true>(c, pass, s, at, count);
    }
    return diff;
}

// The words of a sub-block, handed out from the end; a ring of two halves, the third read ahead.
struct Words {
    const u8* from;
    u32 bytes;     // of the words, padded
    int left;      // words not handed out yet
    int block;     // half that holds word left - 1
    uint4 ahead;   // this lane's part of half block - 2

    __device__ __forceinline__ uint4 read(int b, u32 lane) const {
        const u32 at = (u32)b * RING + 16 * lane;  // RING / 2 words are RING bytes
        if (b < 0 || at >= bytes) return make_uint4(0, 0, 0, 0);
        return *reinterpret_cast<const uint4*>(from + at);
    }
    static __device__ __forceinline__ void put(u16* ring, int b, u32 lane, const uint4& v) {
        *reinterpret_cast<uint4*>(&ring[(b & 1) * (RING / 2) + 8 * lane]) = v;
    }
    __device__ __forceinline__ void start(u16* ring, const u8* at, u32 words, u32 lane) {
        from = at;
        bytes = pad16(2 * words);
        left = (int)words;
        block = (left + (int)RING / 2 - 1) / (int)(RING / 2) - 1;
        put(ring, block, lane, read(block, lane));
        put(ring, block - 1, lane, read(block - 1, lane));
        ahead = read(block - 2, lane);
        __syncwarp();
    }
    // Keep the 128 words below the cursor in the ring.
    __device__ __forceinline__ void refill(u16* ring, u32 lane) {
        if (left > block * (int)(RING / 2)) return;
        __syncwarp();
        put(ring, block - 2, lane, ahead);
        --block;
        ahead = read(block - 2, lane);
        __syncwarp();
    }
};

// One step of a lane; returns its symbol in the top byte.
__device__ __forceinline__ u32 step(
    const DecodeShared& sh, const u16* ring, Words& words, u32& x, u32 k, bool active, u32 from_here) {
    const u32 e = sh.table[x & ((1u << k) - 1)];
    const u32 y = (e & 0xfff) * (x >> k) + (e >> 12 & 0xfff);
    const bool need = active && y < LOW;
    const u32 who = __ballot_sync(ALL_LANES, need);
    const u32 word = ring[(words.left - __popc(who & from_here)) & (RING - 1)];
    words.left -= __popc(who);
    x = need ? y << 16 | word : active ? y : x;
    return e;
}

template <bool FULL>
__device__ __forceinline__ u32 group(
    const DecodeShared& sh, u16* ring, Words& words, u32& x, u32 k, u32 lane, u32 count) {
    const u32 from_here = ~0u << lane;
    const u32 e3 = step(sh, ring, words, x, k, FULL || count > 3, from_here);
    const u32 e2 = step(sh, ring, words, x, k, FULL || count > 2, from_here);
    const u32 e1 = step(sh, ring, words, x, k, FULL || count > 1, from_here);
    const u32 e0 = step(sh, ring, words, x, k, FULL || count > 0, from_here);
    words.refill(ring, lane);
    return __byte_perm(__byte_perm(e0, e1, 0x0073), __byte_perm(e2, e3, 0x0073), 0x5410);
}

// The patches of a sub-block, taken from the last to the first as decoding goes backwards.
struct Patches {
    const u32* list;
    u32 count;  // not applied yet
    int next;   // position of the last of them, -1 if there is none

    __device__ __forceinline__ void load() { next = count ? (int)(list[count - 1] & 0xffffff) : -1; }
};

// Apply the last patches of a list that lie at or behind group_at; the symbols, and how many patches are left.
__device__ __noinline__ uint2 apply_patches(const u32* list, u32 count, u32 symbols, u32 group_at, u32 lane) {
    for (; count; --count) {
        const u32 at = list[count - 1] & 0xffffff, s = list[count - 1] >> 24;
        if (at < group_at) break;
        const u32 bit = 8 * (at & 3);
        if ((at - group_at) >> 2 == lane) symbols = (symbols & ~(255u << bit)) | s << bit;
    }
    return make_uint2(symbols, count);
}

__device__ __forceinline__ u32 patch(Patches& t, u32 symbols, u32 group_at, u32 lane) {
    if (t.next < (int)group_at) return symbols;
    const uint2 r = apply_patches(t.list, t.count, symbols, group_at, lane);
    t.count = r.y;
    t.load();
    return r.x;
}

// Check states and patches of a sub-block before they are used. One warp.
__device__ __forceinline__ bool open_sub(
    DecodeShared& sh, u32 p, u32 x, const Words& w, const Patches& t, u32 words, u32 length, u32 lane) {
    u32 fault = x < LOW || x >> 31 ? STATES : OK;
    const u16* tail = reinterpret_cast<const u16*>(w.from);
    if (lane < 8 && words + lane < w.bytes / 2 && tail[words + lane]) fault = PADDING;
    for (u32 i = lane; i < pad16(4 * t.count) / 4; i += 32) {
        const u32 v = t.list[i], at = v & 0xffffff;
        if (i >= t.count) {
            if (v) fault = PADDING;
        } else if (at >= length || (i && (t.list[i - 1] & 0xffffff) >= at)) {
            fault = PATCHES;
        }
    }
    fault = warp_max(fault);
    if (fault && lane == 0) fail(sh, fault, p);
    return fault == 0;
}

// Decode one sub-block of the pass's rans plane. One warp.
template <bool VERIFY>
__device__ __forceinline__ u32 decode_sub(
    DecodeShared& sh, const Chunk& c, const Pass& pass, u32 sub, u32 raws, u32 packed) {
    const u32 lane = threadIdx.x & 31, p = pass.rans, k = sh.k;
    u16* ring = sh.ring[threadIdx.x >> 5];
    const u32 start = sub * sh.sub, length = least(sh.sub, c.n - start);
    const u8* at = sh.blob[p] + sh.start[sub];
    const u32 present_end = sh.start[0] - pad16(4 * sh.nsub);
    const u32 d = reinterpret_cast<const u32*>(sh.blob[p] + present_end)[sub];
    u32 x = reinterpret_cast<const u32*>(at)[lane], diff = 0;
    Words words;
    words.start(ring, at + 128, d & 0xffffff, lane);
    Patches patches;
    patches.list = reinterpret_cast<const u32*>(at + 128 + words.bytes);
    patches.count = d >> 24;
    if (!open_sub(sh, p, x, words, patches, d & 0xffffff, length, lane)) return 0;
    patches.load();

    u32 g = pieces_of(length, GROUP);
    // A last group that is not full, and groups until a whole number of AHEAD is left.
    for (; g && (g * GROUP > length || g % AHEAD); --g) {
        const u32 first = (g - 1) * GROUP, mine = first + 4 * lane, count = count_at(mine, length);
        const Planes raw = read_raw(sh, count ? raws : 0, start + mine);
        u32 symbols = group<false>(sh, ring, words, x, k, lane, count);
        symbols = patch(patches, symbols, first, lane);
        Planes s = other_planes<true>(sh, raw, packed, raws, start + mine, count);
        #pragma unroll
        for (int q = 0; q < W; ++q) s.p[q] = (u32)q == p ? symbols : s.p[q];
        if (count == 4) diff |= meet<VERIFY, false>(c, pass, s, start + mine, 4);
        else if (count) diff |= meet<VERIFY, true>(c, pass, s, start + mine, count);
    }
    Planes next[AHEAD];
    #pragma unroll
    for (u32 i = 0; i < AHEAD; ++i)
        if (g) next[i] = read_raw(sh, raws, start + (g - 1 - i) * GROUP + 4 * lane);
    for (; g; g -= AHEAD) {
        #pragma unroll
        for (u32 i = 0; i < AHEAD; ++i) {
            const u32 first = (g - 1 - i) * GROUP, mine = start + first + 4 * lane;
            Planes s = other_planes<false>(sh, next[i], packed, raws, mine, 4);
            if (g > AHEAD) next[i] = read_raw(sh, raws, mine - AHEAD * GROUP);
            u32 symbols = group<true>(sh, ring, words, x, k, lane, 4);
            symbols = patch(patches, symbols, first, lane);
            #pragma unroll
            for (int q = 0; q < W; ++q) s.p[q] = (u32)q == p ? symbols : s.p[q];
            diff |= meet<VERIFY, false>(c, pass, s, mine, 4);
        }
    }
    const u32 bad = warp_or(x != LOW || words.left != 0);
    if (bad && lane == 0) fail(sh, END, p);
    return diff;
}

// Set up all planes of a chunk. All threads.
__device__ __noinline__ void open_chunk(
    DecodeShared& sh, u32 n, const Blob* blobs, const u64* offsets, const u8* stream) {
    const u32 tid = threadIdx.x;
    if (tid == 0) sh.fault = 0;
    if (tid < W) {
        sh.codec[tid] = blobs[tid].codec;
        sh.length[tid] = blobs[tid].length;
        sh.blob[tid] = stream + offsets[tid];
        sh.fill[tid] = blobs[tid].codec == CONST ? byte_to_word(blobs[tid].param) : 0;
    }
    __syncthreads();
    for (u32 p = 0; p < W; ++p) open_plane(sh, n, p, blobs[p].param);
}

template <bool VERIFY>
__device__ __forceinline__ u32 decode_passes(DecodeShared& sh, const Chunk& c) {
    u32 rans = 0, raws = 0, packed = 0, diff = 0;
    for (u32 p = 0; p < W; ++p) {
        rans |= (u32)(sh.codec[p] == RANS) << p;
        raws |= (u32)(sh.codec[p] == RAW) << p;
        packed |= (u32)(sh.codec[p] == BITPACK) << p;
    }
    Pass pass = {W, ((1u << W) - 1) & ~rans, true, rans == 0};
    if (!rans) return plain_pass<VERIFY>(sh, c, pass, raws, packed);
    while (rans) {
        pass.rans = __ffs(rans) - 1;
        pass.planes |= 1u << pass.rans;
        rans &= rans - 1;
        pass.last = rans == 0;
        if (!open_rans(sh, c.n, pass.rans)) return diff;
        for (u32 sub = threadIdx.x >> 5; sub < sh.nsub; sub += WARPS)
            diff |= decode_sub<VERIFY>(sh, c, pass, sub, raws, packed);
        raws = packed = pass.planes = 0;
        pass.first = false;
        if (faulty(sh)) return diff;
    }
    return diff;
}

template <bool VERIFY>
__device__ __forceinline__ void decode_chunk(
    DecodeShared& sh, const Chunk* chunks, const Blob* blobs, const u64* offsets, const u8* stream, u32* status) {
    if (status[blockIdx.x]) return;  // its checksum was wrong
    const Chunk c = chunks[blockIdx.x];
    const u64 first = (u64)blockIdx.x * W;
    open_chunk(sh, c.n, blobs + first, offsets + first, stream);
    if (!faulty(sh)) {
        const u32 diff = decode_passes<VERIFY>(sh, c);
        if (VERIFY && diff) fail(sh, MISMATCH, 0);
    }
    __syncthreads();
    if (threadIdx.x == 0 && sh.fault) status[blockIdx.x] = sh.fault;
}

// Grid: one block a chunk. blobs, offsets: W a chunk. status: one a chunk, zero on entry where to decode.
extern "C" __global__ void __launch_bounds__(THREADS, W <= 4 ? 4 : 2)
s4_decode(const Chunk* chunks, const Blob* blobs, const u64* offsets, const u8* stream, u32* status) {
    __shared__ DecodeShared sh;
    decode_chunk<false>(sh, chunks, blobs, offsets, stream, status);
}
extern "C" __global__ void __launch_bounds__(THREADS, W <= 4 ? 4 : 2)
s4_verify(const Chunk* chunks, const Blob* blobs, const u64* offsets, const u8* stream, u32* status) {
    __shared__ DecodeShared sh;
    decode_chunk<true>(sh, chunks, blobs, offsets, stream, status);
}
