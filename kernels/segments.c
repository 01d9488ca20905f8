#include "kernels/segments.h"

#include "base/error.h"

static uint32_t gcd(uint32_t a, uint32_t b)
{
    while (b != 0) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

int segments_init(struct segments *seg, uint32_t dim, uint32_t granule, uint32_t tp, uint32_t index,
                  struct error *err)
{
    if (dim == 0 || granule == 0 || dim % granule != 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "segments: dimension %u is not a positive multiple of %u", dim, granule);
    if (tp != 1 && tp != 2 && tp != 4 && tp != 8)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "segments: %u ranks, limit: one of 1, 2, 4, 8", tp);
    if (index >= tp)
        return error_set(err, STATUS_INVALID_ARGUMENT, "segments: rank %u of %u", index, tp);
    uint64_t unit = (uint64_t)granule * (32 / gcd(granule, 32));
    uint64_t n_units = (dim + unit - 1) / unit;
    struct segments out = {.first = index * N_SEGMENTS / tp, .count = N_SEGMENTS / tp};
    for (uint32_t s = 0; s <= N_SEGMENTS; s++) {
        uint64_t bound = s * n_units / N_SEGMENTS * unit;
        out.bounds[s] = bound < dim ? (uint32_t)bound : dim;
    }
    if (segments_len(&out) == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%u rows in blocks of %llu leave one of %u ranks without rows; use fewer "
                         "ranks",
                         dim, (unsigned long long)unit, tp);
    *seg = out;
    return 0;
}
