/* fair_share.h: counts how much of the engine each caller has used. The counts are the virtual
 * token counters of [Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, arXiv
 * 2401.00588]. Among the callers with waiting work, the caller with the lowest counter is served
 * next. So all these callers get equal shares, whatever the number and the size of their requests.
 * No caller waits while there is room.
 *
 * Counters of callers without requests are remembered, the most recent ones. So a caller gains
 * nothing by sending its work in small portions. Engine thread only. Allocates at create, never
 * after. */
#pragma once

#include <stdint.h>

struct error;
struct fair_share;

/* Tokens charged per row. A row of a generated token costs more because it reads all weights for
 * itself. */
enum { FAIR_SHARE_PROMPT_ROW = 1, FAIR_SHARE_GENERATED_ROW = 2 };

int fair_share_create(uint32_t max_callers, struct fair_share **out_share, struct error *err);
void fair_share_destroy(struct fair_share *share);

/* Returns the caller's entry, an index below max_callers. The entry stays the caller's until every
 * hold is released. At most max_callers - 1 holds are open before the call. */
uint32_t fair_share_hold(struct fair_share *share, const char *caller);
void fair_share_release(struct fair_share *share, uint32_t i);

uint64_t fair_share_counter(const struct fair_share *share, uint32_t i);
void fair_share_charge(struct fair_share *share, uint32_t i, uint64_t n_tokens);
/* Raises the counter to `floor` at least. A caller that had no work must not save up its unused
 * share. */
void fair_share_raise(struct fair_share *share, uint32_t i, uint64_t floor);
