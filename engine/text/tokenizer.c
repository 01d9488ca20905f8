#include "engine/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/utf8.h"
#include "engine/text/rules/normalizer.h"
#include "engine/text/rules/pattern.h"
#include "engine/text/rules/pretokenizer.h"
#include "engine/text/tokenizer_private.h"

enum { MAX_TEXT_BYTES = 1 << 28 };

const struct tokenizer_info *tokenizer_info(const struct tokenizer *tok)
{
    return &tok->info;
}

/* --- encoding --- */

struct encoding {
    const struct tokenizer *tok;
    struct token_list *list;
    struct pattern_scratch *patterns;
    struct bpe_scratch bpe;
    struct strbuf text, part, spare, stand_in;
    size_t n_lost;
    bool control;                /* control tokens are matched */
    bool no_fim;                 /* tokens of fim_ids are not matched */
    bool goes_on;                /* no space is put before the text */
    const size_t *no_control_at; /* ascending; entries before i_place are passed */
    size_t n_places, i_place;
};

static bool is_guarded(struct encoding *e, size_t at)
{
    while (e->i_place < e->n_places && e->no_control_at[e->i_place] < at)
        e->i_place++;
    return e->i_place < e->n_places && e->no_control_at[e->i_place] == at;
}

static bool is_whole(const struct tokenizer *tok, const char *piece, size_t n_bytes)
{
    if (tok->whole_first || !tok->whole_newlines)
        return tok->whole_first;
    for (size_t i = 0; i < n_bytes; i++)
        if (piece[i] != '\n')
            return false;
    return true;
}

static int on_piece(void *user, const char *piece, size_t n_bytes, struct error *err)
{
    struct encoding *e = user;
    const struct vocab *vocab = &e->tok->vocab;
    if (is_whole(e->tok, piece, n_bytes)) {
        int32_t id = e->tok->by_characters ? vocab_find_text(vocab, piece, n_bytes)
                                           : vocab_find_bytes(vocab, piece, n_bytes);
        if (id >= 0 && vocab->tokens[id].kind == TOKEN_NORMAL)
            return token_list_add(e->list, (uint32_t)id, err);
    }
    return bpe_encode(&e->tok->bpe, vocab, &e->bpe, piece, n_bytes, e->list, &e->n_lost, err);
}

static enum normalizer_place place_of(const struct encoding *e, bool is_first)
{
    if (!is_first)
        return NORMALIZER_INSIDE;
    return e->goes_on ? NORMALIZER_GOES_ON : NORMALIZER_FIRST;
}

/* Encodes a text without literals. */
static int encode_plain(struct encoding *e, const char *text, size_t n_bytes, bool is_first,
                        struct error *err)
{
    const struct tokenizer *tok = e->tok;
    uint32_t first = tok->n_before_literals, end = normalizer_n_steps(tok->normalizer);
    if (n_bytes && first < end) {
        strbuf_clear(&e->part);
        if (!strbuf_add(&e->part, text, n_bytes))
            return text_facts_no_memory(err);
        int rc = normalizer_apply(tok->normalizer, first, end, e->patterns, place_of(e, is_first),
                                  &e->part, &e->spare, err);
        if (rc)
            return rc;
        text = strbuf_str(&e->part);
        n_bytes = e->part.n_bytes;
    }
    return pretokenizer_split(tok->pre, e->patterns, &e->stand_in, text, n_bytes, on_piece, e, err);
}

/* --- literals --- */

static bool is_white(uint32_t point)
{
    return (point >= 9 && point <= 13) || point == ' ' || point == 0x85 || point == 0xA0 ||
           point == 0x1680 || (point >= 0x2000 && point <= 0x200A) || point == 0x2028 ||
           point == 0x2029 || point == 0x202F || point == 0x205F || point == 0x3000;
}

