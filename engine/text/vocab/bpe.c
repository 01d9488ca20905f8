#include "engine/text/vocab/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "base/pages.h"
#include "base/utf8.h"
#include "engine/text/vocab/token_list.h"
#include "engine/text/vocab/vocab.h"

enum {
    MOST_LINEAR = 40, /* symbols; a longer piece uses the queue */
    JOIN_BITS = 21,
    LOG_WORDS = 12,
    LEAST_TEXT_FOR_WORDS = 1024,
    LEAST_TO_TOUCH = 1 << 16, /* symbols; their pages are populated in one call */
};

/* A doubly linked list in an array. A symbol takes `link` slots, of which the first has its id. The
 * others have DEAD_SYMBOL, and the last of these has the first slot's index as `link`. */
struct bpe_symbol {
    uint32_t id;
    uint32_t link;
};
#define NO_SYMBOL      UINT32_MAX
#define DEAD_SYMBOL    UINT32_MAX
#define UNKNOWN_SYMBOL (UINT32_MAX - 1) /* a character without a symbol; never merged */

/* --- loading --- */

static uint32_t join_bit(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 21 | right) * 0x9E3779B97F4A7C15ULL;
    return (uint32_t)(h >> (64 - JOIN_BITS));
}

static bool may_join(const struct bpe *bpe, uint32_t left, uint32_t right)
{
    uint32_t bit = join_bit(left, right);
    return bpe->joins[bit / 64] >> bit % 64 & 1;
}

/* Marks the pairs of neighbours in every token. No merge can cross another pair, so that a text may
 * be cut there. */
static int mark_joins(struct bpe *bpe, const struct vocab *vocab, struct error *err)
{
    bpe->joins = calloc((1U << JOIN_BITS) / 64, sizeof(*bpe->joins));
    if (!bpe->joins)
        return text_facts_no_memory(err);
    for (uint32_t i = 0; i < vocab->n_tokens; i++) {
        const struct token *t = &vocab->tokens[i];
        uint32_t left = 0, right;
        for (uint32_t at = 0; at < t->n_text;) {
            size_t n = utf8_decode(t->text + at, t->n_text - at, &right);
            if (at) {
                uint32_t bit = join_bit(left, right);
                bpe->joins[bit / 64] |= 1ULL << bit % 64;
            }
            left = right;
            at += n ? (uint32_t)n : 1;
        }
    }
    return 0;
}

static int load_characters(struct bpe *bpe, const struct text_facts *facts,
                           const struct vocab *vocab, struct error *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < vocab->n_tokens && !rc; i++) {
        const struct token *t = &vocab->tokens[i];
        uint32_t point;
        if (t->flags & TOKEN_IS_BYTE) {
            int byte = text_facts_byte_of(t->text, t->n_text);
            if (byte >= 0 && bpe->byte_ids[byte] == TOKENIZER_NO_ID)
                bpe->byte_ids[byte] = (int32_t)i;
            continue;
        }
        bool control = t->kind == TOKEN_CONTROL && facts->order == TEXT_MERGES_SCORED;
        if (!control && t->n_text <= 4 && utf8_decode(t->text, t->n_text, &point) == t->n_text)
            rc = char_map_add(&bpe->chars, point, i, err);
    }
    return rc;
}

int bpe_load(struct bpe *bpe, const struct text_facts *facts, const struct vocab *vocab,
             struct error *err)
{
    int rc = 0;
    bpe->by_characters = facts->by_characters;
    bpe->byte_fallback = facts->byte_fallback;
    bpe->fuse_unknown = facts->fuse_unknown;
    bpe->unknown_id = facts->unknown_id;
    bpe->late_unknown = facts->order == TEXT_MERGES_SCORED;
    memcpy(bpe->byte_ids, vocab->byte_ids, sizeof(bpe->byte_ids));
    if (bpe->by_characters) {
        for (int b = 0; b < 256; b++)
            bpe->byte_ids[b] = TOKENIZER_NO_ID;
        rc = load_characters(bpe, facts, vocab, err);
    }
    if (!rc)
        rc = merges_load(&bpe->merges, facts, vocab, &bpe->chars, err);
    if (!rc && bpe->by_characters)
        rc = mark_joins(bpe, vocab, err);
    return rc;
}

void bpe_fini(struct bpe *bpe)
{
    merges_fini(&bpe->merges);
    char_map_fini(&bpe->chars);
    free(bpe->joins);
    *bpe = (struct bpe){0};
}

