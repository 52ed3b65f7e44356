// The kernels of s4core/kernels, run on the host with addresses of host memory. -DS4_W, -DS4_LAYOUT, -DS4_DELTA and
// -DS4_VERIFY choose what is compiled, as on the device; -DS4_FILE chooses the source file: 1 encode, 2 decode, 3 seal.
#include "cuda_on_host.h"

#if S4_FILE == 1
#include "encode.cu"
#elif S4_FILE == 2
#include "decode.cu"
#else
#include "seal.cu"
#endif

template <class F> static F* current;
template <class F> static void call() { (*current<F>)(); }
template <class F> static void launch(unsigned blocks, unsigned threads, F f) {
    current<F> = &f;
    for (unsigned b = 0; b < blocks; ++b) emu::run_block(b, threads, &call<F>);
}

extern "C" {
#if S4_FILE == 1
unsigned run_plan_bytes() { return sizeof(Verdicts); }
void run_encode(const Chunk* c, Verdicts* v, Blob* b, unsigned blocks) {
    launch(blocks, THREADS, [=] { s4_choose(c, v); });
    launch(blocks, THREADS, [=] { s4_encode_plain(c, v, b); });
    launch(blocks, THREADS, [=] { s4_encode(c, v, b); });
}
#elif S4_FILE == 2
void run_decode(const Chunk* c, const Blob* b, const u64* o, const u8* s, u32* status, unsigned blocks) {
    launch(blocks, THREADS, [=] { s4_decode_plain(c, b, o, s, status); });
    launch(blocks, THREADS, [=] { s4_decode(c, b, o, s, status); });
}
#else
void run_offsets(const Blob* b, u64* o, unsigned count) {
    launch(1, 1024, [=] { s4_offsets(b, o, count); });
}
void run_seal(const Chunk* c, Blob* b, const u64* o, u8* out, unsigned planes, unsigned count) {
    launch(count, THREADS, [=] { s4_seal(c, b, o, out, planes); });
}
void run_check(const Blob* b, const u64* o, const u8* s, u32* status, unsigned planes, unsigned count, unsigned fault) {
    launch(count, THREADS, [=] { s4_check(b, o, s, status, planes, fault); });
}
void run_pieces(const Span* s, u64* h, unsigned count, unsigned pieces) {
    launch(pieces, THREADS, [=] { s4_pieces(s, h, count); });
}
#endif
}
