#include "engine/text/detokenizer.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/utf8.h"
#include "engine/text/tokenizer.h"

struct detokenizer {
    const struct tokenizer *tok;
    bool skip_special;
    bool drops_space; /* the next byte begins a text */
    uint32_t n_held;
    struct strbuf held; /* bytes of the held ids */
    struct strbuf text; /* text of the last delta */
};

/* Allocates enough for nearly every token, so that steps do not allocate. */
static bool make_room(struct strbuf *buf)
{
    static const char blank[512];
    bool ok = strbuf_add(buf, blank, sizeof(blank));
    strbuf_clear(buf);
    return ok;
}

int detokenizer_create(const struct tokenizer *tok, bool skip_special,
                       struct detokenizer **out_detok, struct error *err)
{
    struct detokenizer *d = calloc(1, sizeof(*d));
    if (!d)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "detokenizer: out of memory");
    d->tok = tok;
    d->skip_special = skip_special;
    if (!make_room(&d->held) || !make_room(&d->text)) {
        detokenizer_destroy(d);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "detokenizer: out of memory");
    }
    *out_detok = d;
    return 0;
}

void detokenizer_destroy(struct detokenizer *detok)
{
    if (!detok)
        return;
    strbuf_fini(&detok->held);
    strbuf_fini(&detok->text);
    free(detok);
}

void detokenizer_begin_text(struct detokenizer *detok)
{
    detok->drops_space = tokenizer_info(detok->tok)->strips_space;
}

const struct tokenizer *detokenizer_tokenizer(const struct detokenizer *detok)
{
    return detok->tok;
}

/* Length of the maximal invalid part at the start of bytes that do not decode. That is the longest
 * prefix that some continuation could complete, at least one byte. Source: Unicode, chapter 3,
 * "U+FFFD substitution of maximal subparts". */
static size_t bad_part(const char *bytes, size_t n_bytes)
{
    for (size_t n = n_bytes < 3 ? n_bytes : 3; n > 1; n--)
        if (utf8_incomplete_tail(bytes, n) == n)
            return n;
    return 1;
}

static void add_lossy(struct strbuf *out, const char *bytes, size_t n_bytes)
{
    size_t good = 0; /* start of the valid run that is not added yet */
    for (size_t i = 0; i < n_bytes;) {
        uint32_t point;
        size_t length = utf8_decode(bytes + i, n_bytes - i, &point);
        if (length) {
            i += length;
            continue;
        }
        strbuf_add(out, bytes + good, i - good);
        strbuf_add(out, "\xEF\xBF\xBD", 3);
        i += bad_part(bytes + i, n_bytes - i);
        good = i;
    }
    strbuf_add(out, bytes + good, n_bytes - good);
}

static int release_held(struct detokenizer *d, struct detokenizer_delta *out_delta,
                        struct error *err)
{
    strbuf_clear(&d->text);
    add_lossy(&d->text, strbuf_str(&d->held), d->held.n_bytes);
    if (strbuf_failed(&d->text))
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "detokenizer: out of memory");
    *out_delta = (struct detokenizer_delta){strbuf_str(&d->text), d->text.n_bytes, d->n_held};
    strbuf_clear(&d->held);
    d->n_held = 0;
    return 0;
}

int detokenizer_push(struct detokenizer *detok, uint32_t id, struct detokenizer_delta *out_delta,
                     struct error *err)
{
    size_t n_bytes;
    const char *bytes = tokenizer_token_bytes(detok->tok, id, &n_bytes);
    if (!bytes)
        return error_field(err, "token_ids", "id %" PRIu32 " is outside the vocabulary of %" PRIu32,
                           id, tokenizer_info(detok->tok)->vocab_size);
    bool silent = detok->skip_special && tokenizer_token_kind(detok->tok, id) == TOKEN_CONTROL;
    if (!silent && n_bytes && detok->drops_space) {
        detok->drops_space = false;
        size_t n_dropped = bytes[0] == ' ';
        bytes += n_dropped;
        n_bytes -= n_dropped;
    }
    if (!silent && !strbuf_add(&detok->held, bytes, n_bytes))
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "detokenizer: out of memory");
    detok->n_held++;
    if (!utf8_incomplete_tail(strbuf_str(&detok->held), detok->held.n_bytes))
        return release_held(detok, out_delta, err);
    *out_delta = (struct detokenizer_delta){.text = ""};
    return 0;
}

int detokenizer_flush(struct detokenizer *detok, struct detokenizer_delta *out_delta,
                      struct error *err)
{
    return release_held(detok, out_delta, err);
}

uint32_t detokenizer_n_held(const struct detokenizer *detok)
{
    return detok->n_held;
}
