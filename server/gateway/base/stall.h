/* stall.h: detects a stalled worker from the frames of one link. A stall is silence, or a progress
 * counter that does not move while requests are ready. A long prefill (layers count), paused
 * requests and the load of another model are no stall.
 *
 * Times are those of awake_clock.h: a pause of the whole machine or of Sluice makes no worker
 * stalled. Not thread safe: the owner's lock protects the struct. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct stall_watch {
    uint32_t heartbeat_ms; /* longest silence that the worker promised; 0: the worker is not
                            * watched */
    bool stalled;
    uint64_t progress; /* last reported progress counter */
    bool ready;        /* the last load had requests to work on */
    int64_t heard_ns;  /* time of the last frame */
    int64_t moved_ns;  /* last time that progress moved, or there was nothing to do */
};

/* The worker has answered the hello: silence counts from now on. An earlier stall is kept. */
void stall_hello(struct stall_watch *watch, uint32_t heartbeat_ms, int64_t awake_ns);
/* A frame of any kind arrived. */
void stall_heard(struct stall_watch *watch, int64_t awake_ns);
/* Updates the watch with a worker's load. Returns true if the worker was stalled and works
 * again. */
bool stall_on_load(struct stall_watch *watch, uint64_t progress, uint32_t n_ready,
                   int64_t awake_ns);
/* Returns true once, when the worker becomes stalled. */
bool stall_found(struct stall_watch *watch, int64_t awake_ns, uint64_t limit_ms);
