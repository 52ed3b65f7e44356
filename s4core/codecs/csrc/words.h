/* Words to planes and back, and deltas (FORMAT.md, 2 and 3). */
#ifndef S4_WORDS_H
#define S4_WORDS_H

#include <stddef.h>
#include <stdint.h>

enum s4_layout { S4_WORDS = 0, S4_FLOAT = 1, S4_BYTES = 2 };
enum s4_delta { S4_WHOLE = 0, S4_XOR = 1, S4_ZIGZAG = 2, S4_ZIGZAG_FLOAT = 3 };

/* Loops over n words at any alignment, one set for each instruction set. Indices are log2 of
 * the bytes of a word: 0 .. 3. */
typedef struct {
    /* out[i] = byte: word i shifted right by `shift`. */
    void (*extract[4])(const uint8_t *words, size_t n, int shift, uint8_t *out);
    /* out[i] = plane 1 of layout `float`: the sign, and the 7 bits above `shift`. */
    void (*extract_sign[4])(const uint8_t *words, size_t n, int shift, uint8_t *out);
    /* The inverses; planes is an array of as many pointers as a word has bytes. */
    void (*join_float[4])(const uint8_t *const *planes, size_t n, uint8_t *words);
    void (*join_bytes[4])(const uint8_t *const *planes, size_t n, uint8_t *words);
    /* coded words = words against base, and back; `delta` is not S4_WHOLE. */
    void (*apply[4])(const uint8_t *words, const uint8_t *base, size_t n, int delta, uint8_t *coded);
    void (*undo[4])(const uint8_t *coded, const uint8_t *base, size_t n, int delta, uint8_t *words);
} s4_word_kernels;

extern const s4_word_kernels s4_words_portable, s4_words_avx2, s4_words_avx512;

/* How the words of an array are coded. */
typedef struct {
    int word_bytes; /* 1, 2, 4 or 8; 2, 4 or 8 for S4_FLOAT */
    int layout;
    int delta;
    const uint8_t *base; /* as many words, or NULL for S4_WHOLE */
} s4_coding;

/* Splits n words into planes; plane k is written at planes[k]. */
void s4_split(const s4_word_kernels *kernels, const s4_coding *coding, const uint8_t *words, size_t n,
              uint8_t *const *planes);

/* The inverse of s4_split; words may be the same memory as the base. */
void s4_join(const s4_word_kernels *kernels, const s4_coding *coding, const uint8_t *const *planes,
             size_t n, uint8_t *words);

/* 1 for S4_WORDS, else the bytes of a word. */
int s4_plane_count(const s4_coding *coding);

/* log2 of 1, 2, 4 or 8. */
int s4_log2_bytes(int word_bytes);

#endif
