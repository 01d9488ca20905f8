#include "engine/text/vocab.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "engine/format/checkpoint.h"
#include "engine/format/escape.h"

#define TOKENS_KEY "tokenizer.ggml.tokens"
#define TYPES_KEY  "tokenizer.ggml.token_type"

/* Values of tokenizer.ggml.token_type. */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_UNUSED, TYPE_BYTE };

static int out_of_memory(struct error *err)
{
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "vocabulary: out of memory");
}

/* --- GPT-2's byte alphabet: printable Latin-1 represents itself; the other 68 bytes are U+0100 and
 * up, in order --- */

static bool is_printable(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/* The byte of a code point, or -1. */
static int alphabet_byte(uint32_t point)
{
    if (point < 0x100)
        return is_printable(point) ? (int)point : -1;
    uint32_t rank = point - 0x100;
    for (uint32_t byte = 0; byte < 0x100 && rank < 68; byte++)
        if (!is_printable(byte) && !rank--)
            return (int)byte;
    return -1;
}

/* Decodes a normal token into `out` (as long as the text, at most). Returns false if a character is
 * not in the alphabet: the bytes are then the text itself. */
static bool spell_bytes(const int16_t map[0x144], const char *text, size_t n_text, char *out,
                        uint32_t *out_n)
{
    uint32_t n = 0;
    for (size_t i = 0; i < n_text;) {
        uint32_t point;
        i += utf8_decode(text + i, n_text - i, &point);
        if (point >= 0x144 || map[point] < 0)
            return false;
        out[n++] = (char)map[point];
    }
    *out_n = n;
    return true;
}

/* The value of "<0x1F>" is 0x1F. Returns -1 for other texts. */
static int byte_token(const char *text, size_t n)
{
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* --- index by text --- */

/* A keyed hash (the multiply-mix of wyhash): the halves of a product are folded. Each factor
 * contains a secret, so that no text can make a factor zero. */
__extension__ typedef unsigned __int128 wide;

static uint64_t fold_product(uint64_t a, uint64_t b)
{
    wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t eight_at(const char *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof(word));
    return word;
}

static uint64_t four_at(const char *p)
{
    uint32_t word;
    memcpy(&word, p, sizeof(word));
    return word;
}

static uint64_t hash_spelling(const struct vocab *vocab, const char *p, size_t n_bytes)
{
    const uint64_t secret = vocab->seed[1];
    uint64_t h = vocab->seed[0] ^ n_bytes, a = 0, b = 0;
    size_t n = n_bytes;
    for (; n > 16; n -= 16, p += 16)
        h = fold_product(eight_at(p) ^ secret, eight_at(p + 8) ^ h);
    if (n >= 8) { /* the rest, by overlapping loads */
        a = eight_at(p);
        b = eight_at(p + n - 8);
    } else if (n >= 4) {
        a = four_at(p);
        b = four_at(p + n - 4);
    } else if (n) {
        a = (uint64_t)(unsigned char)p[0] << 16 | (uint64_t)(unsigned char)p[n / 2] << 8 |
            (unsigned char)p[n - 1];
    }
    return fold_product(fold_product(a ^ secret, b ^ h) ^ vocab->seed[0], secret ^ n_bytes);
}

/* Slots are prefetched this many look-ups ahead. */
enum { N_AHEAD = 16 };

static int index_init(struct vocab_index *index, struct arena *arena, uint32_t n_tokens,
                      struct error *err)
{
    uint32_t n_slots = 16;
    while (n_slots < 2 * n_tokens)
        n_slots *= 2;
    index->slots = arena_calloc(arena, n_slots, sizeof(*index->slots));
    index->mask = n_slots - 1;
    return index->slots ? 0 : out_of_memory(err);
}

static uint32_t tag_of(uint64_t hash)
{
    return (uint32_t)(hash >> 32);
}

static void fetch_slot(const struct vocab_index *index, uint64_t hash)
{
    __builtin_prefetch(&index->slots[(uint32_t)hash & index->mask]);
}

/* The slot that holds an equal text (or equal bytes), or the free slot where it belongs. */
static struct vocab_slot *slot_of(const struct vocab *vocab, const struct vocab_index *index,
                                  const char *bytes, size_t n_bytes, uint64_t hash)
{
    bool text = index == &vocab->by_text;
    uint32_t i = (uint32_t)hash & index->mask;
    for (; index->slots[i].id_plus_1; i = (i + 1) & index->mask) {
        if (index->slots[i].tag != tag_of(hash))
            continue;
        const struct token *t = &vocab->tokens[index->slots[i].id_plus_1 - 1];
        const char *own = text ? t->text : t->bytes;
        if ((text ? t->n_text : t->n_bytes) == n_bytes && memcmp(own, bytes, n_bytes) == 0)
            break;
    }
    return &index->slots[i];
}

int32_t vocab_find_bytes(const struct vocab *vocab, const char *bytes, size_t n_bytes)
{
    uint64_t hash = hash_spelling(vocab, bytes, n_bytes);
    return (int32_t)slot_of(vocab, &vocab->by_bytes, bytes, n_bytes, hash)->id_plus_1 - 1;
}

/* A look-up in progress. */
struct search {
    uint64_t hash;
    uint32_t at; /* slot */
    const struct token *candidate;
};

/* Advances search->at to the next slot with the tag, or to a free slot (no candidate). */
static void next_candidate(const struct vocab *vocab, struct search *search)
{
    const struct vocab_index *index = &vocab->by_text;
    const struct vocab_slot *slots = index->slots;
    while (slots[search->at].id_plus_1 && slots[search->at].tag != tag_of(search->hash))
        search->at = (search->at + 1) & index->mask;
    uint32_t id_plus_1 = slots[search->at].id_plus_1;
    search->candidate = id_plus_1 ? &vocab->tokens[id_plus_1 - 1] : NULL;
}

static uint64_t hash_key(const struct vocab *vocab, const struct vocab_key *key)
{
    char joined[TOKENIZER_MAX_TOKEN_BYTES];
    if (key->skipped >= key->n_bytes)
        return hash_spelling(vocab, key->text, key->n_bytes);
    if (key->n_bytes - 1 > sizeof(joined)) /* longer than any token: hash 0 finds nothing */
        return 0;
    memcpy(joined, key->text, key->skipped);
    memcpy(joined + key->skipped, key->text + key->skipped + 1, key->n_bytes - key->skipped - 1);
    return hash_spelling(vocab, joined, key->n_bytes - 1);
}

static bool is_key(const struct token *t, const struct vocab_key *key)
{
    if (key->skipped >= key->n_bytes)
        return t->n_text == key->n_bytes && memcmp(t->text, key->text, key->n_bytes) == 0;
    return t->n_text == key->n_bytes - 1 && memcmp(t->text, key->text, key->skipped) == 0 &&
           memcmp(t->text + key->skipped, key->text + key->skipped + 1,
                  key->n_bytes - key->skipped - 1) == 0;
}

void vocab_find_texts(const struct vocab *vocab, const struct vocab_key *keys, size_t n,
                      int32_t *out_ids)
{
    struct search searches[VOCAB_MAX_KEYS];
    for (size_t i = 0; i < n; i++) {
        uint64_t hash = hash_key(vocab, &keys[i]);
        searches[i] = (struct search){hash, (uint32_t)hash & vocab->by_text.mask, NULL};
        fetch_slot(&vocab->by_text, hash);
    }
    for (size_t i = 0; i < n; i++) {
        next_candidate(vocab, &searches[i]);
        __builtin_prefetch(searches[i].candidate);
    }
    for (size_t i = 0; i < n; i++)
        if (searches[i].candidate)
            __builtin_prefetch(searches[i].candidate->text);
    for (size_t i = 0; i < n; i++) {
        struct search *search = &searches[i];
        while (search->candidate && !is_key(search->candidate, &keys[i])) {
            search->at = (search->at + 1) & vocab->by_text.mask;
            next_candidate(vocab, search);
        }
        out_ids[i] =
            search->candidate ? (int32_t)(search->candidate - vocab->tokens) : TOKENIZER_NO_ID;
    }
}

/* --- loading --- */

static int bad_token(const struct checkpoint *ckpt, uint64_t i, const char *text, size_t n_text,
                     const char *why, struct error *err)
{
    char escaped[ESCAPE_MAX_BYTES];
    return checkpoint_bad_key(ckpt, TOKENS_KEY, err, "element [%" PRIu64 "] \"%s\" %s", i,
                              escape_text(text, n_text, escaped), why);
}

static int load_kind(const struct checkpoint *ckpt, const struct checkpoint_array *types,
                     uint64_t i, enum token_kind *out_kind, bool *out_is_byte, struct error *err)
{
    int64_t type = types->n ? checkpoint_array_int(types, i) : TYPE_NORMAL;
    *out_is_byte = type == TYPE_BYTE;
    switch (type) {
    case TYPE_NORMAL:
    case TYPE_BYTE:
        *out_kind = TOKEN_NORMAL;
        return 0;
    case TYPE_UNKNOWN:
    case TYPE_CONTROL:
        *out_kind = TOKEN_CONTROL;
        return 0;
    case TYPE_USER_DEFINED:
        *out_kind = TOKEN_USER_DEFINED;
        return 0;
    case TYPE_UNUSED:
        *out_kind = TOKEN_UNUSED;
        return 0;
    default:
        return checkpoint_bad_key(ckpt, TYPES_KEY, err,
                                  "element [%" PRIu64 "] is %" PRId64 ", expected %d to %d", i,
                                  type, TYPE_NORMAL, TYPE_BYTE);
    }
}

static int check_token(const struct checkpoint *ckpt, uint64_t i, const char *text, size_t n_text,
                       enum token_kind kind, struct error *err)
{
    if (n_text > TOKENIZER_MAX_TOKEN_BYTES)
        return bad_token(ckpt, i, text, n_text, "is over the limit of 8192 bytes", err);
    if ((kind == TOKEN_CONTROL || kind == TOKEN_USER_DEFINED) &&
        n_text > TOKENIZER_MAX_SPECIAL_BYTES)
        return bad_token(ckpt, i, text, n_text,
                         "is over the limit of 512 bytes for a special token", err);
    return 0;
}

static int load_token(struct vocab *vocab, const struct checkpoint *ckpt,
                      const struct checkpoint_array *tokens, const struct checkpoint_array *types,
                      const int16_t map[0x144], uint64_t i, struct error *err)
{
    struct token *t = &vocab->tokens[i];
    size_t n_text;
    bool is_byte;
    char placeholder[32];
    const char *text = checkpoint_array_string(tokens, i, &n_text);
    if (!n_text) { /* the placeholder of llama.cpp */
        n_text = (size_t)snprintf(placeholder, sizeof(placeholder), "[EMPTY_%" PRIu64 "]", i);
        text = placeholder;
        if (!vocab->n_empty++)
            vocab->first_empty = (uint32_t)i;
    }
    int rc = load_kind(ckpt, types, i, &t->kind, &is_byte, err);
    if (!rc)
        rc = check_token(ckpt, i, text, n_text, t->kind, err);
    if (rc)
        return rc;
    char bytes[TOKENIZER_MAX_TOKEN_BYTES];
    t->text = arena_strndup(&vocab->arena, text, n_text);
    t->n_text = (uint32_t)n_text;
    if (is_byte) {
        int value = byte_token(text, n_text);
        if (value < 0)
            return bad_token(ckpt, i, text, n_text, "is of type byte and not of the form <0xNN>",
                             err);
        bytes[0] = (char)value;
        t->n_bytes = 1;
    } else if (t->kind != TOKEN_NORMAL || !spell_bytes(map, text, n_text, bytes, &t->n_bytes)) {
        memcpy(bytes, text, n_text);
        t->n_bytes = (uint32_t)n_text;
    }
    bool same = t->n_bytes == n_text && memcmp(bytes, text, n_text) == 0;
    t->bytes = same ? t->text : arena_strndup(&vocab->arena, bytes, t->n_bytes);
    if (!t->text || !t->bytes)
        return out_of_memory(err);
    if (t->n_bytes > vocab->max_token_bytes)
        vocab->max_token_bytes = t->n_bytes;
    return 0;
}

static int index_texts(struct vocab *vocab, const struct checkpoint *ckpt, const uint64_t *hashes,
                       struct error *err)
{
    for (uint32_t i = 0; i < vocab->n_tokens; i++) {
        const struct token *t = &vocab->tokens[i];
        if (i + N_AHEAD < vocab->n_tokens)
            fetch_slot(&vocab->by_text, hashes[i + N_AHEAD]);
        struct vocab_slot *slot = slot_of(vocab, &vocab->by_text, t->text, t->n_text, hashes[i]);
        if (slot->id_plus_1)
            return bad_token(ckpt, i, t->text, t->n_text, "occurs twice", err);
        *slot = (struct vocab_slot){tag_of(hashes[i]), i + 1};
    }
    return 0;
}

/* Normal tokens are added first, so that they take precedence. */
static void index_bytes(struct vocab *vocab, const uint64_t *hashes)
{
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < vocab->n_tokens; i++) {
            const struct token *t = &vocab->tokens[i];
            if (i + N_AHEAD < vocab->n_tokens)
                fetch_slot(&vocab->by_bytes, hashes[i + N_AHEAD]);
            if ((t->kind == TOKEN_NORMAL) != (pass == 0))
                continue;
            struct vocab_slot *slot =
                slot_of(vocab, &vocab->by_bytes, t->bytes, t->n_bytes, hashes[i]);
            if (!slot->id_plus_1)
                *slot = (struct vocab_slot){tag_of(hashes[i]), i + 1};
        }
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        int32_t id = vocab_find_bytes(vocab, &byte, 1);
        bool normal = id >= 0 && vocab->tokens[id].kind == TOKEN_NORMAL;
        vocab->byte_ids[b] = normal ? id : TOKENIZER_NO_ID;
    }
}

