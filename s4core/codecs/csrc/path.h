/* Which instructions the inner loops use; every path writes and reads the same bytes. */
#ifndef S4_PATH_H
#define S4_PATH_H

#include "rans.h"
#include "words.h"

typedef struct {
    const char *name;
    s4_encode_kernel *encode;
    s4_decode_kernel *decode;
    const s4_word_kernels *words;
} s4_path;

/* Fills the tables of the paths; to be called once, before any of them is used. */
void s4_path_init(void);

/* The paths that this machine can run, best first; returns how many, at least 1. */
int s4_paths(const s4_path **paths);

#endif
