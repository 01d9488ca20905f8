/* fair_share.h: what each caller has had of the engine: virtual token counters [Sheng et al.,
 * "Fairness in Serving Large Language Models", OSDI 2024, arXiv 2401.00588]. Whoever has work
 * waiting and the lowest counter is next, so that callers with work all get the same, whatever
 * the number and the size of their requests; and none is kept waiting while there is room.
 *
 * Counters of callers without requests are remembered, the latest ones, so that nobody gains by
 * asking in small portions. Engine thread only. Allocates at create, never after. */
#pragma once

#include <stdint.h>

struct error;
struct fair_share;

/* Tokens that one row counts as: a generated token reads all weights for itself. */
enum { FAIR_SHARE_PROMPT_ROW = 1, FAIR_SHARE_GENERATED_ROW = 2 };

int fair_share_create(uint32_t max_callers, struct fair_share **out_share, struct error *err);
void fair_share_destroy(struct fair_share *share);

/* The caller's entry, below max_callers, its own until as many releases as holds. Fewer than
 * max_callers holds are open. */
uint32_t fair_share_hold(struct fair_share *share, const char *caller);
void fair_share_release(struct fair_share *share, uint32_t i);

uint64_t fair_share_counter(const struct fair_share *share, uint32_t i);
void fair_share_charge(struct fair_share *share, uint32_t i, uint64_t n_tokens);
/* A caller that had no work does not save up what it did not use: its counter is at least `floor`
 * from here on. */
void fair_share_raise(struct fair_share *share, uint32_t i, uint64_t floor);