/* Builds the indices by text and by bytes. Random seeds: hostile files cannot construct
 * collisions. */
static int make_indices(struct vocab *vocab, const struct checkpoint *ckpt, struct error *err)
{
    uint64_t *hashes = calloc(vocab->n_tokens, sizeof(*hashes));
    vocab->seed[0] = rng_u64();
    vocab->seed[1] = rng_u64();
    int rc = hashes ? 0 : out_of_memory(err);
    if (!rc)
        rc = index_init(&vocab->by_text, &vocab->arena, vocab->n_tokens, err);
    if (!rc)
        rc = index_init(&vocab->by_bytes, &vocab->arena, vocab->n_tokens, err);
    for (uint32_t i = 0; !rc && i < vocab->n_tokens; i++)
        hashes[i] = hash_spelling(vocab, vocab->tokens[i].text, vocab->tokens[i].n_text);
    if (!rc)
        rc = index_texts(vocab, ckpt, hashes, err);
    for (uint32_t i = 0; !rc && i < vocab->n_tokens; i++)
        if (vocab->tokens[i].bytes != vocab->tokens[i].text)
            hashes[i] = hash_spelling(vocab, vocab->tokens[i].bytes, vocab->tokens[i].n_bytes);
    if (!rc)
        index_bytes(vocab, hashes);
    free(hashes);
    return rc;
}

