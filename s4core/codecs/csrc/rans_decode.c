#include "bytes.h"
#include "rans.h"

/* What parsing found; every number in it has been checked against the blob. */
typedef struct {
    int k;
    size_t blocks;
    size_t sub_block;
    const uint8_t *directory;
    const uint8_t *first_block;
} blob_parts;

static int check_header(const uint8_t *blob, size_t size, size_t n, blob_parts *parts, s4_fault *fault)
{
    if (size % 16)
        return s4_fail(fault, S4_LENGTH, 0, s4_pad16(size), size);
    if (size < 48)
        return s4_fail(fault, S4_TRUNCATED, 0, 48, size);
    parts->k = blob[1];
    parts->blocks = blob[2];
    parts->sub_block = s4_load32(blob + 8);
    if (blob[0] != 2)
        return s4_fail(fault, S4_VERSION, 0, 2, blob[0]);
    if (parts->k < 8 || parts->k > 12)
        return s4_fail(fault, S4_PROBABILITY_BITS, 1, 12, blob[1]);
    if (blob[3])
        return s4_fail(fault, S4_RESERVED, 3, 0, blob[3]);
    if (s4_load32(blob + 4) != n)
        return s4_fail(fault, S4_SYMBOLS, 4, n, s4_load32(blob + 4));
    if (parts->sub_block % S4_GROUP || parts->sub_block < S4_GROUP || parts->sub_block > S4_MAX_SUB_BLOCK)
        return s4_fail(fault, S4_SUB_BLOCK_SIZE, 8, S4_MAX_SUB_BLOCK, parts->sub_block);
    if (s4_load32(blob + 12))
        return s4_fail(fault, S4_RESERVED, 12, 0, s4_load32(blob + 12));
    size_t blocks = (n + parts->sub_block - 1) / parts->sub_block;
    if (parts->blocks != blocks)
        return s4_fail(fault, S4_SUB_BLOCKS, 2, blocks, parts->blocks);
    return S4_OK;
}

static int check_padding(const uint8_t *blob, size_t start, size_t size, s4_fault *fault)
{
    size_t end = start + s4_pad16(size);
    size_t found = s4_first_nonzero(blob, start + size, end);
    return found < end ? s4_fail(fault, S4_PADDING, found, 0, blob[found]) : S4_OK;
}

static size_t count_symbols(const uint8_t *bitmap)
{
    size_t count = 0;
    for (int i = 0; i < 32; i++)
        count += (size_t)s4_popcount8(bitmap[i]);
    return count;
}

static int check_frequencies(const uint8_t *blob, size_t symbols, int k, s4_fault *fault)
{
    uint32_t most = (1u << k) - 1, sum = 0;
    for (size_t i = 0; i < symbols; i++) {
        uint32_t f = s4_load16(blob + 48 + 2 * i);
        if (f < 1 || f > most)
            return s4_fail(fault, S4_FREQUENCY, 48 + 2 * i, most, f);
        sum += f;
    }
    return sum == most + 1 ? S4_OK : s4_fail(fault, S4_FREQUENCY_SUM, 48, most + 1, sum);
}

static int check_directory(const uint8_t *blob, size_t size, const blob_parts *parts, s4_fault *fault)
{
    size_t total = (size_t)(parts->first_block - blob);
    for (size_t i = 0; i < parts->blocks; i++) {
        uint32_t entry = s4_load32(parts->directory + 4 * i), patches = entry >> 24;
        if (patches > S4_MAX_PATCHES)
            return s4_fail(fault, S4_PATCH_COUNT, (uint64_t)(parts->directory - blob) + 4 * i,
                           S4_MAX_PATCHES, patches);
        total += 4 * S4_LANES + s4_pad16(2 * (size_t)(entry & 0xffffff)) + s4_pad16(4 * (size_t)patches);
    }
    if (total != size)
        return s4_fail(fault, total > size ? S4_TRUNCATED : S4_LENGTH, 0, total, size);
    return S4_OK;
}

