/* The kernels of rans.h for AVX2 and BMI2: eight lanes a register. */
#include <immintrin.h>

#include "bytes.h"
#include "rans.h"

#define VECTORS 4 /* of 8 lanes each */
#define M (1 << S4_ENCODER_K)

/* Byte shuffles, filled from the masks at load time:
 * keep[m] moves the 16-bit elements named by m to the front,
 * take[m] moves the last popcount(m) elements to the places named by m and zeroes the rest. */
static uint8_t keep[256][16], take[256][16];

void s4_avx2_init(void)
{
    for (int mask = 0; mask < 256; mask++) {
        int count = 0, from = 8 - s4_popcount8((unsigned)mask);
        memset(keep[mask], 0x80, 16);
        memset(take[mask], 0x80, 16);
        for (int lane = 0; lane < 8; lane++) {
            if (!(mask >> lane & 1))
                continue;
            keep[mask][2 * count] = (uint8_t)(2 * lane);
            keep[mask][2 * count + 1] = (uint8_t)(2 * lane + 1);
            take[mask][2 * lane] = (uint8_t)(2 * (from + count));
            take[mask][2 * lane + 1] = (uint8_t)(2 * (from + count) + 1);
            count++;
        }
    }
}

/* x / f for x < f << 19: single precision is at most 1 too low after 0.3 is taken off. */
static inline __m256i next_state(__m256i x, __m256i f, __m256i cumulative)
{
    __m256 divisor = _mm256_cvtepi32_ps(f);
    __m256 guess = _mm256_rcp_ps(divisor);
    guess = _mm256_mul_ps(guess, _mm256_fnmadd_ps(divisor, guess, _mm256_set1_ps(2.0f)));
    __m256i quotient = _mm256_cvttps_epi32(
        _mm256_fmsub_ps(_mm256_cvtepi32_ps(x), guess, _mm256_set1_ps(0.3f)));
    __m256i rest = _mm256_sub_epi32(x, _mm256_mullo_epi32(quotient, f));
    __m256i exact = _mm256_cmpgt_epi32(f, rest);
    __m256i more = _mm256_andnot_si256(exact, _mm256_sub_epi32(_mm256_set1_epi32(M), f));
    __m256i state = _mm256_add_epi32(_mm256_slli_epi32(quotient, S4_ENCODER_K), _mm256_add_epi32(rest, cumulative));
    return _mm256_add_epi32(state, more);
}

/* Appends the low halves of the lanes in mask. */
static inline uint8_t *emit(uint8_t *words, __m128i halves, unsigned mask)
{
    __m128i order = _mm_loadu_si128((const __m128i *)(const void *)keep[mask]);
    _mm_storeu_si128((__m128i *)(void *)words, _mm_shuffle_epi8(halves, order));
    return words + 2 * (unsigned)__builtin_popcount(mask);
}

/* The low halves of 16 lanes, in order. */
static inline __m256i low_halves(__m256i a, __m256i b)
{
    __m256i low = _mm256_set1_epi32(0xffff);
    __m256i packed = _mm256_packus_epi32(_mm256_and_si256(a, low), _mm256_and_si256(b, low));
    return _mm256_permute4x64_epi64(packed, 0xd8);
}

/* Tables are read by scalar loads, here and in look_up: on Zen 4 they are up to a third faster than
 * gathers, and on Intel machines whose microcode mitigates Downfall gathers are slower still.
 *
 * The entries of the 128 symbols of a group, by step and lane, are looked up one group ahead: vector
 * loads would have to wait for stores that have just been made. */
static inline void look_up_group(const uint32_t *packed, const uint8_t *symbols, uint32_t *entries)
{
    for (int lane = 0; lane < S4_LANES; lane += 2) {
        uint64_t eight = s4_load64(symbols + 4 * lane);
        __asm__("" : "+r"(eight)); /* or the compiler makes gathers of the loop */
        entries[lane] = packed[eight & 0xff];
        entries[lane + 32] = packed[eight >> 8 & 0xff];
        entries[lane + 64] = packed[eight >> 16 & 0xff];
        entries[lane + 96] = packed[eight >> 24 & 0xff];
        entries[lane + 1] = packed[eight >> 32 & 0xff];
        entries[lane + 33] = packed[eight >> 40 & 0xff];
        entries[lane + 65] = packed[eight >> 48 & 0xff];
        entries[lane + 97] = packed[eight >> 56];
    }
}

static inline uint8_t *encode_step(const uint32_t *entries, __m256i *x, uint8_t *words)
{
    __m256i f[VECTORS], cumulative[VECTORS], full[VECTORS];
    for (int v = 0; v < VECTORS; v++) {
        __m256i entry = _mm256_loadu_si256((const __m256i *)(const void *)(entries + 8 * v));
        f[v] = _mm256_and_si256(entry, _mm256_set1_epi32(0xffff));
        cumulative[v] = _mm256_srli_epi32(entry, 16);
        __m256i limit = _mm256_slli_epi32(f[v], 31 - S4_ENCODER_K);
        full[v] = _mm256_cmpgt_epi32(x[v], _mm256_sub_epi32(limit, _mm256_set1_epi32(1)));
    }
    for (int v = 0; v < VECTORS; v += 2) {
        __m256i halves = low_halves(x[v], x[v + 1]);
        words = emit(words, _mm256_castsi256_si128(halves),
                     (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(full[v])));
        words = emit(words, _mm256_extracti128_si256(halves, 1),
                     (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(full[v + 1])));
    }
    for (int v = 0; v < VECTORS; v++) {
        x[v] = _mm256_blendv_epi8(x[v], _mm256_srli_epi32(x[v], 16), full[v]);
        x[v] = next_state(x[v], f[v], cumulative[v]);
    }
    return words;
}

