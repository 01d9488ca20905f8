#include "engine/text/vocab/literals.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "engine/text/vocab/vocab.h"

int literals_init(struct literals *lits, struct arena *arena, uint32_t n, struct error *err)
{
    lits->rows = arena_calloc(arena, (size_t)n + 1, sizeof(*lits->rows));
    lits->n_rows_max = n;
    return lits->rows ? 0 : text_facts_no_memory(err);
}

void literals_add(struct literals *lits, const char *bytes, uint32_t n_bytes, uint32_t id)
{
    assert(lits->n_rows < lits->n_rows_max && n_bytes);
    lits->rows[lits->n_rows++] = (struct literal){bytes, n_bytes, id};
}

static int compare_bytes(const struct literal *x, const struct literal *y)
{
    uint32_t n = x->n_bytes < y->n_bytes ? x->n_bytes : y->n_bytes;
    int order = memcmp(x->bytes, y->bytes, n);
    if (order)
        return order;
    return x->n_bytes < y->n_bytes ? -1 : x->n_bytes > y->n_bytes;
}

static int compare(const void *a, const void *b)
{
    const struct literal *x = a, *y = b;
    int order = compare_bytes(x, y);
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

void literals_sort(struct literals *lits)
{
    uint32_t n = 0;
    if (lits->n_rows)
        qsort(lits->rows, lits->n_rows, sizeof(*lits->rows), compare);
    for (uint32_t i = 0; i < lits->n_rows; i++)
        if (!n || compare_bytes(&lits->rows[n - 1], &lits->rows[i]) != 0)
            lits->rows[n++] = lits->rows[i];
    lits->n_rows = n;
    uint32_t at = 0;
    for (int b = 0; b < 256; b++) {
        lits->begin[b] = at;
        while (at < n && (unsigned char)lits->rows[at].bytes[0] == b)
            at++;
    }
    lits->begin[256] = n;
}

/* First row of [low, high) whose byte at `depth` is at least `byte`. All rows share the bytes
 * before `depth`, and are longer. */
static uint32_t lower_bound(const struct literal *rows, uint32_t low, uint32_t high, uint32_t depth,
                            int byte)
{
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if ((unsigned char)rows[mid].bytes[depth] < byte)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

int32_t literals_match(const struct literals *lits, const struct vocab *vocab, const char *text,
                       size_t n_bytes, bool control, size_t *out_n_bytes)
{
    if (!n_bytes)
        return TOKENIZER_NO_ID;
    int32_t found = TOKENIZER_NO_ID;
    uint32_t low = lits->begin[(unsigned char)text[0]];
    uint32_t high = lits->begin[(unsigned char)text[0] + 1];
    for (uint32_t depth = 1; low < high; depth++) {
        /* The row that ends here sorts first; texts are unique. */
        if (lits->rows[low].n_bytes == depth) {
            uint32_t id = lits->rows[low].id;
            if (control || vocab->tokens[id].kind != TOKEN_CONTROL) {
                found = (int32_t)id;
                *out_n_bytes = depth;
            }
            low++;
        }
        if (depth == n_bytes)
            break;
        int byte = (unsigned char)text[depth];
        low = lower_bound(lits->rows, low, high, depth, byte);
        high = lower_bound(lits->rows, low, high, depth, byte + 1);
    }
    return found;
}
