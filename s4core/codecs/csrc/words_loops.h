/* The loops of words.h, written for the compiler to vectorise. Each file that includes this
 * one is compiled for another instruction set and defines S4_WORD_KERNELS, the table's name.
 */
#include "bytes.h"
#include "words.h"

#define LOAD(T, at, i) load_##T((at) + (i) * sizeof(T))
#define STORE(T, at, i, value) store_##T((at) + (i) * sizeof(T), (T)(value))

static inline uint8_t load_uint8_t(const uint8_t *at) { return *at; }
static inline uint16_t load_uint16_t(const uint8_t *at) { return s4_load16(at); }
static inline uint32_t load_uint32_t(const uint8_t *at) { return s4_load32(at); }
static inline uint64_t load_uint64_t(const uint8_t *at) { return s4_load64(at); }
static inline void store_uint8_t(uint8_t *at, uint8_t value) { *at = value; }
static inline void store_uint16_t(uint8_t *at, uint16_t value) { s4_store16(at, value); }
static inline void store_uint32_t(uint8_t *at, uint32_t value) { s4_store32(at, value); }
static inline void store_uint64_t(uint8_t *at, uint64_t value) { s4_store64(at, value); }

/* o(u) of FORMAT.md, section 3, and its inverse: unsigned order is the order of the floats. */
#define TOP(T) ((T)1 << (8 * sizeof(T) - 1))
#define ORDER(T, u) ((T)((u) ^ ((T)(0 - ((u) >> (8 * sizeof(T) - 1))) | TOP(T))))
#define UNORDER(T, o) ((T)((o) ^ ((T)(((o) >> (8 * sizeof(T) - 1)) - 1) | TOP(T))))
#define FOLD(T, d) ((T)((T)((d) << 1) ^ (T)(0 - ((d) >> (8 * sizeof(T) - 1)))))
#define UNFOLD(T, z) ((T)(((z) >> 1) ^ (T)(0 - ((z) & 1))))

#define DEFINE_EXTRACT(T)                                                                           \
    static void extract_##T(const uint8_t *restrict words, size_t n, int shift, uint8_t *restrict out) \
    {                                                                                               \
        for (size_t i = 0; i < n; i++)                                                              \
            out[i] = (uint8_t)(LOAD(T, words, i) >> shift);                                         \
    }                                                                                               \
    static void extract_sign_##T(const uint8_t *restrict words, size_t n, int shift,                \
                                 uint8_t *restrict out)                                             \
    {                                                                                               \
        for (size_t i = 0; i < n; i++) {                                                            \
            T high = (T)(LOAD(T, words, i) >> shift);                                               \
            out[i] = (uint8_t)((high >> 8 & 0x80) | (high & 0x7f));                                 \
        }                                                                                           \
    }

#define DEFINE_DELTA(T)                                                                             \
    static void apply_##T(const uint8_t *words, const uint8_t *base, size_t n, int delta,           \
                          uint8_t *restrict coded)                                                  \
    {                                                                                               \
        if (delta == S4_XOR)                                                                        \
            for (size_t i = 0; i < n; i++)                                                          \
                STORE(T, coded, i, LOAD(T, words, i) ^ LOAD(T, base, i));                           \
        else if (delta == S4_ZIGZAG)                                                                \
            for (size_t i = 0; i < n; i++) {                                                        \
                T d = (T)(LOAD(T, words, i) - LOAD(T, base, i));                                    \
                STORE(T, coded, i, FOLD(T, d));                                                     \
            }                                                                                       \
        else                                                                                        \
            for (size_t i = 0; i < n; i++) {                                                        \
                T x = LOAD(T, words, i), b = LOAD(T, base, i);                                      \
                T d = (T)(ORDER(T, x) - ORDER(T, b));                                               \
                STORE(T, coded, i, FOLD(T, d));                                                     \
            }                                                                                       \
    }                                                                                               \
    static void undo_##T(const uint8_t *restrict coded, const uint8_t *base, size_t n, int delta,   \
                         uint8_t *words)                                                            \
    {                                                                                               \
        if (delta == S4_XOR)                                                                        \
            for (size_t i = 0; i < n; i++)                                                          \
                STORE(T, words, i, LOAD(T, coded, i) ^ LOAD(T, base, i));                           \
        else if (delta == S4_ZIGZAG)                                                                \
            for (size_t i = 0; i < n; i++) {                                                        \
                T z = LOAD(T, coded, i);                                                            \
                STORE(T, words, i, LOAD(T, base, i) + UNFOLD(T, z));                                \
            }                                                                                       \
        else                                                                                        \
            for (size_t i = 0; i < n; i++) {                                                        \
                T z = LOAD(T, coded, i), b = LOAD(T, base, i);                                      \
                T o = (T)(ORDER(T, b) + UNFOLD(T, z));                                              \
                STORE(T, words, i, UNORDER(T, o));                                                  \
            }                                                                                       \
    }

