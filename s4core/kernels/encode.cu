// Encode chunks: words -> [delta] -> planes -> blobs in scratch, one block a chunk.
//
// The codec of every plane is chosen first (choice.cuh), by a kernel of its own. Most chunks of weights have
// plane 0 in rans and all others raw; they too have a kernel of their own, which needs fewer registers.
// Elsewhere the first pass over the chunk for a rans plane also writes its raw planes. Each warp codes one
// sub-block at a time; the parts of a rans blob stay at fixed places of the scratch until seal.cu puts them
// together.
#include "coder.cuh"

__device__ __forceinline__ void store_planes(u8* slots, u64 stride, const Planes& s, u32 at, u32 planes) {
    #pragma unroll
    for (int p = 0; p < W; ++p)
        if (planes >> p & 1) *global<u32>(slots + p * stride + at) = s.p[p];
}

// States, the rest of the words, the patches in order of position. Returns the bytes of the sub-block.
__device__ __noinline__ u32 finish_sub(Coder k, u32 warp, u32 lane, u8* out) {
    reinterpret_cast<u32*>(out)[lane] = k.x;
    __syncwarp();
    u8* words = out + 128;
    const u32 end = pad16(2 * k.words()) / 2;
    for (u32 i = lane; k.flushed + i < end; i += 32)
        reinterpret_cast<u16*>(words)[k.flushed + i] = i < k.waiting() ? sh.words[warp][i] : 0;
    const u32 count = sh.patches[warp];
    if (count > MAX_PATCHES) return 0;
    u32* patches = reinterpret_cast<u32*>(words + 2 * end);
    for (u32 i = lane; i < pad16(4 * count) / 4; i += 32) {
        if (i >= count) {
            patches[i] = 0;
            continue;
        }
        const u32 mine = sh.patch[warp][i] & 0xffffff;
        u32 rank = 0;
        for (u32 o = 0; o < count; ++o) rank += (sh.patch[warp][o] & 0xffffff) < mine;
        patches[rank] = sh.patch[warp][i];
    }
    return 128 + 2 * end + pad16(4 * count);
}

// Code sub-block `sub` of plane `plane`; write the planes in `raw` on the way. One warp.
// PLAIN: plane 0 is coded and all others are raw, as in most chunks of weights.
template <bool PLAIN>
__device__ __forceinline__ void code_sub(const Chunk& c, u32 sub, u32 plane, u32 raw) {
    if constexpr (PLAIN) {
        plane = 0;
        raw = (1u << W) - 2;
    }
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const u32 start = sub * c.sub, length = least(c.sub, c.n - start), groups = length / GROUP;
    u8* slots = reinterpret_cast<u8*>(c.scratch);
    const u64 stride = (u64)c.stride * 16;
    u8* out = slots + plane * stride + HEAD_BYTES + (u64)sub * sub_stride(c.n, c.sub);
    if (lane == 0) sh.patches[warp] = 0;
    __syncwarp();
    Coder k = {LOW, 0, 0, 0};
#ifdef __CUDA_ARCH__
    k.place = k.cursor = (u32)__cvta_generic_to_shared(sh.words[warp]);
#endif
    // Groups loaded ahead: as many as registers allow.
    constexpr u32 AHEAD = W <= 2 ? (PLAIN ? 4 : 2) : W == 4 && PLAIN && DELTA == 0 ? 2 : 1;
    constexpr u32 FAR = AHEAD * GROUP;
    const u8* words = global<const u8>(c.words) + (u64)(start + 4 * lane) * W;
    const u8* base = global<const u8>(c.base) + (u64)(start + 4 * lane) * W;
    u8* to[W];
    #pragma unroll
    for (int p = 0; p < W; ++p) to[p] = slots + p * stride + start + 4 * lane;
    Loaded next[AHEAD];
    u32 g = 0;
    if (AHEAD <= groups) {
        #pragma unroll
        for (u32 i = 0; i < AHEAD; ++i) load_at(next[i], words + i * GROUP * W, base + i * GROUP * W);
    }
    for (; g + AHEAD <= groups; g += AHEAD) {
        const bool more = g + 2 * AHEAD <= groups;
        words += FAR * W;
        base += FAR * W;
        #pragma unroll
        for (u32 i = 0; i < AHEAD; ++i) {
            const Planes s = split(coded(next[i]));
            if (more) load_at(next[i], words + i * GROUP * W, base + i * GROUP * W);
            #pragma unroll
            for (int p = 0; p < W; ++p)
                if (PLAIN ? p > 0 : raw >> p & 1) *global<u32>(to[p] + i * GROUP) = s.p[p];
            const u32 at = (g + i) * GROUP + 4 * lane;
            code_group<true>(k, warp, lane, PLAIN ? s.p[0] : pick(s, plane), at, 4, out + 128);
        }
        #pragma unroll
        for (int p = 0; p < W; ++p) to[p] += FAR;
    }
    for (; g * GROUP < length; ++g) {
        const u32 at = g * GROUP + 4 * lane, count = count_at(at, length);
        const Planes s = split(count == 4 ? coded_quad(c, start + at) : coded_tail(c, start + at, count));
        if (at < pad16(length)) store_planes(slots, stride, s, start + at, raw);
        code_group<false>(k, warp, lane, pick(s, plane), at, count, out + 128);
    }
    const u32 size = finish_sub(k, warp, lane, out);
    if (lane == 0) {
        sh.dir[sub] = k.words() | sh.patches[warp] << 24;
        if (size) atomicAdd(&sh.body, size);
        else sh.failed = 1;
    }
    __syncwarp();
}

