// Words to planes and back, with a delta on the way: FORMAT.md sections 2 and 3, four words a thread.
//
// A Quad is four consecutive words as they lie in memory, in W registers. A Planes holds the same
// four words plane by plane: byte j of p[k] is plane k of word j. Only bits move.
#pragma once
#include "common.cuh"

struct Quad { u32 v[W]; };
struct Planes { u32 p[W]; };

__device__ __forceinline__ Quad load_quad(const u8* at) {
    Quad q;
    if constexpr (W == 1) {
        q.v[0] = *global<const u32>(at);
    } else if constexpr (W == 2) {
        const uint2 t = *global<const uint2>(at);
        q.v[0] = t.x; q.v[1] = t.y;
    } else {
        #pragma unroll
        for (int i = 0; i < W / 4; ++i) {
            const uint4 t = global<const uint4>(at)[i];
            q.v[4 * i] = t.x; q.v[4 * i + 1] = t.y; q.v[4 * i + 2] = t.z; q.v[4 * i + 3] = t.w;
        }
    }
    return q;
}

__device__ __forceinline__ void store_quad(u8* at, const Quad& q) {
    if constexpr (W == 1) {
        *global<u32>(at) = q.v[0];
    } else if constexpr (W == 2) {
        *global<uint2>(at) = make_uint2(q.v[0], q.v[1]);
    } else {
        #pragma unroll
        for (int i = 0; i < W / 4; ++i)
            global<uint4>(at)[i] =
                make_uint4(q.v[4 * i], q.v[4 * i + 1], q.v[4 * i + 2], q.v[4 * i + 3]);
    }
}

// The first `count` (0..4) words of a quad, the others zero. Reads nothing beyond them.
__device__ __noinline__ Quad load_tail(const u8* at, u32 count) {
    Quad q;
    #pragma unroll
    for (int i = 0; i < W; ++i) {
        u32 v = 0;
        #pragma unroll
        for (u32 b = 0; b < 4; ++b)
            if (4 * i + b < W * count) v |= (u32)at[4 * i + b] << (8 * b);
        q.v[i] = v;
    }
    return q;
}

__device__ __noinline__ void store_tail(u8* at, Quad q, u32 count) {
    #pragma unroll
    for (int i = 0; i < W; ++i)
        #pragma unroll
        for (u32 b = 0; b < 4; ++b)
            if (4 * i + b < W * count) at[4 * i + b] = (u8)(q.v[i] >> (8 * b));
}

// The order map of floating point words (an involution up to the top bit), and its inverse.
template <class T> __device__ __forceinline__ T order(T u) {
    constexpr T top = (T)((T)1 << (8 * sizeof(T) - 1));
    if (DELTA == 3) return u;
    return (u & top) ? (T)~u : (T)(u | top);
}
template <class T> __device__ __forceinline__ T unorder(T o) {
    constexpr T top = (T)((T)1 << (8 * sizeof(T) - 1));
    if (DELTA == 3) return o;
    return (o & top) ? (T)(o ^ top) : (T)~o;
}
template <class T> __device__ __forceinline__ T zigzag(T x, T b) {
    const T d = (T)(order(x) - order(b));
    const T sign = (T)(0 - (T)(d >> (8 * sizeof(T) - 1)));
    return (T)((T)(d << 1) ^ sign);
}
template <class T> __device__ __forceinline__ T unzigzag(T z, T b) {
    const T d = (T)((T)(z >> 1) ^ (T)(0 - (T)(z & 1)));
    return unorder((T)(d + order(b)));
}

// One zigzag of every word in x against b, or its inverse.
template <class T, bool UNDO> __device__ __forceinline__ T one(T x, T b) {
    return UNDO ? unzigzag<T>(x, b) : zigzag<T>(x, b);
}
template <bool UNDO> __device__ __forceinline__ Quad zigzags(const Quad& x, const Quad& b) {
    Quad r;
    if constexpr (W == 8) {
        #pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const u64 xs = (u64)x.v[i + 1] << 32 | x.v[i], bs = (u64)b.v[i + 1] << 32 | b.v[i];
            const u64 z = one<u64, UNDO>(xs, bs);
            r.v[i] = (u32)z; r.v[i + 1] = (u32)(z >> 32);
        }
    } else {
        #pragma unroll
        for (int i = 0; i < W; ++i) {
            if constexpr (W == 4) {
                r.v[i] = one<u32, UNDO>(x.v[i], b.v[i]);
            } else if constexpr (W == 2) {
                r.v[i] = one<u16, UNDO>((u16)x.v[i], (u16)b.v[i])
                       | (u32)one<u16, UNDO>((u16)(x.v[i] >> 16), (u16)(b.v[i] >> 16)) << 16;
            } else {
                r.v[i] = 0;
                #pragma unroll
                for (int s = 0; s < 32; s += 8)
                    r.v[i] |= (u32)one<u8, UNDO>((u8)(x.v[i] >> s), (u8)(b.v[i] >> s)) << s;
            }
        }
    }
    return r;
}

