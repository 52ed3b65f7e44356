// What the writer chooses for each plane of a chunk: FORMAT.md sections 4.4 and 4.5, to the bit.
//
// A block of 256 threads counts the planes (a sample, or all), one warp a plane decides. Deciding may
// ask for more: which bits vary over all symbols (NEEDS_VARIES), or the exact histogram (NEEDS_EXACT).
#pragma once
#include "words.cuh"

constexpr u32 EXACT_BELOW = 65536;
constexpr u32 UNIT = 256, SAMPLE_EVERY = 16;
constexpr u32 RAW_BITS = 513802;  // 7.84 bits a symbol, in 1/65536 bit
// Histograms of a plane, 16 KB in all. Neighbouring lanes count in different ones, which lie side by side
// in different banks, because the symbols of one access are often equal.
constexpr int COPIES = 16 / W;

struct Verdicts {
    u32 codec[W];
    u32 mask[W];    // bits that vary among the symbols seen
    u32 top[W];     // most frequent symbol, lowest on ties
    u32 varies[W];  // bits that vary over all symbols, when asked for
    u32 first[W];   // the first symbol of the plane
    u16 freq[W][256];
};

// Count `count` words of a quad into this lane's histograms of the planes in `planes`.
__device__ __forceinline__ void tally(u32* hist, const Planes& s, u32 count, u32 planes) {
    #pragma unroll
    for (int p = 0; p < W; ++p) {
        if (!(planes >> p & 1)) continue;
        u32* mine = hist + COPIES * 256 * p;
        const u32 first = s.p[p] & 255;
        if (count == 4 && s.p[p] == first * 0x01010101u) {
            atomicAdd(&mine[COPIES * first], 4u);
            continue;
        }
        #pragma unroll
        for (u32 j = 0; j < 4; ++j)
            if (j < count) atomicAdd(&mine[COPIES * (s.p[p] >> (8 * j) & 255)], 1u);
    }
}

__device__ __forceinline__ void tally_unit(
    u32* hist, const Chunk& c, u32 start, u32 stop, u32 planes, u32 lane) {
    const u32 a = start + 4 * lane, b = a + 128;
    if (start + UNIT <= stop) {
        const Quad qa = coded_quad(c, a), qb = coded_quad(c, b);
        tally(hist, split(qa), 4, planes);
        tally(hist, split(qb), 4, planes);
        return;
    }
    const u32 na = count_at(a, stop), nb = count_at(b, stop);
    if (na) tally(hist, split(coded_tail(c, a, na)), na, planes);
    if (nb) tally(hist, split(coded_tail(c, b, nb)), nb, planes);
}

// Histograms of the planes in `planes`, left in hist[256 * plane + symbol]. All threads.
__device__ __noinline__ void count_planes(u32* hist, const Chunk& c, u32 planes, bool exact) {
    const u32 tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    __syncthreads();
    for (u32 i = tid; i < COPIES * W * 256; i += THREADS) hist[i] = 0;
    __syncthreads();
    const u32 step = exact ? 1 : SAMPLE_EVERY;
    const u32 units = pieces_of(pieces_of(c.sub, UNIT), step);  // counted units of a sub-block
    const u32 total = pieces_of(c.n, c.sub) * units;
    u32* mine = hist + lane % COPIES;
    for (u32 t = warp; t < total; t += WARPS) {
        const u32 at = t / units * c.sub, start = at + t % units * step * UNIT;
        const u32 stop = least(least(at + c.sub, c.n), start + UNIT);
        if (start < stop) tally_unit(mine, c, start, stop, planes, lane);
    }
    __syncthreads();
    u32 sum[W];
    #pragma unroll
    for (int p = 0; p < W; ++p) {
        sum[p] = 0;
        #pragma unroll
        for (int k = 0; k < COPIES; ++k) sum[p] += hist[COPIES * (256 * p + tid) + (k + tid) % COPIES];
    }
    __syncthreads();
    #pragma unroll
    for (int p = 0; p < W; ++p) hist[256 * p + tid] = sum[p];
    __syncthreads();
}

// Which bits of each plane vary over all symbols of the chunk. All threads.
__device__ __noinline__ void find_varying(Verdicts& v, const Chunk& c) {
    const u32 tid = threadIdx.x;
    if (tid < W) v.varies[tid] = 0;
    __syncthreads();
    const Planes ref = split(coded_tail(c, 0, 1));
    Planes diff;
    #pragma unroll
    for (int p = 0; p < W; ++p) diff.p[p] = 0;
    for (u32 at = 4 * tid; at < c.n; at += 4 * THREADS) {
        const u32 count = count_at(at, c.n);
        const Planes s = split(count == 4 ? coded_quad(c, at) : coded_tail(c, at, count));
        const u32 keep = count == 4 ? ~0u : (1u << (8 * count)) - 1;
        #pragma unroll
        for (int p = 0; p < W; ++p) diff.p[p] |= (s.p[p] ^ (ref.p[p] & 255) * 0x01010101u) & keep;
    }
    #pragma unroll
    for (int p = 0; p < W; ++p) {
        u32 d = warp_or(diff.p[p]);
        d |= d >> 16;
        d |= d >> 8;
        if ((tid & 31) == 0) atomicOr(&v.varies[p], d & 255);
        if (tid == 0) v.first[p] = ref.p[p] & 255;
    }
    __syncthreads();
}

