/* load_stats.h: reads the usage of the processes under load from /proc. Any thread. */
#pragma once

#include <stdint.h>

struct process_usage {
    int64_t cpu_ns; /* user and system */
    uint64_t rss_bytes, n_fds, n_threads;
};
/* Zeroes where there is no such process. */
void process_usage_read(int pid, struct process_usage *out_usage);
