#include "engine/request_output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/format/detokenizer.h"
#include "engine/format/tokenizer.h"
#include "engine/request.h"
#include "engine/stop.h"

enum { FIRST_TEXT_BYTES = 512, FIRST_SHARES = 128 };

static bool reserve_text(struct output_text *text, size_t n_more)
{
    if (text->capacity - text->n_bytes >= n_more)
        return true;
    size_t want = 2 * (text->n_bytes + n_more);
    want = want < FIRST_TEXT_BYTES ? FIRST_TEXT_BYTES : want;
    char *data = realloc(text->data, want);
    if (!data)
        return false;
    text->data = data;
    text->capacity = want;
    return true;
}

static bool add_text(struct output_text *text, const char *bytes, size_t n)
{
    if (!reserve_text(text, n))
        return false;
    if (n)
        memcpy(text->data + text->n_bytes, bytes, n);
    text->n_bytes += n;
    return true;
}

static bool reserve_shares(struct output_shares *shares, size_t n_more)
{
    if (shares->capacity - shares->n >= n_more)
        return true;
    size_t want = 2 * (shares->n + n_more);
    want = want < FIRST_SHARES ? FIRST_SHARES : want;
    uint32_t *grown = realloc(shares->n_bytes, want * sizeof(*grown));
    if (!grown)
        return false;
    shares->n_bytes = grown;
    shares->capacity = want;
    return true;
}

/* Ids that are released together: the last of them has their text. */
static bool add_shares(struct output_shares *shares, size_t n_ids, size_t n_bytes)
{
    if (!reserve_shares(shares, n_ids))
        return false;
    for (size_t i = 0; i < n_ids; i++)
        shares->n_bytes[shares->n++] = i + 1 == n_ids ? (uint32_t)n_bytes : 0;
    return true;
}

void request_output_end(struct sequence *seq, enum finish_reason reason, int status,
                        const char *message)
{
    struct request_output *out = seq->output;
    if (out->reason != FINISH_NONE)
        return;
    out->reason = reason;
    out->status = status;
    snprintf(out->message, sizeof(out->message), "%s", message);
}

static void stage(struct sequence *seq, const char *text, size_t n_bytes, uint32_t n_released)
{
    struct request_output *out = seq->output;
    size_t skip = n_bytes < out->n_skip_bytes ? n_bytes : out->n_skip_bytes;
    out->n_skip_bytes -= skip;
    out->n_released += n_released;
    if (!add_text(&out->staged, text + skip, n_bytes - skip) ||
        !add_shares(&out->staged_shares, n_released, n_bytes - skip))
        request_output_end(seq, FINISH_ERROR, STATUS_RESOURCE_EXHAUSTED,
                           "no memory for generated text");
}

/* Text of further ids, through the stop strings. */
static void release(struct sequence *seq, const struct detokenizer_delta *delta, bool armed)
{
    struct request_output *out = seq->output;
    struct stop_delta stop;
    struct error err;
    if (!out->stop) {
        stage(seq, delta->text, delta->n_bytes, delta->n_released);
        return;
    }
    if (stop_matcher_push(out->stop, delta->text, delta->n_bytes, delta->n_released, armed, &stop,
                          &err)) {
        request_output_end(seq, FINISH_ERROR, err.status, err.message);
        return;
    }
    stage(seq, stop.text, stop.n_bytes, stop.n_released);
    if (stop.i_matched >= 0) {
        request_output_end(seq, FINISH_STOP, 0, "");
        out->i_matched_stop = stop.i_matched;
    }
}

/* Lets out what detokenizer and stop matcher hold; what the former holds may still make a stop. */
static void flush(struct sequence *seq, bool armed)
{
    struct request_output *out = seq->output;
    struct detokenizer_delta delta;
    struct stop_delta stop;
    struct error err;
    if (detokenizer_flush(out->detok, &delta, &err)) {
        request_output_end(seq, FINISH_ERROR, err.status, err.message);
        return;
    }
    release(seq, &delta, armed);
    if (!out->stop || out->reason != FINISH_NONE)
        return;
    stop_matcher_flush(out->stop, &stop);
    stage(seq, stop.text, stop.n_bytes, stop.n_released);
}

static void push_id(struct sequence *seq, uint32_t id, bool armed)
{
    struct detokenizer_delta delta;
    struct error err;
    if (detokenizer_push(seq->output->detok, id, &delta, &err))
        request_output_end(seq, FINISH_ERROR, err.status, err.message);
    else
        release(seq, &delta, armed);
}

