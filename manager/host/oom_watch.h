/* oom_watch.h: whether the kernel has just ended a process for want of memory. It tells nobody
 * which one it was; but a worker that dies by SIGKILL then, and that nobody here killed, is taken
 * for it. Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct oom_watch {
    uint64_t n_kills;
    int64_t rose_ns; /* when more were seen; 0: never */
};

/* What was before does not count. */
void oom_watch_init(struct oom_watch *watch);

/* To be called now and then, and whenever it is asked: some seconds after a kill is still just
 * after it, since a large process takes its time to end. */
bool oom_watch_look(struct oom_watch *watch, int64_t now_ns);
