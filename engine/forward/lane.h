/* lane.h: a thread that runs jobs one after the other, in the order in which they were posted. Each
 * stage of a pipeline has a lane. Only a single thread at a time posts and waits. No allocation
 * after create. */
#pragma once

#include <stdint.h>

struct error;
struct lane;

typedef void lane_fn(void *job);

/* Most jobs of a lane that are not done. */
enum { LANE_MOST_JOBS = 16 };

/* *out_lane is owned. */
int lane_create(struct lane **out_lane, struct error *err);
/* The posted jobs are done first. */
void lane_destroy(struct lane *lane);

/* Runs fn(job) behind all jobs posted before. `job` is borrowed until the job is done. Returns the
 * number of the job. */
uint32_t lane_post(struct lane *lane, lane_fn *fn, void *job);
/* Waits until the job with this number is done. Then its writes are visible. */
void lane_wait(struct lane *lane, uint32_t number);
