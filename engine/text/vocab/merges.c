#include "engine/text/vocab/merges.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/pages.h"
#include "base/rng.h"
#include "base/text/escape.h"
#include "base/utf8.h"
#include "engine/text/vocab/vocab.h"

static int table_init(struct merges *merges, uint64_t n, struct error *err)
{
    uint64_t n_slots = 16;
    while (3 * n_slots < 4 * n)
        n_slots *= 2;
    merges->slots = calloc(n_slots, sizeof(*merges->slots));
    merges->mask = (uint32_t)(n_slots - 1);
    if (!merges->slots)
        return text_facts_no_memory(err);
    pages_touch(merges->slots, n_slots * sizeof(*merges->slots));
    return 0;
}

/* --- listed merges --- */

static int bad_merge(const struct text_facts *facts, uint64_t i, const char *why, struct error *err)
{
    char escaped[ESCAPE_MAX_BYTES];
    const struct text_merge *m = &facts->merges[i];
    return text_facts_bad(facts, facts->merges_key, err, "element [%" PRIu64 "] \"%s\" %s", i,
                          escape_text(m->text, m->n_bytes, escaped), why);
}

/* Merges that are looked up together. */
enum { N_TOGETHER = VOCAB_MAX_KEYS / 3 };

/* Makes three keys of a merge: the left token, the right token, and both without the space. */
static int split_merge(const struct text_facts *facts, uint64_t i, struct vocab_key keys[3],
                       struct error *err)
{
    const struct text_merge *m = &facts->merges[i];
    if (!m->n_left || m->n_left + 1 >= m->n_bytes)
        return bad_merge(facts, i, "is not two tokens with a space between", err);
    if (m->n_bytes > 2 * TOKENIZER_MAX_TOKEN_BYTES)
        return bad_merge(facts, i, "is longer than two tokens can be", err);
    uint32_t n_right = m->n_bytes - m->n_left - 1;
    keys[0] = (struct vocab_key){m->text, m->n_left, m->n_left};
    keys[1] = (struct vocab_key){m->text + m->n_left + 1, n_right, n_right};
    keys[2] = (struct vocab_key){m->text, m->n_bytes, m->n_left};
    return 0;
}

static int check_merge(const struct text_facts *facts, const int32_t ids[3], uint64_t i,
                       struct error *err)
{
    static const char *const why[] = {"names a left token that is not in the vocabulary",
                                      "names a right token that is not in the vocabulary",
                                      "makes a token that is not in the vocabulary"};
    for (int k = 0; k < 3; k++)
        if (ids[k] < 0)
            return bad_merge(facts, i, why[k], err);
    return 0;
}

/* Loads merges[first, first + n); n ≤ N_TOGETHER. */
static int load_merges(struct merges *merges, const struct text_facts *facts,
                       const struct vocab *vocab, uint64_t first, uint32_t n, struct error *err)
{
    struct vocab_key keys[3 * N_TOGETHER] = {0};
    int32_t ids[3 * N_TOGETHER] = {0};
    uint32_t n_split = 0;
    int split_rc = 0, rc = 0;
    while (n_split < n && !split_rc) {
        split_rc = split_merge(facts, first + n_split, &keys[3 * n_split], err);
        n_split += split_rc == 0;
    }
    vocab_find_texts(vocab, keys, (size_t)3 * n_split, ids);
    for (uint32_t i = 0; i < n_split && !rc; i++) {
        rc = check_merge(facts, &ids[3 * i], first + i, err);
        if (!rc)
            __builtin_prefetch(&merges->slots[merges_place(merges, (uint32_t)ids[3 * i],
                                                           (uint32_t)ids[3 * i + 1])]);
    }
    for (uint32_t i = 0; i < n_split && !rc; i++) {
        const uint32_t left = (uint32_t)ids[3 * i], right = (uint32_t)ids[3 * i + 1];
        struct merge *slot = merges_slot(merges, left, right);
        if (!slot->rank_plus_1)
            *slot =
                (struct merge){left, right, (uint32_t)ids[3 * i + 2], (uint32_t)(first + i) + 1};
    }
    return rc ? rc : split_rc;
}

