#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/core/engine_private.h"
#include "engine/request/request_output.h"
#include "engine/request/sequence.h"
#include "engine/request/stop.h"

/* --- engine thread: publishing --- */

void engine_events_mark(struct engine *e, struct request *r)
{
    if (r->dirty)
        return;
    r->dirty = true;
    r->dirty_next = e->dirty;
    e->dirty = r;
}

static void fill_usage(struct request *r)
{
    struct engine_usage *u = &r->published.usage;
    int64_t active = r->active_ns ? r->active_ns : r->ended_ns;
    int64_t first = r->first_token_ns ? r->first_token_ns : r->ended_ns;
    u->n_prompt_tokens = r->n_prompt;
    u->n_cached_tokens = r->n_cached_tokens;
    u->n_preemptions = r->n_preemptions;
    u->n_drafted_tokens = r->n_drafted_tokens;
    u->n_accepted_tokens = r->n_accepted_tokens;
    u->n_generated_tokens = u->n_reasoning_tokens = 0;
    for (uint32_t i = 0; i < r->n_choices; i++) {
        u->n_generated_tokens += r->choices[i].n_ids;
        u->n_reasoning_tokens += r->choices[i].output->published.n_reasoning;
    }
    u->queue_ns = active ? active - r->submitted_ns : 0;
    u->prefill_ns = r->active_ns && first ? first - r->active_ns : 0;
    u->decode_ns = r->ended_ns && r->first_token_ns ? r->ended_ns - r->first_token_ns : 0;
}

static void put_ready(struct engine *e, struct request *r)
{
    if (r->published.in_ready_list)
        return;
    r->published.in_ready_list = true;
    r->published.ready_next = NULL;
    *(e->ready_last ? &e->ready_last->published.ready_next : &e->ready_first) = r;
    e->ready_last = r;
}

/* Returns true if readers get new events. Call with the events lock held. */
static bool publish_request(struct engine *e, struct request *r)
{
    bool news = r->active_ns && !r->published.started;
    r->published.n_scored = r->n_scored;
    news |= r->published.n_scored > r->published.n_scored_read && r->published.started;
    for (uint32_t i = 0; i < r->n_choices; i++)
        news |= request_output_publish(&r->choices[i]);
    r->published.started = r->active_ns != 0;
    r->published.ended = r->state == REQUEST_ENDED;
    fill_usage(r);
    if (news)
        put_ready(e, r);
    return news;
}

bool engine_events_publish(struct engine *e, bool wait)
{
    struct request *ended = NULL, *next;
    uint32_t n_ended = 0;
    bool news = false;
    if (!e->dirty)
        return false;
    if (wait)
        pthread_mutex_lock(&e->events_lock);
    else if (pthread_mutex_trylock(&e->events_lock))
        return false;
    for (struct request *r = e->dirty; r; r = next) {
        next = r->dirty_next;
        r->dirty = false;
        news |= publish_request(e, r);
        if (r->published.ended) {
            r->dirty_next = ended;
            ended = r;
            n_ended++;
        }
    }
    pthread_mutex_unlock(&e->events_lock);
    e->dirty = NULL;
    atomic_fetch_sub(&e->n_unfinished, n_ended);
    for (; ended; ended = next) {
        next = ended->dirty_next;
        request_release(ended);
    }
    return news;
}

/* --- the reader --- */

/* Offsets into the buffer's arrays. Arrays may move while they grow, so pointers are set at the
 * end. */
struct slices {
    size_t ids, shares, text, logprobs, stop, message;
};

struct engine_event_buffer {
    struct engine_event *events;
    struct slices *slices; /* [n_events] */
    size_t n_events, events_capacity;
    uint32_t *ids;
    size_t n_ids, ids_capacity;
    char *text;
    size_t n_text, text_capacity;
    struct engine_logprob *logprobs;
    size_t n_logprobs, logprobs_capacity;
};

int engine_event_buffer_create(struct engine_event_buffer **out_buffer, struct error *err)
{
    struct engine_event_buffer *buffer = calloc(1, sizeof(*buffer));
    if (!buffer)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for an event buffer");
    *out_buffer = buffer;
    return 0;
}

void engine_event_buffer_destroy(struct engine_event_buffer *buffer)
{
    if (!buffer)
        return;
    free(buffer->events);
    free(buffer->slices);
    free(buffer->ids);
    free(buffer->text);
    free(buffer->logprobs);
    free(buffer);
}

static bool grow_array(void *array, size_t *capacity, size_t needed, size_t elem_bytes)
{
    if (needed <= *capacity)
        return true;
    size_t want = needed + needed / 2 + 16;
    void *old, *grown;
    memcpy(&old, array, sizeof(old));
    grown = realloc(old, want * elem_bytes);
    if (!grown)
        return false;
    memcpy(array, &grown, sizeof(grown));
    *capacity = want;
    return true;
}

/* Most prompt log-probabilities in one read. Longer prompts come in parts, so that a reader's
 * memory does not grow with the prompt. */