static int check_states(const uint8_t *blob, size_t at, s4_fault *fault)
{
    for (size_t lane = 0; lane < S4_LANES; lane++) {
        uint32_t state = s4_load32(blob + at + 4 * lane);
        if (state < S4_STATE_LOW || state >> 31)
            return s4_fail(fault, S4_STATE, at + 4 * lane, 0x7fffffff, state);
    }
    return S4_OK;
}

static int check_patches(const uint8_t *blob, size_t at, size_t count, size_t length, s4_fault *fault)
{
    size_t least = 0;
    for (size_t i = 0; i < count; i++) {
        size_t position = s4_load32(blob + at + 4 * i) & 0xffffff;
        if (position < least || position >= length)
            return s4_fail(fault, S4_PATCH_POSITION, at + 4 * i, length - 1, position);
        least = position + 1;
    }
    return S4_OK;
}

static int check_blocks(const uint8_t *blob, size_t n, const blob_parts *parts, s4_fault *fault)
{
    size_t at = (size_t)(parts->first_block - blob);
    for (size_t i = 0; i < parts->blocks; i++) {
        uint32_t entry = s4_load32(parts->directory + 4 * i);
        size_t words = 2 * (size_t)(entry & 0xffffff), patches = entry >> 24;
        size_t left = n - i * parts->sub_block;
        size_t length = left < parts->sub_block ? left : parts->sub_block;
        if (check_states(blob, at, fault))
            return fault->kind;
        at += 4 * S4_LANES;
        if (check_padding(blob, at, words, fault))
            return fault->kind;
        at += s4_pad16(words);
        if (check_padding(blob, at, 4 * patches, fault) || check_patches(blob, at, patches, length, fault))
            return fault->kind;
        at += s4_pad16(4 * patches);
    }
    return S4_OK;
}

static int parse(const uint8_t *blob, size_t size, size_t n, blob_parts *parts, s4_fault *fault)
{
    if (check_header(blob, size, n, parts, fault))
        return fault->kind;
    size_t symbols = count_symbols(blob + 16);
    if (symbols < 2)
        return s4_fail(fault, S4_TABLE_SIZE, 16, 2, symbols);
    size_t table = s4_pad16(2 * symbols), directory = s4_pad16(4 * parts->blocks);
    if (size < 48 + table + directory)
        return s4_fail(fault, S4_TRUNCATED, 0, 48 + table + directory, size);
    parts->directory = blob + 48 + table;
    parts->first_block = parts->directory + directory;
    if (check_padding(blob, 48, 2 * symbols, fault) || check_frequencies(blob, symbols, parts->k, fault) ||
        check_padding(blob, 48 + table, 4 * parts->blocks, fault) ||
        check_directory(blob, size, parts, fault) || check_blocks(blob, n, parts, fault))
        return fault->kind;
    return S4_OK;
}

static void fill_table(const uint8_t *blob, uint32_t *table)
{
    const uint8_t *frequency = blob + 48;
    for (uint32_t s = 0; s < 256; s++) {
        if (!(blob[16 + s / 8] >> (s & 7) & 1))
            continue;
        uint32_t f = s4_load16(frequency), entry = s | f << 8;
        frequency += 2;
        for (uint32_t i = 0; i < f; i++)
            *table++ = entry | i << 20;
    }
}

/* Undoes one symbol: returns it, and 1 in *taken if a word is needed. */
static inline uint8_t uncode_symbol(const uint32_t *table, int k, uint32_t *state, uint32_t *taken)
{
    uint32_t x = *state, entry = table[x & ((1u << k) - 1)];
    x = (entry >> 8 & 0xfff) * (x >> k) + (entry >> 20);
    *taken = (x - S4_STATE_LOW) >> 31;
    *state = x;
    return (uint8_t)entry;
}