static int compare_specials(const void *a, const void *b)
{
    const struct special *x = a;
    const struct special *y = b;
    uint32_t n = x->n_bytes < y->n_bytes ? x->n_bytes : y->n_bytes;
    int order = memcmp(x->bytes, y->bytes, n);
    if (order)
        return order;
    return x->n_bytes < y->n_bytes ? -1 : x->n_bytes > y->n_bytes;
}

static int sort_specials(struct vocab *vocab, struct error *err)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < vocab->n_tokens; i++)
        n += vocab->tokens[i].kind == TOKEN_CONTROL || vocab->tokens[i].kind == TOKEN_USER_DEFINED;
    vocab->specials = arena_calloc(&vocab->arena, n + 1, sizeof(*vocab->specials));
    if (!vocab->specials)
        return out_of_memory(err);
    for (uint32_t i = 0; i < vocab->n_tokens; i++) {
        const struct token *t = &vocab->tokens[i];
        if (t->kind == TOKEN_CONTROL || t->kind == TOKEN_USER_DEFINED)
            vocab->specials[vocab->n_specials++] = (struct special){t->bytes, t->n_bytes, i};
    }
    qsort(vocab->specials, n, sizeof(*vocab->specials), compare_specials);
    uint32_t at = 0;
    for (int b = 0; b < 256; b++) {
        vocab->specials_begin[b] = at;
        while (at < n && (unsigned char)vocab->specials[at].bytes[0] == b)
            at++;
    }
    vocab->specials_begin[256] = n;
    return 0;
}

