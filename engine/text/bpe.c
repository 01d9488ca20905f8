#include "engine/text/bpe.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/pages.h"
#include "base/rng.h"
#include "engine/format/checkpoint.h"
#include "engine/format/escape.h"
#include "engine/text/vocab.h"

#define MERGES_KEY "tokenizer.ggml.merges"

enum { NO_SYMBOL = -1 };

struct bpe_merge {
    uint32_t left, right, merged;
    uint32_t rank_plus_1; /* 0: free slot */
};

/* A doubly linked list in an array. A symbol that was merged into its left neighbour has id
 * DEAD_SYMBOL. */
struct bpe_symbol {
    uint32_t id;
    int32_t prev, next;
};
#define DEAD_SYMBOL UINT32_MAX

static int out_of_memory(struct error *err)
{
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "tokenizer: out of memory");
}

/* --- merge table --- */

static uint32_t merge_place(const struct bpe *bpe, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) ^ bpe->seed;
    h *= 0x9E3779B97F4A7C15ULL;
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93ULL;
    return (uint32_t)(h >> 32) & bpe->mask;
}

static struct bpe_merge *merge_slot(const struct bpe *bpe, uint32_t left, uint32_t right)
{
    uint32_t i = merge_place(bpe, left, right);
    while (bpe->slots[i].rank_plus_1 &&
           (bpe->slots[i].left != left || bpe->slots[i].right != right))
        i = (i + 1) & bpe->mask;
    return &bpe->slots[i];
}

static int bad_merge(const struct checkpoint *ckpt, uint64_t i, const char *text, size_t n,
                     const char *why, struct error *err)
{
    char escaped[ESCAPE_MAX_BYTES];
    return checkpoint_bad_key(ckpt, MERGES_KEY, err, "element [%" PRIu64 "] \"%s\" %s", i,
                              escape_text(text, n, escaped), why);
}

/* Merges that are looked up together. */
enum { N_MERGES = VOCAB_MAX_KEYS / 3 };

/* Makes three keys of a merge: the left token, the right token, and both without the space. */
static int split_merge(const struct checkpoint *ckpt, const char *text, size_t n, uint64_t i,
                       struct vocab_key keys[3], struct error *err)
{
    /* The left token may be a space, so the separator is never the first byte. */
    const char *space = n > 2 ? memchr(text + 1, ' ', n - 2) : NULL;
    if (!space)
        return bad_merge(ckpt, i, text, n, "is not two tokens with a space between", err);
    if (n > 2 * TOKENIZER_MAX_TOKEN_BYTES)
        return bad_merge(ckpt, i, text, n, "is longer than two tokens can be", err);
    uint32_t n_left = (uint32_t)(space - text);
    uint32_t n_right = (uint32_t)n - n_left - 1;
    keys[0] = (struct vocab_key){text, n_left, n_left};
    keys[1] = (struct vocab_key){space + 1, n_right, n_right};
    keys[2] = (struct vocab_key){text, (uint32_t)n, n_left};
    return 0;
}

static int check_merge(const struct checkpoint *ckpt, const struct vocab_key keys[3],
                       const int32_t ids[3], uint64_t i, struct error *err)
{
    static const char *const why[] = {"names a left token that is not in the vocabulary",
                                      "names a right token that is not in the vocabulary",
                                      "makes a token that is not in the vocabulary"};
    for (int k = 0; k < 3; k++)
        if (ids[k] < 0)
            return bad_merge(ckpt, i, keys[2].text, keys[2].n_bytes, why[k], err);
    return 0;
}

/* Loads merges[first, first + n); n ≤ N_MERGES. */
static int load_merges(struct bpe *bpe, const struct checkpoint *ckpt, const struct vocab *vocab,
                       const struct checkpoint_array *merges, uint64_t first, uint32_t n,
                       struct error *err)
{
    struct vocab_key keys[3 * N_MERGES] = {0};
    int32_t ids[3 * N_MERGES] = {0};
    uint32_t n_split = 0;
    int split_rc = 0, rc = 0;
    while (n_split < n && !split_rc) {
        size_t n_bytes;
        const char *text = checkpoint_array_string(merges, first + n_split, &n_bytes);
        split_rc = split_merge(ckpt, text, n_bytes, first + n_split, &keys[3 * n_split], err);
        n_split += split_rc == 0;
    }
    vocab_find_texts(vocab, keys, (size_t)3 * n_split, ids);
    for (uint32_t i = 0; i < n_split && !rc; i++) {
        rc = check_merge(ckpt, &keys[3 * i], &ids[3 * i], first + i, err);
        if (!rc)
            __builtin_prefetch(
                &bpe->slots[merge_place(bpe, (uint32_t)ids[3 * i], (uint32_t)ids[3 * i + 1])]);
    }
    for (uint32_t i = 0; i < n_split && !rc; i++) {
        const uint32_t left = (uint32_t)ids[3 * i], right = (uint32_t)ids[3 * i + 1];
        struct bpe_merge *slot = merge_slot(bpe, left, right);
        if (!slot->rank_plus_1)
            *slot = (struct bpe_merge){left, right, (uint32_t)ids[3 * i + 2],
                                       (uint32_t)(first + i) + 1};
    }
    return rc ? rc : split_rc;
}