void s4_decode_portable(const uint32_t *table, int k, s4_decode_lanes *lanes)
{
    const uint8_t *next = lanes->next;
    while (lanes->groups && next - lanes->words >= S4_GROUP_WORDS_BYTES) {
        uint8_t *symbols = lanes->symbols + --lanes->groups * S4_GROUP;
        for (int step = 3; step >= 0; step--)
            for (int lane = S4_LANES - 1; lane >= 0; lane--) {
                uint32_t taken, word = s4_load16(next - 2);
                symbols[4 * lane + step] = uncode_symbol(table, k, &lanes->state[lane], &taken);
                lanes->state[lane] = lanes->state[lane] << (taken << 4) | (word & (0u - taken));
                next -= 2 * taken;
            }
    }
    lanes->next = next;
}

/* Decodes the n <= 128 symbols of one group; returns 0 when words run out. */
static int decode_checked(const uint32_t *table, int k, s4_decode_lanes *lanes, uint8_t *symbols, int n)
{
    for (int step = 3; step >= 0; step--)
        for (int lane = S4_LANES - 1; lane >= 0; lane--) {
            uint32_t taken;
            if (4 * lane + step >= n)
                continue;
            symbols[4 * lane + step] = uncode_symbol(table, k, &lanes->state[lane], &taken);
            if (!taken)
                continue;
            if (lanes->next == lanes->words)
                return 0;
            lanes->next -= 2;
            lanes->state[lane] = lanes->state[lane] << 16 | s4_load16(lanes->next);
        }
    return 1;
}

/* Number of lanes that did not come back to where the encoder started. */
static uint64_t count_faulty(const s4_decode_lanes *lanes)
{
    uint64_t faulty = 0;
    if (lanes->next != lanes->words)
        return S4_LANES;
    for (int lane = 0; lane < S4_LANES; lane++)
        faulty += lanes->state[lane] != S4_STATE_LOW;
    return faulty;
}

static uint64_t decode_sub_block(const uint32_t *table, int k, s4_decode_kernel *kernel,
                                 s4_decode_lanes *lanes, size_t n)
{
    size_t whole = n / S4_GROUP;
    lanes->groups = whole;
    if (!decode_checked(table, k, lanes, lanes->symbols + whole * S4_GROUP, (int)(n % S4_GROUP)))
        return S4_LANES;
    kernel(table, k, lanes);
    while (lanes->groups) {
        uint8_t *symbols = lanes->symbols + --lanes->groups * S4_GROUP;
        if (!decode_checked(table, k, lanes, symbols, S4_GROUP))
            return S4_LANES;
    }
    return count_faulty(lanes);
}

static void apply_patches(const uint8_t *patches, size_t count, uint8_t *symbols)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t patch = s4_load32(patches + 4 * i);
        symbols[patch & 0xffffff] = (uint8_t)(patch >> 24);
    }
}

int s4_rans_decode(const uint8_t *blob, size_t size, size_t n, s4_decode_kernel *kernel, uint8_t *out,
                   s4_fault *fault)
{
    uint32_t table[1u << 12];
    blob_parts parts;
    if (parse(blob, size, n, &parts, fault))
        return fault->kind;
    fill_table(blob, table);
    const uint8_t *at = parts.first_block;
    for (size_t i = 0; i < parts.blocks; i++) {
        uint32_t entry = s4_load32(parts.directory + 4 * i);
        size_t words = entry & 0xffffff, patches = entry >> 24, start = i * parts.sub_block;
        s4_decode_lanes lanes;
        memcpy(lanes.state, at, sizeof lanes.state);
        lanes.symbols = out + start;
        lanes.words = at + sizeof lanes.state;
        lanes.next = lanes.words + 2 * words;
        size_t length = n - start < parts.sub_block ? n - start : parts.sub_block;
        uint64_t faulty = decode_sub_block(table, parts.k, kernel, &lanes, length);
        if (faulty)
            return s4_fail(fault, S4_END, (uint64_t)(at - blob), 0, faulty);
        at += sizeof lanes.state + s4_pad16(2 * words);
        apply_patches(at, patches, out + start);
        at += s4_pad16(4 * patches);
    }
    return S4_OK;
}
