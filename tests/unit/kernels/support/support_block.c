#include "tests/unit/kernels/support/support_block.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

struct team {
    pthread_barrier_t barrier;
    struct block_shared shared;
    uint32_t n_threads;
    void (*work)(const struct block *block, void *job);
    void *job;
};

struct member {
    struct team *team;
    uint32_t tid;
};

static void meet(void *context)
{
    pthread_barrier_wait(context);
}

static void *run_member(void *arg)
{
    const struct member *m = arg;
    struct team *team = m->team;
    struct block block = {&team->shared, m->tid, team->n_threads, team->n_threads > 1 ? meet : NULL,
                          &team->barrier};
    team->work(&block, team->job);
    return NULL;
}

void run_block(uint32_t n_threads, void (*work)(const struct block *block, void *job), void *job)
{
    struct team *team = calloc(1, sizeof(*team));
    struct member members[16];
    pthread_t threads[16];
    team->n_threads = n_threads;
    team->work = work;
    team->job = job;
    pthread_barrier_init(&team->barrier, NULL, n_threads);
    for (uint32_t i = 0; i < n_threads; i++) {
        members[i] = (struct member){team, i};
        if (i > 0)
            assert_int_equal(pthread_create(&threads[i], NULL, run_member, &members[i]), 0);
    }
    run_member(&members[0]);
    for (uint32_t i = 1; i < n_threads; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&team->barrier);
    free(team);
}
