#include "bitpack.h"

#include "bytes.h"

#define HEADER 16

size_t s4_bitpack_length(unsigned mask, size_t n)
{
    return s4_pad16(HEADER + (size_t)s4_popcount8(mask) * ((n + 7) / 8));
}

/* narrow[s]: the bits of s that mask keeps, moved together. */
static void fill_narrow(unsigned mask, uint8_t narrow[256])
{
    for (unsigned s = 0; s < 256; s++) {
        unsigned at = 0, value = 0;
        for (unsigned bit = 0; bit < 8; bit++)
            if (mask >> bit & 1)
                value |= (s >> bit & 1) << at++;
        narrow[s] = (uint8_t)value;
    }
}

static uint64_t pack_group(const uint8_t *p, const uint8_t narrow[256], int width)
{
    uint64_t packed = 0;
    for (int i = 0; i < 8; i++)
        packed |= (uint64_t)narrow[p[i]] << (i * width);
    return packed;
}

void s4_bitpack_encode(const uint8_t *p, size_t n, unsigned mask, uint8_t *out)
{
    uint8_t narrow[256];
    uint8_t *at = out + HEADER, *end = out + s4_bitpack_length(mask, n);
    int width = s4_popcount8(mask);
    fill_narrow(mask, narrow);
    memset(out, 0, HEADER);
    out[0] = (uint8_t)mask;
    out[1] = (uint8_t)(p[0] & ~mask);
    s4_store32(out + 4, (uint32_t)n);
    for (; n >= 8; n -= 8, p += 8, at += width) {
        uint64_t packed = pack_group(p, narrow, width);
        memcpy(at, &packed, (size_t)width);
    }
    if (n) {
        uint8_t last[8] = {0};
        memcpy(last, p, n);
        uint64_t packed = pack_group(last, narrow, width);
        memcpy(at, &packed, (size_t)width);
        at += width;
    }
    memset(at, 0, (size_t)(end - at));
}

static int check(const uint8_t *blob, size_t size, size_t n, s4_fault *fault)
{
    if (size < HEADER)
        return s4_fail(fault, S4_TRUNCATED, 0, HEADER, size);
    unsigned mask = blob[0], base = blob[1];
    int width = s4_popcount8(mask);
    if (width < 1 || width > 7)
        return s4_fail(fault, S4_MASK, 0, 7, (uint64_t)width);
    if (base & mask)
        return s4_fail(fault, S4_BASE, 1, 0, base & mask);
    if (s4_load16(blob + 2))
        return s4_fail(fault, S4_RESERVED, 2, 0, 1);
    if (s4_load64(blob + 8))
        return s4_fail(fault, S4_RESERVED, 8, 0, 1);
    if (s4_load32(blob + 4) != n)
        return s4_fail(fault, S4_SYMBOLS, 4, n, s4_load32(blob + 4));
    if (size != s4_bitpack_length(mask, n))
        return s4_fail(fault, S4_LENGTH, 0, s4_bitpack_length(mask, n), size);
    return S4_OK;
}

/* Every bit behind the last symbol must be zero. */
static int check_tail(const uint8_t *blob, size_t size, size_t n, int width, s4_fault *fault)
{
    size_t bits = n * (size_t)width, byte = HEADER + bits / 8;
    if (bits % 8) {
        if (blob[byte] >> (bits % 8))
            return s4_fail(fault, S4_PADDING, byte, 0, 1);
        byte++;
    }
    byte = s4_first_nonzero(blob, byte, size);
    return byte < size ? s4_fail(fault, S4_PADDING, byte, 0, 1) : S4_OK;
}

static void unpack_group(const uint8_t *at, const uint8_t *wide, int width, uint8_t *out, size_t n)
{
    uint64_t packed = 0;
    memcpy(&packed, at, (size_t)width);
    for (size_t i = 0; i < n; i++)
        out[i] = wide[packed >> (i * (size_t)width) & ((1u << width) - 1)];
}

int s4_bitpack_decode(const uint8_t *blob, size_t size, size_t n, uint8_t *out, s4_fault *fault)
{
    uint8_t narrow[256], wide[128];
    if (check(blob, size, n, fault))
        return fault->kind;
    int width = s4_popcount8(blob[0]);
    if (check_tail(blob, size, n, width, fault))
        return fault->kind;
    fill_narrow(blob[0], narrow);
    for (unsigned s = 0; s < 256; s++)
        wide[narrow[s]] = (uint8_t)((s & blob[0]) | blob[1]);
    const uint8_t *at = blob + HEADER;
    for (; n >= 8; n -= 8, out += 8, at += width)
        unpack_group(at, wide, width, out, 8);
    if (n)
        unpack_group(at, wide, width, out, n);
    return S4_OK;
}
