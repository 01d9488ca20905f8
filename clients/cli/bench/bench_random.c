#include "clients/cli/bench/bench_random.h"

#include <math.h>

#include "base/clock.h"

/* SplitMix64 [Steele, Lea, Flood, OOPSLA 2014]. */
uint64_t bench_random_u64(struct bench_random *random)
{
    uint64_t x = random->state += 0x9E3779B97F4A7C15ULL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
}

void bench_random_init(struct bench_random *random, uint64_t seed, uint64_t index)
{
    struct bench_random mix = {.state = seed};
    random->state = bench_random_u64(&mix) ^ (index * 0xD1B54A32D192ED03ULL);
    random->state = bench_random_u64(random);
}

uint64_t bench_random_between(struct bench_random *random, uint64_t min, uint64_t max)
{
    uint64_t n = max - min + 1; /* 0: the whole 64-bit range */
    return n ? min + bench_random_u64(random) % n : bench_random_u64(random);
}

int64_t bench_random_arrival_ns(struct bench_random *random, double rate)
{
    double unit = ((double)(bench_random_u64(random) >> 11) + 0.5) / (double)(1ULL << 53);
    double ns = -log(unit) / rate * (double)NS_PER_S;
    return ns < 1 ? 1 : ns < 9e18 ? (int64_t)ns : INT64_MAX / 2;
}