enum { MAX_PROMPT_PART = 512 };

static uint32_t n_unread_scores(const struct request *r)
{
    uint32_t n = r->published.started ? r->published.n_scored - r->published.n_scored_read : 0;
    return n < MAX_PROMPT_PART ? n : MAX_PROMPT_PART;
}

/* Grows the buffer so that all unread events of the request fit. */
static bool reserve_events(struct engine_event_buffer *b, const struct request *r)
{
    size_t n_ids = b->n_ids, n_text = b->n_text, n_logprobs = b->n_logprobs;
    size_t n_events = b->n_events + 2 + 2 * (size_t)r->n_choices, slices = b->events_capacity;
    n_logprobs += n_unread_scores(r);
    for (uint32_t i = 0; i < r->n_choices; i++) {
        const struct request_output *out = r->choices[i].output;
        uint32_t n_new = out->published.n_ids - out->published.n_ids_read;
        n_events += out->published.runs.n;
        n_ids += n_new + (out->published.n_released - out->published.n_released_read);
        n_logprobs += r->want_logprobs ? n_new : 0;
        n_text += out->published.text.n_bytes + sizeof(out->message) + STOP_MAX_BYTES + 1;
    }
    return grow_array(&b->slices, &slices, n_events, sizeof(*b->slices)) &&
           grow_array(&b->events, &b->events_capacity, n_events, sizeof(*b->events)) &&
           grow_array(&b->ids, &b->ids_capacity, n_ids, sizeof(*b->ids)) &&
           grow_array(&b->text, &b->text_capacity, n_text, 1) &&
           grow_array(&b->logprobs, &b->logprobs_capacity, n_logprobs, sizeof(*b->logprobs));
}

static struct engine_event *add_event(struct engine_event_buffer *b, const struct request *r,
                                      enum engine_event_type type, uint32_t choice)
{
    struct engine_event *event = &b->events[b->n_events];
    *event = (struct engine_event){.type = type,
                                   .id = r->id,
                                   .user_data = r->user_data,
                                   .choice = choice,
                                   .usage = r->published.usage,
                                   .matched_stop_id = -1};
    b->slices[b->n_events++] =
        (struct slices){.ids = b->n_ids, .text = b->n_text, .logprobs = b->n_logprobs};
    return event;
}

static void read_prompt(struct engine_event_buffer *b, struct request *r)
{
    uint32_t begin = r->published.n_scored_read, n = n_unread_scores(r);
    if (!n)
        return;
    struct engine_event *event = add_event(b, r, ENGINE_EVENT_PROMPT, 0);
    event->first_prompt_token = begin;
    event->n_ids = n;
    event->logprobs = b->logprobs; /* not NULL: present; set_pointers() sets the address */
    memcpy(b->logprobs + b->n_logprobs, r->prompt_logprobs + begin, n * sizeof(*b->logprobs));
    b->n_logprobs += n;
    r->published.n_scored_read += n;
}

/* Adds an event with the released ids and the text of one run; `text` is the text of the run. */
static void read_run(struct engine_event_buffer *b, const struct request *r, struct sequence *seq,
                     const struct output_run *run, const char *text)
{
    struct request_output *out = seq->output;
    uint32_t begin = out->published.n_ids_read, n = out->published.n_ids - begin;
    struct engine_event *event = add_event(b, r, ENGINE_EVENT_TOKENS, seq->choice);
    event->is_reasoning = run->is_reasoning;
    event->n_ids = n;
    event->n_text_bytes = run->n_bytes;
    if (n)
        memcpy(b->ids + b->n_ids, seq->ids + begin, n * sizeof(*b->ids));
    b->n_ids += n;
    uint32_t n_before = out->published.n_released_read;
    event->n_released = n_before + run->n_ids;
    event->n_text_shares = run->n_ids;
    b->slices[b->n_events - 1].shares = b->n_ids;
    memcpy(b->ids + b->n_ids, seq->text_bytes + n_before, event->n_text_shares * sizeof(*b->ids));
    b->n_ids += event->n_text_shares;
    if (n && seq->logprobs) {
        memcpy(b->logprobs + b->n_logprobs, seq->logprobs + begin, n * sizeof(*b->logprobs));
        b->n_logprobs += n;
        event->logprobs = b->logprobs; /* not NULL: present; set_pointers() sets the address */
    }
    memcpy(b->text + b->n_text, text, run->n_bytes);
    b->n_text += run->n_bytes;
    out->published.n_ids_read = out->published.n_ids;
    out->published.n_released_read = event->n_released;
}

