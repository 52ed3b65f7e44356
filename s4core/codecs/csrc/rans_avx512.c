/* The encoder of rans.h for AVX-512 with VBMI: sixteen lanes a register, and tables of 256 entries in
 * registers. The decoder's table is too large for that; with its loads, AVX-512 was slower than AVX2. */
#include <immintrin.h>

#include "bytes.h"
#include "rans.h"

#define VECTORS 2 /* of 16 lanes each */
#define M (1 << S4_ENCODER_K)

/* A table of 256 bytes in four registers. */
typedef struct {
    __m512i part[4];
} byte_table;

static inline byte_table load_table(const uint8_t *bytes)
{
    byte_table table;
    for (int i = 0; i < 4; i++)
        table.part[i] = _mm512_loadu_si512(bytes + 64 * i);
    return table;
}

static inline __m512i look_up(const byte_table *table, __m512i symbols, __mmask64 high)
{
    __m512i low_half = _mm512_permutex2var_epi8(table->part[0], symbols, table->part[1]);
    __m512i high_half = _mm512_permutex2var_epi8(table->part[2], symbols, table->part[3]);
    return _mm512_mask_blend_epi8(high, low_half, high_half);
}

/* The numbers f and cumulative of the 64 symbols of 16 lanes, byte by byte. */
typedef struct {
    __m512i f_low, f_high, cumulative_low, cumulative_high;
} entries;

/* Byte indices that make 16-bit numbers of step `step` from their low and high bytes. */
static inline __m512i pick(int step)
{
    return _mm512_add_epi32(_mm512_set1_epi32(0x4000 + 0x101 * step),
                            _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                               _mm512_set1_epi32(0x404)));
}

/* x / f for x < f << 19: single precision is at most 1 too low after 0.3 is taken off. */
static inline __m512i next_state(__m512i x, __m512i f, __m512i cumulative)
{
    __m512 divisor = _mm512_cvtepi32_ps(f);
    __m512 guess = _mm512_rcp14_ps(divisor);
    guess = _mm512_mul_ps(guess, _mm512_fnmadd_ps(divisor, guess, _mm512_set1_ps(2.0f)));
    __m512i quotient = _mm512_cvttps_epi32(
        _mm512_fmsub_ps(_mm512_cvtepi32_ps(x), guess, _mm512_set1_ps(0.3f)));
    __m512i rest = _mm512_sub_epi32(x, _mm512_mullo_epi32(quotient, f));
    __m512i state = _mm512_add_epi32(_mm512_slli_epi32(quotient, S4_ENCODER_K), _mm512_add_epi32(rest, cumulative));
    __mmask16 more = _mm512_cmpge_epi32_mask(rest, f);
    return _mm512_mask_add_epi32(state, more, state, _mm512_sub_epi32(_mm512_set1_epi32(M), f));
}

static inline uint8_t *encode_step(const entries *entry, __m512i order, __m512i *x, uint8_t *words)
{
    const __mmask64 halves = 0x3333333333333333ull;
    for (int v = 0; v < VECTORS; v++) {
        __m512i f = _mm512_maskz_permutex2var_epi8(halves, entry[v].f_low, order, entry[v].f_high);
        __m512i cumulative =
            _mm512_maskz_permutex2var_epi8(halves, entry[v].cumulative_low, order, entry[v].cumulative_high);
        __mmask16 full = _mm512_cmpge_epi32_mask(x[v], _mm512_slli_epi32(f, 31 - S4_ENCODER_K));
        __m256i low = _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(full, x[v]));
        _mm256_storeu_si256((__m256i *)(void *)words, low);
        words += 2 * (unsigned)__builtin_popcount(full);
        x[v] = next_state(_mm512_mask_srli_epi32(x[v], full, x[v], 16), f, cumulative);
    }
    return words;
}

size_t s4_encode_avx512(const s4_encoder *encoder, s4_encode_lanes *lanes, size_t groups,
                        const uint8_t *limit)
{
    const byte_table f_low = load_table(encoder->bytes[0]), f_high = load_table(encoder->bytes[1]);
    const byte_table c_low = load_table(encoder->bytes[2]), c_high = load_table(encoder->bytes[3]);
    __m512i x[VECTORS];
    entries entry[VECTORS];
    uint8_t *words = lanes->words;
    for (int v = 0; v < VECTORS; v++)
        x[v] = _mm512_loadu_si512(lanes->state + 16 * v);
    for (; groups && words <= limit; groups--, lanes->symbols += S4_GROUP) {
        for (int v = 0; v < VECTORS; v++) {
            __m512i symbols = _mm512_loadu_si512(lanes->symbols + 64 * v);
            __mmask64 high = _mm512_movepi8_mask(symbols);
            entry[v].f_low = look_up(&f_low, symbols, high);
            entry[v].f_high = look_up(&f_high, symbols, high);
            entry[v].cumulative_low = look_up(&c_low, symbols, high);
            entry[v].cumulative_high = look_up(&c_high, symbols, high);
        }
        for (int step = 0; step < 4; step++)
            words = encode_step(entry, pick(step), x, words);
    }
    for (int v = 0; v < VECTORS; v++)
        _mm512_storeu_si512(lanes->state + 16 * v, x[v]);
    lanes->words = words;
    return groups;
}
