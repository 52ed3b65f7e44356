/* One plane of one chunk to a blob and back: the codecs, and the choice (FORMAT.md, 4). */
#ifndef S4_PLANE_H
#define S4_PLANE_H

#include "fault.h"
#include "path.h"

/* Numbered as in s4core/codecs/ids.py; 0 marks a plane that is decoded already. */
enum s4_codec { S4_DECODED = 0, S4_RAW = 1, S4_CONST = 2, S4_BITPACK = 3, S4_RANS = 4 };

typedef struct {
    int codec;
    int param;
    size_t length; /* of the blob */
} s4_choice;

/* Encodes n symbols with the codec that FORMAT.md, 4.4, chooses. `out` holds s4_pad16(n) +
 * S4_SLACK bytes. For S4_RAW nothing is written: the blob is the plane, to be padded. */
s4_choice s4_plane_encode(const s4_path *path, const uint8_t *p, size_t n, size_t sub_block, uint8_t *out);

/* Whether a raw blob is as it should be. */
int s4_raw_check(const uint8_t *blob, size_t size, size_t n, s4_fault *fault);

/* Fills out[0..n); returns S4_OK or the kind of the fault. */
int s4_plane_decode(const s4_path *path, int codec, int param, const uint8_t *blob, size_t size, size_t n,
                    uint8_t *out, s4_fault *fault);

#endif
