#include "kernels/experts.h"

enum { ALIGN = 256 };

static size_t words(size_t n)
{
    return (n * sizeof(uint32_t) + ALIGN - 1) / ALIGN * ALIGN;
}

size_t experts_routes_bytes(uint32_t max_rows, uint32_t max_used, uint32_t max_experts)
{
    size_t pairs = (size_t)max_rows * max_used;
    return 4 * words(pairs) + words((size_t)max_experts + 1) +
           words((size_t)max_experts + 1 + pairs);
}

void experts_routes_init(struct expert_routes *out_routes, void *memory, uint32_t max_rows,
                         uint32_t max_used, uint32_t max_experts)
{
    uint8_t *at = memory;
    size_t pairs = words((size_t)max_rows * max_used);
    *out_routes = (struct expert_routes){
        .ids = (uint32_t *)(void *)at,
        .weights = (float *)(void *)(at + pairs),
        .places = (uint32_t *)(void *)(at + 2 * pairs),
        .rows = (uint32_t *)(void *)(at + 3 * pairs),
        .begins = (uint32_t *)(void *)(at + 4 * pairs),
        .tiles = (uint32_t *)(void *)(at + 4 * pairs + words((size_t)max_experts + 1)),
        .max_rows = max_rows,
        .max_used = max_used,
        .max_experts = max_experts,
    };
}

uint32_t experts_max_pairs(uint32_t max_rows)
{
    return max_rows > EXPERTS_BATCH_PAIRS ? max_rows : EXPERTS_BATCH_PAIRS;
}