static int load_listed(struct merges *merges, const struct text_facts *facts,
                       const struct vocab *vocab, struct error *err)
{
    if (facts->n_merges > MERGES_MAX)
        return text_facts_bad(facts, facts->merges_key, err,
                              "%" PRIu64 " merges, expected at most %d", facts->n_merges,
                              MERGES_MAX);
    if (!facts->merges)
        return text_facts_missing(facts, facts->merges_key, err);
    merges->n_ranks = (uint32_t)facts->n_merges;
    int rc = table_init(merges, facts->n_merges, err);
    for (uint64_t i = 0; i < facts->n_merges && !rc; i += N_TOGETHER) {
        uint64_t left = facts->n_merges - i;
        rc = load_merges(merges, facts, vocab, i, left < N_TOGETHER ? (uint32_t)left : N_TOGETHER,
                         err);
    }
    return rc;
}

/* --- merges of every pair that makes a token --- */

/* Splits that are looked up together. */
enum { N_SPLITS = VOCAB_MAX_KEYS / 2 };

struct split {
    uint32_t token, n_left; /* bytes of the left part */
};

struct split_search {
    struct merges *merges;
    const struct text_facts *facts;
    const struct vocab *vocab;
    struct char_map *chars;
    const uint32_t *ranks; /* by token */
    struct split splits[N_SPLITS];
    uint32_t n_splits;
    struct merge *found; /* owned */
    size_t n_found, n_found_max;
};

static bool takes_part(const struct split_search *s, int32_t id)
{
    if (id < 0)
        return false;
    const struct token *t = &s->vocab->tokens[id];
    if (t->flags & TOKEN_IS_BYTE && s->facts->by_characters)
        return false;
    return t->kind == TOKEN_NORMAL ||
           (s->facts->order == TEXT_MERGES_SCORED && t->kind != TOKEN_CONTROL);
}

/* The symbol of one half, or UINT32_MAX. A single character that is no token gets a symbol. */
static int symbol_of(struct split_search *s, const char *text, uint32_t n_bytes, int32_t id,
                     uint32_t *out_symbol, struct error *err)
{
    *out_symbol = UINT32_MAX;
    if (takes_part(s, id)) {
        *out_symbol = (uint32_t)id;
        return 0;
    }
    uint32_t point;
    if (!s->facts->by_characters || utf8_decode(text, n_bytes, &point) != n_bytes)
        return 0;
    *out_symbol = char_map_find(s->chars, point);
    if (*out_symbol != UINT32_MAX)
        return 0;
    *out_symbol = s->merges->n_symbols++;
    return char_map_add(s->chars, point, *out_symbol, err);
}

static int add_found(struct split_search *s, struct merge merge, struct error *err)
{
    if (s->n_found == MERGES_MAX)
        return text_facts_bad(s->facts, s->facts->tokens_key, err,
                              "the tokens have more than %d pairs that make a token", MERGES_MAX);
    if (s->n_found == s->n_found_max) {
        size_t wider = s->n_found_max ? 2 * s->n_found_max : 4096;
        struct merge *grown = realloc(s->found, wider * sizeof(*grown));
        if (!grown)
            return text_facts_no_memory(err);
        s->found = grown;
        s->n_found_max = wider;
    }
    s->found[s->n_found++] = merge;
    return 0;
}

