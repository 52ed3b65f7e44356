/* `rans`, the open interleaved rANS (FORMAT.md, 4.2).
 *
 * rANS is Jarek Duda's range variant of asymmetric numeral systems (arXiv 1311.2540);
 * interleaved lanes that share one stream of words follow Fabian Giesen (arXiv 1402.3392).
 *
 * A "group" is 128 symbols: four steps of 32 lanes. The kernels below work on whole
 * groups; what they leave, rans_encode.c and rans_decode.c finish symbol by symbol.
 */
#ifndef S4_RANS_H
#define S4_RANS_H

#include <stddef.h>
#include <stdint.h>

#include "choice.h"
#include "fault.h"

#define S4_LANES 32
#define S4_GROUP 128
#define S4_GROUP_WORDS_BYTES 256 /* at most, of one group */
#define S4_STATE_LOW (1u << 15)
#define S4_MAX_PATCHES 128
#define S4_MAX_SUB_BLOCKS 255
#define S4_MAX_SUB_BLOCK (1u << 20)
#define S4_MAX_SYMBOLS (1u << 24)

/* An encoder may write this far behind pad16(n) before it gives up. */
#define S4_SLACK 1024

/* x / f == (x * reciprocal) >> shift for every x < 2^31; then the new state is
 * x + bias + quotient * complement, with complement = M - f. */
typedef struct {
    uint32_t limit; /* f << 19: from here on a word is emitted first */
    uint32_t reciprocal;
    uint32_t bias;
    uint16_t complement;
    uint16_t shift;
} s4_division;

/* Absent symbols have the entries of the most frequent one. */
typedef struct {
    s4_division division[256];
    uint32_t packed[256];   /* f | cumulative << 16 */
    uint8_t bytes[4][256];  /* the four bytes of packed, each a table */
    uint8_t absent[256];    /* 1 where a symbol must be patched */
    uint8_t run_first;      /* the longest run of present symbols */
    uint8_t run_last;
    int some_absent;
} s4_encoder;

/* One sub-block's symbols and words, somewhere between its first and its last group. */
typedef struct {
    const uint8_t *symbols; /* of the next group */
    uint8_t *words;         /* where the next word goes */
    uint32_t state[S4_LANES];
} s4_encode_lanes;

typedef struct {
    uint8_t *symbols;     /* of the sub-block */
    const uint8_t *words; /* the first word, at any alignment */
    const uint8_t *next;  /* behind the next word to take */
    size_t groups;        /* still to be decoded: the groups 0 .. groups-1 */
    uint32_t state[S4_LANES];
} s4_decode_lanes;

/* Codes `groups` groups; stops early, returning the number left, once words > limit. */
typedef size_t s4_encode_kernel(const s4_encoder *encoder, s4_encode_lanes *lanes, size_t groups,
                                const uint8_t *limit);

/* Decodes from the last group down; stops when no groups, or fewer than 128 words, are left.
 * table[slot] = symbol | f << 8 | (slot - cumulative) << 20. */
typedef void s4_decode_kernel(const uint32_t *table, int k, s4_decode_lanes *lanes);

s4_encode_kernel s4_encode_portable, s4_encode_avx2, s4_encode_avx512;
s4_decode_kernel s4_decode_portable, s4_decode_avx2;

/* Fills the shuffle tables of the AVX2 kernels. */
void s4_avx2_init(void);

/* Writes the blob at out, which holds s4_pad16(n) + S4_SLACK bytes; returns its length, or 0 when
 * a sub-block needs too many patches or the blob would not be shorter than s4_pad16(n). */
size_t s4_rans_encode(const uint8_t *p, size_t n, size_t sub_block, const s4_estimate *estimate,
                      s4_encode_kernel *kernel, uint8_t *out);

/* Fills out[0..n); returns S4_OK or the kind of the fault. */
int s4_rans_decode(const uint8_t *blob, size_t size, size_t n, s4_decode_kernel *kernel, uint8_t *out,
                   s4_fault *fault);

#endif