static void read_tokens(struct engine_event_buffer *b, const struct request *r,
                        struct sequence *seq)
{
    struct request_output *out = seq->output;
    struct output_runs *runs = &out->published.runs;
    const char *text = out->published.text.data;
    const struct output_run whole = {.n_ids =
                                         out->published.n_released - out->published.n_released_read,
                                     .n_bytes = (uint32_t)out->published.text.n_bytes};
    bool any = whole.n_ids || whole.n_bytes || out->published.n_ids > out->published.n_ids_read;
    if (any && !runs->n)
        read_run(b, r, seq, &whole, text);
    for (size_t i = 0; i < runs->n; i++) {
        read_run(b, r, seq, &runs->runs[i], text);
        text += runs->runs[i].n_bytes;
    }
    runs->n = 0;
    out->published.text.n_bytes = 0;
}

/* Copies a string with its NUL. Returns the offset of the copy. */
static size_t copy_string(struct engine_event_buffer *b, const char *text)
{
    size_t at = b->n_text, n = strlen(text) + 1;
    memcpy(b->text + at, text, n);
    b->n_text += n;
    return at;
}

static void read_finish(struct engine_event_buffer *b, struct request *r, struct sequence *seq)
{
    struct request_output *out = seq->output;
    if (out->published.reason == FINISH_NONE || out->published.finish_read)
        return;
    bool last = r->published.n_finishes_read + 1 == r->n_choices;
    if (last && !r->published.ended)
        return; /* wait for the usage figures: the next publication has them */
    struct engine_event *event = add_event(b, r, ENGINE_EVENT_FINISHED, seq->choice);
    struct slices *slices = &b->slices[b->n_events - 1];
    event->reason = out->published.reason;
    event->n_released = out->published.n_released;
    event->n_reasoning = out->published.n_reasoning;
    event->matched_stop_id = out->matched_stop_id;
    event->last = last;
    event->status = event->reason == FINISH_ERROR ? out->status : 0;
    slices->message = copy_string(b, out->message);
    if (out->matched) {
        slices->stop = copy_string(b, out->matched_stop);
        event->matched_stop = b->text; /* not NULL: present; set_pointers() sets the address */
    }
    out->published.finish_read = true;
    r->published.n_finishes_read++;
}

static void read_request(struct engine_event_buffer *b, struct request *r)
{
    if (r->published.started && !r->published.start_read) {
        add_event(b, r, ENGINE_EVENT_STARTED, 0);
        r->published.start_read = true;
    }
    read_prompt(b, r);
    if (r->published.n_scored_read < r->published.n_scored && r->published.started)
        return; /* read the remaining log-probabilities first */
    for (uint32_t i = 0; i < r->n_choices; i++)
        read_tokens(b, r, &r->choices[i]);
    for (uint32_t i = 0; i < r->n_choices; i++)
        read_finish(b, r, &r->choices[i]);
}

static void set_pointers(struct engine_event_buffer *b)
{
    for (size_t i = 0; i < b->n_events; i++) {
        struct engine_event *event = &b->events[i];
        const struct slices *s = &b->slices[i];
        bool prompt = event->type == ENGINE_EVENT_PROMPT;
        event->ids = event->n_ids && !prompt ? b->ids + s->ids : NULL;
        event->text_shares = event->n_text_shares ? b->ids + s->shares : NULL;
        event->text = event->n_text_bytes ? b->text + s->text : "";
        event->logprobs = event->logprobs ? b->logprobs + s->logprobs : NULL;
        event->matched_stop = event->matched_stop ? b->text + s->stop : NULL;
        event->message = event->type == ENGINE_EVENT_FINISHED ? b->text + s->message : "";
    }
}

/* Removes requests whose last event was read from the registry. */
static void unregister(struct engine *e, struct request *done)
{
    struct request *next;
    pthread_mutex_lock(&e->registry_lock);
    for (struct request *r = done; r; r = r->published.ready_next)
        hash_map_remove(&e->registry, &r->id, sizeof(r->id));
    pthread_mutex_unlock(&e->registry_lock);
    for (; done; done = next) {
        next = done->published.ready_next;
        atomic_fetch_sub(&e->n_live, 1);
        request_release(done);
    }
}

size_t engine_read_events(struct engine *e, struct engine_event_buffer *b,
                          const struct engine_event **out_events)
{
    struct request *done = NULL, *later = NULL, **later_end = &later;
    b->n_events = b->n_ids = b->n_text = b->n_logprobs = 0;
    pthread_mutex_lock(&e->events_lock);
    while (e->ready_first && reserve_events(b, e->ready_first)) {
        struct request *r = e->ready_first;
        e->ready_first = r->published.ready_next;
        if (!e->ready_first)
            e->ready_last = NULL;
        r->published.in_ready_list = false;
        read_request(b, r);
        if (n_unread_scores(r)) {
            *later_end = r;
            later_end = &r->published.ready_next;
            *later_end = NULL;
        } else if (r->published.n_finishes_read == r->n_choices) {
            r->published.ready_next = done;
            done = r;
        }
    }
    while (later) {
        struct request *next = later->published.ready_next;
        put_ready(e, later);
        later = next;
    }
    pthread_mutex_unlock(&e->events_lock);
    if (done)
        unregister(e, done);
    set_pointers(b);
    *out_events = b->events;
    return b->n_events;
}
