/* token_list.h: token ids in a growing array. Plain data. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct error;

/* A growing list of ids. A zeroed struct is an empty list. */
struct token_list {
    uint32_t *ids; /* owned */
    size_t n_ids;
    size_t capacity;
};
/* Appends one id. RESOURCE_EXHAUSTED without memory. */
int token_list_add(struct token_list *list, uint32_t id, struct error *err);
void token_list_fini(struct token_list *list);
