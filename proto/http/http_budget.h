/* http_budget.h: bounds the memory of the unfinished bodies of all connections. The servers of a
 * process share a budget. Any thread; no lock.
 *
 * A body may hold as much as the budget has left. So the largest bodies are refused first, and many
 * large bodies leave room for a smaller body. The first HTTP_BUDGET_FREE_BYTES of each body do not
 * count: a small request gets through in any case. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { HTTP_BUDGET_FREE_BYTES = 64 << 10 };

struct http_budget {
    uint64_t max_bytes;
    _Atomic uint64_t n_bytes;
};

/* A body of max_body_bytes that is alone fits, also if max_bytes is smaller. */
void http_budget_init(struct http_budget *budget, uint64_t max_bytes, uint64_t max_body_bytes);
/* A body that held `before` bytes now holds `after` bytes. NULL is accepted. */
void http_budget_move(struct http_budget *budget, uint64_t before, uint64_t after);
/* True if a body may have n_bytes. NULL has no limit. */
bool http_budget_allows(const struct http_budget *budget, uint64_t n_bytes);
