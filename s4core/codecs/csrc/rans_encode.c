#include "bytes.h"
#include "rans.h"

#define M (1u << S4_ENCODER_K)

static s4_division divide_by(uint32_t f, uint32_t cumulative)
{
    s4_division d = {f << (31 - S4_ENCODER_K), UINT32_MAX, cumulative + M - 1, (uint16_t)(M - f), 32};
    unsigned bits = 0;
    if (f < 2) /* mulhi(x, 2^32 - 1) == x - 1, which bias makes good */
        return d;
    while (1u << bits < f)
        bits++;
    d.reciprocal = (uint32_t)(((1ull << (31 + bits)) + f - 1) / f);
    d.bias = cumulative;
    d.shift = (uint16_t)(31 + bits);
    return d;
}

static void find_longest_run(s4_encoder *encoder)
{
    int longest = 0, length = 0;
    for (int s = 0; s < 256; s++) {
        length = encoder->absent[s] ? 0 : length + 1;
        if (length > longest) {
            longest = length;
            encoder->run_last = (uint8_t)s;
            encoder->run_first = (uint8_t)(s - length + 1);
        }
    }
}

static void copy_entry(s4_encoder *encoder, int to, int from)
{
    encoder->division[to] = encoder->division[from];
    encoder->packed[to] = encoder->packed[from];
    encoder->absent[to] = 1;
    encoder->some_absent = 1;
}

static void fill_encoder(const s4_estimate *estimate, s4_encoder *encoder)
{
    uint32_t cumulative = 0;
    memset(encoder, 0, sizeof *encoder);
    for (int s = 0; s < 256; s++) {
        uint32_t f = estimate->frequency[s];
        if (f) {
            encoder->division[s] = divide_by(f, cumulative);
            encoder->packed[s] = f | cumulative << 16;
        }
        cumulative += f;
    }
    for (int s = 0; s < 256; s++)
        if (!estimate->frequency[s])
            copy_entry(encoder, s, estimate->most);
    for (int s = 0; s < 256; s++)
        for (int b = 0; b < 4; b++)
            encoder->bytes[b][s] = (uint8_t)(encoder->packed[s] >> (8 * b));
    find_longest_run(encoder);
}

/* Codes one symbol; the word is stored in any case and kept if `emit`. Arithmetic, because
 * compilers turn a condition into a branch that cannot be predicted. */
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

size_t s4_encode_portable(const s4_encoder *encoder, s4_encode_lanes *lanes, size_t groups,
                          const uint8_t *limit)
{
    const uint8_t *p = lanes->symbols;
    uint8_t *words = lanes->words;
    for (; groups && words <= limit; groups--, p += S4_GROUP)
        for (int step = 0; step < 4; step++)
            for (int lane = 0; lane < S4_LANES; lane++)
                words = code_symbol(&encoder->division[p[4 * lane + step]], &lanes->state[lane], words);
    lanes->symbols = p;
    lanes->words = words;
    return groups;
}

static void encode_rest(const s4_encoder *encoder, s4_encode_lanes *lanes, size_t n)
{
    for (size_t step = 0; step < 4; step++)
        for (size_t lane = 0; 4 * lane + step < n; lane++)
            lanes->words = code_symbol(&encoder->division[lanes->symbols[4 * lane + step]],
                                       &lanes->state[lane], lanes->words);
}

/* Whether any of n <= 128 symbols is outside the longest run: a loop that vectorises. */
static int outside_run(const uint8_t *p, size_t n, uint8_t first, uint8_t span)
{
    uint8_t outside = 0;
    for (size_t i = 0; i < n; i++)
        outside |= (uint8_t)(p[i] - first) > span;
    return outside;
}

