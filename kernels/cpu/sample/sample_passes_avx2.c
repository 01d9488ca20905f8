#define PASSES sample_passes_avx2
#include "kernels/cpu/sample/sample_passes_impl.h"
