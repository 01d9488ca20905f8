/* metrics_process.h: metrics of the process itself: memory, CPU, descriptors, threads, start time,
 * build. Call at start, on the main thread. */
#pragma once

struct error;
struct metrics;

/* `program` is borrowed for the registry's life. Call once per process. */
int metrics_process_add(struct metrics *metrics, const char *program, struct error *err);
