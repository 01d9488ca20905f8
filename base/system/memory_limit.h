/* memory_limit.h: how much memory a process may use. The machine limits the process, and so does
 * each memory cgroup above it, of version 1 or 2. The kernel kills a process that uses more.
 * Plans of loads, sizes of KV pools, receipts, `sluice devices` and `sluice doctor` all count free
 * memory by these functions. Each call reads the kernel's files again, because the memory of a
 * virtual machine may change. Any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct memory_limit {
    /* The machine's memory, or the smallest limit of a cgroup if that is less. */
    uint64_t total_bytes;
    /* MemAvailable, or what the fullest cgroup leaves if that is less. */
    uint64_t free_bytes;
    uint64_t machine_total_bytes; /* MemTotal */
    uint64_t machine_free_bytes;  /* MemAvailable */
    uint64_t group_limit_bytes;   /* limit of the cgroup that sets free_bytes; 0: none does */
    char group[256];              /* that cgroup's path below its mount; empty: none, or its root */
};

/* A cgroup leaves its limit, less its usage, plus the cached file pages that the kernel can drop.
 * Those pages are inactive_file, and slab_reclaimable in version 2. Limits: memory.limit_in_bytes,
 * hierarchical_memory_limit; memory.max, memory.high. A file that cannot be read sets no limit.
 * `root` stands before /proc and before every mount point: "" on a real machine. `pid` 0 means this
 * process. False if /proc/meminfo cannot be read; *out is then zeroed. */
bool memory_limit_read(const char *root, pid_t pid, struct memory_limit *out);

/* Reads the share of a NUMA node: the shares of all nodes add up to the figures of
 * memory_limit_read. The kernel has no MemAvailable per node, and in virtual machines its nodes may
 * report less than MemTotal. So the nodes' own files give only proportions. Total memory is shared
 * by MemTotal. Free memory is shared by pages that are free or can be dropped; a share is at most
 * the node's total. A node without memory or a file gets the figures of the whole machine. */
bool memory_limit_read_node(const char *root, uint32_t node, struct memory_limit *out);

/* Writes "310.2 MiB free", or "310.2 MiB free in a memory cgroup of 500.0 MiB"; returns out. */
enum { MEMORY_LIMIT_TEXT = 96 };
const char *memory_limit_text(const struct memory_limit *limit, char out[MEMORY_LIMIT_TEXT]);
