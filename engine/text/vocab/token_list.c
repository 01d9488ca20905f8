#include "engine/text/vocab/token_list.h"

#include <stdlib.h>

#include "base/error.h"

int token_list_add(struct token_list *list, uint32_t id, struct error *err)
{
    if (list->n_ids == list->capacity) {
        size_t wider = list->capacity ? 2 * list->capacity : 64;
        uint32_t *grown = realloc(list->ids, wider * sizeof(*grown));
        if (!grown)
            return error_set(err, STATUS_RESOURCE_EXHAUSTED, "tokenizer: out of memory");
        list->ids = grown;
        list->capacity = wider;
    }
    list->ids[list->n_ids++] = id;
    return 0;
}

void token_list_fini(struct token_list *list)
{
    free(list->ids);
    *list = (struct token_list){0};
}
