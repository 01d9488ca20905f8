/* bench_random.h: random numbers of a load. The same seed gives the same numbers on every machine.
 * Single-threaded per struct. */
#pragma once

#include <stdint.h>

struct bench_random {
    uint64_t state;
};

/* Starts an independent stream of numbers for each (seed, index). */
void bench_random_init(struct bench_random *random, uint64_t seed, uint64_t index);
uint64_t bench_random_u64(struct bench_random *random);
/* Returns a uniform number in [min, max]. */
uint64_t bench_random_between(struct bench_random *random, uint64_t min, uint64_t max);
/* Returns the time to the next arrival of a Poisson process with `rate` arrivals per second:
 * exponential, at least 1 ns. */
int64_t bench_random_arrival_ns(struct bench_random *random, double rate);
