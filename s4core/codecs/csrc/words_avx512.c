#define S4_WORD_KERNELS s4_words_avx512
#include "words_loops.h"
