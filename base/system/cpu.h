/* cpu.h: what this processor can do, by CPUID and by what the kernel saves (XCR0). Any thread. */
#pragma once

#include <stdbool.h>

struct cpu_features {
    bool avx2;        /* AVX2 + FMA + F16C */
    bool avx512;      /* F, BW, VL, DQ */
    bool avx512_vnni; /* with avx512 */
    bool avx512_bf16;
    bool amx_int8; /* with the kernel's permission, asked for once: every thread has it then */
    bool amx_bf16;
    char amx_missing[96]; /* why there is no amx_int8; empty where there is */
    char brand[64];
};

/* Detected once; the pointer lives as long as the process. */
const struct cpu_features *cpu_features(void);

/* CPUs the process may run on (its affinity mask), at least 1. */
int cpu_count(void);
