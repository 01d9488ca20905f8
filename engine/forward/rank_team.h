/* rank_team.h: one thread per rank above the first; rank 0 runs on the caller's thread. Runs one
 * function on all ranks at a time. Unlike in a thread pool, members may wait for each other inside
 * (collectives). Members spin briefly for the next job, then sleep. Only a single caller at a
 * time. */
#pragma once

#include <stdint.h>

struct error;
struct rank_team;

typedef void rank_team_fn(void *job, uint32_t rank);

/* *out_team is owned. */
int rank_team_create(uint32_t n_ranks, struct rank_team **out_team, struct error *err);
void rank_team_destroy(struct rank_team *team);

/* Runs fn(job, r) for all ranks, rank 0 on the calling thread. Returns when all have returned. */
void rank_team_run(struct rank_team *team, rank_team_fn *fn, void *job);
