#include "engine/request/request_output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/request/reasoning.h"
#include "engine/request/sequence.h"
#include "engine/request/stop.h"
#include "engine/text/detokenizer.h"
#include "engine/text/tokenizer.h"

enum { FIRST_TEXT_BYTES = 512, FIRST_RUNS = 4 };

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

/* Appends bytes; returns false without memory. */
static bool add_text(struct output_text *text, const char *bytes, size_t n)
{
    if (!reserve_text(text, n))
        return false;
    if (n)
        memcpy(text->data + text->n_bytes, bytes, n);
    text->n_bytes += n;
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

/* Adds a run, or lengthens the last one. Returns false without memory. */
static bool add_run(struct output_runs *list, struct output_run run)
{
    struct output_run *last = list->n ? &list->runs[list->n - 1] : NULL;
    if (last && last->is_reasoning == run.is_reasoning) {
        last->n_ids += run.n_ids;
        last->n_bytes += run.n_bytes;
        return true;
    }
    if (!list->runs || list->n == list->capacity) {
        size_t want = list->capacity ? 2 * list->capacity : FIRST_RUNS;
        struct output_run *more = realloc(list->runs, want * sizeof(*more));
        if (!more)
            return false;
        list->runs = more;
        list->capacity = want;
    }
    list->runs[list->n++] = run;
    return true;
}

/* Adds text of n_ids further ids. Text that a resuming client has already is dropped. Prompt ids
 * are not counted: their text belongs to the first generated id. */
static void stage_text(struct sequence *seq, bool is_reasoning, const char *text, size_t n_bytes,
                       uint32_t n_ids)
{
    struct request_output *out = seq->output;
    size_t skip = n_bytes < out->n_skip_bytes ? n_bytes : out->n_skip_bytes;
    uint32_t n_prompt = n_ids < out->n_prompt_held ? n_ids : out->n_prompt_held;
    out->n_skip_bytes -= skip;
    out->n_prompt_held -= n_prompt;
    out->n_released += n_ids - n_prompt;
    out->n_reasoning += is_reasoning ? n_ids - n_prompt : 0;
    const struct output_run run = {is_reasoning, n_ids - n_prompt, (uint32_t)(n_bytes - skip)};
    if (!add_text(&out->staged, text + skip, n_bytes - skip) ||
        (out->reasoning && !add_run(&out->staged_runs, run))) {
        request_output_end(seq, FINISH_ERROR, STATUS_RESOURCE_EXHAUSTED,
                           "no memory for generated text");
        return;
    }
    /* Readers have not seen the entry of a new id yet. Text without ids comes only where one id
     * has reasoning and content; it belongs to no entry. */
    uint32_t at = out->n_released ? out->n_released - 1 : 0;
    if (n_bytes > skip && n_ids && at < seq->max_ids)
        seq->text_bytes[at] += (uint32_t)(n_bytes - skip);
}

static void stage_units(struct sequence *seq, const struct stop_delta *delta)
{
    size_t begin = 0;
    for (size_t i = 0; i < delta->n_units; i++) {
        stage_text(seq, false, delta->text + begin, delta->units[i].end - begin,
                   delta->units[i].n_ids);
        begin = delta->units[i].end;
    }
}

static void end_by_stop(struct sequence *seq, const struct stop_set *set, int32_t i_matched)
{
    struct request_output *out = seq->output;
    if (i_matched < 0 || out->reason != FINISH_NONE)
        return;
    request_output_end(seq, FINISH_STOP, 0, "");
    out->matched = true;
    snprintf(out->matched_stop, sizeof(out->matched_stop), "%s",
             stop_set_string(set, (uint32_t)i_matched));
}

static void take_stop(struct sequence *seq, const struct stop_set *set,
                      const struct stop_delta *delta)
{
    stage_units(seq, delta);
    end_by_stop(seq, set, delta->i_matched);
}

/* Passes content of further ids through the stop matcher. */
static void release_content(struct sequence *seq, const struct detokenizer_delta *delta, bool armed)
{
    struct request_output *out = seq->output;
    struct stop_delta stop;
    struct error err;
    if (!out->stop) {
        stage_text(seq, false, delta->text, delta->n_bytes, delta->n_released);
        return;
    }
    /* Text that a resuming client has already did not end the choice then, so it does not end the
     * choice now. (The stop strings may have changed since.) */
    out->past_skip |= delta->n_bytes > out->n_skip_bytes;
    armed = armed && out->past_skip;
    if (stop_matcher_push(out->stop, delta->text, delta->n_bytes, delta->n_released, armed, &stop,
                          &err)) {
        request_output_end(seq, FINISH_ERROR, err.status, err.message);
        return;
    }
    take_stop(seq, seq->request->stop_set, &stop);
}

/* Stop strings do not match in reasoning. Content before the reasoning is released, because it can
 * begin no stop string any more. */
static void release_reasoning(struct sequence *seq, const char *text, size_t n_bytes,
                              uint32_t n_ids)
{
    struct request_output *out = seq->output;
    struct stop_delta stop;
    if (out->stop && !out->was_reasoning) {
        stop_matcher_replace(out->stop, seq->request->stop_set, false, &stop);
        stage_units(seq, &stop);
    }
    out->was_reasoning = true;
    out->past_skip |= n_bytes > out->n_skip_bytes;
    stage_text(seq, true, text, n_bytes, n_ids);
}

static void release_parts(struct sequence *seq, const struct reasoning_delta *delta, bool armed)
{
    struct request_output *out = seq->output;
    size_t begin = 0;
    for (size_t i = 0; i < delta->n_parts && out->reason == FINISH_NONE; i++) {
        const struct reasoning_part *part = &delta->parts[i];
        const struct detokenizer_delta text = {delta->text + begin, part->end - begin, part->n_ids};
        if (part->is_reasoning) {
            release_reasoning(seq, text.text, text.n_bytes, text.n_released);
        } else {
            out->was_reasoning = false;
            release_content(seq, &text, armed);
        }
        begin = part->end;
    }
}

/* Passes text of further ids on. `token`: the id of a marker's token, or -1. */
static void release_token(struct sequence *seq, int64_t token,
                          const struct detokenizer_delta *delta, bool armed)
{
    struct request_output *out = seq->output;
    struct reasoning_delta parts;
    struct error err;
    if (!out->reasoning)
        release_content(seq, delta, armed);
    else if (reasoning_push(out->reasoning, token, delta->text, delta->n_bytes, delta->n_released,
                            &parts, &err))
        request_output_end(seq, FINISH_ERROR, err.status, err.message);
    else
        release_parts(seq, &parts, armed);
}

static void release_text(struct sequence *seq, const struct detokenizer_delta *delta, bool armed)
{
    release_token(seq, -1, delta, armed);
}

static void flush_reasoning(struct sequence *seq, bool armed)
{
    struct reasoning_delta parts;
    struct error err;
    if (!seq->output->reasoning)
        return;
    if (reasoning_flush(seq->output->reasoning, &parts, &err))
        request_output_end(seq, FINISH_ERROR, err.status, err.message);
    else
        release_parts(seq, &parts, armed);
}

/* Releases the text that detokenizer and stop matcher hold. The detokenizer's text may still
 * complete a stop string. */
static void flush_text(struct sequence *seq, bool armed)
{
    struct request_output *out = seq->output;
    struct detokenizer_delta delta;
    struct stop_delta stop;
    struct error err;
    if (detokenizer_flush(out->detok, &delta, &err)) {
        request_output_end(seq, FINISH_ERROR, err.status, err.message);
        return;
    }
    release_text(seq, &delta, armed);
    flush_reasoning(seq, armed);
    if (!out->stop || out->reason != FINISH_NONE)
        return;
    stop_matcher_flush(out->stop, &stop);
    stage_units(seq, &stop);
}

static void push_id(struct sequence *seq, uint32_t id, bool armed)
{
    struct request_output *out = seq->output;
    struct detokenizer_delta delta;
    struct error err;
    bool marks = out->reasoning && reasoning_has_token(out->reasoning, id);
    int rc = 0;
    if (marks && detokenizer_n_held(out->detok)) { /* a marker's token comes alone */
        rc = detokenizer_flush(out->detok, &delta, &err);
        if (!rc)
            release_text(seq, &delta, armed);
        if (out->reason != FINISH_NONE)
            return;
    }
    if (!rc)
        rc = detokenizer_push(out->detok, id, &delta, &err);
    if (rc)
        request_output_end(seq, FINISH_ERROR, err.status, err.message);
    else
        release_token(seq, marks && delta.n_released ? (int64_t)id : -1, &delta, armed);
}

/* Index of the stop string that equals the literal text of control token `id`, or -1. A hidden
 * control token has no text, so the stop matcher never sees its literal. */
static int32_t find_literal_stop(const struct sequence *seq, uint32_t id)
{
    const struct request *r = seq->request;
    const struct tokenizer *tok = detokenizer_tokenizer(seq->output->detok);
    size_t n_bytes;
    const struct reasoning *reasoning = seq->output->reasoning;
    if (reasoning && reasoning_is_thinking(reasoning))
        return -1;
    if (r->keep_special_tokens || !r->stop_set || tokenizer_token_kind(tok, id) != TOKEN_CONTROL)
        return -1;
    const char *bytes = tokenizer_token_bytes(tok, id, &n_bytes);
    return stop_set_find(r->stop_set, bytes, n_bytes);
}

/* Ends the choice at control token `id`, whose literal is a stop string. With include_stop,
 * releases the literal, which the detokenizer may hide. */
static void end_by_literal(struct sequence *seq, uint32_t id, int32_t i_matched)
{
    const struct request *r = seq->request;
    struct request_output *out = seq->output;
    struct detokenizer_delta delta;
    struct error err;
    if (r->include_stop && detokenizer_flush(out->detok, &delta, &err)) {
        request_output_end(seq, FINISH_ERROR, err.status, err.message);
        return;
    }
    if (r->include_stop) {
        release_text(seq, &delta, false);
        flush_reasoning(seq, false);
        delta = (struct detokenizer_delta){.n_released = 1};
        delta.text = tokenizer_token_bytes(detokenizer_tokenizer(out->detok), id, &delta.n_bytes);
        release_content(seq, &delta, false);
    }
    flush_text(seq, false);
    end_by_stop(seq, r->stop_set, i_matched);
}

/* Takes the id at position n_taken of the choice. */
static void take_id(struct sequence *seq, uint32_t id)
{
    const struct request *r = seq->request;
    struct request_output *out = seq->output;
    uint32_t n = ++out->n_taken;
    bool armed = n >= r->min_tokens;
    if (n > r->min_tokens && request_is_stop_id(r, id)) {
        if (r->include_stop)
            push_id(seq, id, false);
        flush_text(seq, false);
        request_output_end(seq, FINISH_STOP, 0, "");
        if (out->reason == FINISH_STOP)
            out->matched_stop_id = id;
        return;
    }
    /* Only the last replayed id can have ended the choice. */
    int32_t i_literal = armed && n >= seq->n_replayed ? find_literal_stop(seq, id) : -1;
    if (i_literal >= 0) {
        end_by_literal(seq, id, i_literal);
        return;
    }
    push_id(seq, id, armed);
    if (out->reason == FINISH_NONE && n >= r->max_tokens && n >= seq->n_replayed)
        request_output_finish_length(seq);
}

void request_output_take(struct sequence *seq)
{
    take_id(seq, seq->ids[seq->output->n_taken]);
}

bool request_output_may_end(const struct sequence *seq)
{
    const struct request *r = seq->request;
    return seq->n_ids >= r->max_tokens || request_is_stop_id(r, seq->ids[seq->n_ids - 1]);
}

void request_output_change_stops(struct sequence *seq, const struct stop_set *set,
                                 struct stop_matcher **matcher)
{
    struct request_output *out = seq->output;
    struct stop_delta delta;
    if (!out->stop) {
        out->stop = *matcher;
        *matcher = NULL;
        return;
    }
    stop_matcher_replace(out->stop, set, out->n_taken >= seq->request->min_tokens, &delta);
    take_stop(seq, set, &delta);
}

void request_output_finish_length(struct sequence *seq)
{
    flush_text(seq, seq->output->n_taken >= seq->request->min_tokens);
    request_output_end(seq, seq->request->cut_to_context ? FINISH_CONTEXT : FINISH_LENGTH, 0, "");
}

/* Takes the ids of a resume. */
static int replay_ids(struct sequence *seq, const struct engine_resume *resume, struct error *err)
{
    struct request_output *out = seq->output;
    char field[ERROR_FIELD_BYTES];
    for (uint32_t i = 0; i < resume->n_ids; i++) {
        if (out->reason == FINISH_NONE)
            take_id(seq, resume->ids[i]);
        if (out->reason == FINISH_ERROR)
            return error_set(err, out->status, "%s", out->message);
        /* New stop strings may match in text that was held back, before the last id. */
        if (out->reason != FINISH_NONE && i + 1 < resume->n_ids && !resume->finished &&
            !out->matched) {
            snprintf(field, sizeof(field), "resume[%u].generated_ids", seq->choice);
            return error_field(err, field, "the choice ends at id %u, but %u ids are given", i,
                               resume->n_ids);
        }
    }
    if (out->n_skip_bytes && !resume->finished) {
        snprintf(field, sizeof(field), "resume[%u].text_bytes_sent", seq->choice);
        return error_field(err, field, "%u bytes exceed the text of the ids by %zu bytes",
                           resume->n_text_bytes, out->n_skip_bytes);
    }
    if (resume->finished)
        request_output_end(seq, FINISH_STOP, 0, "");
    out->published.n_ids = out->published.n_ids_read = resume->n_ids;
    if (!out->staged.n_bytes) {
        out->staged_runs.n = 0;
        out->published.n_released_read = out->n_released;
        memset(seq->text_bytes, 0, out->n_released * sizeof(*seq->text_bytes));
    }
    if (out->reason != FINISH_NONE)
        seq->state = SEQUENCE_ENDED;
    return 0;
}

/* Takes the prompt's ids: their text comes before the choice's text. */
static int take_prompt(struct sequence *seq, struct error *err)
{
    const struct request *r = seq->request;
    struct request_output *out = seq->output;
    out->n_prompt_held = r->n_prompt;
    for (uint32_t i = 0; i < r->n_prompt; i++) {
        push_id(seq, r->prompt[i], false);
        if (out->reason == FINISH_ERROR)
            return error_set(err, out->status, "%s", out->message);
    }
    return 0;
}

/* Creates the part that tells reasoning from content, where the request and the model have it. */
static int create_reasoning(struct sequence *seq, const struct tokenizer *tok,
                            const struct engine_request *req, struct error *err)
{
    const struct request *r = seq->request;
    const struct reasoning_family *family = NULL;
    if (req->reasoning == ENGINE_REASONING_OFF || r->return_full_text)
        return 0;
    if (req->reasoning_template)
        family = reasoning_families_in_template(req->reasoning_template);
    if (!family)
        family = reasoning_families_of(tok);
    if (!family)
        return 0;
    struct reasoning *reasoning;
    int rc = reasoning_create(family, tok, &reasoning, err);
    if (rc)
        return rc;
    seq->output->reasoning = reasoning;
    if (req->reasoning == ENGINE_REASONING_SPLIT)
        reasoning_read_prompt(reasoning, tok, r->prompt, r->n_prompt);
    else
        reasoning_set_state(reasoning, req->reasoning == ENGINE_REASONING_THINKS
                                           ? REASONING_THINKS
                                           : REASONING_ANSWERS);
    return 0;
}

int request_output_create(struct sequence *seq, const struct tokenizer *tok,
                          const struct engine_request *req, struct error *err)
{
    const struct engine_resume *resume = req->resume ? &req->resume[seq->choice] : NULL;
    const struct request *r = seq->request;
    struct request_output *out = calloc(1, sizeof(*out));
    if (!out || !reserve_text(&out->staged, 1) || !reserve_text(&out->published.text, 1)) {
        request_output_destroy(out);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a choice's text");
    }
    seq->output = out;
    out->matched_stop_id = -1;
    int rc = detokenizer_create(tok, !r->keep_special_tokens, &out->detok, err);
    if (!rc && r->stop_set)
        rc = stop_matcher_create(r->stop_set, &out->stop, err);
    if (!rc)
        rc = create_reasoning(seq, tok, req, err);
    if (!rc && resume)
        out->n_skip_bytes = resume->n_text_bytes;
    if (!rc && r->return_full_text)
        rc = take_prompt(seq, err);
    return rc || !resume ? rc : replay_ids(seq, resume, err);
}

void request_output_destroy(struct request_output *out)
{
    if (!out)
        return;
    detokenizer_destroy(out->detok);
    reasoning_destroy(out->reasoning);
    free(out->staged_runs.runs);
    free(out->published.runs.runs);
    stop_matcher_destroy(out->stop);
    free(out->staged.data);
    free(out->published.text.data);
    free(out);
}

bool request_output_publish(struct sequence *seq)
{
    struct request_output *out = seq->output;
    /* The prompt's text is published with the first released id, to which it belongs. */
    if (out->n_released || out->reason != FINISH_NONE) {
        bool ok = add_text(&out->published.text, out->staged.data, out->staged.n_bytes);
        for (size_t i = 0; i < out->staged_runs.n && ok; i++)
            ok = add_run(&out->published.runs, out->staged_runs.runs[i]);
        out->staged_runs.n = 0;
        if (!ok)
            request_output_end(seq, FINISH_ERROR, STATUS_RESOURCE_EXHAUSTED,
                               "no memory for generated text");
        out->staged.n_bytes = 0;
    }
    /* Ids whose text is deferred are not published yet (engine_loop.c). */
    out->published.n_ids = out->reason != FINISH_NONE ? seq->n_ids : out->n_taken;
    out->published.n_released = out->n_released;
    out->published.n_reasoning = out->n_reasoning;
    out->published.reason = out->reason;
    return out->published.n_ids > out->published.n_ids_read ||
           out->published.n_released > out->published.n_released_read ||
           out->published.text.n_bytes ||
           (out->published.reason != FINISH_NONE && !out->published.finish_read);
}
