/* loader_share.h: packed memory that a process was handed by whoever started it: either another
 * process has filled and sealed it, or it is empty and this one is to fill it. Nothing in it is
 * trusted: seals, size and header must be those of the plan. Internal to the loader. One thread. */
#pragma once

#include <stdint.h>

#include "engine/load/loader.h"

struct error;

enum loader_share {
    LOADER_SHARE_NONE, /* of no use: *why says so */
    LOADER_SHARE_MAP,  /* every rank's is full and right */
    LOADER_SHARE_FILL, /* every rank's is empty */
};

/* fds[n_ranks] are borrowed. */
enum loader_share loader_share_look(const int *fds, const struct rank_plan *plans, uint32_t n_ranks,
                                    struct error *why);

/* Maps every rank's. All or nothing; the descriptors are duplicated. */
int loader_share_map(const int *fds, const struct rank_plan *plans, uint32_t n_ranks,
                     struct packed_weights *out_weights, struct error *err);
