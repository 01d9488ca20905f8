/* memory_policy.h: chooses the NUMA nodes of new memory pages, by system call. A kernel without
 * NUMA, or a container that forbids the call, returns an error. A page then lies on the node of the
 * thread that first touches it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct error;

/* Sets the policy for pages that the calling thread, and threads that it starts later, touch first.
 * A single node is preferred, with others as fallback. Several nodes are interleaved page by page.
 * nodes[n] are below 64; n 0 restores the kernel's default. */
int memory_policy_set(const uint16_t *nodes, uint32_t n, struct error *err);

/* Prefers this node for the pages in [at, at + n_bytes), whichever thread touches them. The ends
 * are rounded outwards to whole pages. */
int memory_policy_bind(void *at, size_t n_bytes, uint16_t node, struct error *err);

/* Touches the page at `at` and returns its node; negative if the kernel does not tell. */
int memory_policy_node(const void *at);
