/* cpu.h: features of this processor, from CPUID and from the register state that the kernel saves
 * (XCR0). Any thread. */
#pragma once

#include <stdbool.h>

struct cpu_features {
    bool avx2;        /* AVX2 + FMA + F16C */
    bool avx512;      /* F, BW, VL, DQ */
    bool avx512_vnni; /* implies avx512 */
    bool avx512_bf16;
    bool amx_int8; /* the kernel has given permission, for all threads */
    bool amx_bf16;
    char amx_missing[96]; /* reason why amx_int8 is false; empty if it is true */
    char brand[64];
};

/* Detected once; the pointer lives as long as the process. */
const struct cpu_features *cpu_features(void);

/* CPUs the process may run on (its affinity mask), at least 1. */
int cpu_count(void);