/* The id at position n_taken of the choice. */
static void take_id(struct sequence *seq, uint32_t id)
{
    const struct request *r = seq->request;
    struct request_output *out = seq->output;
    uint32_t n = ++out->n_taken;
    bool armed = n >= r->min_tokens;
    if (n > r->min_tokens && request_is_stop_id(r, id)) {
        if (r->include_stop)
            push_id(seq, id, false);
        flush(seq, false);
        request_output_end(seq, FINISH_STOP, 0, "");
        if (out->reason == FINISH_STOP)
            out->matched_stop_id = id;
        return;
    }
    push_id(seq, id, armed);
    if (out->reason == FINISH_NONE && n >= r->max_tokens) {
        flush(seq, armed);
        request_output_end(seq, FINISH_LENGTH, 0, "");
    }
}

void request_output_take(struct sequence *seq)
{
    take_id(seq, seq->ids[seq->n_ids - 1]);
}

void request_output_finish_length(struct sequence *seq)
{
    flush(seq, seq->output->n_taken >= seq->request->min_tokens);
    request_output_end(seq, FINISH_LENGTH, 0, "");
}

static int replay(struct sequence *seq, const struct engine_resume *resume, struct error *err)
{
    struct request_output *out = seq->output;
    char field[ERROR_FIELD_BYTES];
    out->n_skip_bytes = resume->n_text_bytes;
    for (uint32_t i = 0; i < resume->n_ids; i++) {
        take_id(seq, resume->ids[i]);
        if (out->reason == FINISH_ERROR)
            return error_set(err, out->status, "%s", out->message);
        if (out->reason != FINISH_NONE && i + 1 < resume->n_ids) {
            snprintf(field, sizeof(field), "resume[%u].generated_ids", seq->choice);
            return error_field(err, field, "the choice ends at id %u, but %u ids are given", i,
                               resume->n_ids);
        }
    }
    if (out->n_skip_bytes) {
        snprintf(field, sizeof(field), "resume[%u].text_bytes_sent", seq->choice);
        return error_field(err, field, "%u bytes are %zu more than the ids' text",
                           resume->n_text_bytes, out->n_skip_bytes);
    }
    out->published.n_ids = out->published.n_ids_read = resume->n_ids;
    if (!out->staged.n_bytes) {
        out->published.n_released_read = out->n_released;
        out->staged_shares.n = 0;
    }
    if (out->reason != FINISH_NONE)
        seq->state = SEQUENCE_ENDED;
    return 0;
}

int request_output_create(struct sequence *seq, const struct tokenizer *tok,
                          const struct engine_resume *resume, struct error *err)
{
    const struct request *r = seq->request;
    struct request_output *out = calloc(1, sizeof(*out));
    if (!out || !reserve_text(&out->staged, 1) || !reserve_text(&out->published.text, 1) ||
        !reserve_shares(&out->staged_shares, 1) || !reserve_shares(&out->published.shares, 1)) {
        request_output_destroy(out);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a choice's text");
    }
    seq->output = out;
    out->i_matched_stop = -1;
    out->matched_stop_id = -1;
    int rc = detokenizer_create(tok, !r->keep_special_tokens, &out->detok, err);
    if (!rc && r->stop_set)
        rc = stop_matcher_create(r->stop_set, &out->stop, err);
    return rc || !resume ? rc : replay(seq, resume, err);
}

void request_output_destroy(struct request_output *out)
{
    if (!out)
        return;
    detokenizer_destroy(out->detok);
    stop_matcher_destroy(out->stop);
    free(out->staged.data);
    free(out->published.text.data);
    free(out->staged_shares.n_bytes);
    free(out->published.shares.n_bytes);
    free(out);
}

bool request_output_publish(struct sequence *seq)
{
    struct request_output *out = seq->output;
    struct output_shares *shares = &out->published.shares, *staged = &out->staged_shares;
    bool added = add_text(&out->published.text, out->staged.data, out->staged.n_bytes) &&
                 reserve_shares(shares, staged->n);
    if (added && staged->n)
        memcpy(shares->n_bytes + shares->n, staged->n_bytes, staged->n * sizeof(*staged->n_bytes));
    if (added)
        shares->n += staged->n;
    else
        request_output_end(seq, FINISH_ERROR, STATUS_RESOURCE_EXHAUSTED,
                           "no memory for generated text");
    out->staged.n_bytes = staged->n = 0;
    out->published.n_ids = seq->n_ids;
    out->published.n_released = out->n_released;
    out->published.reason = out->reason;
    return out->published.n_ids > out->published.n_ids_read ||
           out->published.n_released > out->published.n_released_read ||
           out->published.text.n_bytes ||
           (out->published.reason != FINISH_NONE && !out->published.finish_read);
}