int bpe_load(struct bpe *bpe, const struct checkpoint *ckpt, const struct vocab *vocab,
             struct error *err)
{
    struct checkpoint_array merges;
    int rc = checkpoint_get_array(ckpt, MERGES_KEY, CHECKPOINT_STRING, &merges, err);
    if (rc)
        return rc;
    uint32_t n_slots = 16;
    while (n_slots < 2 * merges.n)
        n_slots *= 2;
    bpe->slots = calloc(n_slots, sizeof(*bpe->slots));
    bpe->mask = n_slots - 1;
    bpe->seed = rng_u64();
    if (!bpe->slots)
        return out_of_memory(err);
    pages_touch(bpe->slots, n_slots * sizeof(*bpe->slots));
    for (uint64_t i = 0; i < merges.n && !rc; i += N_MERGES) {
        uint64_t left = merges.n - i;
        rc = load_merges(bpe, ckpt, vocab, &merges, i, left < N_MERGES ? (uint32_t)left : N_MERGES,
                         err);
    }
    return rc;
}

void bpe_fini(struct bpe *bpe)
{
    free(bpe->slots);
    *bpe = (struct bpe){0};
}

/* --- min-heap of candidate merges --- */

static int heap_push(struct bpe_scratch *s, uint64_t value, struct error *err)
{
    if (s->n_heap == s->n_heap_max) {
        size_t wider = s->n_heap_max ? 2 * s->n_heap_max : 256;
        uint64_t *grown = realloc(s->heap, wider * sizeof(*grown));
        if (!grown)
            return out_of_memory(err);
        s->heap = grown;
        s->n_heap_max = wider;
    }
    size_t i = s->n_heap++;
    while (i && s->heap[(i - 1) / 2] > value) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = value;
    return 0;
}

static uint64_t heap_pop(struct bpe_scratch *s)
{
    uint64_t least = s->heap[0];
    uint64_t value = s->heap[--s->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->n_heap)
            break;
        if (child + 1 < s->n_heap && s->heap[child + 1] < s->heap[child])
            child++;
        if (s->heap[child] >= value)
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = value;
    return least;
}

/* --- merging --- */

static int reserve_symbols(struct bpe_scratch *s, size_t n, struct error *err)
{
    if (n <= s->n_symbols_max)
        return 0;
    size_t wider = n < 256 ? 256 : n;
    struct bpe_symbol *grown = realloc(s->symbols, wider * sizeof(*grown));
    if (!grown)
        return out_of_memory(err);
    s->symbols = grown;
    s->n_symbols_max = wider;
    return 0;
}

/* Adds the pair whose left symbol is at `left` to the heap, if there is a merge for it. */
static int push_candidate(const struct bpe *bpe, struct bpe_scratch *s, int32_t left,
                          struct error *err)
{
    if (left == NO_SYMBOL || s->symbols[left].next == NO_SYMBOL)
        return 0;
    const struct bpe_symbol *symbol = &s->symbols[left];
    const struct bpe_merge *merge = merge_slot(bpe, symbol->id, s->symbols[symbol->next].id);
    if (!merge->rank_plus_1)
        return 0;
    return heap_push(s, (uint64_t)(merge->rank_plus_1 - 1) << 32 | (uint32_t)left, err);
}

static int merge_all(const struct bpe *bpe, struct bpe_scratch *s, int32_t n_symbols,
                     struct error *err)
{
    int rc = 0;
    s->n_heap = 0;
    for (int32_t i = 0; i + 1 < n_symbols && !rc; i++)
        rc = push_candidate(bpe, s, i, err);
    while (!rc && s->n_heap) {
        uint64_t best = heap_pop(s);
        int32_t at = (int32_t)(best & UINT32_MAX);
        struct bpe_symbol *symbol = &s->symbols[at];
        /* The pair may have changed since it was added; then its rank differs. */
        if (symbol->id == DEAD_SYMBOL || symbol->next == NO_SYMBOL)
            continue;
        struct bpe_symbol *right = &s->symbols[symbol->next];
        const struct bpe_merge *merge = merge_slot(bpe, symbol->id, right->id);
        if (merge->rank_plus_1 != (best >> 32) + 1)
            continue;
        symbol->id = merge->merged;
        right->id = DEAD_SYMBOL;
        symbol->next = right->next;
        if (symbol->next != NO_SYMBOL)
            s->symbols[symbol->next].prev = at;
        rc = push_candidate(bpe, s, symbol->prev, err);
        if (!rc)
            rc = push_candidate(bpe, s, at, err);
    }
    return rc;
}

int bpe_encode(const struct bpe *bpe, const struct vocab *vocab, struct bpe_scratch *scratch,
               const char *piece, size_t n_bytes, struct token_list *list, size_t *n_lost,
               struct error *err)
{
    int32_t n = 0;
    int rc = reserve_symbols(scratch, n_bytes, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < n_bytes; i++) {
        int32_t id = vocab->byte_ids[(unsigned char)piece[i]];
        if (id == TOKENIZER_NO_ID) {
            (*n_lost)++;
            continue;
        }
        scratch->symbols[n] = (struct bpe_symbol){(uint32_t)id, n - 1, n + 1};
        n++;
    }
    if (!n)
        return 0;
    scratch->symbols[n - 1].next = NO_SYMBOL;
    rc = merge_all(bpe, scratch, n, err);
    for (int32_t i = 0; i != NO_SYMBOL && !rc; i = scratch->symbols[i].next)
        rc = token_list_add(list, scratch->symbols[i].id, err);
    return rc;
}

void bpe_scratch_fini(struct bpe_scratch *scratch)
{
    free(scratch->symbols);
    free(scratch->heap);
    *scratch = (struct bpe_scratch){0};
}
