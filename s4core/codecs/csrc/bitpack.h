/* `bitpack` (FORMAT.md, 4.1). */
#ifndef S4_BITPACK_H
#define S4_BITPACK_H

#include <stddef.h>
#include <stdint.h>

#include "fault.h"

/* Length of the blob of n symbols that differ in the bits of mask. */
size_t s4_bitpack_length(unsigned mask, size_t n);

/* Packs n symbols that differ in the 1..7 bits of mask; out holds s4_bitpack_length bytes. */
void s4_bitpack_encode(const uint8_t *p, size_t n, unsigned mask, uint8_t *out);

/* Fills out[0..n); returns S4_OK or the kind of the fault. */
int s4_bitpack_decode(const uint8_t *blob, size_t size, size_t n, uint8_t *out, s4_fault *fault);

#endif
