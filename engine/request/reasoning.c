#include "engine/request/reasoning.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "engine/text/tokenizer.h"

enum {
    MAX_SIGNS = 64,    /* the longest marker */
    MAX_SPACE = 64,    /* atoms of white space before a marker that opens a thought */
    TAIL_SIGNS = 256,  /* last signs of a prompt that are looked at */
    FIRST_ATOMS = 640, /* more than the text of nearly every token */
    FIRST_PARTS = 8,
    NO_SIGN = UINT32_MAX, /* an id without text */
};

/* A sign is a byte, or 256 and the id of a special token. */
struct marker {
    uint32_t signs[MAX_SIGNS];
    uint32_t fail[MAX_SIGNS]; /* Knuth–Morris–Pratt: longest proper border of signs[0..i] */
    uint32_t n;
    uint32_t matched; /* signs that the last atoms match */
    bool is_alive;    /* in REASONING_BEGINS: all signs so far match */
    enum reasoning_state from, to;
};

/* A byte of text, a marker's token with its text, or an id without text. `sign` as in struct
 * marker; NO_SIGN for an id without text. */
struct atom {
    uint32_t sign;
    uint32_t n_text; /* bytes in `held` */
    uint32_t n_ids;  /* ids whose text ends here */
};

struct reasoning {
    struct marker markers[REASONING_MAX_MOVES];
    uint32_t n_markers;
    enum reasoning_state state;
    struct atom *atoms; /* [n_atoms] not given out */
    size_t n_atoms, atoms_capacity;
    size_t at;          /* atoms that the markers have seen */
    struct strbuf held; /* text of the atoms */
    struct strbuf out;  /* text of the last delta */
    struct reasoning_part *parts;
    size_t n_parts, parts_capacity;
    bool failed; /* no memory */
};

/* --- markers --- */

/* Length of the longest special token at the start of the text; 0: there is none. */
static size_t token_at(const struct tokenizer *tok, const char *text, size_t n_bytes, uint32_t *out)
{
    bool may_begin = text[0] == '<' || text[0] == '[' || (unsigned char)text[0] >= 0x80;
    for (size_t n = may_begin ? n_bytes : 0; n > 2; n--) {
        int32_t id = tokenizer_find(tok, text, n);
        if (id == TOKENIZER_NO_ID)
            continue;
        enum token_kind kind = tokenizer_token_kind(tok, (uint32_t)id);
        if (kind != TOKEN_CONTROL && kind != TOKEN_USER_DEFINED)
            continue;
        *out = 256 + (uint32_t)id;
        return n;
    }
    return 0;
}

static void spell(struct marker *m, const struct tokenizer *tok, const char *text)
{
    size_t n_bytes = strlen(text);
    for (size_t i = 0; i < n_bytes && m->n < MAX_SIGNS;) {
        uint32_t sign = (unsigned char)text[i];
        size_t n = token_at(tok, text + i, n_bytes - i, &sign);
        m->signs[m->n++] = sign;
        i += n ? n : 1;
    }
    for (uint32_t i = 1, k = 0; i < m->n; i++) {
        while (k && m->signs[i] != m->signs[k])
            k = m->fail[k - 1];
        k += m->signs[i] == m->signs[k];
        m->fail[i] = k;
    }
}

int reasoning_create(const struct reasoning_family *family, const struct tokenizer *tok,
                     struct reasoning **out_reasoning, struct error *err)
{
    static const char blank[FIRST_ATOMS];
    struct reasoning *r = calloc(1, sizeof(*r));
    if (!r)
        return error_no_memory(err);
    r->atoms_capacity = FIRST_ATOMS;
    r->atoms = malloc(FIRST_ATOMS * sizeof(*r->atoms));
    r->parts_capacity = FIRST_PARTS;
    r->parts = malloc(FIRST_PARTS * sizeof(*r->parts));
    if (!r->atoms || !r->parts || !strbuf_add(&r->held, blank, sizeof(blank)) ||
        !strbuf_add(&r->out, blank, sizeof(blank))) {
        reasoning_destroy(r);
        return error_no_memory(err);
    }
    strbuf_clear(&r->held);
    strbuf_clear(&r->out);
    for (; r->n_markers < REASONING_MAX_MOVES; r->n_markers++) {
        const struct reasoning_move *move = &family->moves[r->n_markers];
        if (!move->marker)
            break;
        struct marker *m = &r->markers[r->n_markers];
        m->from = move->from;
        m->to = move->to;
        spell(m, tok, move->marker);
    }
    reasoning_set_state(r, REASONING_BEGINS);
    *out_reasoning = r;
    return 0;
}

void reasoning_destroy(struct reasoning *r)
{
    if (!r)
        return;
    free(r->atoms);
    free(r->parts);
    strbuf_fini(&r->held);
    strbuf_fini(&r->out);
    free(r);
}

