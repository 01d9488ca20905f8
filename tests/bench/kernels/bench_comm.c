/* bench_comm: the cost of a sum over CPU ranks that are threads of one process, by the size of the
 * message. Prints µs per call; the least of several rounds is the cost on a quiet machine.
 *
 *   bench_comm [RANKS]
 *
 * Last line: latency (µs) and bytes per second, for `sluice plan --groups Nxcpu:latency=..:link=..`
 * (docs/house/parallel-cost.md). */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/comm.h"
#include "kernels/tensor.h"

enum { N_CALLS = 2000, N_ROUNDS = 9, MOST_FLOATS = 1 << 18, MOST_RANKS = 8 };

static float data[MOST_RANKS][MOST_FLOATS];

struct rank {
    struct comm *comm;
    float *data;
    uint32_t n;
    int64_t ns;
};

static void *run(void *arg)
{
    struct rank *rank = arg;
    struct tensor t = tensor_view(rank->data, DTYPE_F32, 1, rank->n);
    int64_t begin = clock_now_ns();
    for (int i = 0; i < N_CALLS; i++)
        if (comm_all_reduce(rank->comm, NULL, &t, COMM_MAX_F32) != 0)
            exit(1);
    rank->ns = clock_now_ns() - begin;
    return NULL;
}

/* Seconds per call, the least of all rounds. */
static double measure(struct rank *ranks, uint32_t n_ranks, uint32_t n)
{
    double best = 1e9;
    for (int round = 0; round < N_ROUNDS; round++) {
        pthread_t threads[MOST_RANKS];
        for (uint32_t r = 0; r < n_ranks; r++) {
            ranks[r].n = n;
            if (pthread_create(&threads[r], NULL, run, &ranks[r]) != 0)
                exit(1);
        }
        for (uint32_t r = 0; r < n_ranks; r++)
            pthread_join(threads[r], NULL);
        double s = (double)ranks[0].ns / 1e9 / N_CALLS;
        best = s < best ? s : best;
    }
    return best;
}

int main(int argc, char *argv[])
{
    uint32_t n_ranks = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2;
    struct comm *comms[MOST_RANKS];
    struct rank ranks[MOST_RANKS];
    struct error err;
    if (n_ranks < 1 || n_ranks > MOST_RANKS ||
        comm_shm_create(n_ranks, MOST_FLOATS * sizeof(float), comms, &err) != 0) {
        fprintf(stderr, "bench_comm: ranks must be 1, 2, 4 or 8\n");
        return 2;
    }
    for (uint32_t r = 0; r < n_ranks; r++)
        ranks[r] = (struct rank){.comm = comms[r], .data = data[r]};
    double small = 0, large = 0;
    for (uint32_t n = 2; n <= 1 << 16; n *= 8) {
        double s = measure(ranks, n_ranks, n);
        printf("%u ranks, %7zu bytes: %8.2f us\n", n_ranks, n * sizeof(float), s * 1e6);
        small = small > 0 ? small : s;
        large = s;
    }
    double bytes = (n_ranks - 1) * (double)(1 << 16) * sizeof(float);
    printf("latency=%.2f:link=%.0fM\n", small * 1e6, bytes / (large - small) / 1e6);
    for (uint32_t r = 0; r < n_ranks; r++)
        comm_destroy(comms[r]);
    return 0;
}
