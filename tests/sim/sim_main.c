/* sluice_sim: runs histories of the manager's core, each from its own seed. Exit status 0: every
 * invariant held. Otherwise the program names the seed of the failed history and the command that
 * repeats the history. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/sim/sim.h"

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void print_statistics(uint64_t first)
{
    const struct sim_statistics *s = &sim.stats;
    printf("sluice_sim: seeds %" PRIu64 " to %" PRIu64 ": %" PRIu64 " histories, %" PRIu64
           " steps, %" PRIu64 " faults, %.1f s of CPU\n",
           first, first + s->n_histories - 1, s->n_histories, s->n_steps, s->n_faults, cpu_s());
    printf("managers killed %" PRIu64 " (%" PRIu64 " at a failpoint, %" PRIu64
           " with the power), operations of the disk failed %" PRIu64 ", allocations %" PRIu64 "\n",
           s->n_crashes, s->n_failpoints, s->n_power_cuts, s->n_io_errors, s->n_no_memory);
    printf("workers started %" PRIu64 ", woken in place %" PRIu64 ", ended %" PRIu64
           "; requests %" PRIu64 ": answered %" PRIu64 ", refused %" PRIu64 ", lost %" PRIu64
           ", sent again %" PRIu64 "; commits seen %" PRIu64 "\n",
           s->n_spawns, s->n_woken, s->n_deaths, s->n_requests, s->n_answered, s->n_refused,
           s->n_lost, s->n_retried, s->n_commits);
}

static uint64_t number(const char *text)
{
    char *end;
    unsigned long long n = strtoull(text, &end, 10);
    if (*end || !*text) {
        fprintf(stderr, "usage: sluice_sim [--seed N] [--histories N] [--trace] [--each]\n");
        exit(2);
    }
    return n;
}

int main(int argc, char *argv[])
{
    uint64_t seed = 1, n_histories = 1000;
    bool trace = false, each = false;
    char folder[] = "/tmp/sluice-sim-XXXXXX";
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--trace") == 0)
            trace = true;
        else if (strcmp(argv[i], "--each") == 0)
            each = true;
        else if (strcmp(argv[i], "--seed") == 0)
            seed = number(value), i++;
        else if (strcmp(argv[i], "--histories") == 0)
            n_histories = number(value), i++;
        else
            (void)number("");
    }
    log_init("sluice_sim", trace ? LOG_LEVEL_INFO : LOG_LEVEL_ERROR, LOG_FORMAT_KV);
    sim.verbose = trace;
    if (!trace && !freopen("/dev/null", "w", stderr)) /* the managers' logs */
        return 2;
    if (!mkdtemp(folder) || !sim_prepare(folder)) {
        printf("BROKEN before the first history: %s\n", sim.why);
        return 1;
    }
    memset(&sim.stats, 0, sizeof(sim.stats));
    sim.verbose = trace;
    uint64_t i = 0;
    for (; i < n_histories && !sim.broken; i++) {
        sim_history(seed + i);
        if (each) /* the state of the random numbers shows all choices of the history */
            printf("seed %" PRIu64 " at %016" PRIx64 "\n", seed + i, sim_random());
    }
    print_statistics(seed);
    unlink(sim_path);
    rmdir(folder);
    if (!sim.broken)
        return 0;
    printf("BROKEN in the history of seed %" PRIu64 ": %s\n", seed + i - 1, sim.why);
    printf("to see it again: sluice_sim --seed %" PRIu64 " --histories 1 --trace\n", seed + i - 1);
    return 1;
}
