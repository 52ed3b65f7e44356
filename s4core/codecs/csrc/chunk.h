/* One chunk of an array: words to the blobs of its planes and back, in one call. */
#ifndef S4_CHUNK_H
#define S4_CHUNK_H

#include "plane.h"
#include "words.h"

#define S4_MAX_PLANES 8

typedef struct {
    int codec;
    int param;
    size_t offset; /* of the blob in the output */
    size_t length;
} s4_blob;

/* A blob to be decoded, or with codec S4_DECODED the n bytes of a plane. */
typedef struct {
    int codec;
    int param;
    const uint8_t *data;
    size_t length;
} s4_stored_plane;

/* Bytes that s4_chunk_encode needs at `out` and at `scratch`, and s4_chunk_decode at `scratch`. */
size_t s4_chunk_out_size(const s4_coding *coding, size_t n);
size_t s4_chunk_encode_scratch(const s4_coding *coding, size_t n);
size_t s4_chunk_decode_scratch(const s4_coding *coding, size_t n);

/* Encodes n words; fills one entry of blobs for each plane and returns the bytes of `out` used. The
 * blobs do not overlap; the last planes lie first, so that raw ones are never copied. */
size_t s4_chunk_encode(const s4_path *path, const s4_coding *coding, const uint8_t *words, size_t n,
                       size_t sub_block, uint8_t *out, uint8_t *scratch, s4_blob *blobs);

/* Decodes n words; returns S4_OK or the kind of the fault, with the plane in *bad_plane. */
int s4_chunk_decode(const s4_path *path, const s4_coding *coding, const s4_stored_plane *planes, size_t n,
                    uint8_t *words, uint8_t *scratch, int *bad_plane, s4_fault *fault);

#endif