__device__ __forceinline__ Quad xors(const Quad& x, const Quad& b) {
    Quad r;
    #pragma unroll
    for (int i = 0; i < W; ++i) r.v[i] = x.v[i] ^ b.v[i];
    return r;
}
__device__ __forceinline__ Quad apply_delta(const Quad& x, const Quad& b) {
    if constexpr (DELTA == 1) return xors(x, b);
    else if constexpr (DELTA >= 2) return zigzags<false>(x, b);
    else return x;
}
__device__ __forceinline__ Quad undo_delta(const Quad& z, const Quad& b) {
    if constexpr (DELTA == 1) return xors(z, b);
    else if constexpr (DELTA >= 2) return zigzags<true>(z, b);
    else return z;
}

// Transpose 4 x 4 bytes: byte j of out[i] is byte i of in_j. Its own inverse.
__device__ __forceinline__ void transpose(u32 a, u32 b, u32 c, u32 d, u32* out) {
    const u32 ab = __byte_perm(a, b, 0x5140), AB = __byte_perm(a, b, 0x7362);
    const u32 cd = __byte_perm(c, d, 0x5140), CD = __byte_perm(c, d, 0x7362);
    out[0] = __byte_perm(ab, cd, 0x5410);
    out[1] = __byte_perm(ab, cd, 0x7632);
    out[2] = __byte_perm(AB, CD, 0x5410);
    out[3] = __byte_perm(AB, CD, 0x7632);
}

// Layout `float`: the top 16 bits of a word, s eeeeeeee mmmmmmm, become eeeeeeee and s mmmmmmm. Four words'
// top halves lie in v0 and v1, two each.
__device__ __forceinline__ void split_top(u32 v0, u32 v1, u32& exponent, u32& rest) {
    exponent = __byte_perm(v0 >> 7, v1 >> 7, 0x6420);
    rest = __byte_perm((v0 & 0x007f007fu) | (v0 >> 8 & 0x00800080u),
                       (v1 & 0x007f007fu) | (v1 >> 8 & 0x00800080u), 0x6420);
}
__device__ __forceinline__ void join_top(u32 exponent, u32 rest, u32& v0, u32& v1) {
    v0 = (__byte_perm(rest, 0, 0x1100) & 0x807f807fu) | __byte_perm(exponent, 0, 0x4140) << 7;
    v1 = (__byte_perm(rest, 0, 0x3322) & 0x807f807fu) | __byte_perm(exponent, 0, 0x4342) << 7;
}

// The four 32-bit halves or wholes a..d of four words: their bytes as planes, most significant first.
template <bool TOP> __device__ __forceinline__ void split_32(u32 a, u32 b, u32 c, u32 d, u32* planes) {
    if constexpr (TOP) {
        split_top(__byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x7632), planes[0], planes[1]);
        const u32 ab = __byte_perm(a, b, 0x5410), cd = __byte_perm(c, d, 0x5410);
        planes[2] = __byte_perm(ab, cd, 0x7531);
        planes[3] = __byte_perm(ab, cd, 0x6420);
    } else {
        u32 t[4];
        transpose(a, b, c, d, t);
        #pragma unroll
        for (int i = 0; i < 4; ++i) planes[i] = t[3 - i];
    }
}
template <bool TOP> __device__ __forceinline__ void join_32(const u32* planes, u32& a, u32& b, u32& c, u32& d) {
    if constexpr (TOP) {
        u32 v0, v1;
        join_top(planes[0], planes[1], v0, v1);
        const u32 ab = __byte_perm(planes[3], planes[2], 0x5140), cd = __byte_perm(planes[3], planes[2], 0x7362);
        a = __byte_perm(ab, v0, 0x5410);
        b = __byte_perm(ab, v0, 0x7632);
        c = __byte_perm(cd, v1, 0x5410);
        d = __byte_perm(cd, v1, 0x7632);
    } else {
        u32 t[4];
        transpose(planes[3], planes[2], planes[1], planes[0], t);
        a = t[0]; b = t[1]; c = t[2]; d = t[3];
    }
}