void bpe_scratch_init(struct bpe_scratch *scratch, size_t n_bytes)
{
    if (n_bytes >= LEAST_TEXT_FOR_WORDS) /* without memory there is no cache */
        scratch->words = calloc(1U << LOG_WORDS, sizeof(*scratch->words));
}

void bpe_scratch_fini(struct bpe_scratch *scratch)
{
    free(scratch->symbols);
    free(scratch->words);
    merge_queue_fini(&scratch->queue);
    *scratch = (struct bpe_scratch){0};
}

/* --- merging --- */

static int reserve_symbols(struct bpe_scratch *scratch, size_t n, struct error *err)
{
    if (n <= scratch->n_symbols_max)
        return 0;
    size_t wider = n < 256 ? 256 : n + n / 8;
    free(scratch->symbols);
    scratch->n_symbols_max = 0;
    scratch->symbols = malloc(wider * sizeof(*scratch->symbols));
    if (!scratch->symbols)
        return text_facts_no_memory(err);
    if (n >= LEAST_TO_TOUCH)
        pages_touch(scratch->symbols, n * sizeof(*scratch->symbols));
    scratch->n_symbols_max = wider;
    return 0;
}

/* Merges a few symbols that lie one after the other; returns how many are left. */
static uint32_t merge_few(const struct bpe *bpe, struct bpe_symbol *symbols, uint32_t n)
{
    uint32_t ranks[MOST_LINEAR], merged[MOST_LINEAR]; /* the merge of symbols i and i + 1 */
    for (uint32_t i = 0; i + 1 < n; i++) {
        const struct merge *m = merges_slot(&bpe->merges, symbols[i].id, symbols[i + 1].id);
        ranks[i] = m->rank_plus_1 - 1;
        merged[i] = m->merged;
    }
    while (n > 1) {
        uint32_t best = 0;
        for (uint32_t i = 1; i + 1 < n; i++)
            best = ranks[i] < ranks[best] ? i : best;
        if (ranks[best] == UINT32_MAX)
            break;
        symbols[best].id = merged[best];
        n--;
        for (uint32_t i = best + 1; i < n; i++) {
            symbols[i] = symbols[i + 1];
            ranks[i - 1] = ranks[i];
            merged[i - 1] = merged[i];
        }
        for (uint32_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct merge *m = merges_slot(&bpe->merges, symbols[i].id, symbols[i + 1].id);
            ranks[i] = m->rank_plus_1 - 1;
            merged[i] = m->merged;
        }
    }
    return n;
}

/* First slot of the symbol before the one at `at`, or NO_SYMBOL. */
static uint32_t symbol_before(const struct bpe_symbol *symbols, uint32_t at)
{
    if (!at)
        return NO_SYMBOL;
    return symbols[at - 1].id == DEAD_SYMBOL ? symbols[at - 1].link : at - 1;
}

/* Queues the merge of the symbol at `left` with its right neighbour, if there is one. */
static int push_candidate(const struct bpe *bpe, struct bpe_scratch *s, uint32_t left, uint32_t n,
                          struct error *err)
{
    if (left == NO_SYMBOL)
        return 0;
    const struct bpe_symbol *symbol = &s->symbols[left];
    if (left + symbol->link >= n)
        return 0;
    const struct merge *merge = merges_slot(&bpe->merges, symbol->id, symbol[symbol->link].id);
    if (!merge->rank_plus_1)
        return 0;
    return merge_queue_push(&s->queue, merge->rank_plus_1 - 1, left, err);
}

static int merge_many(const struct bpe *bpe, struct bpe_scratch *s, uint32_t n, struct error *err)
{
    int rc = merge_queue_begin(&s->queue, bpe->merges.n_ranks, err);
    for (uint32_t i = 0; i < n; i++)
        s->symbols[i].link = 1;
    for (uint32_t i = 0; i + 1 < n && !rc; i++)
        rc = push_candidate(bpe, s, i, n, err);
    while (!rc) {
        uint64_t best;
        rc = merge_queue_pop(&s->queue, &best, err);
        if (rc)
            break;
        uint32_t at = (uint32_t)(best & UINT32_MAX);
        struct bpe_symbol *symbol = &s->symbols[at];
        /* The pair may have changed since it was added; then its rank differs. */
        if (symbol->id == DEAD_SYMBOL || at + symbol->link >= n)
            continue;
        struct bpe_symbol *right = symbol + symbol->link;
        const struct merge *merge = merges_slot(&bpe->merges, symbol->id, right->id);
        if (merge->rank_plus_1 != (best >> 32) + 1)
            continue;
        symbol->id = merge->merged;
        symbol->link += right->link;
        right->id = DEAD_SYMBOL;
        symbol[symbol->link - 1].link = at;
        rc = push_candidate(bpe, s, symbol_before(s->symbols, at), n, err);
        if (!rc)
            rc = push_candidate(bpe, s, at, n, err);
    }
    return rc < 0 ? rc : 0;
}

