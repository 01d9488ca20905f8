/* oom_watch.h: detects that the kernel has just killed a process for lack of memory. The kernel
 * does not say which process. If a worker then dies by a SIGKILL that the manager did not send,
 * the worker counts as the killed process. Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct oom_watch {
    uint64_t n_kills;
    int64_t last_rise_ns; /* time when n_kills last rose; 0: never */
};

/* Kills before this call do not count. */
void oom_watch_init(struct oom_watch *watch);

/* Must be called regularly, and at each death of a worker. True for some seconds after a kill,
 * since a large process takes time to end. */
bool oom_watch_check(struct oom_watch *watch, int64_t now_ns);