// Sum of v over the block, and over the threads before this one in `before`.
__device__ __forceinline__ u32 block_prefix(u32 v, u32& before) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const u32 inside = warp_prefix(v, lane);
    if (lane == 31) sh.sums[warp] = inside + v;
    __syncthreads();
    u32 sum = 0;
    before = inside;
    for (u32 i = 0; i < WARPS; ++i) {
        if (i < warp) before += sh.sums[i];
        sum += sh.sums[i];
    }
    __syncthreads();
    return sum;
}

__device__ __forceinline__ uint4 table_entry(u32 f, u32 cum) {
    uint4 e;
    e.x = f << (31 - K);
    if (f < 2) {
        e.y = 0xffffffffu;
        e.z = (cum + M - 1) << 16;
    } else {
        const u32 s = 32 - __clz(f - 1);
        e.y = (u32)((((u64)1 << (31 + s)) + f - 1) / f);
        e.z = cum << 16 | (s - 1);
    }
    e.w = M - f;
    return e;
}

// The coding table of a plane, and all of the blob's head but the directory. Returns the head's length.
__device__ __noinline__ u32 start_plane(const Chunk& c, u32 plane) {
    const u32 s = threadIdx.x, f = sh.v.freq[plane][s];
    u8* head = reinterpret_cast<u8*>(c.scratch) + plane * ((u64)c.stride * 16);
    u32 before;
    // Frequencies sum to 4096, so the number of symbols present fits above them.
    const u32 present = block_prefix(f ? 1u << 16 | f : 0, before) >> 16;
    if (f) {
        sh.table[s] = table_entry(f, before & 0xffff);
        reinterpret_cast<u16*>(head + 48)[before >> 16] = (u16)f;
    }
    const u32 bitmap = __ballot_sync(ALL_LANES, f != 0);
    if ((s & 31) == 0) reinterpret_cast<u32*>(head + 16)[s >> 5] = bitmap;
    const u32 end = 48 + pad16(2 * present);
    if (s < (end - 48 - 2 * present) / 2) reinterpret_cast<u16*>(head + 48)[present + s] = 0;
    if (s == 0) sh.failed = sh.body = 0;
    __syncthreads();
    if (!f) {
        uint4 e = sh.table[sh.v.top[plane]];
        e.z |= PATCH;
        sh.table[s] = e;
    }
    __syncthreads();
    return end;
}

__device__ __forceinline__ void finish_head(const Chunk& c, u32 plane, u32 end) {
    const u32 s = threadIdx.x, nsub = pieces_of(c.n, c.sub);
    u8* head = reinterpret_cast<u8*>(c.scratch) + plane * ((u64)c.stride * 16);
    if (s < pad16(4 * nsub) / 4) reinterpret_cast<u32*>(head + end)[s] = s < nsub ? sh.dir[s] : 0;
    if (s) return;
    u32* h = reinterpret_cast<u32*>(head);
    h[0] = 2u | K << 8 | nsub << 16;
    h[1] = c.n;
    h[2] = c.sub;
    h[3] = 0;
    h[HEAD_LENGTH_AT / 4] = end + pad16(4 * nsub);
}

