#include "base/system/cpu.h"

#include <cpuid.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "base/system/cpus.h"

enum { ARCH_REQ_XCOMP_PERM_CODE = 0x1023, XFEATURE_XTILEDATA_BIT = 18 };

static struct cpu_features features;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint64_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static void read_brand(char out[64])
{
    unsigned regs[12] = {0};
    for (unsigned i = 0; i < 3; i++)
        __get_cpuid(0x80000002u + i, &regs[i * 4], &regs[i * 4 + 1], &regs[i * 4 + 2],
                    &regs[i * 4 + 3]);
    memcpy(out, regs, sizeof(regs));
    out[sizeof(regs)] = '\0';
}

static bool tiles_are_16_by_64(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(0x1D, 1, &a, &b, &c, &d) && b >> 16 == 8 && (b & 0xFFFF) == 64 &&
           (c & 0xFFFF) == 16;
}

/* `edx` is of CPUID leaf 7. The kernel saves tiles only for a process that has asked for
 * permission. The permission holds for all threads of the process. The request fails if an
 * alternate signal stack is too small. */
static void detect_amx(unsigned edx, uint64_t xcr0)
{
    const char *why = NULL;
    if (!(edx & (1u << 24)) || !(edx & (1u << 25)))
        why = "the processor has no AMX-INT8";
    else if ((xcr0 & 0x60000) != 0x60000)
        why = "the kernel does not save AMX tiles (XCR0)";
    else if (!tiles_are_16_by_64())
        why = "its AMX does not have eight tiles of 16 rows of 64 bytes";
    else if (!features.avx512 || !features.avx512_vnni)
        why = "the processor lacks AVX-512 F, BW, VL, DQ or VNNI";
    else if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM_CODE, XFEATURE_XTILEDATA_BIT) != 0)
        snprintf(features.amx_missing, sizeof(features.amx_missing),
                 "the kernel refuses AMX tiles: arch_prctl: %s", strerror(errno));
    if (why != NULL)
        snprintf(features.amx_missing, sizeof(features.amx_missing), "%s", why);
    features.amx_int8 = features.amx_missing[0] == '\0';
    features.amx_bf16 = features.amx_int8 && (edx & (1u << 22)) != 0;
}

static void detect(void)
{
    unsigned a, b, c, d;
    snprintf(features.amx_missing, sizeof(features.amx_missing), "the processor has no AMX-INT8");
    read_brand(features.brand);
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return;
    bool fma = (c & bit_FMA) && (c & bit_F16C) && (c & bit_AVX);
    uint64_t xcr0 = read_xcr0();
    bool ymm = (xcr0 & 0x6) == 0x6, zmm = (xcr0 & 0xE6) == 0xE6;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return;
    features.avx2 = ymm && fma && (b & bit_AVX2);
    features.avx512 = features.avx2 && zmm && (b & bit_AVX512F) && (b & bit_AVX512BW) &&
                      (b & bit_AVX512VL) && (b & bit_AVX512DQ);
    features.avx512_vnni = features.avx512 && (c & bit_AVX512VNNI);
    features.amx_missing[0] = '\0';
    detect_amx(d, xcr0);
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d))
        features.avx512_bf16 = features.avx512 && (a & (1u << 5));
}

const struct cpu_features *cpu_features(void)
{
    pthread_once(&once, detect);
    return &features;
}

int cpu_count(void)
{
    struct cpus set;
    struct error err;
    if (cpus_allowed(&set, &err) != 0)
        return 1;
    uint32_t n = cpus_count(&set);
    return n > 0 ? (int)n : 1;
}
