#include "bytes.h"
#include "context.h"
#include "rans.h"

#define MIN_K 8
#define MAX_K 11

int s4_zeros_check(const uint8_t *blob, size_t from, size_t to, s4_fault *fault)
{
    size_t found = s4_first_nonzero(blob, from, to);
    return found < to ? s4_fail(fault, S4_PADDING, found, 0, blob[found]) : S4_OK;
}

int s4_short_read(const uint8_t *blob, size_t *at, size_t end, int kind, uint32_t *value, s4_fault *fault)
{
    size_t start = *at;
    if (start >= end)
        return s4_fail(fault, kind, start, end, start);
    *value = blob[start];
    *at = start + 1;
    if (*value < 0x80)
        return S4_OK;
    if (*at >= end)
        return s4_fail(fault, kind, *at, end, *at);
    *value = (*value & 0x7f) << 8 | blob[start + 1];
    *at = start + 2;
    return *value < 0x80 ? s4_fail(fault, kind, start, 0x80, *value) : S4_OK;
}

int s4_context_head_read(const uint8_t *blob, size_t size, size_t n, s4_context_head *head, s4_fault *fault)
{
    if (size % 16)
        return s4_fail(fault, S4_LENGTH, 0, s4_pad16(size), size);
    if (size < S4_CONTEXT_HEAD)
        return s4_fail(fault, S4_TRUNCATED, 0, S4_CONTEXT_HEAD, size);
    size_t sub_block = s4_load32(blob + 8);
    if (blob[0] != 1)
        return s4_fail(fault, S4_VERSION, 0, 1, blob[0]);
    if (blob[1] < MIN_K || blob[1] > MAX_K)
        return s4_fail(fault, S4_PROBABILITY_BITS, 1, MAX_K, blob[1]);
    if (s4_load32(blob + 4) != n)
        return s4_fail(fault, S4_SYMBOLS, 4, n, s4_load32(blob + 4));
    if (sub_block % S4_GROUP || sub_block < S4_GROUP || sub_block > S4_MAX_SUB_BLOCK)
        return s4_fail(fault, S4_SUB_BLOCK_SIZE, 8, S4_MAX_SUB_BLOCK, sub_block);
    size_t blocks = (n + sub_block - 1) / sub_block;
    if (blob[2] != blocks)
        return s4_fail(fault, S4_SUB_BLOCKS, 2, blocks, blob[2]);
    s4_context_head found = {blob, size, n, blob[1], blocks, sub_block, blob[3], s4_load32(blob + 12)};
    *head = found;
    return S4_OK;
}

/* Reads one table at *at, before `end`; fills the 2^k entries at `table` once its sum is right. */
static int read_table(const uint8_t *blob, size_t *at, size_t end, int k, uint32_t *table, s4_fault *fault)
{
    size_t start = *at;
    uint32_t frequency[256], sum = 0;
    if (start + 2 > end)
        return s4_fail(fault, S4_TABLES, start, end, start);
    uint32_t first = blob[start], last = blob[start + 1];
    if (last < first)
        return s4_fail(fault, S4_TABLE_RANGE, start + 1, first, last);
    *at += 2;
    for (uint32_t s = first; s <= last; s++) {
        if (s4_short_read(blob, at, end, S4_TABLES, &frequency[s], fault))
            return fault->kind;
        sum += frequency[s];
    }
    if (sum != 1u << k)
        return s4_fail(fault, S4_FREQUENCY_SUM, start, 1u << k, sum);
    for (uint32_t s = first; s <= last; s++)
        for (uint32_t i = 0; i < frequency[s]; i++)
            *table++ = s << 24 | i << 12 | frequency[s];
    return S4_OK;
}

static int read_tables(const s4_context_head *head, size_t *at, uint32_t *table, s4_fault *fault)
{
    size_t start = *at, end = start + head->tables_bytes;
    size_t need = start + s4_pad16(head->tables_bytes) + s4_pad16(4 * head->blocks);
    if (need > head->size)
        return s4_fail(fault, S4_TRUNCATED, 0, need, head->size);
    for (int b = 0; b < head->tables; b++)
        if (read_table(head->blob, at, end, head->k, table + ((size_t)b << head->k), fault))
            return fault->kind;
    if (*at != end)
        return s4_fail(fault, S4_TABLES, 12, *at - start, head->tables_bytes);
    *at = start + s4_pad16(head->tables_bytes);
    return s4_zeros_check(head->blob, end, *at, fault);
}