__device__ __forceinline__ Planes split(const Quad& q) {
    Planes s;
    if constexpr (W == 1) {
        s.p[0] = q.v[0];
    } else if constexpr (W == 2 && FLOAT) {
        split_top(q.v[0], q.v[1], s.p[0], s.p[1]);
    } else if constexpr (W == 2) {
        s.p[0] = __byte_perm(q.v[0], q.v[1], 0x7531);
        s.p[1] = __byte_perm(q.v[0], q.v[1], 0x6420);
    } else if constexpr (W == 4) {
        split_32<FLOAT>(q.v[0], q.v[1], q.v[2], q.v[3], s.p);
    } else {
        split_32<FLOAT>(q.v[1], q.v[3], q.v[5], q.v[7], s.p);
        split_32<false>(q.v[0], q.v[2], q.v[4], q.v[6], s.p + 4);
    }
    return s;
}

__device__ __forceinline__ Quad join(const Planes& s) {
    Quad q;
    if constexpr (W == 1) {
        q.v[0] = s.p[0];
    } else if constexpr (W == 2 && FLOAT) {
        join_top(s.p[0], s.p[1], q.v[0], q.v[1]);
    } else if constexpr (W == 2) {
        q.v[0] = __byte_perm(s.p[1], s.p[0], 0x5140);
        q.v[1] = __byte_perm(s.p[1], s.p[0], 0x7362);
    } else if constexpr (W == 4) {
        join_32<FLOAT>(s.p, q.v[0], q.v[1], q.v[2], q.v[3]);
    } else {
        join_32<FLOAT>(s.p, q.v[1], q.v[3], q.v[5], q.v[7]);
        join_32<false>(s.p + 4, q.v[0], q.v[2], q.v[4], q.v[6]);
    }
    return q;
}

// Plane `plane` of s; a chain of selects, because an indexed register array would go to memory.
__device__ __forceinline__ u32 pick(const Planes& s, u32 plane) {
    u32 v = s.p[0];
    #pragma unroll
    for (int i = 1; i < W; ++i) v = plane == (u32)i ? s.p[i] : v;
    return v;
}

// The coded words of a chunk: its words with the delta against the base applied.
__device__ __forceinline__ Quad coded_quad(const Chunk& c, u32 first) {
    const Quad x = load_quad(reinterpret_cast<const u8*>(c.words) + (u64)first * W);
    if constexpr (DELTA == 0) return x;
    else return apply_delta(x, load_quad(reinterpret_cast<const u8*>(c.base) + (u64)first * W));
}
__device__ __forceinline__ Quad coded_tail(const Chunk& c, u32 first, u32 count) {
    const Quad x = load_tail(reinterpret_cast<const u8*>(c.words) + (u64)first * W, count);
    if constexpr (DELTA == 0) return x;
    Quad z = apply_delta(x, load_tail(reinterpret_cast<const u8*>(c.base) + (u64)first * W, count));
    if constexpr (DELTA >= 2) {  // the zigzag of two absent words need not be zero
        #pragma unroll
        for (u32 i = 0; i < W; ++i)
            #pragma unroll
            for (u32 b = 0; b < 4; ++b)
                if (4 * i + b >= W * count) z.v[i] &= ~(0xffu << (8 * b));
    }
    return z;
}

// Words and base as loaded: the delta waits until they are used, or the load would be waited for at once.
struct Loaded { Quad words, base; };

__device__ __forceinline__ void load_at(Loaded& to, const u8* words, const u8* base) {
    to.words = load_quad(words);
    if constexpr (DELTA != 0) to.base = load_quad(base);
}
__device__ __forceinline__ Quad coded(const Loaded& from) {
    if constexpr (DELTA == 0) return from.words;
    else return apply_delta(from.words, from.base);
}

// How many of the four words from `first` on lie before `end`.
__device__ __forceinline__ u32 count_at(u32 first, u32 end) {
    return first >= end ? 0 : least(4, end - first);
}