size_t s4_encode_avx2(const s4_encoder *encoder, s4_encode_lanes *lanes, size_t groups,
                      const uint8_t *limit)
{
    __m256i x[VECTORS];
    uint32_t entries[2][S4_GROUP];
    uint8_t *words = lanes->words;
    if (!groups)
        return 0;
    look_up_group(encoder->packed, lanes->symbols, entries[groups & 1]);
    for (int v = 0; v < VECTORS; v++)
        x[v] = _mm256_loadu_si256((const __m256i *)(const void *)(lanes->state + 8 * v));
    for (; groups && words <= limit; groups--, lanes->symbols += S4_GROUP) {
        if (groups > 1)
            look_up_group(encoder->packed, lanes->symbols + S4_GROUP, entries[~groups & 1]);
        for (int step = 0; step < 4; step++)
            words = encode_step(entries[groups & 1] + step * S4_LANES, x, words);
    }
    for (int v = 0; v < VECTORS; v++)
        _mm256_storeu_si256((__m256i *)(void *)(lanes->state + 8 * v), x[v]);
    lanes->words = words;
    return groups;
}

static inline __m128i look_up_4(const uint32_t *table, uint64_t low, uint64_t high)
{
    __m128i entries = _mm_cvtsi32_si128((int)table[(uint32_t)low]);
    __m128i others = _mm_cvtsi32_si128((int)table[(uint32_t)high]);
    entries = _mm_insert_epi32(entries, (int)table[low >> 32], 1);
    others = _mm_insert_epi32(others, (int)table[high >> 32], 1);
    return _mm_unpacklo_epi64(entries, others);
}

static inline __m256i look_up(const uint32_t *table, __m256i index)
{
    __m128i low = _mm256_castsi256_si128(index), high = _mm256_extracti128_si256(index, 1);
    __m128i a = look_up_4(table, (uint64_t)_mm_cvtsi128_si64(low), (uint64_t)_mm_extract_epi64(low, 1));
    __m128i b = look_up_4(table, (uint64_t)_mm_cvtsi128_si64(high), (uint64_t)_mm_extract_epi64(high, 1));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
}

/* One step of 32 lanes, highest first; the symbols enter quads from below. */
static inline const uint8_t *decode_step(const uint32_t *table, __m256i slots, int k, __m256i *x,
                                         __m256i *quads, const uint8_t *next)
{
    for (int v = VECTORS - 1; v >= 0; v--) {
        __m256i entry = look_up(table, _mm256_and_si256(x[v], slots));
        __m256i f = _mm256_and_si256(_mm256_srli_epi32(entry, 8), _mm256_set1_epi32(0xfff));
        __m256i bias = _mm256_srli_epi32(entry, 20);
        __m256i state = _mm256_add_epi32(_mm256_mullo_epi32(f, _mm256_srli_epi32(x[v], k)), bias);
        __m256i low = _mm256_cmpgt_epi32(_mm256_set1_epi32(S4_STATE_LOW), state);
        unsigned mask = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(low));
        __m128i words = _mm_loadu_si128((const __m128i *)(const void *)(next - 16));
        words = _mm_shuffle_epi8(words, _mm_loadu_si128((const __m128i *)(const void *)take[mask]));
        next -= 2 * (unsigned)__builtin_popcount(mask);
        __m256i shifted = _mm256_or_si256(_mm256_slli_epi32(state, 16), _mm256_cvtepu16_epi32(words));
        x[v] = _mm256_blendv_epi8(state, shifted, low);
        quads[v] = _mm256_blendv_epi8(_mm256_slli_epi32(quads[v], 8), entry, _mm256_set1_epi32(0xff));
    }
    return next;
}

static inline void decode_groups(const uint32_t *table, int k, s4_decode_lanes *lanes)
{
    __m256i x[VECTORS], quads[VECTORS];
    const __m256i slots = _mm256_set1_epi32((1 << k) - 1);
    const uint8_t *next = lanes->next;
    for (int v = 0; v < VECTORS; v++)
        x[v] = _mm256_loadu_si256((const __m256i *)(const void *)(lanes->state + 8 * v));
    while (lanes->groups && next - lanes->words >= S4_GROUP_WORDS_BYTES) {
        uint8_t *symbols = lanes->symbols + --lanes->groups * S4_GROUP;
        for (int v = 0; v < VECTORS; v++)
            quads[v] = _mm256_setzero_si256();
        for (int step = 0; step < 4; step++)
            next = decode_step(table, slots, k, x, quads, next);
        for (int v = 0; v < VECTORS; v++)
            _mm256_storeu_si256((__m256i *)(void *)(symbols + 32 * v), quads[v]);
    }
    for (int v = 0; v < VECTORS; v++)
        _mm256_storeu_si256((__m256i *)(void *)(lanes->state + 8 * v), x[v]);
    lanes->next = next;
}

/* Shifts by a number that the compiler knows are cheaper; every writer of today takes 12 bits. */
void s4_decode_avx2(const uint32_t *table, int k, s4_decode_lanes *lanes)
{
    if (k == S4_ENCODER_K)
        decode_groups(table, S4_ENCODER_K, lanes);
    else
        decode_groups(table, k, lanes);
}
