/* rANS with one table for each bucket: `rans.ctx` and `rans.grid` (FORMAT.md, 4.6 and 4.7). */
#ifndef S4_CONTEXT_H
#define S4_CONTEXT_H

#include <stddef.h>
#include <stdint.h>

#include "fault.h"

#define S4_RANS_CTX 8
#define S4_RANS_GRID 9
#define S4_BUCKETS 8
#define S4_CONTEXT_HEAD 32
#define S4_GRID_HEAD 48
#define S4_MAX_COLUMNS (1u << 24)

/* Go on where enum s4_fault_kind ends; numbered as in s4core/codecs/faults.py. */
enum s4_context_fault {
    S4_CONTEXTS = 20,
    S4_THRESHOLD = 21,
    S4_TABLES = 22,
    S4_TABLE_RANGE = 23,
    S4_COLUMNS = 24,
    S4_SIDE = 25
};

/* Symbols and the bucket of each, 0 .. tables-1. */
typedef struct {
    const uint8_t *symbols;
    const uint8_t *buckets;
    size_t n;
    size_t sub_block;
    int tables;
} s4_bucketed;

/* What a blob says before its tables; every number in it has been checked. */
typedef struct {
    const uint8_t *blob;
    size_t size;
    size_t n;
    int k;
    size_t blocks;
    size_t sub_block;
    int tables;
    size_t tables_bytes;
} s4_context_head;

/* Bytes that 4.4 is estimated to need for the n symbols at p. */
size_t s4_plain_bytes(const uint8_t *p, size_t n, size_t sub_block);

/* Writes the first 16 bytes at `out`, and tables and sub-blocks from out + fixed on; returns the
 * blob's length, or 0 where it is not estimated below `plain`, or is not shorter than s4_pad16(n).
 * `out` holds s4_pad16(n) + S4_SLACK bytes. */
size_t s4_bucketed_encode(const s4_bucketed *from, size_t fixed, size_t plain, uint8_t *out);

int s4_context_head_read(const uint8_t *blob, size_t size, size_t n, s4_context_head *head, s4_fault *fault);

/* Decodes what lies from blob + at to its end; `buckets` as above. */
int s4_bucketed_decode(const s4_context_head *head, size_t at, const uint8_t *buckets, uint8_t *out,
                       s4_fault *fault);

/* A short number, FORMAT.md, 4.6: writes it and returns what follows; reads it at *at, before `end`. */
uint8_t *s4_short_write(uint8_t *at, uint32_t value);
int s4_short_read(const uint8_t *blob, size_t *at, size_t end, int kind, uint32_t *value, s4_fault *fault);

/* Checks that the bytes in [from, to) are zero. */
int s4_zeros_check(const uint8_t *blob, size_t from, size_t to, s4_fault *fault);

/* The two codecs. Encoders return 0 where 4.4 is estimated to do as well; `scratch` holds n bytes,
 * for grids 2 n and 4 bytes for each row and column. */
size_t s4_context_encode(const uint8_t *p, const uint8_t *context, size_t n, size_t sub_block, uint8_t *out,
                         uint8_t *scratch);
int s4_context_decode(const uint8_t *blob, size_t size, const uint8_t *context, size_t n, uint8_t *out,
                      uint8_t *scratch, s4_fault *fault);
size_t s4_grid_encode(const uint8_t *p, size_t n, size_t columns, size_t first, size_t sub_block, uint8_t *out,
                      uint8_t *scratch, int32_t *values);
/* `size` bytes hold a value for each row and column, or the blob is refused. */
int s4_grid_decode(const uint8_t *blob, size_t size, size_t n, uint8_t *out, uint8_t *scratch, int32_t *values,
                   s4_fault *fault);

#endif
