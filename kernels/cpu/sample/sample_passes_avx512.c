#define PASSES sample_passes_avx512
#include "kernels/cpu/sample/sample_passes_impl.h"
