#include "engine/text/vocab/vocab.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/text/escape.h"
#include "base/utf8.h"

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
    return index->slots ? 0 : text_facts_no_memory(err);
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

int32_t vocab_find_text(const struct vocab *vocab, const char *text, size_t n_bytes)
{
    uint64_t hash = hash_spelling(vocab, text, n_bytes);
    return (int32_t)slot_of(vocab, &vocab->by_text, text, n_bytes, hash)->id_plus_1 - 1;
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

static int bad_token(const struct text_facts *facts, uint32_t i, const char *why, struct error *err)
{
    char escaped[ESCAPE_MAX_BYTES];
    const struct text_token *t = &facts->tokens[i];
    return text_facts_bad(facts, facts->tokens_key, err, "element [%" PRIu32 "] \"%s\" %s", i,
                          escape_text(t->text, t->n_text, escaped), why);
}

static int check_token(const struct text_facts *facts, uint32_t i, struct error *err)
{
    const struct text_token *t = &facts->tokens[i];
    if (t->n_text > TOKENIZER_MAX_TOKEN_BYTES)
        return bad_token(facts, i, "is over the limit of 8192 bytes", err);
    if ((t->kind == TOKEN_CONTROL || t->kind == TOKEN_USER_DEFINED) &&
        t->n_text > TOKENIZER_MAX_SPECIAL_BYTES)
        return bad_token(facts, i, "is over the limit of 512 bytes for a special token", err);
    if (t->flags & TOKEN_IS_BYTE && text_facts_byte_of(t->text, t->n_text) < 0)
        return bad_token(facts, i, "is of type byte and not of the form <0xNN>", err);
    return 0;
}

/* Writes the text with U+2581 as a space. */
static uint32_t spell_marks(const char *text, uint32_t n_text, char *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_text;) {
        bool mark = n_text - i >= 3 && memcmp(text + i, "\xE2\x96\x81", 3) == 0;
        out[n++] = mark ? ' ' : text[i];
        i += mark ? 3 : 1;
    }
    return n;
}

/* Writes the bytes that the token decodes to; at most as many as its text has. */
static uint32_t spell(const struct text_facts *facts, const struct text_token *t,
                      const int16_t map[0x144], char *out)
{
    uint32_t n;
    if (t->flags & TOKEN_IS_BYTE) {
        out[0] = (char)text_facts_byte_of(t->text, t->n_text);
        return 1;
    }
    bool literal = t->kind == TOKEN_CONTROL;
    if (!literal && facts->spelling == TEXT_SPELLS_MARKS)
        return spell_marks(t->text, t->n_text, out);
    if (t->kind == TOKEN_NORMAL && facts->spelling == TEXT_SPELLS_ALPHABET &&
        spell_bytes(map, t->text, t->n_text, out, &n))
        return n;
    memcpy(out, t->text, t->n_text);
    return t->n_text;
}

static int load_token(struct vocab *vocab, const struct text_facts *facts, const int16_t map[0x144],
                      uint32_t i, struct error *err)
{
    struct token *t = &vocab->tokens[i];
    struct text_token from = facts->tokens[i];
    char placeholder[32], bytes[TOKENIZER_MAX_TOKEN_BYTES];
    if (!from.n_text) { /* the placeholder of llama.cpp */
        bool is_hole = !from.text;
        from = (struct text_token){.text = placeholder,
                                   .kind = from.text ? from.kind : (uint8_t)TOKEN_UNUSED};
        from.n_text =
            (uint32_t)snprintf(placeholder, sizeof(placeholder), "[EMPTY_%" PRIu32 "]", i);
        from.flags = is_hole ? TOKEN_IS_HOLE : 0;
        vocab->n_holes += is_hole;
        if (!is_hole && !vocab->n_empty++)
            vocab->first_empty = i;
    } else {
        int rc = check_token(facts, i, err);
        if (rc)
            return rc;
    }
    t->kind = from.kind;
    t->flags = from.flags;
    t->text = arena_strndup(&vocab->arena, from.text, from.n_text);
    t->n_text = from.n_text;
    t->n_bytes = spell(facts, &from, map, bytes);
    bool same = t->n_bytes == t->n_text && memcmp(bytes, from.text, t->n_text) == 0;
    t->bytes = same ? t->text : arena_strndup(&vocab->arena, bytes, t->n_bytes);
    if (!t->text || !t->bytes)
        return text_facts_no_memory(err);
    if (t->n_bytes > vocab->max_token_bytes)
        vocab->max_token_bytes = t->n_bytes;
    return 0;
}