/* --- output --- */

struct output {
    const struct bpe *bpe;
    const struct vocab *vocab;
    struct bpe_scratch *scratch;
    struct token_list *list;
    size_t *n_lost;
    bool is_plain; /* no character was without a token */
};

static int add_unknown(struct output *out, size_t n_bytes, struct error *err)
{
    struct bpe_scratch *s = out->scratch;
    out->is_plain = false;
    if (out->bpe->unknown_id == TOKENIZER_NO_ID) {
        *out->n_lost += n_bytes;
        return 0;
    }
    if (out->bpe->fuse_unknown && s->unknown_end && s->unknown_end == out->list->n_ids)
        return 0;
    int rc = token_list_add(out->list, (uint32_t)out->bpe->unknown_id, err);
    s->unknown_end = out->list->n_ids;
    return rc;
}

static bool has_bytes(const struct bpe *bpe, const char *bytes, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        if (bpe->byte_ids[(unsigned char)bytes[i]] == TOKENIZER_NO_ID)
            return false;
    return bpe->byte_fallback;
}

/* Adds a symbol's id. A symbol that is no token is the character at piece[*at]. Moves *at behind
 * the symbol's text, if merges start from characters. */
static int add_symbol(struct output *out, uint32_t id, const char *piece, size_t n_bytes,
                      size_t *at, struct error *err)
{
    if (id < out->vocab->n_tokens) {
        const struct token *t = &out->vocab->tokens[id];
        *at += t->flags & TOKEN_IS_BYTE ? 1 : t->n_text;
        return token_list_add(out->list, id, err);
    }
    uint32_t point;
    const char *text = piece + *at;
    size_t n = *at < n_bytes ? utf8_decode(text, n_bytes - *at, &point) : 0;
    *at += n;
    if (!has_bytes(out->bpe, text, n))
        return add_unknown(out, n, err);
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++)
        rc = token_list_add(out->list, (uint32_t)out->bpe->byte_ids[(unsigned char)text[i]], err);
    return rc;
}

/* Merges the symbols [0, n) of the piece and adds their ids. */
static int merge_and_add(struct output *out, uint32_t n, const char *piece, size_t n_bytes,
                         struct error *err)
{
    struct bpe_symbol *symbols = out->scratch->symbols;
    size_t at = 0;
    int rc = 0;
    if (n <= MOST_LINEAR) {
        n = merge_few(out->bpe, symbols, n);
        for (uint32_t i = 0; i < n && !rc; i++)
            rc = add_symbol(out, symbols[i].id, piece, n_bytes, &at, err);
        return rc;
    }
    rc = merge_many(out->bpe, out->scratch, n, err);
    for (uint32_t i = 0; i < n && !rc; i += symbols[i].link)
        rc = add_symbol(out, symbols[i].id, piece, n_bytes, &at, err);
    return rc;
}

static uint32_t byte_symbols(struct output *out, const char *piece, size_t n_bytes)
{
    struct bpe_symbol *symbols = out->scratch->symbols;
    uint32_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        int32_t id = out->bpe->byte_ids[(unsigned char)piece[i]];
        if (id == TOKENIZER_NO_ID) {
            (*out->n_lost)++;
            out->is_plain = false;
        } else {
            symbols[n++] = (struct bpe_symbol){(uint32_t)id, 1};
        }
    }
    return n;
}

/* Makes the start symbols of the characters. In a listed order of merges, a character without a
 * token is replaced here. */