// cost(f), section 4.5: log2(4096 / f) in 1/65536 bit.
__device__ __forceinline__ u32 cost(u32 f) {
    const u32 e = 31 - __clz(f);
    u32 m = f << (30 - e), fraction = 0;
    #pragma unroll
    for (int i = 0; i < 16; ++i) {
        m = (u32)((u64)m * m >> 30);
        const u32 carry = m >> 31;
        fraction = fraction << 1 | carry;
        m >>= carry;
    }
    return (12 - e) * 65536 - fraction;
}

__device__ __forceinline__ u32 bitpack_length(u32 w, u32 n) { return pad16(16 + w * pieces_of(n, 8)); }

// Rules 1 to 3. `exact`: the histogram is of all symbols; `known`: v.varies is filled.
__device__ __forceinline__ u32 rule(
    u32 present, u32 mask, u32 bits, u32 n, bool exact, bool known, u32 varies) {
    if (present == 1) {
        if (exact) return CONST;
        if (!known) return NEEDS_VARIES;
        return varies == 0 ? CONST : NEEDS_EXACT;
    }
    const u32 w = __popc(mask);
    if (w <= 7 && w * 65536 <= bits + bits / 64 && bitpack_length(w, n) < pad16(n)) {
        if (exact) return BITPACK;
        if (!known) return NEEDS_VARIES;
        return __popc(varies) == (int)w ? BITPACK : NEEDS_EXACT;
    }
    return bits >= RAW_BITS ? RAW : RANS;
}

// One warp decides on plane p from hist[256], lane holding symbols lane + 32 i.
__device__ __noinline__ void decide(Verdicts& v, const u32* hist, u32 p, u32 n, bool exact, bool known) {
    const u32 lane = threadIdx.x & 31;
    u32 count[8], present = 0, total = 0, lowest = 255, best = 0;
    #pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        const u32 c = count[i] = hist[32 * i + lane];
        present += c != 0;
        total += c;
        best = c > best ? c : best;
        if (c) lowest = least(lowest, 32 * i + lane);
    }
    present = warp_sum(present);
    total = warp_sum(total);
    best = warp_max(best);
    lowest = 255 - warp_max(255 - lowest);
    u32 top = 255, mask = 0, sum = 0, freq[8];
    #pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        const u32 c = count[i], s = 32 * i + lane;
        if (c == best) top = least(top, s);
        if (c) mask |= s ^ lowest;
        freq[i] = c ? 1 + (u32)((u64)c * (M - present) / total) : 0;
        sum += freq[i];
    }
    top = 255 - warp_max(255 - top);
    mask = warp_or(mask);
    sum = warp_sum(sum);
    u64 bits = 0;
    #pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        if (32 * i + lane == top) freq[i] += M - sum;
        if (count[i]) bits += (u64)count[i] * cost(freq[i]);
        v.freq[p][32 * i + lane] = (u16)freq[i];
    }
    bits = warp_sum64(bits) / total;
    if (lane == 0) {
        v.codec[p] = rule(present, mask, (u32)bits, n, exact, known, v.varies[p]);
        v.mask[p] = mask;
        v.top[p] = top;
    }
}

__device__ __forceinline__ u32 planes_with(const Verdicts& v, u32 codec) {
    u32 found = 0;
    #pragma unroll
    for (int p = 0; p < W; ++p) found |= (u32)(v.codec[p] == codec) << p;
    return found;
}

__device__ __forceinline__ void decide_all(
    Verdicts& v, const u32* hist, u32 planes, u32 n, bool exact, bool known) {
    const u32 warp = threadIdx.x >> 5;
    if (warp < W && (planes >> warp & 1)) decide(v, hist + 256 * warp, warp, n, exact, known);
    __syncthreads();
}

// Choose for the planes in `planes`, which end as RAW, CONST, BITPACK or RANS. All threads.
__device__ __noinline__ void choose(Verdicts& v, u32* hist, const Chunk& c, u32 planes, bool exact) {
    count_planes(hist, c, planes, exact);
    decide_all(v, hist, planes, c.n, exact, false);
    u32 open = planes_with(v, NEEDS_VARIES) & planes;
    if (open) {
        find_varying(v, c);
        decide_all(v, hist, open, c.n, exact, true);
    }
    open = planes_with(v, NEEDS_EXACT) & planes;
    if (open) {
        count_planes(hist, c, open, true);
        decide_all(v, hist, open, c.n, true, false);
    }
    // What const and bitpack store beside the mask: the first symbol.
    if (threadIdx.x == 0 && (planes_with(v, CONST) | planes_with(v, BITPACK)) & planes) {
        const Planes ref = split(coded_tail(c, 0, 1));
        #pragma unroll
        for (int p = 0; p < W; ++p) v.first[p] = ref.p[p] & 255;
    }
    __syncthreads();
}
