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

// Layout `float`: s eeeeeeee mmmmmmm -> eeeeeeee s mmmmmmm in the top 16 bits of a word, so that
// both layouts have plane 0 in the most significant byte.
__device__ __forceinline__ u32 rotate(u32 v) {
    if constexpr (W == 2)
        return (v << 1 & 0xff00ff00u) | (v >> 8 & 0x00800080u) | (v & 0x007f007fu);
    else
        return (v << 1 & 0xff000000u) | (v >> 8 & 0x00800000u) | (v & 0x007fffffu);
}
__device__ __forceinline__ u32 unrotate(u32 r) {
    if constexpr (W == 2)
        return (r >> 1 & 0x7f807f80u) | (r << 8 & 0x80008000u) | (r & 0x007f007fu);
    else
        return (r >> 1 & 0x7f800000u) | (r << 8 & 0x80000000u) | (r & 0x007fffffu);
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

__device__ __forceinline__ Planes split(Quad q) {
    Planes s;
    if constexpr (FLOAT) {
        #pragma unroll
        for (int i = 0; i < W; ++i)
            if (W != 8 || (i & 1)) q.v[i] = rotate(q.v[i]);
    }
    if constexpr (W == 1) {
        s.p[0] = q.v[0];
    } else if constexpr (W == 2) {
        s.p[0] = __byte_perm(q.v[0], q.v[1], 0x7531);
        s.p[1] = __byte_perm(q.v[0], q.v[1], 0x6420);
    } else {
        constexpr int step = W / 4;  // registers a word
        #pragma unroll
        for (int h = 0; h < step; ++h) {
            u32 t[4];
            transpose(q.v[h], q.v[step + h], q.v[2 * step + h], q.v[3 * step + h], t);
            #pragma unroll
            for (int i = 0; i < 4; ++i) s.p[W - 1 - 4 * h - i] = t[i];
        }
    }
    return s;
}

__device__ __forceinline__ Quad join(const Planes& s) {
    Quad q;
    if constexpr (W == 1) {
        q.v[0] = s.p[0];
    } else if constexpr (W == 2) {
        q.v[0] = __byte_perm(s.p[1], s.p[0], 0x5140);
        q.v[1] = __byte_perm(s.p[1], s.p[0], 0x7362);
    } else {
        constexpr int step = W / 4;
        #pragma unroll
        for (int h = 0; h < step; ++h) {
            u32 t[4];
            transpose(s.p[W - 1 - 4 * h], s.p[W - 2 - 4 * h], s.p[W - 3 - 4 * h], s.p[W - 4 - 4 * h], t);
            #pragma unroll
            for (int i = 0; i < 4; ++i) q.v[step * i + h] = t[i];
        }
    }
    if constexpr (FLOAT) {
        #pragma unroll
        for (int i = 0; i < W; ++i)
            if (W != 8 || (i & 1)) q.v[i] = unrotate(q.v[i]);
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

// Four coded words where words and base lie at these addresses.
__device__ __forceinline__ Quad coded_at(const u8* words, const u8* base) {
    const Quad x = load_quad(words);
    if constexpr (DELTA == 0) return x;
    else return apply_delta(x, load_quad(base));
}

// How many of the four words from `first` on lie before `end`.
__device__ __forceinline__ u32 count_at(u32 first, u32 end) {
    return first >= end ? 0 : least(4, end - first);
}
