#define S4_WORD_KERNELS s4_words_portable
#include "words_loops.h"