void reasoning_set_state(struct reasoning *r, enum reasoning_state state)
{
    r->state = state;
    for (uint32_t i = 0; i < r->n_markers; i++) {
        r->markers[i].matched = 0;
        r->markers[i].is_alive = true;
    }
}

bool reasoning_has_token(const struct reasoning *r, uint32_t id)
{
    for (uint32_t i = 0; i < r->n_markers; i++)
        for (uint32_t k = 0; k < r->markers[i].n; k++)
            if (r->markers[i].signs[k] == 256 + id)
                return true;
    return false;
}

bool reasoning_is_thinking(const struct reasoning *r)
{
    return r->state == REASONING_THINKS;
}

static bool is_space(uint32_t sign)
{
    return sign == ' ' || sign == '\t' || sign == '\r' || sign == '\n';
}

/* --- the prompt --- */

static bool ends_with(const uint32_t *tail, size_t n, const struct marker *m)
{
    size_t n_signs = m->n;
    while (n && is_space(tail[n - 1]))
        n--;
    while (n_signs && is_space(m->signs[n_signs - 1]))
        n_signs--;
    return n_signs && n_signs <= n &&
           memcmp(tail + n - n_signs, m->signs, n_signs * sizeof(*tail)) == 0;
}

void reasoning_read_prompt(struct reasoning *r, const struct tokenizer *tok, const uint32_t *ids,
                           uint32_t n_ids)
{
    uint32_t tail[TAIL_SIGNS];
    size_t at = TAIL_SIGNS; /* filled from the end */
    for (uint32_t i = n_ids; i > 0 && at > 0; i--) {
        size_t n_bytes = 0;
        const char *bytes = tokenizer_token_bytes(tok, ids[i - 1], &n_bytes);
        if (reasoning_has_token(r, ids[i - 1]) ||
            tokenizer_token_kind(tok, ids[i - 1]) == TOKEN_CONTROL) {
            tail[--at] = 256 + ids[i - 1];
            continue;
        }
        for (size_t k = bytes ? n_bytes : 0; k > 0 && at > 0; k--)
            tail[--at] = (unsigned char)bytes[k - 1];
    }
    for (uint32_t i = 0; i < r->n_markers; i++)
        if (r->markers[i].from == REASONING_BEGINS && r->markers[i].to == REASONING_THINKS &&
            ends_with(tail + at, TAIL_SIGNS - at, &r->markers[i]))
            reasoning_set_state(r, REASONING_THINKS);
}

/* --- giving out --- */

/* Gives out the first n atoms as one kind. `silent`: without their text. */
static void give(struct reasoning *r, size_t n, bool is_reasoning, bool silent)
{
    size_t n_text = 0;
    uint32_t n_ids = 0;
    if (!n)
        return;
    for (size_t i = 0; i < n; i++) {
        n_text += r->atoms[i].n_text;
        n_ids += r->atoms[i].n_ids;
    }
    if (!silent && n_text && !strbuf_add(&r->out, strbuf_str(&r->held), n_text))
        r->failed = true;
    if (n_text)
        strbuf_consume(&r->held, n_text);
    r->n_atoms -= n;
    r->at -= n;
    memmove(r->atoms, r->atoms + n, r->n_atoms * sizeof(*r->atoms));
    struct reasoning_part *last = r->n_parts ? &r->parts[r->n_parts - 1] : NULL;
    if (!n_ids && (silent || !n_text))
        return;
    if (last && last->is_reasoning == is_reasoning) {
        last->n_ids += n_ids;
        last->end = r->out.n_bytes;
        return;
    }
    if (!r->parts || r->n_parts == r->parts_capacity) {
        size_t want = 2 * r->parts_capacity + FIRST_PARTS;
        void *more = realloc(r->parts, want * sizeof(*r->parts));
        if (!more) {
            r->failed = true;
            return;
        }
        r->parts = more;
        r->parts_capacity = want;
    }
    r->parts[r->n_parts++] = (struct reasoning_part){is_reasoning, r->out.n_bytes, n_ids};
}

/* Moves to the marker's state; the marker's atoms are the last that were seen. Their number may
 * be larger than the number of signs: ids without text are passed over. */
static void move(struct reasoning *r, const struct marker *m, size_t n_marker)
{
    bool was_reasoning = r->state == REASONING_THINKS;
    enum reasoning_state to = m->to;
    give(r, r->at - n_marker, was_reasoning, false);
    give(r, n_marker, was_reasoning || to == REASONING_THINKS, true);
    reasoning_set_state(r, to);
}

/* Number of the last seen atoms that have n signs. */
static size_t atoms_of(const struct reasoning *r, size_t n_signs)
{
    size_t n = 0;
    while (n_signs) {
        n++;
        n_signs -= r->atoms[r->at - n].sign != NO_SIGN;
    }
    return n;
}