/* Checks directory, states and padding, so that decoding can only end in the wrong place. */
static int check_blocks(const s4_context_head *head, size_t directory, size_t first, s4_fault *fault)
{
    size_t total = first, at = first;
    if (s4_zeros_check(head->blob, directory + 4 * head->blocks, first, fault))
        return fault->kind;
    for (size_t i = 0; i < head->blocks; i++)
        total += 4 * S4_LANES + s4_pad16(2 * (size_t)s4_load32(head->blob + directory + 4 * i));
    if (total != head->size)
        return s4_fail(fault, total > head->size ? S4_TRUNCATED : S4_LENGTH, 0, total, head->size);
    for (size_t i = 0; i < head->blocks; i++) {
        size_t words = 2 * (size_t)s4_load32(head->blob + directory + 4 * i);
        for (size_t lane = 0; lane < S4_LANES; lane++) {
            uint32_t state = s4_load32(head->blob + at + 4 * lane);
            if (state < S4_STATE_LOW || state >> 31)
                return s4_fail(fault, S4_STATE, at + 4 * lane, 0x7fffffff, state);
        }
        at += 4 * S4_LANES;
        if (s4_zeros_check(head->blob, at + words, at + s4_pad16(words), fault))
            return fault->kind;
        at += s4_pad16(words);
    }
    return S4_OK;
}

typedef struct {
    const uint32_t *table;
    int k;
    const uint8_t *words; /* the first */
    const uint8_t *next;  /* behind the next one to take */
    uint32_t state[S4_LANES];
} context_lanes;

static inline uint8_t uncode_symbol(const uint32_t *table, int k, uint32_t *state)
{
    uint32_t x = *state, entry = table[x & ((1u << k) - 1)];
    *state = (entry & 0xfff) * (x >> k) + (entry >> 12 & 0xfff);
    return (uint8_t)(entry >> 24);
}

/* The symbols of one group, n <= 128; returns 0 when words run out. */
static int decode_checked(context_lanes *lanes, const uint8_t *buckets, uint8_t *out, int n)
{
    for (int step = 3; step >= 0; step--)
        for (int lane = S4_LANES - 1; lane >= 0; lane--) {
            int i = 4 * lane + step;
            if (i >= n)
                continue;
            uint32_t *state = &lanes->state[lane];
            out[i] = uncode_symbol(lanes->table + ((size_t)buckets[i] << lanes->k), lanes->k, state);
            if (*state >= S4_STATE_LOW)
                continue;
            if (lanes->next == lanes->words)
                return 0;
            lanes->next -= 2;
            *state = *state << 16 | s4_load16(lanes->next);
        }
    return 1;
}

/* A whole group for which there are words enough, without branches. */
static void decode_group(context_lanes *lanes, const uint8_t *buckets, uint8_t *out)
{
    const uint8_t *next = lanes->next;
    for (int step = 3; step >= 0; step--)
        for (int lane = S4_LANES - 1; lane >= 0; lane--) {
            int i = 4 * lane + step;
            uint32_t x = lanes->state[lane], word = s4_load16(next - 2);
            out[i] = uncode_symbol(lanes->table + ((size_t)buckets[i] << lanes->k), lanes->k, &x);
            uint32_t taken = (x - S4_STATE_LOW) >> 31;
            lanes->state[lane] = x << (taken << 4) | (word & (0u - taken));
            next -= 2 * taken;
        }
    lanes->next = next;
}

static uint64_t decode_block(context_lanes *lanes, const uint8_t *buckets, uint8_t *out, size_t n)
{
    uint64_t faulty = 0;
    size_t at = n - n % S4_GROUP;
    if (!decode_checked(lanes, buckets + at, out + at, (int)(n % S4_GROUP)))
        return S4_LANES;
    while (at) {
        at -= S4_GROUP;
        if (lanes->next - lanes->words >= S4_GROUP_WORDS_BYTES)
            decode_group(lanes, buckets + at, out + at);
        else if (!decode_checked(lanes, buckets + at, out + at, S4_GROUP))
            return S4_LANES;
    }
    for (int lane = 0; lane < S4_LANES; lane++)
        faulty += lanes->state[lane] != S4_STATE_LOW;
    return lanes->next == lanes->words ? faulty : S4_LANES;
}

int s4_bucketed_decode(const s4_context_head *head, size_t at, const uint8_t *buckets, uint8_t *out,
                       s4_fault *fault)
{
    uint32_t table[S4_BUCKETS << MAX_K];
    if (read_tables(head, &at, table, fault))
        return fault->kind;
    size_t directory = at;
    at += s4_pad16(4 * head->blocks);
    if (check_blocks(head, directory, at, fault))
        return fault->kind;
    for (size_t i = 0, start = 0; i < head->blocks; i++, start += head->sub_block) {
        size_t words = 2 * (size_t)s4_load32(head->blob + directory + 4 * i);
        size_t n = head->n - start < head->sub_block ? head->n - start : head->sub_block;
        context_lanes lanes = {table, head->k, head->blob + at + 4 * S4_LANES, NULL, {0}};
        memcpy(lanes.state, head->blob + at, sizeof lanes.state);
        lanes.next = lanes.words + words;
        uint64_t faulty = decode_block(&lanes, buckets + start, out + start, n);
        if (faulty)
            return s4_fail(fault, S4_END, at, 0, faulty);
        at += 4 * S4_LANES + s4_pad16(words);
    }
    return S4_OK;
}