static int look_up(struct split_search *s, struct error *err)
{
    struct vocab_key keys[2 * N_SPLITS];
    int32_t ids[2 * N_SPLITS];
    for (uint32_t i = 0; i < s->n_splits; i++) {
        const struct token *t = &s->vocab->tokens[s->splits[i].token];
        uint32_t n_left = s->splits[i].n_left, n_right = t->n_text - n_left;
        keys[2 * i] = (struct vocab_key){t->text, n_left, n_left};
        keys[2 * i + 1] = (struct vocab_key){t->text + n_left, n_right, n_right};
    }
    vocab_find_texts(s->vocab, keys, (size_t)2 * s->n_splits, ids);
    int rc = 0;
    for (uint32_t i = 0; i < s->n_splits && !rc; i++) {
        const struct vocab_key *left = &keys[2 * i], *right = &keys[2 * i + 1];
        struct merge m = {.merged = s->splits[i].token};
        rc = symbol_of(s, left->text, left->n_bytes, ids[2 * i], &m.left, err);
        if (!rc && m.left != UINT32_MAX)
            rc = symbol_of(s, right->text, right->n_bytes, ids[2 * i + 1], &m.right, err);
        else
            continue;
        m.rank_plus_1 = s->ranks[m.merged] + 1;
        if (!rc && m.right != UINT32_MAX)
            rc = add_found(s, m, err);
    }
    s->n_splits = 0;
    return rc;
}

static int add_splits(struct split_search *s, uint32_t token, struct error *err)
{
    const struct token *t = &s->vocab->tokens[token];
    int rc = 0;
    if (!takes_part(s, (int32_t)token) || t->n_text > MERGES_MAX_SPLIT_BYTES)
        return 0;
    for (uint32_t at = 1; at < t->n_text && !rc; at++) {
        bool inside = s->facts->by_characters && ((unsigned char)t->text[at] & 0xC0) == 0x80;
        if (inside)
            continue;
        s->splits[s->n_splits++] = (struct split){token, at};
        if (s->n_splits == N_SPLITS)
            rc = look_up(s, err);
    }
    return rc;
}

struct scored {
    float score;
    uint32_t id;
};

static int compare_scores(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Ranks of tokens: equal scores have equal ranks, so that the leftmost of them is merged first. */
static int rank_tokens(struct merges *merges, const struct text_facts *facts, uint32_t *ranks,
                       struct error *err)
{
    merges->n_ranks = facts->n_tokens;
    if (facts->order == TEXT_MERGES_RANKED) {
        for (uint32_t i = 0; i < facts->n_tokens; i++)
            ranks[i] = i;
        return 0;
    }
    struct scored *scored = calloc(facts->n_tokens, sizeof(*scored));
    if (!scored)
        return text_facts_no_memory(err);
    for (uint32_t i = 0; i < facts->n_tokens; i++)
        scored[i] = (struct scored){facts->tokens[i].score, i};
    qsort(scored, facts->n_tokens, sizeof(*scored), compare_scores);
    for (uint32_t i = 0; i < facts->n_tokens; i++)
        ranks[scored[i].id] =
            i && scored[i].score == scored[i - 1].score ? ranks[scored[i - 1].id] : i;
    free(scored);
    return 0;
}

static int load_pairs(struct merges *merges, const struct text_facts *facts,
                      const struct vocab *vocab, struct char_map *chars, struct error *err)
{
    uint32_t *ranks = calloc(facts->n_tokens, sizeof(*ranks));
    struct split_search s = {merges, facts, vocab, chars, ranks, {{0, 0}}, 0, NULL, 0, 0};
    int rc = ranks ? rank_tokens(merges, facts, ranks, err) : text_facts_no_memory(err);
    for (uint32_t i = 0; i < facts->n_tokens && !rc; i++)
        rc = add_splits(&s, i, err);
    if (!rc)
        rc = look_up(&s, err);
    if (!rc)
        rc = table_init(merges, s.n_found, err);
    for (size_t i = 0; i < s.n_found && !rc; i++)
        *merges_slot(merges, s.found[i].left, s.found[i].right) = s.found[i];
    free(s.found);
    free(ranks);
    return rc;
}

int merges_load(struct merges *merges, const struct text_facts *facts, const struct vocab *vocab,
                struct char_map *chars, struct error *err)
{
    merges->seed = rng_u64();
    merges->n_symbols = facts->n_tokens;
    return facts->order == TEXT_MERGES_LISTED ? load_listed(merges, facts, vocab, err)
                                              : load_pairs(merges, facts, vocab, chars, err);
}

void merges_fini(struct merges *merges)
{
    free(merges->slots);
    *merges = (struct merges){0};
}
