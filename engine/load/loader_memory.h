/* loader_memory.h: the memfd of packed weights: created writable, sealed when full, mapped
 * read-only by its users. Internal to the loader. Each object belongs to a single thread. */
#pragma once

#include <stdint.h>

#include "engine/load/loader.h"

struct error;

enum { LOADER_MAGIC_BYTES = 8, LOADER_VERSION = 1 };
#define LOADER_MAGIC "SLUICEPW"

/* Bytes of the whole memory, header included. (A device's plan has no header; its park copy has a
 * header.) */
uint64_t loader_memory_bytes(const struct rank_plan *plan);

struct loader_memory {
    int fd;
    unsigned char *base; /* writable, 2 MiB aligned, zeroed */
    uint64_t n_bytes;
};

/* Uses a new memfd (fd -1), or an empty one that is borrowed. RESOURCE_EXHAUSTED without memory or
 * descriptors. Call loader_memory_fini() in any case. */
int loader_memory_init(struct loader_memory *memory, const struct rank_plan *plan, int fd,
                       struct error *err);
void loader_memory_fini(struct loader_memory *memory);

/* Requests huge pages for [begin, begin + n_bytes) of fresh memory, both multiples of 2 MiB. Where
 * the kernel refuses, small pages remain. Disjoint ranges: any thread. */
void loader_memory_make_huge(const struct loader_memory *memory, uint64_t begin, uint64_t n_bytes);

/* FAILED_PRECONDITION (reason PACKED_MISMATCH) unless `fd` is sealed memory of this plan. */
int loader_memory_check(int fd, const struct rank_plan *plan, struct error *err);

/* Writes the header, unmaps the writable mapping, and seals the memory. */
int loader_memory_seal(struct loader_memory *memory, const struct rank_plan *plan,
                       struct error *err);
/* Maps sealed memory read-only. Takes the memory on success. */
int loader_memory_map(struct loader_memory *memory, struct packed_weights *out_weights,
                      struct error *err);
