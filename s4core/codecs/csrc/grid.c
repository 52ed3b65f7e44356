/* `rans.grid`: what rows and columns leave of a plane of exponents (FORMAT.md, 4.7). */
#include "bytes.h"
#include "context.h"

/* The rows and columns of n symbols, the first in column `first`. */
typedef struct {
    size_t n;
    size_t columns;
    size_t first;
    size_t rows;
} grid;

static grid grid_of(size_t n, size_t columns, size_t first)
{
    grid g = {n, columns, first, (first + n + columns - 1) / columns};
    return g;
}

/* Symbols [*start, *end) are those of row r; *column is where they begin. */
static void span_of_row(const grid *g, size_t r, size_t *start, size_t *end, size_t *column)
{
    size_t last = (r + 1) * g->columns - g->first;
    *start = r ? r * g->columns - g->first : 0;
    *end = last < g->n ? last : g->n;
    *column = r ? 0 : g->first;
}

/* Rounded mean, halves up; 0 of nothing. */
static int32_t mean(int64_t total, int64_t count)
{
    int64_t numerator = 2 * total + count, denominator = 2 * count;
    if (!count)
        return 0;
    int64_t quotient = numerator / denominator;
    return (int32_t)(quotient - (numerator % denominator < 0));
}

static void fit_rows(const uint8_t *p, const grid *g, int32_t *row)
{
    for (size_t r = 0; r < g->rows; r++) {
        size_t start, end, column;
        int64_t total = 0;
        span_of_row(g, r, &start, &end, &column);
        for (size_t i = start; i < end; i++)
            total += p[i];
        row[r] = mean(8 * total, (int64_t)(end - start));
    }
}

/* How many symbols lie in a column. */
static int64_t column_count(const grid *g, size_t column)
{
    size_t all = g->first + g->n;
    return (int64_t)(all / g->columns + (column < all % g->columns)) - (column < g->first);
}

static void fit_columns(const uint8_t *p, const grid *g, const int32_t *row, int32_t *value)
{
    memset(value, 0, g->columns * sizeof *value);
    for (size_t r = 0; r < g->rows; r++) {
        size_t start, end, column;
        span_of_row(g, r, &start, &end, &column);
        for (size_t i = start; i < end; i++)
            value[column + i - start] += 8 * p[i] - row[r];
    }
    for (size_t c = 0; c < g->columns; c++)
        value[c] = mean(value[c], column_count(g, c));
}

/* What is taken off the symbols, modulo 256, at `offsets`, and the buckets; either may be NULL. */
static void predict(const grid *g, const int32_t *row, const int32_t *value, uint8_t *offsets, uint8_t *buckets)
{
    for (size_t r = 0; r < g->rows; r++) {
        size_t start, end, column;
        span_of_row(g, r, &start, &end, &column);
        const int32_t *here = value + column - start;
        for (size_t i = start; i < end; i++) {
            uint32_t sum = (uint32_t)(row[r] + here[i]);
            if (offsets)
                offsets[i] = (uint8_t)((sum >> 3) - 128);
            if (buckets)
                buckets[i] = sum & 7;
        }
    }
}

static int32_t least_of(const int32_t *values, size_t count)
{
    int32_t least = values[0];
    for (size_t i = 1; i < count; i++)
        least = values[i] < least ? values[i] : least;
    return least;
}

static uint8_t *write_values(uint8_t *at, const int32_t *values, size_t count, int32_t least)
{
    for (size_t i = 0; i < count; i++)
        at = s4_short_write(at, (uint32_t)(values[i] - least));
    return at;
}

/* Bytes that `count` values take. */
static size_t values_bytes(const int32_t *values, size_t count, int32_t least)
{
    size_t size = count;
    for (size_t i = 0; i < count; i++)
        size += values[i] - least >= 128;
    return size;
}

