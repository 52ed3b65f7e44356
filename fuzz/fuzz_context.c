/* Fuzzes `rans.ctx` and `rans.grid`: encodes planes, decodes them, and decodes damaged blobs.
 *
 *   fuzz_context SECONDS SEED
 *
 * Every buffer has exactly the size the code was promised, so that the sanitizers see each
 * byte too far. What decodes without a fault after damage may be anything but a crash.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "bytes.h"
#include "choice.h"
#include "context.h"
#include "rans.h"

#define REQUIRE(condition)                                                          \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                \
        }                                                                           \
    } while (0)

static uint64_t random_state;

static uint32_t random_below(uint32_t bound)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % bound;
}

static uint8_t *allocate(size_t size)
{
    uint8_t *memory = malloc(size ? size : 1);
    REQUIRE(memory);
    return memset(memory, 0xA5, size);
}

static uint8_t *copy_of(const uint8_t *data, size_t size) { return memcpy(allocate(size), data, size); }

/* A plane of n small numbers, larger under larger contexts, or in some rows and columns. */
static void fill(uint8_t *plane, uint8_t *context, size_t n, size_t columns)
{
    uint32_t spread = 1 + random_below(40);
    for (size_t i = 0; i < n; i++) {
        context[i] = (uint8_t)(100 + random_below(spread));
        uint32_t scale = 1 + (context[i] & 15u);
        plane[i] = (uint8_t)(random_below(scale) * random_below(3) + i % columns / 8 + i / columns / 8);
    }
}

typedef struct {
    int codec;
    size_t n;
    const uint8_t *context;
} plane_kind;

static int decode(const plane_kind *kind, const uint8_t *data, size_t size, uint8_t *out)
{
    s4_fault fault = {0};
    uint8_t *blob = copy_of(data, size), *scratch = allocate(kind->n);
    int32_t *values = (int32_t *)allocate(4 * size);
    int bad = kind->codec == S4_RANS_CTX
                  ? s4_context_decode(blob, size, kind->context, kind->n, out, scratch, &fault)
                  : s4_grid_decode(blob, size, kind->n, out, scratch, values, &fault);
    free(blob);
    free(scratch);
    free(values);
    return bad;
}

static void damage(uint8_t *blob, size_t *size)
{
    size_t reach = random_below(2) && *size > 300 ? 300 : *size;
    for (uint32_t left = 1 + random_below(3); left; left--)
        blob[random_below((uint32_t)reach)] = (uint8_t)random_below(256);
    if (!random_below(8))
        *size = random_below((uint32_t)*size + 1);
}

static size_t round_trip(size_t n, size_t columns, int codec)
{
    size_t sub_block = 128u << random_below(6), first = random_below((uint32_t)columns);
    size_t rows = (first + n + columns - 1) / columns, faults = 0;
    if ((n + sub_block - 1) / sub_block > S4_MAX_SUB_BLOCKS)
        return 0;
    uint8_t *plane = allocate(n), *context = allocate(n), *back = allocate(n);
    uint8_t *out = allocate(s4_pad16(n) + S4_SLACK), *scratch = allocate(2 * n);
    int32_t *values = (int32_t *)allocate(4 * (rows + columns));
    fill(plane, context, n, columns);
    size_t size = codec == S4_RANS_CTX
                      ? s4_context_encode(plane, context, n, sub_block, out, scratch)
                      : s4_grid_encode(plane, n, columns, first, sub_block, out, scratch, values);
    plane_kind kind = {codec, n, context};
    if (size) {
        REQUIRE(size % 16 == 0 && size < s4_pad16(n));
        REQUIRE(!decode(&kind, out, size, back) && !memcmp(plane, back, n));
        for (int trial = 0; trial < 20; trial++) {
            size_t length = size;
            uint8_t *bad = copy_of(out, size);
            damage(bad, &length);
            faults += decode(&kind, bad, length, back) != S4_OK;
            free(bad);
        }
    }
    free(plane), free(context), free(back), free(out), free(scratch), free(values);
    return faults;
}

int main(int count, char **arguments)
{
    time_t end = time(NULL) + (count > 1 ? atoi(arguments[1]) : 20);
    size_t planes = 0, faults = 0;
    random_state = count > 2 ? (uint64_t)atoll(arguments[2]) : 1;
    s4_choice_init();
    for (; time(NULL) < end; planes++) {
        size_t n = 1 + random_below(random_below(4) ? 3000 : 40000);
        faults += round_trip(n, 1 + random_below(400), planes & 1 ? S4_RANS_CTX : S4_RANS_GRID);
    }
    printf("%zu planes, %zu faults found\n", planes, faults);
    return 0;
}
