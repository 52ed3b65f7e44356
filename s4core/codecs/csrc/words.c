#include "words.h"

#include "bytes.h"

/* Words are handled in tiles that stay in the first-level cache, so that each plane, and the
 * delta, can be a simple loop of its own. */
#define TILE_BYTES 8192

int s4_log2_bytes(int word_bytes)
{
    int log2 = 0;
    while (1 << log2 < word_bytes)
        log2++;
    return log2;
}

int s4_plane_count(const s4_coding *coding) { return coding->layout == S4_WORDS ? 1 : coding->word_bytes; }

static void split_float(const s4_word_kernels *kernels, int w, const uint8_t *words, size_t n,
                        uint8_t *const *planes, size_t at)
{
    int bits = 8 << w;
    kernels->extract[w](words, n, bits - 9, planes[0] + at);
    kernels->extract_sign[w](words, n, bits - 16, planes[1] + at);
    for (int k = 2; k < 1 << w; k++)
        kernels->extract[w](words, n, bits - 8 - 8 * k, planes[k] + at);
}

static void split_tile(const s4_word_kernels *kernels, const s4_coding *coding, const uint8_t *coded,
                       size_t n, uint8_t *const *planes, size_t at)
{
    int w = s4_log2_bytes(coding->word_bytes);
    if (coding->layout == S4_WORDS)
        memcpy(planes[0] + at * (size_t)coding->word_bytes, coded, n * (size_t)coding->word_bytes);
    else if (coding->layout == S4_FLOAT)
        split_float(kernels, w, coded, n, planes, at);
    else
        for (int k = 0; k < coding->word_bytes; k++)
            kernels->extract[w](coded, n, 8 * (coding->word_bytes - 1 - k), planes[k] + at);
}

void s4_split(const s4_word_kernels *kernels, const s4_coding *coding, const uint8_t *words, size_t n,
              uint8_t *const *planes)
{
    uint8_t coded[TILE_BYTES];
    int w = s4_log2_bytes(coding->word_bytes);
    size_t tile = TILE_BYTES >> w;
    for (size_t at = 0; at < n; at += tile) {
        size_t count = n - at < tile ? n - at : tile;
        const uint8_t *source = words + (at << w);
        if (coding->delta != S4_WHOLE) {
            kernels->apply[w](source, coding->base + (at << w), count, coding->delta, coded);
            source = coded;
        }
        split_tile(kernels, coding, source, count, planes, at);
    }
}

static void join_tile(const s4_word_kernels *kernels, const s4_coding *coding,
                      const uint8_t *const *planes, size_t at, size_t n, uint8_t *coded)
{
    const uint8_t *here[8];
    int w = s4_log2_bytes(coding->word_bytes);
    if (coding->layout == S4_WORDS) {
        memcpy(coded, planes[0] + at * (size_t)coding->word_bytes, n * (size_t)coding->word_bytes);
        return;
    }
    for (int k = 0; k < coding->word_bytes; k++)
        here[k] = planes[k] + at;
    if (coding->layout == S4_FLOAT)
        kernels->join_float[w](here, n, coded);
    else
        kernels->join_bytes[w](here, n, coded);
}

void s4_join(const s4_word_kernels *kernels, const s4_coding *coding, const uint8_t *const *planes,
             size_t n, uint8_t *words)
{
    uint8_t coded[TILE_BYTES];
    int w = s4_log2_bytes(coding->word_bytes);
    size_t tile = TILE_BYTES >> w;
    for (size_t at = 0; at < n; at += tile) {
        size_t count = n - at < tile ? n - at : tile;
        uint8_t *target = words + (at << w);
        if (coding->delta == S4_WHOLE) {
            join_tile(kernels, coding, planes, at, count, target);
            continue;
        }
        join_tile(kernels, coding, planes, at, count, coded);
        kernels->undo[w](coded, coding->base + (at << w), count, coding->delta, target);
    }
}
