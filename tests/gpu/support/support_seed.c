#include "tests/gpu/support/support_seed.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

bool test_is_emulated(void)
{
    return getenv("SLUICE_TEST_EMULATED_GPU") != NULL;
}

bool test_is_wide(void)
{
    return !test_is_emulated() || getenv("SLUICE_TEST_WIDE") != NULL;
}

bool test_memory_is_back(uint64_t before, uint64_t now)
{
    return test_is_emulated() ? now == before : now + (32 << 20) >= before;
}

static uint64_t program_seed(void)
{
    const char *given = getenv("SLUICE_TEST_SEED");
    if (given != NULL)
        return strtoull(given, NULL, 10);
    return test_is_emulated() ? 0 : (uint64_t)time(NULL) ^ (uint64_t)getpid() << 32;
}

struct random test_random(uint64_t salt)
{
    static bool is_told;
    static uint64_t seed;
    if (!is_told) {
        seed = program_seed();
        print_message("SLUICE_TEST_SEED=%llu\n", (unsigned long long)seed);
        is_told = true;
    }
    return (struct random){salt + seed * 0x9E3779B97F4A7C15u};
}
