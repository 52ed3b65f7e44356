#include "chunk.h"

#include "bytes.h"

/* Bytes of one plane of n words. */
static size_t plane_bytes(const s4_coding *coding, size_t n)
{
    return coding->layout == S4_WORDS ? n * (size_t)coding->word_bytes : n;
}

size_t s4_chunk_out_size(const s4_coding *coding, size_t n)
{
    return (size_t)s4_plane_count(coding) * s4_pad16(plane_bytes(coding, n)) + S4_SLACK;
}

size_t s4_chunk_encode_scratch(const s4_coding *coding, size_t n)
{
    return 2 * (s4_pad16(plane_bytes(coding, n)) + S4_SLACK);
}

size_t s4_chunk_decode_scratch(const s4_coding *coding, size_t n)
{
    return (size_t)s4_plane_count(coding) * s4_pad16(plane_bytes(coding, n));
}

/* Encodes the plane at p and puts its blob at out + at; p may lie there or further on. */
static s4_blob place_blob(const s4_path *path, const uint8_t *p, size_t n, size_t sub_block, uint8_t *out,
                          size_t at, uint8_t *spare)
{
    s4_choice choice = s4_plane_encode(path, p, n, sub_block, spare);
    s4_blob blob = {choice.codec, choice.param, at, choice.length};
    if (choice.codec == S4_RAW) {
        if (p != out + at)
            memmove(out + at, p, n);
        s4_zero_padding(out + at, n);
    } else if (spare != out + at) {
        memcpy(out + at, spare, choice.length);
    }
    return blob;
}

/* Planes 1 .. W-1 are split to where their blobs go if they are raw, which most are; plane 0,
 * hardly ever raw, is split to the scratch and its blob written behind them. */
size_t s4_chunk_encode(const s4_path *path, const s4_coding *coding, const uint8_t *words, size_t n,
                       size_t sub_block, uint8_t *out, uint8_t *scratch, s4_blob *blobs)
{
    size_t size = plane_bytes(coding, n), at = 0;
    uint8_t *planes[S4_MAX_PLANES] = {scratch}, *spare = scratch + s4_pad16(size) + S4_SLACK;
    const uint8_t *first = scratch;
    int count = s4_plane_count(coding);
    for (int k = 1; k < count; k++)
        planes[k] = out + (size_t)(k - 1) * s4_pad16(size);
    if (count == 1 && coding->delta == S4_WHOLE)
        first = words;
    else
        s4_split(path->words, coding, words, n, planes);
    for (int k = 1; k < count; k++) {
        blobs[k] = place_blob(path, planes[k], size, sub_block, out, at, spare);
        at += blobs[k].length;
    }
    blobs[0] = place_blob(path, first, size, sub_block, out, at, out + at);
    return at + blobs[0].length;
}

/* Where the bytes of a plane are: in its blob if it is raw, else decoded to `spare`. */
static const uint8_t *find_plane(const s4_path *path, const s4_stored_plane *plane, size_t n,
                                 uint8_t *spare, s4_fault *fault)
{
    if (plane->codec == S4_DECODED)
        return plane->data;
    if (plane->codec == S4_RAW && plane->param == 0) {
        fault->codec = S4_RAW;
        return s4_raw_check(plane->data, plane->length, n, fault) ? NULL : plane->data;
    }
    int bad = s4_plane_decode(path, plane->codec, plane->param, plane->data, plane->length, n, spare, fault);
    return bad ? NULL : spare;
}

int s4_chunk_decode(const s4_path *path, const s4_coding *coding, const s4_stored_plane *planes, size_t n,
                    uint8_t *words, uint8_t *scratch, int *bad_plane, s4_fault *fault)
{
    const uint8_t *found[S4_MAX_PLANES] = {0};
    size_t size = plane_bytes(coding, n);
    int count = s4_plane_count(coding);
    for (int k = 0; k < count; k++, scratch += s4_pad16(size)) {
        /* The only plane of whole words is the words. */
        int direct = count == 1 && coding->delta == S4_WHOLE;
        found[k] = find_plane(path, &planes[k], size, direct ? words : scratch, fault);
        if (!found[k]) {
            *bad_plane = k;
            return fault->kind;
        }
    }
    if (found[0] != words)
        s4_join(path->words, coding, found, n, words);
    return S4_OK;
}
