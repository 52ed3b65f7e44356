// The kernels of s4core/kernels, run on the host with addresses of host memory. -DS4_W, -DS4_LAYOUT, -DS4_DELTA
// choose the shape of words, as on the device.
#include "cuda_on_host.h"

#include "decode.cu"
#define RING ENCODE_RING
#define GROUP ENCODE_GROUP
#define AHEAD ENCODE_AHEAD
#define step encode_step
#include "encode.cu"
#include "seal.cu"

template <class F> static F* current;
template <class F> static void call() { (*current<F>)(); }
template <class F> static void launch(unsigned blocks, unsigned threads, F f) {
    current<F> = &f;
    for (unsigned b = 0; b < blocks; ++b) emu::run_block(b, threads, &call<F>);
}

extern "C" {
void run_encode(const Chunk* c, Blob* b, unsigned blocks) {
    launch(blocks, THREADS, [=] { s4_encode(c, b); });
}
void run_offsets(const Blob* b, u64* o, unsigned count) {
    launch(1, 1024, [=] { s4_offsets(b, o, count); });
}
void run_seal(const Chunk* c, Blob* b, const u64* o, u8* out, unsigned planes, unsigned count) {
    launch((count + 3) / 4, 128, [=] { s4_seal(c, b, o, out, planes, count); });
}
void run_check(const Blob* b, const u64* o, const u8* s, u32* status, unsigned planes, unsigned count, unsigned fault) {
    launch((count + 3) / 4, 128, [=] { s4_check(b, o, s, status, planes, count, fault); });
}
void run_decode(const Chunk* c, const Blob* b, const u64* o, const u8* s, u32* status, unsigned blocks) {
    launch(blocks, THREADS, [=] { s4_decode(c, b, o, s, status); });
}
void run_verify(const Chunk* c, const Blob* b, const u64* o, const u8* s, u32* status, unsigned blocks) {
    launch(blocks, THREADS, [=] { s4_verify(c, b, o, s, status); });
}
void run_pieces(const Span* s, u64* h, unsigned count, u64 pieces) {
    launch((unsigned)((pieces + 3) / 4), 128, [=] { s4_pieces(s, h, count, pieces); });
}
}
