#include "plane.h"

#include "bitpack.h"
#include "bytes.h"
#include "choice.h"
#include "rans.h"

static s4_choice choose(int codec, int param, size_t length)
{
    s4_choice choice = {codec, param, length};
    return choice;
}

static const s4_choice again = {S4_DECODED, 0, 0};

static int packs(const s4_estimate *estimate, size_t n)
{
    uint64_t width = (uint64_t)s4_popcount8(estimate->mask);
    return width <= 7 && width * 65536 <= estimate->bits + estimate->bits / 64 &&
           s4_bitpack_length(estimate->mask, n) < s4_pad16(n);
}

/* Rules 1 to 4 with one histogram; `again` asks for the exact one, or for raw. */
static s4_choice try_estimate(const s4_path *path, const uint8_t *p, size_t n, size_t sub_block,
                              const s4_estimate *estimate, uint8_t *out)
{
    if (estimate->symbols == 1)
        return s4_varying_bits(p, n) ? again : choose(S4_CONST, p[0], 0);
    if (packs(estimate, n)) {
        unsigned mask = s4_varying_bits(p, n);
        if (s4_popcount8(mask) != s4_popcount8(estimate->mask))
            return again;
        s4_bitpack_encode(p, n, mask, out);
        return choose(S4_BITPACK, 0, s4_bitpack_length(mask, n));
    }
    if (estimate->bits >= S4_RAW_BITS)
        return choose(S4_RAW, 0, s4_pad16(n));
    size_t length = s4_rans_encode(p, n, sub_block, estimate, path->encode, out);
    return length ? choose(S4_RANS, 0, length) : again;
}

s4_choice s4_plane_encode(const s4_path *path, const uint8_t *p, size_t n, size_t sub_block, uint8_t *out)
{
    s4_estimate estimate;
    s4_choice choice = again;
    if (n >= S4_EXACT_BELOW) {
        s4_estimate_sampled(p, n, sub_block, &estimate);
        choice = try_estimate(path, p, n, sub_block, &estimate, out);
    }
    if (choice.codec == again.codec) {
        s4_estimate_exact(p, n, &estimate);
        choice = try_estimate(path, p, n, sub_block, &estimate, out);
    }
    return choice.codec == again.codec ? choose(S4_RAW, 0, s4_pad16(n)) : choice;
}

int s4_raw_check(const uint8_t *blob, size_t size, size_t n, s4_fault *fault)
{
    if (size != s4_pad16(n))
        return s4_fail(fault, S4_LENGTH, 0, s4_pad16(n), size);
    size_t found = s4_first_nonzero(blob, n, size);
    return found < size ? s4_fail(fault, S4_PADDING, found, 0, blob[found]) : S4_OK;
}

static int decode_const(int param, size_t size, size_t n, uint8_t *out, s4_fault *fault)
{
    if (size)
        return s4_fail(fault, S4_LENGTH, 0, 0, size);
    memset(out, param, n);
    return S4_OK;
}

static int decode_raw(const uint8_t *blob, size_t size, size_t n, uint8_t *out, s4_fault *fault)
{
    if (s4_raw_check(blob, size, n, fault))
        return fault->kind;
    memcpy(out, blob, n);
    return S4_OK;
}

int s4_plane_decode(const s4_path *path, int codec, int param, const uint8_t *blob, size_t size, size_t n,
                    uint8_t *out, s4_fault *fault)
{
    fault->codec = codec;
    if (codec == S4_CONST)
        return decode_const(param, size, n, out, fault);
    if (param)
        return s4_fail(fault, S4_PARAM, 0, 0, (uint64_t)param);
    if (codec == S4_BITPACK)
        return s4_bitpack_decode(blob, size, n, out, fault);
    if (codec == S4_RANS)
        return s4_rans_decode(blob, size, n, path->decode, out, fault);
    return decode_raw(blob, size, n, out, fault);
}