int vocab_load(struct vocab *vocab, const struct checkpoint *ckpt, struct error *err)
{
    struct checkpoint_array tokens, types = {0};
    int16_t map[0x144];
    arena_init(&vocab->arena, 1 << 20, 0);
    int rc = checkpoint_get_array(ckpt, TOKENS_KEY, CHECKPOINT_STRING, &tokens, err);
    if (rc)
        return rc;
    if (tokens.n < 1 || tokens.n > TOKENIZER_MAX_VOCAB)
        return checkpoint_bad_key(ckpt, TOKENS_KEY, err, "%" PRIu64 " tokens, expected 1 to %d",
                                  tokens.n, TOKENIZER_MAX_VOCAB);
    if (checkpoint_has(ckpt, TYPES_KEY)) {
        rc = checkpoint_get_array(ckpt, TYPES_KEY, CHECKPOINT_INT, &types, err);
        if (rc)
            return rc;
        if (types.n != tokens.n)
            return checkpoint_bad_key(ckpt, TYPES_KEY, err,
                                      "%" PRIu64 " elements for %" PRIu64 " tokens", types.n,
                                      tokens.n);
    }
    for (uint32_t point = 0; point < 0x144; point++)
        map[point] = (int16_t)alphabet_byte(point);
    vocab->n_tokens = (uint32_t)tokens.n;
    vocab->tokens = arena_calloc(&vocab->arena, tokens.n, sizeof(*vocab->tokens));
    if (!vocab->tokens)
        return out_of_memory(err);
    for (uint64_t i = 0; i < tokens.n && !rc; i++)
        rc = load_token(vocab, ckpt, &tokens, &types, map, i, err);
    if (!rc)
        rc = make_indices(vocab, ckpt, err);
    return rc ? rc : sort_specials(vocab, err);
}

