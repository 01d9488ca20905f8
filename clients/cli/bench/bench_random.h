/* bench_random.h: the drawn numbers of a load: the same from the same seed, on every machine. One
 * thread per struct. */
#pragma once

#include <stdint.h>

struct bench_random {
    uint64_t state;
};

/* Streams of different (seed, index) have nothing to do with each other. */
void bench_random_init(struct bench_random *random, uint64_t seed, uint64_t index);
uint64_t bench_random_u64(struct bench_random *random);
/* Uniform in [min, max]. */
uint64_t bench_random_between(struct bench_random *random, uint64_t min, uint64_t max);
/* Time to the next arrival of a Poisson process of `rate` a second: exponential, at least 1 ns. */
int64_t bench_random_arrival_ns(struct bench_random *random, double rate);
