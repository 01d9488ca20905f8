/* memory_policy.h: on which nodes new pages of memory come to lie. By system call; a kernel without
 * NUMA, or a container that forbids it, answers with an error, and then pages lie where the thread
 * runs that touches them first. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct error;

/* For what the calling thread, and those that it starts from then on, touch first: one node is
 * preferred (and others taken when it is full), several take turns page by page. nodes[n] are below
 * 64; n 0: the kernel's own rule again. */
int memory_policy_set(const uint16_t *nodes, uint32_t n, struct error *err);

/* For the pages in [at, at + n_bytes), whoever touches them: this node is preferred. Whole pages
 * are meant: the ends are rounded outwards. */
int memory_policy_bind(void *at, size_t n_bytes, uint16_t node, struct error *err);

/* The node that holds the page at `at`, which is touched; negative: the kernel does not say. */
int memory_policy_node(const void *at);