void vocab_fini(struct vocab *vocab)
{
    arena_fini(&vocab->arena);
    *vocab = (struct vocab){0};
}

/* First entry of [low, high) whose byte at `depth` is at least `byte`. All entries share the bytes
 * before `depth`, and are longer. */
static uint32_t lower_bound(const struct special *specials, uint32_t low, uint32_t high,
                            uint32_t depth, int byte)
{
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if ((unsigned char)specials[mid].bytes[depth] < byte)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

int32_t vocab_match_special(const struct vocab *vocab, const char *text, size_t n_bytes,
                            bool control)
{
    if (!n_bytes)
        return TOKENIZER_NO_ID;
    int32_t found = TOKENIZER_NO_ID;
    uint32_t low = vocab->specials_begin[(unsigned char)text[0]];
    uint32_t high = vocab->specials_begin[(unsigned char)text[0] + 1];
    for (uint32_t depth = 1; low < high; depth++) {
        /* The entry that ends here sorts first; texts are unique. */
        if (vocab->specials[low].n_bytes == depth) {
            uint32_t id = vocab->specials[low].id;
            if (control || vocab->tokens[id].kind == TOKEN_USER_DEFINED)
                found = (int32_t)id;
            low++;
        }
        if (depth == n_bytes)
            break;
        int byte = (unsigned char)text[depth];
        low = lower_bound(vocab->specials, low, high, depth, byte);
        high = lower_bound(vocab->specials, low, high, depth, byte + 1);
    }
    return found;
}
