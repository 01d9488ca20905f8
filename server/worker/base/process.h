/* process.h: facts and limits of this process, from the kernel. Any thread; process_harden once
 * at start. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Sets no-new-privileges and forbids core files. When memory runs out, the kernel kills this
 * process before manager and server, which can start another worker. The mode one_shot is for
 * parsing a model file that may be hostile: at most 60 s of CPU time are allowed. No file may
 * grow. Standard output may grow if it is a regular file. No death signal is set: the process
 * may outlive its parent. */
void process_harden(bool one_shot);

/* Returns the start time in clock ticks since boot, field 22 of /proc/self/stat. Pid and start
 * time identify a process for good. 0 if the file cannot be read. */
uint64_t process_start_ticks(void);

/* Returns the anonymous and shared memory in RAM: the memory of the process without pages of
 * files. */
uint64_t process_memory_bytes(void);