/* The top 16 bits of a word of layout `float` from its planes 0 and 1. */
#define HIGH_FLOAT(e, r) ((uint32_t)(((r) & 0x80u) << 8 | (uint32_t)(e) << 7 | ((r) & 0x7fu)))
#define HIGH_BYTES(a, b) ((uint32_t)((uint32_t)(a) << 8 | (b)))

#define DEFINE_JOIN(name, HIGH)                                                                     \
    static void join_##name##_2(const uint8_t *const *planes, size_t n, uint8_t *restrict words)    \
    {                                                                                               \
        const uint8_t *restrict a = planes[0], *restrict b = planes[1];                             \
        for (size_t i = 0; i < n; i++)                                                              \
            STORE(uint16_t, words, i, HIGH(a[i], b[i]));                                            \
    }                                                                                               \
    static void join_##name##_4(const uint8_t *const *planes, size_t n, uint8_t *restrict words)    \
    {                                                                                               \
        const uint8_t *restrict a = planes[0], *restrict b = planes[1];                             \
        const uint8_t *restrict c = planes[2], *restrict d = planes[3];                             \
        for (size_t i = 0; i < n; i++)                                                              \
            STORE(uint32_t, words, i, HIGH(a[i], b[i]) << 16 | (uint32_t)c[i] << 8 | d[i]);         \
    }                                                                                               \
    static void join_##name##_8(const uint8_t *const *planes, size_t n, uint8_t *restrict words)    \
    {                                                                                               \
        const uint8_t *restrict a = planes[0], *restrict b = planes[1];                             \
        const uint8_t *restrict c = planes[2], *restrict d = planes[3];                             \
        const uint8_t *restrict e = planes[4], *restrict f = planes[5];                             \
        const uint8_t *restrict g = planes[6], *restrict h = planes[7];                             \
        for (size_t i = 0; i < n; i++) {                                                            \
            uint32_t high = HIGH(a[i], b[i]) << 16 | (uint32_t)c[i] << 8 | d[i];                    \
            uint32_t low = (uint32_t)e[i] << 24 | (uint32_t)f[i] << 16 | (uint32_t)g[i] << 8 | h[i]; \
            STORE(uint64_t, words, i, (uint64_t)high << 32 | low);                                  \
        }                                                                                           \
    }

DEFINE_EXTRACT(uint16_t)
DEFINE_EXTRACT(uint32_t)
DEFINE_EXTRACT(uint64_t)
DEFINE_DELTA(uint8_t)
DEFINE_DELTA(uint16_t)
DEFINE_DELTA(uint32_t)
DEFINE_DELTA(uint64_t)
DEFINE_JOIN(float, HIGH_FLOAT)
DEFINE_JOIN(bytes, HIGH_BYTES)

/* Words of one byte are their own plane. */
static void extract_byte(const uint8_t *words, size_t n, int shift, uint8_t *out)
{
    (void)shift;
    memcpy(out, words, n);
}

static void join_byte(const uint8_t *const *planes, size_t n, uint8_t *words) { memcpy(words, planes[0], n); }

const s4_word_kernels S4_WORD_KERNELS = {
    {extract_byte, extract_uint16_t, extract_uint32_t, extract_uint64_t},
    {NULL, extract_sign_uint16_t, extract_sign_uint32_t, extract_sign_uint64_t},
    {NULL, join_float_2, join_float_4, join_float_8},
    {join_byte, join_bytes_2, join_bytes_4, join_bytes_8},
    {apply_uint8_t, apply_uint16_t, apply_uint32_t, apply_uint64_t},
    {undo_uint8_t, undo_uint16_t, undo_uint32_t, undo_uint64_t},
};
