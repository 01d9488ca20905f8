/* process.h: facts and limits of this process and its machine, from the kernel. Any thread;
 * hardening once at start. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* No new privileges, no core files; where memory runs out the kernel ends this process before
 * manager and server, which can put another in its place. one_shot: also at most 60 s of CPU time
 * and no file may grow (standard output excepted where it is a regular file): a hostile model file
 * is parsed in such a process. The process outlives its parent: no death signal is set. */
void process_harden(bool one_shot);

/* Start time in clock ticks since boot, field 22 of /proc/self/stat: with the pid it names this
 * process for good. 0 where it cannot be read. */
uint64_t process_start_ticks(void);

/* Anonymous and shared memory in RAM: what the process costs beyond pages of files. */
uint64_t process_memory_bytes(void);
