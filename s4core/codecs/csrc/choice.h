/* Histograms, frequencies and the estimated cost of a symbol (FORMAT.md, 4.4 and 4.5). */
#ifndef S4_CHOICE_H
#define S4_CHOICE_H

#include <stddef.h>
#include <stdint.h>

#define S4_ENCODER_K 12
#define S4_EXACT_BELOW 65536
#define S4_RAW_BITS 513802 /* 7.84 bits a symbol, in 1/65536 bit */

typedef struct {
    uint32_t frequency[256]; /* sum 4096; 0 for absent symbols */
    uint64_t bits;           /* cost of a symbol in 1/65536 bit */
    int symbols;             /* how many are present */
    int most;                /* the most frequent, lowest on ties */
    unsigned mask;           /* bits in which present symbols differ */
    int sampled;             /* whether symbols may be missing */
} s4_estimate;

/* Fills the cost table; to be called once before any other function here. */
void s4_choice_init(void);

/* 65536 * log2(4096 / f), f = 1 .. 4096 (FORMAT.md, 4.5). */
uint32_t s4_cost(uint32_t f);

/* Adds the n symbols at p to counts. */
void s4_count(const uint8_t *p, size_t n, uint32_t counts[256]);

/* Estimates from all symbols, or from every 16th unit of 256 of each sub-block. */
void s4_estimate_exact(const uint8_t *p, size_t n, s4_estimate *out);
void s4_estimate_sampled(const uint8_t *p, size_t n, size_t sub_block, s4_estimate *out);

/* Mask of the bits in which the n >= 1 symbols at p differ. */
unsigned s4_varying_bits(const uint8_t *p, size_t n);

#endif