static uint32_t character_symbols(struct output *out, const char *piece, size_t n_bytes)
{
    const struct bpe *bpe = out->bpe;
    struct bpe_symbol *symbols = out->scratch->symbols;
    uint32_t n = 0;
    for (size_t i = 0; i < n_bytes;) {
        uint32_t point;
        size_t n_char = utf8_decode(piece + i, n_bytes - i, &point);
        uint32_t id = char_map_find(&bpe->chars, point);
        if (id != UINT32_MAX || bpe->late_unknown || !has_bytes(bpe, piece + i, n_char)) {
            id = id == UINT32_MAX ? UNKNOWN_SYMBOL : id;
            symbols[n++] = (struct bpe_symbol){id, 1};
        } else {
            for (size_t b = 0; b < n_char; b++)
                symbols[n++] =
                    (struct bpe_symbol){(uint32_t)bpe->byte_ids[(unsigned char)piece[i + b]], 1};
        }
        i += n_char;
    }
    return n;
}

/* --- pieces that were merged before --- */

static struct bpe_word *word_of(struct bpe_scratch *s, const char *piece, size_t n_bytes)
{
    uint64_t a = 0, b = 0;
    if (!s->words || n_bytes > BPE_WORD_BYTES || n_bytes < 2)
        return NULL;
    if (n_bytes >= 8) {
        memcpy(&a, piece, 8);
        memcpy(&b, piece + n_bytes - 8, 8);
        if (n_bytes > 16) {
            uint64_t c;
            memcpy(&c, piece + 8, 8);
            a ^= c * 0xC2B2AE3D27D4EB4FULL;
        }
    } else {
        memcpy(&a, piece, n_bytes);
    }
    uint64_t h = (a ^ n_bytes) * 0x9E3779B97F4A7C15ULL;
    h = (h ^ h >> 29 ^ b) * 0xD6E8FEB86659FD93ULL;
    return &s->words[h >> (64 - LOG_WORDS)];
}

static bool is_word(const struct bpe_word *word, const char *piece, size_t n_bytes)
{
    return word && word->n_bytes == n_bytes && memcmp(word->bytes, piece, n_bytes) == 0;
}

static void keep_word(struct bpe_word *word, const char *piece, size_t n_bytes, const uint32_t *ids,
                      size_t n_ids)
{
    if (!word || n_ids > BPE_WORD_IDS)
        return;
    word->n_bytes = (uint8_t)n_bytes;
    word->n_ids = (uint8_t)n_ids;
    memcpy(word->bytes, piece, n_bytes);
    memcpy(word->ids, ids, n_ids * sizeof(*ids));
}

static int encode_part(struct output *out, const char *part, size_t n_bytes, struct error *err)
{
    struct bpe_word *word = word_of(out->scratch, part, n_bytes);
    int rc = 0;
    if (is_word(word, part, n_bytes)) {
        for (uint32_t i = 0; i < word->n_ids && !rc; i++)
            rc = token_list_add(out->list, word->ids[i], err);
        return rc;
    }
    rc = reserve_symbols(out->scratch, n_bytes, err);
    if (rc)
        return rc;
    out->is_plain = true;
    size_t before = out->list->n_ids;
    uint32_t n = out->bpe->by_characters ? character_symbols(out, part, n_bytes)
                                         : byte_symbols(out, part, n_bytes);
    if (n)
        rc = merge_and_add(out, n, part, n_bytes, err);
    if (!rc && out->is_plain)
        keep_word(word, part, n_bytes, out->list->ids + before, out->list->n_ids - before);
    return rc;
}

/* End of the longest part from `at` that merges may not leave. */
static size_t part_end(const struct bpe *bpe, const char *piece, size_t n_bytes, size_t at)
{
    uint32_t left, right;
    at += utf8_decode(piece + at, n_bytes - at, &left);
    while (at < n_bytes) {
        size_t n = utf8_decode(piece + at, n_bytes - at, &right);
        if (!may_join(bpe, left, right))
            break;
        left = right;
        at += n;
    }
    return at;
}

int bpe_encode(const struct bpe *bpe, const struct vocab *vocab, struct bpe_scratch *scratch,
               const char *piece, size_t n_bytes, struct token_list *list, size_t *n_lost,
               struct error *err)
{
    struct output out = {bpe, vocab, scratch, list, NULL, true};
    out.n_lost = n_lost;
    scratch->unknown_end = 0;
    if (!bpe->by_characters)
        return encode_part(&out, piece, n_bytes, err);
    int rc = 0;
    for (size_t at = 0; at < n_bytes && !rc;) {
        size_t end = part_end(bpe, piece, n_bytes, at);
        rc = encode_part(&out, piece + at, end - at, err);
        at = end;
    }
    return rc;
}
