/* Fuzzes the native codecs, without Python: under libFuzzer (clang), or by the loop in
 * fuzz_loop.c (any compiler).
 *
 * An input is a request and its bytes:
 *   0 u8  0: decode a blob, 1: encode and decode words
 *   1 u8  codec 1..4 (decode), or log2 of the word's bytes | layout << 2 | delta << 4 (words)
 *   2 u8  param (decode), or sub-block / 128 (words)
 *   3 u8  0
 *   4 u32 number of symbols (decode)
 *   8 ... the blob, or the words
 * Every buffer has exactly the size the code was promised, so that the sanitizers see each
 * byte too far, and every path must take the same decision and write the same bytes.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bytes.h"
#include "chunk.h"

#define HEADER 8
#define MAX_N (1u << 18) /* symbols: larger planes only take time */

#define REQUIRE(condition)                                                              \
    do {                                                                                \
        if (!(condition)) {                                                             \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);     \
            abort();                                                                    \
        }                                                                               \
    } while (0)

static uint8_t *allocate(size_t size)
{
    uint8_t *memory = malloc(size ? size : 1);
    REQUIRE(memory);
    memset(memory, 0xA5, size);
    return memory;
}

static uint8_t *copy_of(const uint8_t *data, size_t size)
{
    uint8_t *memory = allocate(size);
    memcpy(memory, data, size);
    return memory;
}

static void decode_everywhere(int codec, int param, const uint8_t *data, size_t size, size_t n)
{
    const s4_path *paths;
    int count = s4_paths(&paths);
    uint8_t *blob = copy_of(data, size), *first = allocate(n), *other = allocate(n);
    s4_fault expected = {0};
    s4_plane_decode(&paths[0], codec, param, blob, size, n, first, &expected);
    for (int i = 1; i < count; i++) {
        s4_fault found = {0};
        s4_plane_decode(&paths[i], codec, param, blob, size, n, other, &found);
        REQUIRE(found.kind == expected.kind && found.offset == expected.offset);
        REQUIRE(found.kind != S4_OK || !memcmp(first, other, n));
    }
    free(blob);
    free(first);
    free(other);
}

static void fuzz_decoder(const uint8_t *data, size_t size)
{
    int codec = 1 + data[1] % 4;
    size_t n = s4_load32(data + 4);
    if (n < 1 || n > MAX_N)
        n = n % MAX_N + 1;
    decode_everywhere(codec, data[2], data + HEADER, size - HEADER, n);
}

static void check_decoded(const s4_path *path, const s4_coding *coding, const uint8_t *words, size_t n,
                          const uint8_t *out, const s4_blob *blobs)
{
    size_t bytes = n * (size_t)coding->word_bytes;
    s4_stored_plane planes[S4_MAX_PLANES];
    uint8_t *copies[S4_MAX_PLANES];
    int bad_plane = 0, count = s4_plane_count(coding);
    s4_fault fault = {0};
    for (int k = 0; k < count; k++) {
        copies[k] = copy_of(out + blobs[k].offset, blobs[k].length);
        s4_stored_plane plane = {blobs[k].codec, blobs[k].param, copies[k], blobs[k].length};
        planes[k] = plane;
    }
    uint8_t *scratch = allocate(s4_chunk_decode_scratch(coding, n)), *back = allocate(bytes);
    REQUIRE(!s4_chunk_decode(path, coding, planes, n, back, scratch, &bad_plane, &fault));
    REQUIRE(!memcmp(back, words, bytes));
    for (int k = 0; k < count; k++)
        free(copies[k]);
    free(scratch);
    free(back);
}

static size_t encode_on(const s4_path *path, const s4_coding *coding, const uint8_t *words, size_t n,
                        size_t sub_block, uint8_t *out, s4_blob *blobs)
{
    uint8_t *scratch = allocate(s4_chunk_encode_scratch(coding, n));
    size_t used = s4_chunk_encode(path, coding, words, n, sub_block, out, scratch, blobs);
    size_t plane = n * (size_t)coding->word_bytes / (size_t)s4_plane_count(coding);
    for (int k = 0; k < s4_plane_count(coding); k++)
        REQUIRE(blobs[k].length % 16 == 0 && blobs[k].length <= s4_pad16(plane));
    free(scratch);
    return used;
}

static void encode_everywhere(const s4_coding *coding, const uint8_t *words, size_t n, size_t sub_block)
{
    const s4_path *paths;
    int count = s4_paths(&paths);
    size_t room = s4_chunk_out_size(coding, n), used = 0;
    s4_blob blobs[S4_MAX_PLANES], others[S4_MAX_PLANES];
    uint8_t *first = allocate(room), *other = allocate(room);
    for (int i = 0; i < count; i++) {
        size_t found = encode_on(&paths[i], coding, words, n, sub_block, i ? other : first, i ? others : blobs);
        REQUIRE(i == 0 || (found == used && !memcmp(first, other, used)));
        used = found;
        check_decoded(&paths[i], coding, words, n, first, blobs);
    }
    free(first);
    free(other);
}

/* The first half of the bytes are words, the second half their base. */
static void fuzz_words(const uint8_t *data, size_t size)
{
    s4_coding coding = {1 << (data[1] & 3), (data[1] >> 2 & 3) % 3, data[1] >> 4 & 3, NULL};
    size_t n = (size - HEADER) / 2 / (size_t)coding.word_bytes, sub_block = 128 * (size_t)(1 + data[2]);
    if (coding.layout == S4_FLOAT && coding.word_bytes == 1)
        coding.layout = S4_BYTES;
    size_t bytes = n * (size_t)coding.word_bytes;
    if (n == 0 || bytes > 255 * sub_block)
        return;
    uint8_t *words = copy_of(data + HEADER, bytes), *base = copy_of(data + HEADER + bytes, bytes);
    if (coding.delta != S4_WHOLE)
        coding.base = base;
    encode_everywhere(&coding, words, n, sub_block);
    free(words);
    free(base);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int ready;
    if (!ready) {
        s4_choice_init();
        s4_path_init();
        ready = 1;
    }
    if (size < HEADER)
        return 0;
    if (data[0] & 1)
        fuzz_words(data, size);
    else
        fuzz_decoder(data, size);
    return 0;
}
