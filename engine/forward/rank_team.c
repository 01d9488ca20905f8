#include "engine/forward/rank_team.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/error.h"
#include "kernels/futex.h"

enum { N_SPINS = 2000 };

struct member {
    struct rank_team *team;
    uint32_t rank;
    pthread_t thread;
};

struct rank_team {
    uint32_t n_ranks;
    rank_team_fn *fn;
    void *job;
    bool stop;                   /* set together with fn NULL */
    _Atomic uint32_t generation; /* grows with each job */
    _Atomic uint32_t n_running;
    uint32_t n_started;
    struct member members[];
};

/* Spins, then sleeps, until *word differs from `old`. */
static void wait_change(_Atomic uint32_t *word, uint32_t old)
{
    for (int i = 0; i < N_SPINS; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old)
            return;
        __builtin_ia32_pause();
    }
    while (atomic_load_explicit(word, memory_order_acquire) == old)
        futex_wait(word, old);
}

static void *member_main(void *ctx)
{
    struct member *member = ctx;
    struct rank_team *team = member->team;
    uint32_t seen = 0;
    pthread_setname_np(pthread_self(), "sluice-rank");
    for (;;) {
        wait_change(&team->generation, seen);
        seen = atomic_load(&team->generation);
        if (team->stop)
            return NULL;
        team->fn(team->job, member->rank);
        if (atomic_fetch_sub(&team->n_running, 1) == 1)
            futex_wake_all(&team->n_running);
    }
}

static void start_job(struct rank_team *team)
{
    atomic_store(&team->n_running, team->n_ranks - 1);
    atomic_fetch_add(&team->generation, 1);
    futex_wake_all(&team->generation);
}

int rank_team_create(uint32_t n_ranks, struct rank_team **out_team, struct error *err)
{
    struct rank_team *team = calloc(1, sizeof(*team) + n_ranks * sizeof(team->members[0]));
    if (!team)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %u ranks", n_ranks);
    team->n_ranks = n_ranks;
    for (uint32_t r = 1; r < n_ranks; r++) {
        struct member *member = &team->members[r];
        *member = (struct member){.team = team, .rank = r};
        int failed = pthread_create(&member->thread, NULL, member_main, member);
        if (failed) {
            rank_team_destroy(team);
            return error_errno(err, failed, "thread of rank %u", r);
        }
        team->n_started++;
    }
    *out_team = team;
    return 0;
}

void rank_team_destroy(struct rank_team *team)
{
    if (!team)
        return;
    team->stop = true;
    start_job(team);
    for (uint32_t r = 1; r <= team->n_started; r++)
        pthread_join(team->members[r].thread, NULL);
    free(team);
}

void rank_team_run(struct rank_team *team, rank_team_fn *fn, void *job)
{
    if (team->n_ranks == 1) {
        fn(job, 0);
        return;
    }
    team->fn = fn;
    team->job = job;
    start_job(team);
    fn(job, 0);
    uint32_t left;
    while ((left = atomic_load_explicit(&team->n_running, memory_order_acquire)) != 0)
        wait_change(&team->n_running, left);
}
