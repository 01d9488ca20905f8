/* metrics_process.h: what every program tells of itself: memory, CPU, descriptors, threads, start,
 * build. At start, one thread. */
#pragma once

struct error;
struct metrics;

/* `program` is borrowed for the registry's life. One registry per process. */
int metrics_process_add(struct metrics *metrics, const char *program, struct error *err);