/* Normal tokens are added first, so that they take precedence. Returns the token whose spelling
 * occurred before, or n_tokens; without `all`, only a normal token counts. */
static uint32_t fill_index(struct vocab *vocab, struct vocab_index *index, const uint64_t *hashes,
                           bool all)
{
    bool text = index == &vocab->by_text;
    uint32_t twice = vocab->n_tokens;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < vocab->n_tokens; i++) {
            const struct token *t = &vocab->tokens[i];
            if (i + N_AHEAD < vocab->n_tokens)
                fetch_slot(index, hashes[i + N_AHEAD]);
            if ((t->kind == TOKEN_NORMAL && !(t->flags & TOKEN_IS_BYTE && text)) != (pass == 0))
                continue;
            struct vocab_slot *slot = slot_of(vocab, index, text ? t->text : t->bytes,
                                              text ? t->n_text : t->n_bytes, hashes[i]);
            if (!slot->id_plus_1)
                *slot = (struct vocab_slot){tag_of(hashes[i]), i + 1};
            else if (pass == 0 || all)
                twice = twice < i ? twice : i;
        }
    return twice;
}

static void find_bytes(struct vocab *vocab)
{
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        int32_t id = vocab_find_bytes(vocab, &byte, 1);
        bool normal = id >= 0 && vocab->tokens[id].kind == TOKEN_NORMAL;
        vocab->byte_ids[b] = normal ? id : TOKENIZER_NO_ID;
    }
}

/* Builds the indices by text and by bytes. Random seeds: hostile files cannot construct
 * collisions. */
static int make_indices(struct vocab *vocab, const struct text_facts *facts, struct error *err)
{
    uint64_t *hashes = calloc(vocab->n_tokens, sizeof(*hashes));
    vocab->seed[0] = rng_u64();
    vocab->seed[1] = rng_u64();
    int rc = hashes ? 0 : text_facts_no_memory(err);
    if (!rc)
        rc = index_init(&vocab->by_text, &vocab->arena, vocab->n_tokens, err);
    if (!rc)
        rc = index_init(&vocab->by_bytes, &vocab->arena, vocab->n_tokens, err);
    for (uint32_t i = 0; !rc && i < vocab->n_tokens; i++)
        hashes[i] = hash_spelling(vocab, vocab->tokens[i].text, vocab->tokens[i].n_text);
    if (!rc) {
        uint32_t twice = fill_index(vocab, &vocab->by_text, hashes, facts->texts_differ);
        if (twice < vocab->n_tokens)
            rc = bad_token(facts, twice, "occurs twice", err);
    }
    for (uint32_t i = 0; !rc && i < vocab->n_tokens; i++)
        if (vocab->tokens[i].bytes != vocab->tokens[i].text)
            hashes[i] = hash_spelling(vocab, vocab->tokens[i].bytes, vocab->tokens[i].n_bytes);
    if (!rc)
        fill_index(vocab, &vocab->by_bytes, hashes, false);
    if (!rc)
        find_bytes(vocab);
    free(hashes);
    return rc;
}

int vocab_load(struct vocab *vocab, const struct text_facts *facts, struct error *err)
{
    int16_t map[0x144];
    arena_init(&vocab->arena, 1 << 20, 0);
    for (uint32_t point = 0; point < 0x144; point++)
        map[point] = (int16_t)alphabet_byte(point);
    vocab->n_tokens = facts->n_tokens;
    vocab->tokens = arena_calloc(&vocab->arena, facts->n_tokens, sizeof(*vocab->tokens));
    if (!vocab->tokens)
        return text_facts_no_memory(err);
    int rc = 0;
    for (uint32_t i = 0; i < facts->n_tokens && !rc; i++)
        rc = load_token(vocab, facts, map, i, err);
    return rc ? rc : make_indices(vocab, facts, err);
}

void vocab_fini(struct vocab *vocab)
{
    arena_fini(&vocab->arena);
    *vocab = (struct vocab){0};
}