// Code one plane with its table. Returns the blob's length, 0 if it may not be rans.
template <bool PLAIN> __device__ __forceinline__ u32 code_plane(const Chunk& c, u32 plane, u32 raw) {
    const u32 end = start_plane(c, plane), nsub = pieces_of(c.n, c.sub);
    for (u32 sub = threadIdx.x >> 5; sub < nsub; sub += WARPS) code_sub<PLAIN>(c, sub, plane, raw);
    __syncthreads();
    const u32 length = end + pad16(4 * nsub) + sh.body;
    const bool good = !sh.failed && length < pad16(c.n);
    if (good) finish_head(c, plane, end);
    __syncthreads();
    return good ? length : 0;
}

// Write the planes in `raw` as they are. All threads.
__device__ __noinline__ void copy_planes(const Chunk& c, u32 raw) {
    u8* slots = reinterpret_cast<u8*>(c.scratch);
    for (u32 at = 4 * threadIdx.x; at < pad16(c.n); at += 4 * THREADS) {
        const u32 count = count_at(at, c.n);
        const Planes s = split(count == 4 ? coded_quad(c, at) : coded_tail(c, at, count));
        store_planes(slots, (u64)c.stride * 16, s, at, raw);
    }
}

// The bits of `symbol` under `mask`, gathered from low to high.
__device__ __forceinline__ u32 gather(u32 symbol, u32 mask) {
    u32 v = 0, at = 0;
    #pragma unroll
    for (u32 b = 0; b < 8; ++b)
        if (mask >> b & 1) v |= (symbol >> b & 1) << at++;
    return v;
}

// Write plane `plane` as a bitpack blob: a header, then w bits a symbol, 16 w bytes a group of 128.
__device__ __noinline__ void pack_plane(const Chunk& c, u32 plane) {
    const u32 tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const u32 mask = sh.v.mask[plane], w = __popc(mask), length = bitpack_length(w, c.n);
    u32* out = reinterpret_cast<u32*>(c.scratch + plane * ((u64)c.stride * 16));
    u8* code = reinterpret_cast<u8*>(sh.table);
    u32* bits = reinterpret_cast<u32*>(sh.words[warp]);
    __syncthreads();
    code[tid] = (u8)gather(tid, mask);
    if (tid < 4) out[tid] = tid == 0 ? mask | (sh.v.first[plane] & ~mask & 255) << 8 : tid == 1 ? c.n : 0;
    __syncthreads();
    for (u32 g = warp; g * GROUP < c.n; g += WARPS) {
        const u32 at = g * GROUP + 4 * lane, count = count_at(at, c.n);
        const Planes s = split(count == 4 ? coded_quad(c, at) : coded_tail(c, at, count));
        const u32 symbols = pick(s, plane);
        u32 v = 0;
        #pragma unroll
        for (u32 j = 0; j < 4; ++j)
            if (j < count) v |= code[symbol_of(symbols, j)] << (w * j);
        bits[lane] = 0;
        __syncwarp();
        const u64 placed = (u64)v << (4 * w * lane & 31);
        const u32 word = 4 * w * lane >> 5;
        atomicOr(&bits[word], (u32)placed);
        if (placed >> 32) atomicOr(&bits[word + 1], (u32)(placed >> 32));
        __syncwarp();
        const u32 to = 4 + 4 * w * g + lane;
        if (lane < 4 * w && 4 * to < length) out[to] = bits[lane];
        __syncwarp();
    }
    // The groups end at a multiple of 16 bytes, which is where the blob ends or beyond.
    if (tid == 0) sh.length[plane] = length;
    __syncthreads();
}

