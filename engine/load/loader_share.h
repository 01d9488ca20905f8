/* loader_share.h: packed memory that the parent process handed over. Another process has filled and
 * sealed it, or it is empty and this process fills it. Nothing in it is trusted: seals, size and
 * header must match the plan. Internal to the loader. Single-threaded. */
#pragma once

#include <stdint.h>

#include "engine/load/loader.h"

struct error;

enum loader_share {
    LOADER_SHARE_NONE, /* unusable: *why has the reason */
    LOADER_SHARE_MAP,  /* the memory of every rank is filled and valid */
    LOADER_SHARE_FILL, /* the memory of every rank is empty */
};

/* Finds out how the memory can be used. fds[n_ranks] are borrowed. */
enum loader_share loader_share_check(const int *fds, const struct rank_plan *plans,
                                     uint32_t n_ranks, struct error *why);

/* Maps the memory of every rank. All or nothing. The descriptors are duplicated. */
int loader_share_map(const int *fds, const struct rank_plan *plans, uint32_t n_ranks,
                     struct packed_weights *out_weights, struct error *err);
