/* stall.h: does a worker get on? Bookkeeping over the frames of one link: silence, and progress
 * that stands still while requests are ready, make a stall. Nothing else does: not a long prefill
 * (layers count), not requests that all are paused, not another model's load.
 *
 * Time is how long this process itself was running (awake_clock.h): after a pause of the whole
 * machine or of all of Sluice nobody is found stalled for it. Not thread safe: the owner's lock. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct stall_watch {
    uint32_t heartbeat_ms; /* longest silence that the worker promised; 0: it is not watched */
    bool stalled;
    uint64_t progress; /* as told last */
    bool ready;        /* there were requests to get on with */
    int64_t heard_ns;  /* the last frame */
    int64_t moved_ns;  /* progress moved, or there was nothing to move */
};

/* The worker has said hello: what it is silent about from here on counts. A stall stays one. */
void stall_hello(struct stall_watch *watch, uint32_t heartbeat_ms, int64_t awake_ns);
/* Any frame came. */
void stall_heard(struct stall_watch *watch, int64_t awake_ns);
/* What the worker says of itself. True: it was stalled, and gets on now. */
bool stall_on_load(struct stall_watch *watch, uint64_t progress, uint32_t n_ready,
                   int64_t awake_ns);
/* True once, when it has become a stall. */
bool stall_found(struct stall_watch *watch, int64_t awake_ns, uint64_t limit_ms);