// Code plane `plane`, with the exact histogram if the sampled one fails. Returns the raw planes not yet written.
__device__ __forceinline__ u32 settle(const Chunk& c, u32 plane, u32 raw, bool exact) {
    for (;;) {
        const u32 length = code_plane<false>(c, plane, raw);
        raw = 0;
        if (length) {
            if (threadIdx.x == 0) sh.length[plane] = length;
            return 0;
        }
        if (exact) {
            if (threadIdx.x == 0) sh.v.codec[plane] = RAW;
            __syncthreads();
        } else {
            choose(sh.v, sh.hist, c, 1u << plane, true);
        }
        exact = true;
        if (sh.v.codec[plane] != RANS) return sh.v.codec[plane] == RAW ? 1u << plane : 0;
    }
}

__device__ __forceinline__ void record(const Chunk& c, Blob& blob, u32 plane) {
    const u32 codec = sh.v.codec[plane];
    blob.checksum = 0;
    blob.length = codec == CONST ? 0 : codec == RAW ? pad16(c.n) : sh.length[plane];
    blob.codec = (u8)codec;
    blob.param = codec == CONST ? (u8)sh.v.first[plane] : 0;
    blob.zero = 0;
}

__device__ __forceinline__ bool is_plain(const Verdicts& v) {
    return v.codec[0] == RANS && planes_with(v, RAW) == (1u << W) - 2;
}

// All kernels: one block a chunk; plans: Verdicts for each chunk.
extern "C" __global__ void __launch_bounds__(THREADS, 4) s4_choose(const Chunk* chunks, Verdicts* plans) {
    const Chunk c = chunks[blockIdx.x];
    choose(sh.v, sh.hist, c, (1u << W) - 1, c.n < EXACT_BELOW);
    const u32* from = reinterpret_cast<const u32*>(&sh.v);
    u32* to = reinterpret_cast<u32*>(&plans[blockIdx.x]);
    for (u32 i = threadIdx.x; i < sizeof(Verdicts) / 4; i += THREADS) to[i] = from[i];
}

__device__ __forceinline__ void load_plan(const Verdicts& plan) {
    const u32* from = reinterpret_cast<const u32*>(&plan);
    u32* to = reinterpret_cast<u32*>(&sh.v);
    for (u32 i = threadIdx.x; i < sizeof(Verdicts) / 4; i += THREADS) to[i] = from[i];
    __syncthreads();
}

// blobs: W records a chunk, plane by plane; their checksums are seal.cu's.
// The chunks of which plane 0 is to be rans and all others raw. One that fails is left to s4_encode.
extern "C" __global__ void __launch_bounds__(THREADS, W <= 4 ? 4 : 2)
s4_encode_plain(const Chunk* chunks, Verdicts* plans, Blob* blobs) {
    if (!is_plain(plans[blockIdx.x])) return;
    const Chunk c = chunks[blockIdx.x];
    load_plan(plans[blockIdx.x]);
    const u32 length = code_plane<true>(c, 0, 0);
    if (threadIdx.x == 0) {
        sh.length[0] = length;
        if (!length) plans[blockIdx.x].codec[0] = NEEDS_EXACT;
    }
    __syncthreads();
    if (length && threadIdx.x < W) record(c, blobs[(u64)blockIdx.x * W + threadIdx.x], threadIdx.x);
}

// All other chunks.
extern "C" __global__ void __launch_bounds__(THREADS, W <= 4 ? 4 : 2)
s4_encode(const Chunk* chunks, const Verdicts* plans, Blob* blobs) {
    if (is_plain(plans[blockIdx.x])) return;
    const Chunk c = chunks[blockIdx.x];
    load_plan(plans[blockIdx.x]);
    const bool exact = c.n < EXACT_BELOW;
    const bool again = sh.v.codec[0] == NEEDS_EXACT;
    __syncthreads();
    if (again) {
        if (exact) {
            if (threadIdx.x == 0) sh.v.codec[0] = RAW;
            __syncthreads();
        } else {
            choose(sh.v, sh.hist, c, 1, true);
        }
    }
    u32 raw = planes_with(sh.v, RAW);
    for (u32 p = 0; p < W; ++p)
        if (sh.v.codec[p] == RANS) raw = settle(c, p, raw, exact || (again && p == 0));
    if (raw) copy_planes(c, raw);
    for (u32 p = 0; p < W; ++p)
        if (sh.v.codec[p] == BITPACK) pack_plane(c, p);
    __syncthreads();
    if (threadIdx.x < W) record(c, blobs[(u64)blockIdx.x * W + threadIdx.x], threadIdx.x);
}
