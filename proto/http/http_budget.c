#include "proto/http/http_budget.h"

static uint64_t counted(uint64_t n_bytes)
{
    return n_bytes > HTTP_BUDGET_FREE_BYTES ? n_bytes - HTTP_BUDGET_FREE_BYTES : 0;
}

/* A body has to fit into what is left beside the body itself. */
void http_budget_init(struct http_budget *budget, uint64_t max_bytes, uint64_t max_body_bytes)
{
    budget->max_bytes = max_bytes > 2 * max_body_bytes ? max_bytes : 2 * max_body_bytes;
    atomic_init(&budget->n_bytes, 0);
}

void http_budget_move(struct http_budget *budget, uint64_t before, uint64_t after)
{
    if (budget)
        atomic_fetch_add(&budget->n_bytes, counted(after) - counted(before)); /* may wrap around */
}

bool http_budget_allows(const struct http_budget *budget, uint64_t n_bytes)
{
    if (!budget || counted(n_bytes) == 0)
        return true;
    uint64_t n = atomic_load(&budget->n_bytes);
    return n <= budget->max_bytes && counted(n_bytes) <= budget->max_bytes - n;
}
