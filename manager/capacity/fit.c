#include "manager/capacity/fit.h"

/* True where a is the better choice. */
static bool is_better(enum fit_policy policy, const struct fit_device *a,
                      const struct fit_device *b, uint64_t wanted_bytes)
{
    bool fits_a = a->room_bytes >= wanted_bytes, fits_b = b->room_bytes >= wanted_bytes;
    if (a->is_there != b->is_there)
        return a->is_there;
    if (fits_a != fits_b)
        return fits_a;
    if (!fits_a)
        return a->room_bytes > b->room_bytes;
    if (policy == FIT_PACK)
        return a->room_bytes != b->room_bytes ? a->room_bytes < b->room_bytes
                                              : a->n_processes > b->n_processes;
    return a->n_processes != b->n_processes ? a->n_processes < b->n_processes
                                            : a->room_bytes > b->room_bytes;
}

size_t fit_choose(enum fit_policy policy, const struct fit_device *devices, size_t n_devices,
                  uint64_t wanted_bytes)
{
    size_t best = 0;
    for (size_t i = 1; i < n_devices; i++)
        if (is_better(policy, &devices[i], &devices[best], wanted_bytes))
            best = i;
    return best;
}
