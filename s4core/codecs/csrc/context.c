#include "context.h"

#include "bitpack.h"
#include "bytes.h"
#include "choice.h"
#include "rans.h"

#define K 11
#define M (1u << K)
#define TOP_SHARE 32

/* ---- estimates ---- */

size_t s4_plain_bytes(const uint8_t *p, size_t n, size_t sub_block)
{
    s4_estimate seen;
    s4_estimate_exact(p, n, &seen);
    if (seen.symbols == 1)
        return 0;
    size_t blocks = (n + sub_block - 1) / sub_block, least = s4_pad16(n);
    size_t rans = 48 + 2 * (size_t)seen.symbols + 144 * blocks + (size_t)(n * seen.bits / (8 * 65536));
    size_t packed = s4_bitpack_length(seen.mask, n);
    least = rans < least ? rans : least;
    return packed < least ? packed : least;
}

/* ---- tables ---- */

typedef struct {
    uint32_t count[S4_BUCKETS][256];
    uint32_t frequency[S4_BUCKETS][256];
} tables;

static void count_joint(const s4_bucketed *from, tables *t)
{
    memset(t->count, 0, sizeof t->count);
    for (size_t i = 0; i < from->n; i++)
        t->count[from->buckets[i]][from->symbols[i]]++;
}

static int highest(const uint32_t values[256])
{
    int at = 0;
    for (int s = 1; s < 256; s++)
        at = values[s] > values[at] ? s : at;
    return at;
}

/* Rounded, at least 1; what the sum is short of goes to the most frequent symbol, what it is too
 * much is taken, one by one, from whichever is the largest then. */
static void scale(const uint32_t count[256], uint32_t frequency[256])
{
    uint64_t total = 0;
    int32_t left = (int32_t)M;
    for (int s = 0; s < 256; s++)
        total += count[s];
    for (int s = 0; s < 256; s++) {
        uint32_t f = count[s] ? (uint32_t)((2ull * M * count[s] + total) / (2 * total)) : 0;
        frequency[s] = count[s] && !f ? 1 : f;
        left -= (int32_t)frequency[s];
    }
    if (left > 0)
        frequency[highest(count)] += (uint32_t)left;
    for (; left < 0; left++)
        frequency[highest(frequency)]--;
}

static uint64_t cost_of_bucket(const uint32_t count[256], const uint32_t frequency[256])
{
    uint64_t bits = 0;
    for (int s = 0; s < 256; s++)
        if (count[s])
            bits += (uint64_t)count[s] * s4_cost(2 * frequency[s]);
    return bits;
}

uint8_t *s4_short_write(uint8_t *at, uint32_t value)
{
    if (value >= 128)
        *at++ = (uint8_t)(0x80 | value >> 8);
    *at++ = (uint8_t)value;
    return at;
}

static uint8_t *write_table(uint8_t *at, const uint32_t frequency[256])
{
    int first = 0, last = 255;
    while (!frequency[first])
        first++;
    while (!frequency[last])
        last--;
    *at++ = (uint8_t)first;
    *at++ = (uint8_t)last;
    for (int s = first; s <= last; s++)
        at = s4_short_write(at, frequency[s]);
    return at;
}

/* ---- encoder ---- */

/* As s4_division, for sums of 2^11; f may be 2^11 itself, which leaves the state as it is. */
static s4_division divide_by(uint32_t f, uint32_t cumulative)
{
    s4_division d = {f << (31 - K), UINT32_MAX, cumulative + M - 1, (uint16_t)(M - f), 32};
    unsigned bits = 0;
    if (f < 2)
        return d;
    while (1u << bits < f)
        bits++;
    d.reciprocal = (uint32_t)(((1ull << (31 + bits)) + f - 1) / f);
    d.bias = cumulative;
    d.shift = (uint16_t)(31 + bits);
    return d;
}