size_t s4_grid_encode(const uint8_t *p, size_t n, size_t columns, size_t first, size_t sub_block, uint8_t *out,
                      uint8_t *scratch, int32_t *values)
{
    grid g = grid_of(n, columns, first);
    int32_t *row = values, *column = values + g.rows;
    s4_bucketed from = {scratch, scratch + n, n, sub_block, S4_BUCKETS};
    fit_rows(p, &g, row);
    fit_columns(p, &g, row, column);
    int32_t least_row = least_of(row, g.rows), least_column = least_of(column, columns);
    size_t side = values_bytes(row, g.rows, least_row) + values_bytes(column, columns, least_column);
    size_t fixed = S4_GRID_HEAD + s4_pad16(side);
    if (fixed >= s4_pad16(n))
        return 0;
    predict(&g, row, column, scratch, scratch + n);
    for (size_t i = 0; i < n; i++)
        scratch[i] = (uint8_t)(p[i] - scratch[i]);
    size_t size = s4_bucketed_encode(&from, fixed, s4_plain_bytes(p, n, sub_block), out);
    if (!size)
        return 0;
    memset(out + 16, 0, S4_GRID_HEAD - 16);
    s4_store32(out + 16, (uint32_t)columns);
    s4_store32(out + 20, (uint32_t)first);
    s4_store16(out + 24, (uint16_t)least_row);
    s4_store16(out + 26, (uint16_t)least_column);
    s4_store32(out + 28, (uint32_t)side);
    uint8_t *end = write_values(out + S4_GRID_HEAD, row, g.rows, least_row);
    write_values(end, column, columns, least_column);
    s4_zero_padding(out + S4_GRID_HEAD, side);
    return size;
}

static int read_values(const uint8_t *blob, size_t size, const grid *g, int32_t *values, s4_fault *fault)
{
    size_t side = s4_load32(blob + 28), at = S4_GRID_HEAD, end = at + side;
    int32_t least[2] = {(int16_t)s4_load16(blob + 24), (int16_t)s4_load16(blob + 26)};
    if (at + s4_pad16(side) > size)
        return s4_fail(fault, S4_TRUNCATED, 0, at + s4_pad16(side), size);
    if (g->rows + g->columns > side)
        return s4_fail(fault, S4_SIDE, 28, g->rows + g->columns, side);
    for (size_t i = 0; i < g->rows + g->columns; i++) {
        uint32_t value;
        if (s4_short_read(blob, &at, end, S4_SIDE, &value, fault))
            return fault->kind;
        values[i] = (int32_t)value + least[i >= g->rows];
    }
    if (at != end)
        return s4_fail(fault, S4_SIDE, 28, at - S4_GRID_HEAD, side);
    return s4_zeros_check(blob, end, S4_GRID_HEAD + s4_pad16(side), fault);
}

int s4_grid_decode(const uint8_t *blob, size_t size, size_t n, uint8_t *out, uint8_t *scratch, int32_t *values,
                   s4_fault *fault)
{
    s4_context_head head;
    fault->codec = S4_RANS_GRID;
    if (s4_context_head_read(blob, size, n, &head, fault))
        return fault->kind;
    if (head.tables != S4_BUCKETS)
        return s4_fail(fault, S4_CONTEXTS, 3, S4_BUCKETS, (uint64_t)head.tables);
    if (size < S4_GRID_HEAD)
        return s4_fail(fault, S4_TRUNCATED, 0, S4_GRID_HEAD, size);
    size_t columns = s4_load32(blob + 16), first = s4_load32(blob + 20);
    if (columns < 1 || columns > S4_MAX_COLUMNS)
        return s4_fail(fault, S4_COLUMNS, 16, S4_MAX_COLUMNS, columns);
    if (first >= columns)
        return s4_fail(fault, S4_COLUMNS, 20, columns - 1, first);
    grid g = grid_of(n, columns, first);
    if (s4_zeros_check(blob, 32, S4_GRID_HEAD, fault) || read_values(blob, size, &g, values, fault))
        return fault->kind;
    predict(&g, values, values + g.rows, NULL, scratch);
    size_t at = S4_GRID_HEAD + s4_pad16(s4_load32(blob + 28));
    if (s4_bucketed_decode(&head, at, scratch, out, fault))
        return fault->kind;
    predict(&g, values, values + g.rows, scratch, NULL);
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)(out[i] + scratch[i]);
    return S4_OK;
}
