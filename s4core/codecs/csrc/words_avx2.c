#define S4_WORD_KERNELS s4_words_avx2
#include "words_loops.h"