static void fill_divisions(const tables *t, int count, s4_division division[][256])
{
    for (int b = 0; b < count; b++) {
        uint32_t cumulative = 0;
        for (int s = 0; s < 256; s++) {
            uint32_t f = t->frequency[b][s];
            if (f)
                division[b][s] = divide_by(f, cumulative);
            cumulative += f;
        }
    }
}

static inline uint8_t *code_symbol(const s4_division *d, uint32_t *state, uint8_t *words)
{
    uint32_t x = *state;
    uint32_t emit = (d->limit - 1 - x) >> 31;
    s4_store16(words, (uint16_t)x);
    x >>= emit << 4;
    uint32_t quotient = (uint32_t)(((uint64_t)x * d->reciprocal) >> d->shift);
    *state = x + d->bias + quotient * d->complement;
    return words + 2 * emit;
}

/* Codes n symbols; returns what follows the words, or NULL once they pass limit. */
static uint8_t *code_block(const s4_division division[][256], const s4_bucketed *from, size_t start, size_t n,
                           uint32_t *state, const uint8_t *limit, uint8_t *words)
{
    for (size_t group = 0; group < n; group += S4_GROUP) {
        const uint8_t *p = from->symbols + start + group, *b = from->buckets + start + group;
        size_t here = n - group < S4_GROUP ? n - group : S4_GROUP;
        if (words > limit)
            return NULL;
        for (size_t step = 0; step < 4; step++)
            for (size_t lane = 0, i = step; i < here; lane++, i += 4)
                words = code_symbol(&division[b[i]][p[i]], &state[lane], words);
    }
    return words;
}

static uint8_t *encode_block(const s4_division division[][256], const s4_bucketed *from, size_t start,
                             const uint8_t *limit, uint8_t *out, uint8_t *directory)
{
    size_t n = from->n - start < from->sub_block ? from->n - start : from->sub_block;
    uint32_t state[S4_LANES];
    uint8_t *first = out + sizeof state;
    for (int lane = 0; lane < S4_LANES; lane++)
        state[lane] = S4_STATE_LOW;
    uint8_t *end = first > limit ? NULL : code_block(division, from, start, n, state, limit, first);
    if (!end || end > limit)
        return NULL;
    memcpy(out, state, sizeof state);
    s4_store32(directory, (uint32_t)((size_t)(end - first) / 2));
    return first + s4_zero_padding(first, (size_t)(end - first));
}

static void write_head(const s4_bucketed *from, size_t tables_bytes, uint8_t *out)
{
    out[0] = 1;
    out[1] = K;
    out[2] = (uint8_t)((from->n + from->sub_block - 1) / from->sub_block);
    out[3] = (uint8_t)from->tables;
    s4_store32(out + 4, (uint32_t)from->n);
    s4_store32(out + 8, (uint32_t)from->sub_block);
    s4_store32(out + 12, (uint32_t)tables_bytes);
}

static size_t encode_body(const s4_bucketed *from, const tables *t, const uint8_t *packed, size_t packed_bytes,
                          size_t fixed, uint8_t *out)
{
    s4_division division[S4_BUCKETS][256];
    const uint8_t *limit = out + s4_pad16(from->n);
    size_t blocks = (from->n + from->sub_block - 1) / from->sub_block;
    if (fixed + s4_pad16(packed_bytes) + s4_pad16(4 * blocks) >= s4_pad16(from->n))
        return 0;
    write_head(from, packed_bytes, out);
    memcpy(out + fixed, packed, packed_bytes);
    uint8_t *directory = out + fixed + s4_zero_padding(out + fixed, packed_bytes);
    uint8_t *at = directory + s4_pad16(4 * blocks);
    memset(directory, 0, s4_pad16(4 * blocks));
    fill_divisions(t, from->tables, division);
    for (size_t start = 0; start < from->n; start += from->sub_block, directory += 4) {
        at = encode_block((const s4_division(*)[256])division, from, start, limit, at, directory);
        if (!at || at > limit)
            return 0;
    }
    size_t size = (size_t)(at - out);
    return size < s4_pad16(from->n) ? size : 0;
}