/* Lists the absent symbols of a sub-block; returns how many, or S4_MAX_PATCHES + 1 for too many. */
static int find_patches(const s4_encoder *encoder, const uint8_t *p, size_t n, uint32_t *patches)
{
    int count = 0;
    uint8_t span = (uint8_t)(encoder->run_last - encoder->run_first);
    for (size_t at = 0; at < n; at += S4_GROUP) {
        size_t end = n - at < S4_GROUP ? n : at + S4_GROUP;
        if (!outside_run(p + at, end - at, encoder->run_first, span))
            continue;
        for (size_t i = at; i < end; i++) {
            if (!encoder->absent[p[i]])
                continue;
            if (count == S4_MAX_PATCHES)
                return count + 1;
            patches[count++] = (uint32_t)i | (uint32_t)p[i] << 24;
        }
    }
    return count;
}

/* Header, bitmap, frequencies and an empty directory; returns where the directory is. */
static uint8_t *write_head(uint8_t *out, size_t n, size_t sub_block, const s4_estimate *estimate)
{
    uint8_t *at = out + 48;
    memset(out, 0, 48);
    out[0] = 2;
    out[1] = S4_ENCODER_K;
    out[2] = (uint8_t)((n + sub_block - 1) / sub_block);
    s4_store32(out + 4, (uint32_t)n);
    s4_store32(out + 8, (uint32_t)sub_block);
    for (int s = 0; s < 256; s++) {
        if (!estimate->frequency[s])
            continue;
        out[16 + s / 8] |= (uint8_t)(1u << (s & 7));
        s4_store16(at, (uint16_t)estimate->frequency[s]);
        at += 2;
    }
    return out + 48 + s4_zero_padding(out + 48, (size_t)(at - out) - 48);
}

/* Codes one sub-block at `out`; returns what follows it, or NULL when words pass limit. */
static uint8_t *encode_sub_block(const s4_encoder *encoder, s4_encode_kernel *kernel, const uint8_t *p,
                                 size_t n, const uint8_t *limit, uint8_t *out, uint32_t *nwords)
{
    s4_encode_lanes lanes;
    uint8_t *first = out + 4 * S4_LANES;
    if (first > limit)
        return NULL;
    lanes.symbols = p;
    lanes.words = first;
    for (int lane = 0; lane < S4_LANES; lane++)
        lanes.state[lane] = S4_STATE_LOW;
    if (kernel(encoder, &lanes, n / S4_GROUP, limit) || lanes.words > limit)
        return NULL;
    encode_rest(encoder, &lanes, n % S4_GROUP);
    memcpy(out, lanes.state, sizeof lanes.state);
    size_t size = (size_t)(lanes.words - first);
    *nwords = (uint32_t)(size / 2);
    return first + s4_zero_padding(first, size);
}

size_t s4_rans_encode(const uint8_t *p, size_t n, size_t sub_block, const s4_estimate *estimate,
                      s4_encode_kernel *kernel, uint8_t *out)
{
    s4_encoder encoder;
    uint32_t patches[S4_MAX_PATCHES];
    const uint8_t *limit = out + s4_pad16(n);
    size_t blocks = (n + sub_block - 1) / sub_block;
    if (48 + s4_pad16(2 * (size_t)estimate->symbols) + s4_pad16(4 * blocks) >= s4_pad16(n))
        return 0;
    fill_encoder(estimate, &encoder);
    uint8_t *directory = write_head(out, n, sub_block, estimate);
    uint8_t *at = directory + s4_pad16(4 * blocks);
    memset(directory, 0, s4_pad16(4 * blocks));
    for (size_t start = 0; start < n; start += sub_block, directory += 4) {
        size_t length = n - start < sub_block ? n - start : sub_block;
        uint32_t nwords = 0;
        int count = encoder.some_absent ? find_patches(&encoder, p + start, length, patches) : 0;
        if (count > S4_MAX_PATCHES)
            return 0;
        at = encode_sub_block(&encoder, kernel, p + start, length, limit, at, &nwords);
        if (!at || at > limit)
            return 0;
        s4_store32(directory, nwords | (uint32_t)count << 24);
        memcpy(at, patches, 4 * (size_t)count);
        at += s4_zero_padding(at, 4 * (size_t)count);
    }
    size_t size = (size_t)(at - out);
    return size < s4_pad16(n) ? size : 0;
}
