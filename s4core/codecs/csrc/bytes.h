/* Little-endian loads and stores at any alignment, and sizes. */
#ifndef S4_BYTES_H
#define S4_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "s4weights needs a little-endian machine: blobs are read in place"
#endif

static inline size_t s4_pad16(size_t size) { return (size + 15) & ~(size_t)15; }

static inline uint16_t s4_load16(const uint8_t *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint32_t s4_load32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t s4_load64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline void s4_store16(uint8_t *at, uint16_t value) { memcpy(at, &value, sizeof value); }
static inline void s4_store32(uint8_t *at, uint32_t value) { memcpy(at, &value, sizeof value); }
static inline void s4_store64(uint8_t *at, uint64_t value) { memcpy(at, &value, sizeof value); }

/* Zeroes the bytes that round `size` up to 16; returns the padded size. */
static inline size_t s4_zero_padding(uint8_t *start, size_t size)
{
    size_t padded = s4_pad16(size);
    memset(start + size, 0, padded - size);
    return padded;
}

/* Index of the first byte that is not zero in [from, to), or `to`. */
static inline size_t s4_first_nonzero(const uint8_t *start, size_t from, size_t to)
{
    while (from < to && start[from] == 0)
        from++;
    return from;
}

static inline int s4_popcount8(unsigned mask)
{
    int count = 0;
    for (; mask; mask &= mask - 1)
        count++;
    return count;
}

#endif
