#include "path.h"

#ifdef S4_X86

void s4_path_init(void) { s4_avx2_init(); }

static int has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2"); }

static int has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vbmi");
}

static const s4_path all[] = {
    {"avx512", s4_encode_avx512, s4_decode_avx2, &s4_words_avx512},
    {"avx2", s4_encode_avx2, s4_decode_avx2, &s4_words_avx2},
    {"portable", s4_encode_portable, s4_decode_portable, &s4_words_portable},
};

int s4_paths(const s4_path **paths)
{
    int skipped = has_avx512() ? 0 : has_avx2() ? 1 : 2;
    *paths = all + skipped;
    return 3 - skipped;
}

#else

void s4_path_init(void) {}

static const s4_path all[] = {{"portable", s4_encode_portable, s4_decode_portable, &s4_words_portable}};

int s4_paths(const s4_path **paths)
{
    *paths = all;
    return 1;
}

#endif