/* A letter, mark, decimal digit, connector or joiner, as \w in Rust's patterns. */
static bool is_word(uint32_t point)
{
    if (point == 0x200C || point == 0x200D || (point >= 0x24B6 && point <= 0x24E9) ||
        (point >= 0x1F130 && point <= 0x1F149) || (point >= 0x1F150 && point <= 0x1F169) ||
        (point >= 0x1F170 && point <= 0x1F189))
        return true;
    switch (utf8proc_category((utf8proc_int32_t)point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return false;
    }
}

/* Start of the character that ends at `end`. */
static size_t before(const char *text, size_t end, uint32_t *out_point)
{
    size_t at = end - 1;
    while (at && ((unsigned char)text[at] & 0xC0) == 0x80)
        at--;
    utf8_decode(text + at, end - at, out_point);
    return at;
}

static bool stands_alone(const char *text, size_t n_bytes, size_t from, size_t to)
{
    uint32_t point;
    if (from && (before(text, from, &point), is_word(point)))
        return false;
    return to == n_bytes || (utf8_decode(text + to, n_bytes - to, &point), !is_word(point));
}

/* Widens the range of a literal over the white space that the literal takes, but not below
 * `least`. */
static void widen(uint8_t flags, const char *text, size_t n_bytes, size_t least, size_t *from,
                  size_t *to)
{
    uint32_t point;
    size_t n;
    while (flags & TOKEN_TAKES_LEFT && *from > least) {
        size_t at = before(text, *from, &point);
        if (!is_white(point))
            break;
        *from = at;
    }
    while (flags & TOKEN_TAKES_RIGHT && *to < n_bytes) {
        n = utf8_decode(text + *to, n_bytes - *to, &point);
        if (!is_white(point))
            break;
        *to += n;
    }
}

static bool is_fim(const struct tokenizer *tok, int32_t id)
{
    for (uint32_t i = 0; i < TOKENIZER_N_FIM; i++)
        if (tok->info.fim_ids[i] == id)
            return true;
    return false;
}

typedef int gap_fn(struct encoding *e, const char *text, size_t n_bytes, bool is_first,
                   struct error *err);

/* Splits a text by literals: the leftmost first, the longest of those. The text between them goes
 * to on_gap. `raw`: guarded places are offsets of this text. */
static int split_literals(struct encoding *e, const struct literals *lits, bool raw,
                          const char *text, size_t n_bytes, bool is_first, gap_fn *on_gap,
                          struct error *err)
{
    const struct vocab *vocab = &e->tok->vocab;
    size_t begin = 0, n_literal = 0;
    for (size_t i = 0; i < n_bytes;) {
        int32_t id = TOKENIZER_NO_ID;
        if (literals_may_begin(lits, text[i])) {
            bool control = e->control && (raw ? !is_guarded(e, i) : !e->n_places);
            id = literals_match(lits, vocab, text + i, n_bytes - i, control, &n_literal);
            if (e->no_fim && is_fim(e->tok, id))
                id = TOKENIZER_NO_ID;
        }
        if (id == TOKENIZER_NO_ID) {
            i++;
            continue;
        }
        uint8_t flags = vocab->tokens[id].flags;
        size_t from = i, to = i + n_literal;
        i = to;
        if (flags & TOKEN_WHOLE_WORD && !stands_alone(text, n_bytes, from, to))
            continue;
        if (flags & (TOKEN_TAKES_LEFT | TOKEN_TAKES_RIGHT))
            widen(flags, text, n_bytes, begin, &from, &to);
        int rc =
            from > begin ? on_gap(e, text + begin, from - begin, is_first && begin == 0, err) : 0;
        if (!rc)
            rc = token_list_add(e->list, (uint32_t)id, err);
        if (rc)
            return rc;
        begin = to; /* a literal within the white space that was taken is still matched */
    }
    return begin < n_bytes ? on_gap(e, text + begin, n_bytes - begin, is_first && begin == 0, err)
                           : 0;
}

/* Encodes a text between the literals that are matched as they are. */
static int encode_gap(struct encoding *e, const char *text, size_t n_bytes, bool is_first,
                      struct error *err)
{
    const struct tokenizer *tok = e->tok;
    if (tok->n_before_literals) {
        strbuf_clear(&e->text);
        if (!strbuf_add(&e->text, text, n_bytes))
            return text_facts_no_memory(err);
        int rc = normalizer_apply(tok->normalizer, 0, tok->n_before_literals, e->patterns,
                                  place_of(e, is_first), &e->text, &e->spare, err);
        if (rc)
            return rc;
        text = strbuf_str(&e->text);
        n_bytes = e->text.n_bytes;
    }
    if (!tok->normalized.n_rows)
        return encode_plain(e, text, n_bytes, is_first, err);
    return split_literals(e, &tok->normalized, false, text, n_bytes, is_first, encode_plain, err);
}

/* Adds ids around the prompt. A prompt that begins with the last id of the prefix does not repeat
 * this id. */
static int add_prefix(struct encoding *e, struct error *err)
{
    const struct tokenizer_info *info = &e->tok->info;
    int rc = 0;
    for (uint32_t i = 0; i < info->n_prefix && !rc; i++)
        rc = token_list_add(e->list, info->prefix[i], err);
    return rc;
}

static void drop_second_bos(const struct tokenizer_info *info, struct token_list *list, size_t at)
{
    if (!info->n_prefix || list->n_ids <= at || list->ids[at] != info->prefix[info->n_prefix - 1] ||
        (int32_t)list->ids[at] != info->bos_id)
        return;
    memmove(list->ids + at, list->ids + at + 1, (list->n_ids - at - 1) * sizeof(*list->ids));
    list->n_ids--;
}

static void free_scratch(struct encoding *e)
{
    pattern_scratch_destroy(e->patterns);
    bpe_scratch_fini(&e->bpe);
    strbuf_fini(&e->text);
    strbuf_fini(&e->part);
    strbuf_fini(&e->spare);
    strbuf_fini(&e->stand_in);
}

static int encode(struct encoding *e, const char *text, size_t n_bytes, unsigned flags,
                  struct error *err)
{
    const struct tokenizer_info *info = &e->tok->info;
    struct token_list *list = e->list;
    size_t n_before = list->n_ids;
    size_t wrong;
    if (n_bytes > MAX_TEXT_BYTES)
        return error_field(err, "text", "%zu bytes are over the limit of %d", n_bytes,
                           MAX_TEXT_BYTES);
    if (!utf8_valid(text, n_bytes, &wrong))
        return error_field(err, "text", "not valid UTF-8 at byte %zu", wrong);
    e->control = flags & TOKENIZER_PARSE_SPECIAL;
    e->no_fim = flags & TOKENIZER_NO_FIM;
    e->goes_on = flags & TOKENIZER_NO_SPACE;
    bpe_scratch_init(&e->bpe, n_bytes);
    int rc = pattern_scratch_create(&e->patterns, err);
    if (!rc && flags & TOKENIZER_ADD_BOS)
        rc = add_prefix(e, err);
    size_t n_prefix = list->n_ids;
    if (!rc)
        rc = split_literals(e, &e->tok->raw, true, text, n_bytes, true, encode_gap, err);
    if (!rc && flags & TOKENIZER_ADD_BOS)
        drop_second_bos(info, list, n_prefix);
    for (uint32_t i = 0; i < info->n_suffix && !rc && flags & TOKENIZER_ADD_EOS; i++)
        rc = token_list_add(list, info->suffix[i], err);
    free_scratch(e);
    if (rc)
        list->n_ids = n_before;
    return rc;
}

int tokenizer_encode(const struct tokenizer *tok, const char *text, size_t n_bytes, unsigned flags,
                     struct token_list *list, size_t *out_n_lost, struct error *err)
{
    struct encoding e = {.tok = tok, .list = list};
    int rc = encode(&e, text, n_bytes, flags, err);
    if (!rc && out_n_lost)
        *out_n_lost = e.n_lost;
    return rc;
}

int tokenizer_encode_guarded(const struct tokenizer *tok, const char *text, size_t n_bytes,
                             unsigned flags, const size_t *no_control_at, size_t n_places,
                             struct token_list *list, struct error *err)
{
    struct encoding e = {
        .tok = tok, .list = list, .no_control_at = no_control_at, .n_places = n_places};
    return encode(&e, text, n_bytes, flags, err);
}

bool tokenizer_control_at(const struct tokenizer *tok, const char *text, size_t n_bytes)
{
    size_t n;
    int32_t id = literals_match(&tok->raw, &tok->vocab, text, n_bytes, true, &n);
    return id != TOKENIZER_NO_ID && tok->vocab.tokens[id].kind == TOKEN_CONTROL;
}

/* --- tokens --- */

const char *tokenizer_token_bytes(const struct tokenizer *tok, uint32_t id, size_t *out_n_bytes)
{
    if (id >= tok->vocab.n_tokens)
        return NULL;
    *out_n_bytes = tok->vocab.tokens[id].n_bytes;
    return tok->vocab.tokens[id].bytes;
}

enum token_kind tokenizer_token_kind(const struct tokenizer *tok, uint32_t id)
{
    return id < tok->vocab.n_tokens ? tok->vocab.tokens[id].kind : TOKEN_UNUSED;
}

bool tokenizer_is_hole(const struct tokenizer *tok, uint32_t id)
{
    return id < tok->vocab.n_tokens && tok->vocab.tokens[id].flags & TOKEN_IS_HOLE;
}

int32_t tokenizer_find(const struct tokenizer *tok, const char *bytes, size_t n_bytes)
{
    return vocab_find_bytes(&tok->vocab, bytes, n_bytes);
}
