/* A plain fuzzing loop for compilers without libFuzzer.
 *
 *     fuzz_codecs SECONDS SEED FILE...
 *
 * Runs every file once, then damaged copies of them until the time is up. No coverage guides it: the
 * corpus, made by make_corpus.py, reaches every branch of the decoders' checks by itself.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_SIZE (1u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t state;

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static size_t below(size_t limit) { return limit ? (size_t)(next_random() % limit) : 0; }

static uint8_t *read_file(const char *name, size_t *size)
{
    FILE *file = fopen(name, "rb");
    uint8_t *data = malloc(MAX_SIZE);
    if (!file || !data) {
        perror(name);
        exit(2);
    }
    *size = fread(data, 1, MAX_SIZE, file);
    fclose(file);
    return data;
}

static void damage_bytes(uint8_t *data, size_t size)
{
    /* Half the damage in the head, where every byte matters. */
    size_t reach = next_random() & 1 ? size : size < 160 ? size : 160;
    for (size_t i = 1 + below(4); i; i--) {
        uint64_t kind = next_random() % 4;
        size_t at = below(reach);
        if (kind == 0)
            data[at] ^= (uint8_t)(1u << (next_random() & 7));
        else if (kind == 1)
            data[at] = (uint8_t)next_random();
        else if (kind == 2)
            data[at] = next_random() & 1 ? 0xff : 0;
        else
            data[at] = (uint8_t)(data[at] + 1 - 2 * (next_random() & 1));
    }
}

static size_t damage(uint8_t *data, size_t size)
{
    uint64_t kind = next_random() % 8;
    if (kind == 0)
        return below(size);
    if (kind == 1 && size < MAX_SIZE - 64) {
        size_t more = 1 + below(64);
        memset(data + size, 0, more);
        return size + more;
    }
    damage_bytes(data, size);
    return size;
}

int main(int count, char **arguments)
{
    if (count < 4) {
        fprintf(stderr, "usage: %s SECONDS SEED FILE...\n", arguments[0]);
        return 2;
    }
    time_t end = time(NULL) + atoi(arguments[1]);
    uint8_t *copy = malloc(MAX_SIZE);
    unsigned long runs = 0;
    state = strtoull(arguments[2], NULL, 10) | 1;
    size_t files = (size_t)count - 3, *sizes = calloc(files, sizeof *sizes);
    uint8_t **data = calloc(files, sizeof *data);
    if (!copy || !sizes || !data)
        return 2;
    for (size_t i = 0; i < files; i++) {
        data[i] = read_file(arguments[3 + i], &sizes[i]);
        LLVMFuzzerTestOneInput(data[i], sizes[i]);
    }
    for (; time(NULL) < end; runs++) {
        size_t which = below(files);
        memcpy(copy, data[which], sizes[which]);
        LLVMFuzzerTestOneInput(copy, damage(copy, sizes[which]));
    }
    for (size_t i = 0; i < files; i++)
        free(data[i]);
    free(data);
    free(sizes);
    free(copy);
    printf("%zu files, %lu damaged copies: no fault\n", files, runs);
    return 0;
}