size_t s4_bucketed_encode(const s4_bucketed *from, size_t fixed, size_t plain, uint8_t *out)
{
    tables t;
    uint8_t packed[S4_BUCKETS * (2 + 2 * 256)], *end = packed;
    uint64_t bits = 0;
    size_t blocks = (from->n + from->sub_block - 1) / from->sub_block;
    count_joint(from, &t);
    for (int b = 0; b < from->tables; b++) {
        scale(t.count[b], t.frequency[b]);
        bits += cost_of_bucket(t.count[b], t.frequency[b]);
        end = write_table(end, t.frequency[b]);
    }
    size_t packed_bytes = (size_t)(end - packed);
    if (fixed + packed_bytes + 144 * blocks + (size_t)(bits / (8 * 65536)) >= plain)
        return 0;
    return encode_body(from, &t, packed, packed_bytes, fixed, out);
}

/* ---- rans.ctx ---- */

/* The thresholds that a writer chooses; returns how many. */
static int choose_thresholds(const uint8_t *context, size_t n, uint8_t thresholds[S4_BUCKETS - 1])
{
    uint32_t count[256] = {0};
    uint64_t above = 0;
    int top = 256, kept = 0;
    s4_count(context, n, count);
    while (above * TOP_SHARE < n)
        above += count[--top];
    for (int t = top - S4_BUCKETS + 2; t <= top; t++)
        if (t > 0)
            thresholds[kept++] = (uint8_t)t;
    return kept;
}

static void find_buckets(const uint8_t *context, size_t n, const uint8_t *thresholds, int count, uint8_t *buckets)
{
    uint8_t bucket_of[256];
    for (int c = 0, bucket = 0; c < 256; c++) {
        while (bucket < count && thresholds[bucket] <= c)
            bucket++;
        bucket_of[c] = (uint8_t)bucket;
    }
    for (size_t i = 0; i < n; i++)
        buckets[i] = bucket_of[context[i]];
}

size_t s4_context_encode(const uint8_t *p, const uint8_t *context, size_t n, size_t sub_block, uint8_t *out,
                         uint8_t *scratch)
{
    uint8_t thresholds[S4_BUCKETS - 1];
    s4_bucketed from = {p, scratch, n, sub_block, 1 + choose_thresholds(context, n, thresholds)};
    find_buckets(context, n, thresholds, from.tables - 1, scratch);
    size_t size = s4_bucketed_encode(&from, S4_CONTEXT_HEAD, s4_plain_bytes(p, n, sub_block), out);
    if (size) {
        memset(out + 16, 0, S4_CONTEXT_HEAD - 16);
        memcpy(out + 16, thresholds, (size_t)from.tables - 1);
    }
    return size;
}

int s4_context_decode(const uint8_t *blob, size_t size, const uint8_t *context, size_t n, uint8_t *out,
                      uint8_t *scratch, s4_fault *fault)
{
    s4_context_head head;
    fault->codec = S4_RANS_CTX;
    if (s4_context_head_read(blob, size, n, &head, fault))
        return fault->kind;
    if (head.tables < 1 || head.tables > S4_BUCKETS)
        return s4_fail(fault, S4_CONTEXTS, 3, S4_BUCKETS, (uint64_t)head.tables);
    int count = head.tables - 1;
    for (int i = 0, before = 0; i < count; before = blob[16 + i++])
        if (blob[16 + i] <= before)
            return s4_fail(fault, S4_THRESHOLD, 16 + (uint64_t)i, (uint64_t)before + 1, blob[16 + i]);
    if (s4_zeros_check(blob, 16 + (size_t)count, S4_CONTEXT_HEAD, fault))
        return fault->kind;
    find_buckets(context, n, blob + 16, count, scratch);
    return s4_bucketed_decode(&head, S4_CONTEXT_HEAD, scratch, out, fault);
}
