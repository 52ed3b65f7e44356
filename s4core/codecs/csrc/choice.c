#include "choice.h"

#include <string.h>

#include "bytes.h"

#define M (1u << S4_ENCODER_K)
#define UNIT 256
#define SAMPLE_EVERY 16

static uint32_t cost_of[M + 1];

static uint32_t cost(uint32_t f)
{
    uint32_t exponent = 0, fraction = 0;
    while (f >> (exponent + 1))
        exponent++;
    uint64_t m = (uint64_t)f << (30 - exponent);
    for (int i = 0; i < 16; i++) {
        m = (m * m) >> 30;
        uint32_t carry = (uint32_t)(m >> 31);
        fraction = fraction << 1 | carry;
        m >>= carry;
    }
    return (S4_ENCODER_K - exponent) * 65536 - fraction;
}

uint32_t s4_cost(uint32_t f) { return cost_of[f]; }

void s4_choice_init(void)
{
    for (uint32_t f = 1; f <= M; f++)
        cost_of[f] = cost(f);
}

/* Four tables, so that runs of one symbol do not wait for their own stores. */
static void count4(const uint8_t *p, size_t n, uint32_t tables[4][256])
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t eight = s4_load64(p + i);
        for (int b = 0; b < 8; b++)
            tables[b & 3][(eight >> (8 * b)) & 0xff]++;
    }
    for (; i < n; i++)
        tables[0][p[i]]++;
}

static void sum4(uint32_t tables[4][256], uint32_t counts[256])
{
    for (int s = 0; s < 256; s++)
        counts[s] += tables[0][s] + tables[1][s] + tables[2][s] + tables[3][s];
}

void s4_count(const uint8_t *p, size_t n, uint32_t counts[256])
{
    uint32_t tables[4][256];
    memset(tables, 0, sizeof tables);
    count4(p, n, tables);
    sum4(tables, counts);
}

static void count_sampled(const uint8_t *p, size_t n, size_t sub_block, uint32_t counts[256])
{
    uint32_t tables[4][256];
    memset(tables, 0, sizeof tables);
    for (size_t start = 0; start < n; start += sub_block) {
        size_t end = n - start < sub_block ? n : start + sub_block;
        for (size_t at = start; at < end; at += UNIT * SAMPLE_EVERY)
            count4(p + at, end - at < UNIT ? end - at : UNIT, tables);
    }
    sum4(tables, counts);
}

static void survey(const uint32_t counts[256], s4_estimate *out, uint64_t *total)
{
    int first = -1;
    *total = 0;
    for (int s = 0; s < 256; s++) {
        if (!counts[s])
            continue;
        if (first < 0)
            first = s;
        *total += counts[s];
        out->symbols++;
        out->mask |= (unsigned)(s ^ first);
        if (counts[s] > counts[out->most])
            out->most = s;
    }
}

static void estimate(const uint32_t counts[256], s4_estimate *out)
{
    uint64_t total, bits = 0;
    uint32_t left = M;
    memset(out, 0, sizeof *out);
    survey(counts, out, &total);
    for (int s = 0; s < 256; s++) {
        if (counts[s])
            out->frequency[s] = 1 + (uint32_t)((uint64_t)counts[s] * (M - (unsigned)out->symbols) / total);
        left -= out->frequency[s];
    }
    out->frequency[out->most] += left;
    for (int s = 0; s < 256; s++)
        bits += (uint64_t)counts[s] * cost_of[out->frequency[s]];
    out->bits = bits / total;
}

void s4_estimate_exact(const uint8_t *p, size_t n, s4_estimate *out)
{
    uint32_t counts[256] = {0};
    s4_count(p, n, counts);
    estimate(counts, out);
}

void s4_estimate_sampled(const uint8_t *p, size_t n, size_t sub_block, s4_estimate *out)
{
    uint32_t counts[256] = {0};
    count_sampled(p, n, sub_block, counts);
    estimate(counts, out);
    out->sampled = 1;
}

unsigned s4_varying_bits(const uint8_t *p, size_t n)
{
    uint8_t first = p[0], varying = 0;
    for (size_t i = 0; i < n; i++)
        varying |= p[i] ^ first;
    return varying;
}