/* --- states --- */

/* Sees an atom behind nothing but white space and the begin of a marker. */
static void see_first(struct reasoning *r, uint32_t sign)
{
    size_t n_signs = 0;
    bool any = false;
    for (uint32_t i = 0; i < r->n_markers; i++)
        n_signs = r->markers[i].matched > n_signs ? r->markers[i].matched : n_signs;
    r->at++;
    if (r->at <= MAX_SPACE && (sign == NO_SIGN || (!n_signs && is_space(sign))))
        return;
    for (uint32_t i = 0; i < r->n_markers; i++) {
        struct marker *m = &r->markers[i];
        m->is_alive = m->is_alive && m->from == REASONING_BEGINS && m->matched < m->n &&
                      m->signs[m->matched] == sign;
        m->matched += m->is_alive;
        if (m->is_alive && m->matched == m->n) {
            move(r, m, r->at);
            return;
        }
        any |= m->is_alive;
    }
    if (any)
        return;
    reasoning_set_state(r, REASONING_ANSWERS);
    r->at = 0; /* see the held atoms again, as an answer */
}

static void see(struct reasoning *r, uint32_t sign)
{
    r->at++;
    if (sign == NO_SIGN)
        return;
    for (uint32_t i = 0; i < r->n_markers; i++) {
        struct marker *m = &r->markers[i];
        if (m->from != r->state)
            continue;
        while (m->matched && m->signs[m->matched] != sign)
            m->matched = m->fail[m->matched - 1];
        m->matched += m->signs[m->matched] == sign;
        if (m->matched < m->n)
            continue;
        move(r, m, atoms_of(r, m->n));
        return;
    }
}

/* Gives out what can no longer belong to a marker: whole ids alone. */
static void give_settled(struct reasoning *r)
{
    size_t n_signs = 0;
    if (r->state == REASONING_BEGINS)
        return;
    for (uint32_t i = 0; i < r->n_markers; i++)
        if (r->markers[i].from == r->state && r->markers[i].matched > n_signs)
            n_signs = r->markers[i].matched;
    size_t n = r->at - atoms_of(r, n_signs);
    while (n && !r->atoms[n - 1].n_ids)
        n--;
    give(r, n, r->state == REASONING_THINKS, false);
}

/* --- pushing --- */

static bool reserve(struct reasoning *r, size_t n_more)
{
    if (r->atoms_capacity - r->n_atoms >= n_more)
        return true;
    size_t want = 2 * (r->n_atoms + n_more);
    struct atom *more = realloc(r->atoms, want * sizeof(*more));
    if (!more)
        return false;
    r->atoms = more;
    r->atoms_capacity = want;
    return true;
}

static void begin_call(struct reasoning *r)
{
    strbuf_clear(&r->out);
    r->n_parts = 0;
}

static int end_call(struct reasoning *r, struct reasoning_delta *out_delta, struct error *err)
{
    if (r->failed)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %zu bytes of held text",
                         r->held.n_bytes);
    *out_delta = (struct reasoning_delta){strbuf_str(&r->out), r->parts, r->n_parts};
    return 0;
}

int reasoning_push(struct reasoning *r, int64_t token, const char *text, size_t n_bytes,
                   uint32_t n_ids, struct reasoning_delta *out_delta, struct error *err)
{
    begin_call(r);
    size_t n_atoms = token >= 0 || !n_bytes ? 1 : n_bytes;
    r->failed |= !reserve(r, n_atoms) || (n_bytes && !strbuf_add(&r->held, text, n_bytes));
    if (!n_bytes && !n_ids)
        n_atoms = 0;
    for (size_t i = 0; i < n_atoms && !r->failed; i++)
        r->atoms[r->n_atoms++] = (struct atom){
            .sign = token >= 0 ? 256 + (uint32_t)token
                    : n_bytes  ? (unsigned char)text[i]
                               : NO_SIGN,
            .n_text = token >= 0 ? (uint32_t)n_bytes : n_bytes > 0,
            .n_ids = i + 1 == n_atoms ? n_ids : 0,
        };
    while (r->at < r->n_atoms && !r->failed) {
        uint32_t sign = r->atoms[r->at].sign;
        if (r->state == REASONING_BEGINS)
            see_first(r, sign);
        else
            see(r, sign);
    }
    give_settled(r);
    return end_call(r, out_delta, err);
}

int reasoning_flush(struct reasoning *r, struct reasoning_delta *out_delta, struct error *err)
{
    begin_call(r);
    give(r, r->n_atoms, r->state == REASONING_THINKS, false);
    reasoning_set_state(r, r->state);
    return end_call(r, out_delta, err);
}
