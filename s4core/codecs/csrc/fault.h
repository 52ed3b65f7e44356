/* What can be wrong with a blob. Numbers are shared with s4core/codecs/faults.py. */
#ifndef S4_FAULT_H
#define S4_FAULT_H

#include <stdint.h>

enum s4_fault_kind {
    S4_OK = 0,
    S4_LENGTH = 1,
    S4_TRUNCATED = 2,
    S4_VERSION = 3,
    S4_PROBABILITY_BITS = 4,
    S4_SUB_BLOCKS = 5,
    S4_RESERVED = 6,
    S4_SYMBOLS = 7,
    S4_SUB_BLOCK_SIZE = 8,
    S4_TABLE_SIZE = 9,
    S4_FREQUENCY = 10,
    S4_FREQUENCY_SUM = 11,
    S4_PADDING = 12,
    S4_PATCH_COUNT = 13,
    S4_STATE = 14,
    S4_PATCH_POSITION = 15,
    S4_END = 16,
    S4_MASK = 17,
    S4_BASE = 18,
    S4_PARAM = 19
};

typedef struct {
    int kind;
    int codec;
    uint64_t offset;   /* bytes from the start of the blob */
    uint64_t expected; /* the value, or the bound that the message names */
    uint64_t found;
} s4_fault;

/* Records a fault and returns its kind, so that `return s4_fail(...)` reads well. */
static inline int s4_fail(s4_fault *fault, int kind, uint64_t offset, uint64_t expected, uint64_t found)
{
    fault->kind = kind;
    fault->offset = offset;
    fault->expected = expected;
    fault->found = found;
    return kind;
}

#endif
