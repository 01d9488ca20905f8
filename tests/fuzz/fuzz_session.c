/* fuzz_session.c: fuzzes a worker's side of a Serve stream as a state machine. There are two
 * sessions, the queue of the request threads, and an engine that follows the input. The input is
 * records: a kind, a length of two bytes, and that many bytes. Kinds 0 and 1 are a ServeRequest on
 * the first or second session. Kinds 2 and 3 end a session (half-closed, or lost). Kind 4 runs the
 * oldest queued request. Kind 5 lets the engine step one request (tokens, a choice's end, an
 * error). Kind 6 sends the events. Kind 7 ends all running requests, as at the end of a drain.
 *
 * Invariants: a session answers each submitted id with one end and nothing after the end. The
 * engine gets no unknown request, and each pause once. Requests of an ended session are cancelled.
 * At the end no request lives and the leak checker finds no lost byte. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/text/tokenizer.h"
#include "proto/rpc/message/message.h"
#include "proto/rpc/server/call.h"
#include "server/worker/base/settings.h"
#include "server/worker/base/work_pool.h"
#include "server/worker/serve/events.h"
#include "server/worker/serve/meter.h"
#include "server/worker/serve/request_build.h"
#include "server/worker/serve/session.h"
#include "server/worker/serve/stream_request.h"
#include "server/worker/state/worker.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_LIVE = 16, MAX_QUEUED = 6, MAX_IDS = 64, MAX_EVENTS = 64, N_SESSIONS = 2 };

static void promise(bool kept)
{
    if (!kept)
        abort();
}

/* --- a call that checks the promises of the frames it gets --- */

struct rpc_call {
    const struct rpc_call_events *events;
    void *arg;
    bool finished, done;
    struct {
        uint64_t id;
        uint32_t n_ended, n_choices;
        bool live;
    } ids[MAX_IDS]; /* requests submitted on this call */
    size_t n_ids;
};

static struct rpc_call calls[N_SESSIONS];

void __wrap_rpc_call_retain(struct rpc_call *call);
void __wrap_rpc_call_release(struct rpc_call *call);
size_t __wrap_rpc_call_pending_bytes(struct rpc_call *call);
void __wrap_rpc_call_set_events(struct rpc_call *call, const struct rpc_call_events *events,
                                void *arg);
int __wrap_rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message);
int __wrap_rpc_call_finish(struct rpc_call *call, const struct error *status);

void __wrap_rpc_call_retain(struct rpc_call *call)
{
    (void)call;
}

void __wrap_rpc_call_release(struct rpc_call *call)
{
    (void)call;
}

size_t __wrap_rpc_call_pending_bytes(struct rpc_call *call)
{
    (void)call;
    return 0;
}

void __wrap_rpc_call_set_events(struct rpc_call *call, const struct rpc_call_events *events,
                                void *arg)
{
    call->events = events;
    call->arg = arg;
}

static void check_item(struct rpc_call *call, const Sluice__Worker__V1__StepItem *item)
{
    for (size_t i = call->n_ids; i-- > 0;) {
        if (call->ids[i].id != item->id)
            continue;
        promise(call->ids[i].live);
        if (item->finished)
            call->ids[i].n_ended++;
        if (item->error || (item->finished && item->finished->receipt))
            call->ids[i].live = false;
        return;
    }
    promise(false); /* the call never submitted this id */
}

int __wrap_rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__Worker__V1__ServeResponse *response =
        (const Sluice__Worker__V1__ServeResponse *)message;
    void *bytes;
    size_t n_bytes;
    struct error err;
    promise(rpc_message_pack(message, &bytes, &n_bytes, &err) == 0);
    free(bytes);
    if (call->finished)
        return STATUS_CANCELLED;
    if (response->frame_case == SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_STEP)
        for (size_t i = 0; i < response->step->n_items; i++)
            check_item(call, response->step->items[i]);
    return 0;
}

int __wrap_rpc_call_finish(struct rpc_call *call, const struct error *status)
{
    promise(!status || status->message[0]);
    if (call->finished)
        return STATUS_CANCELLED;
    call->finished = true;
    return 0;
}

/* --- an engine that follows the input --- */

struct live {
    bool used, paused, cancelled;
    uint64_t id, user_data;
    uint32_t n_choices, n_ended;
    uint32_t n_tokens[ENGINE_MAX_CHOICES];
    bool ended[ENGINE_MAX_CHOICES];
};

static struct live live[MAX_LIVE];
static uint64_t last_id;
static struct engine_event events[MAX_EVENTS];
static uint32_t ids_of[MAX_EVENTS];
static size_t n_events;
static const char digest[] = "0000000000000000000000000000000000000000000000000000000000000000";
static struct worker worker;

static struct live *live_of(uint64_t id)
{
    for (int i = 0; i < MAX_LIVE; i++)
        if (live[i].used && live[i].id == id)
            return &live[i];
    return NULL;
}

int __wrap_engine_submit(struct engine *engine, const struct engine_request *request,
                         uint64_t *out_id, struct error *err);
void __wrap_engine_cancel(struct engine *engine, uint64_t id);
void __wrap_engine_pause(struct engine *engine, uint64_t id, bool paused);
int __wrap_engine_update(struct engine *engine, uint64_t id, const struct engine_update *update,
                         struct error *err);
const struct tokenizer *__wrap_engine_tokenizer(const struct engine *engine);
const char *__wrap_engine_numerics_id(const struct engine *engine);
const char *__wrap_engine_weights_digest(const struct engine *engine);
void __wrap_engine_get_stats(const struct engine *engine, struct engine_stats *out_stats);
int __wrap_engine_health(struct engine *engine, struct error *err);
size_t __wrap_engine_read_events(struct engine *engine, struct engine_event_buffer *buffer,
                                 const struct engine_event **out_events);
int __wrap_request_build_prompt(struct worker *of, struct engine *engine,
                                const Sluice__Worker__V1__Submit *submit, struct token_list *ids,
                                uint32_t *out_n_truncated, struct error *err);
int __wrap_work_pool_push(struct work_pool *pool, void (*fn)(void *arg), void *arg,
                          struct error *err);
bool __wrap_wake_wait(struct wake *wake, int64_t timeout_ns);

int __wrap_engine_submit(struct engine *engine, const struct engine_request *request,
                         uint64_t *out_id, struct error *err)
{
    (void)engine;
    for (int i = 0; i < MAX_LIVE; i++) {
        if (live[i].used)
            continue;
        if (request->sampling.n < 1 || request->sampling.n > ENGINE_MAX_CHOICES)
            return error_field(err, "sampling.n", "out of range");
        memset(&live[i], 0, sizeof(live[i]));
        live[i].used = true;
        live[i].id = *out_id = ++last_id;
        live[i].user_data = request->user_data;
        live[i].n_choices = request->sampling.n;
        return 0;
    }
    error_set(err, STATUS_RESOURCE_EXHAUSTED, "the queue is full");
    return error_reason(err, REASON_QUEUE_FULL);
}

void __wrap_engine_cancel(struct engine *engine, uint64_t id)
{
    struct live *l = live_of(id);
    (void)engine;
    promise(id >= 1 && id <= last_id);
    if (l)
        l->cancelled = true;
}

void __wrap_engine_pause(struct engine *engine, uint64_t id, bool paused)
{
    struct live *l = live_of(id);
    (void)engine;
    promise(id >= 1 && id <= last_id);
    if (!l)
        return;
    promise(l->paused != paused);
    l->paused = paused;
}

int __wrap_engine_update(struct engine *engine, uint64_t id, const struct engine_update *update,
                         struct error *err)
{
    (void)engine;
    for (uint32_t i = 0; i < update->n_stop; i++)
        promise(strlen(update->stop[i]) < SIZE_MAX);
    return live_of(id) ? 0 : error_set(err, STATUS_NOT_FOUND, "it has ended");
}

const struct tokenizer *__wrap_engine_tokenizer(const struct engine *engine)
{
    (void)engine;
    return NULL;
}

const char *__wrap_engine_numerics_id(const struct engine *engine)
{
    (void)engine;
    return "fuzz/1";
}

const char *__wrap_engine_weights_digest(const struct engine *engine)
{
    (void)engine;
    return digest;
}

void __wrap_engine_get_stats(const struct engine *engine, struct engine_stats *out_stats)
{
    (void)engine;
    memset(out_stats, 0, sizeof(*out_stats));
}

int __wrap_engine_health(struct engine *engine, struct error *err)
{
    (void)engine;
    (void)err;
    return 0;
}

size_t __wrap_engine_read_events(struct engine *engine, struct engine_event_buffer *buffer,
                                 const struct engine_event **out_events)
{
    size_t n = n_events;
    (void)engine;
    (void)buffer;
    *out_events = events;
    n_events = 0;
    return n;
}

/* The event loop ends instead of waiting, and its caller continues. */
bool __wrap_wake_wait(struct wake *wake, int64_t timeout_ns)
{
    (void)wake;
    (void)timeout_ns;
    atomic_store(&worker.ending, true);
    return true;
}

/* Templates and the tokenizer have fuzzers of their own. */
int __wrap_request_build_prompt(struct worker *of, struct engine *engine,
                                const Sluice__Worker__V1__Submit *submit, struct token_list *ids,
                                uint32_t *out_n_truncated, struct error *err)
{
    (void)of;
    (void)engine;
    if (submit->request->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT__NOT_SET)
        return error_field(err, "prompt", "is missing");
    ids->ids = calloc(3, sizeof(*ids->ids));
    promise(ids->ids != NULL);
    ids->n_ids = 3;
    *out_n_truncated = 0;
    return 0;
}

static struct engine_event *add_event(struct live *l, enum engine_event_type type, uint32_t choice)
{
    struct engine_event *event = &events[n_events];
    memset(event, 0, sizeof(*event));
    event->type = type;
    event->id = l->id;
    event->user_data = l->user_data;
    event->choice = choice;
    event->matched_stop_id = -1;
    n_events++;
    return event;
}

static void send_events(void)
{
    atomic_store(&worker.ending, false);
    events_run(&worker);
}

static void end_choice(struct live *l, uint32_t choice, enum finish_reason reason)
{
    struct engine_event *event = add_event(l, ENGINE_EVENT_FINISHED, choice);
    l->ended[choice] = true;
    event->reason = l->cancelled ? FINISH_CANCELLED : reason;
    event->status = STATUS_INTERNAL;
    event->message = "told to";
    event->last = ++l->n_ended == l->n_choices;
    if (event->last)
        l->used = false;
}

/* The first byte chooses the request, the second the choice and the event, the third the amount. */
static void step(const uint8_t *data, size_t size)
{
    static const enum finish_reason reasons[] = {FINISH_LENGTH, FINISH_DEADLINE, FINISH_ERROR,
                                                 FINISH_CANCELLED};
    struct live *l = size >= 3 ? &live[data[0] % MAX_LIVE] : NULL;
    if (!l || !l->used)
        return;
    if (n_events + 2 > MAX_EVENTS)
        send_events();
    uint32_t choice = data[1] % l->n_choices;
    if (l->ended[choice])
        return;
    if (data[2] % 8 >= 4 || l->cancelled) {
        end_choice(l, choice, reasons[data[2] % 4]);
        return;
    }
    if (l->paused)
        return;
    if (!l->n_tokens[choice])
        add_event(l, ENGINE_EVENT_STARTED, choice);
    struct engine_event *event = add_event(l, ENGINE_EVENT_TOKENS, choice);
    ids_of[event - events] = data[2];
    l->n_tokens[choice]++;
    event->ids = &ids_of[event - events];
    event->n_ids = 1;
    event->n_released = l->n_tokens[choice];
    static const uint32_t share = 1;
    event->text = "x";
    event->n_text_bytes = 1;
    event->text_shares = &share;
    event->n_text_shares = 1;
}

/* --- the request threads --- */

static struct {
    void (*fn)(void *arg);
    void *arg;
} queued[MAX_QUEUED];
static size_t n_queued;

int __wrap_work_pool_push(struct work_pool *pool, void (*fn)(void *arg), void *arg,
                          struct error *err)
{
    (void)pool;
    if (n_queued == MAX_QUEUED) {
        error_set(err, STATUS_RESOURCE_EXHAUSTED, "the queue is full");
        return error_reason(err, REASON_QUEUE_FULL);
    }
    queued[n_queued].fn = fn;
    queued[n_queued++].arg = arg;
    return 0;
}

static void run_queued(void)
{
    if (!n_queued)
        return;
    void (*fn)(void *arg) = queued[0].fn;
    void *arg = queued[0].arg;
    memmove(queued, queued + 1, --n_queued * sizeof(*queued));
    fn(arg);
}

/* --- the server's side --- */

/* An accepted submit is answered; a refused one ends the call. */
static void note_submit(struct rpc_call *call, uint64_t id)
{
    for (size_t i = 0; i < call->n_ids; i++)
        if (call->ids[i].id == id && call->ids[i].live)
            return;
    promise(call->n_ids < MAX_IDS);
    call->ids[call->n_ids].id = id;
    call->ids[call->n_ids].live = true;
    call->ids[call->n_ids++].n_ended = 0;
}

static void on_frame(struct rpc_call *call, const uint8_t *data, size_t size)
{
    ProtobufCMessage *message;
    struct error err;
    if (call->finished || rpc_message_parse(&sluice__worker__v1__serve_request__descriptor, data,
                                            size, &message, &err) != 0)
        return;
    const Sluice__Worker__V1__ServeRequest *frame =
        (const Sluice__Worker__V1__ServeRequest *)message;
    const Sluice__Worker__V1__Submit *submit =
        frame->frame_case == SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_SUBMIT ? frame->submit : NULL;
    bool words =
        submit && submit->request && submit->request->sampling &&
        submit->request->sampling->n_bad_words; /* they need a tokenizer, with its own fuzzer */
    if (!words && call->n_ids < MAX_IDS) {
        if (submit)
            note_submit(call, submit->id);
        call->events->on_message(call->arg, call, message);
    }
    rpc_message_free(message);
}

static void lose(struct rpc_call *call, bool half_close)
{
    if (call->done)
        return;
    if (half_close && !call->finished) {
        call->events->on_half_close(call->arg, call);
        promise(call->finished);
        return;
    }
    call->finished = call->done = true;
    call->events->on_done(call->arg, call);
}

static void begin(void)
{
    static struct settings settings;
    static struct worker_meter *meter;
    struct error err;
    if (!meter) {
        log_init("fuzz", LOG_LEVEL_ERROR, LOG_FORMAT_KV);
        settings.replica = "r1";
        settings.name = "m";
        settings.version_id = "1";
        settings.device_group = "cpu";
        settings.epoch = 7;
        promise(worker_meter_create(&meter, &err) == 0);
    }
    worker_init(&worker, &settings);
    worker.meter = meter;
    worker.engine = (struct engine *)&worker; /* no code under test reads the engine */
    worker.state = SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_READY;
    memset(live, 0, sizeof(live));
    memset(calls, 0, sizeof(calls));
    last_id = 0;
    for (int i = 0; i < N_SESSIONS; i++)
        session_handle_serve(&worker, &calls[i], NULL);
}

static void end(void)
{
    for (int i = 0; i < N_SESSIONS; i++)
        lose(&calls[i], false);
    while (n_queued)
        run_queued();
    for (int i = 0; i < MAX_LIVE; i++) {
        if (!live[i].used)
            continue;
        promise(live[i].cancelled); /* no session is left to read the events */
        for (uint32_t c = 0; c < live[i].n_choices; c++) {
            if (n_events + 2 > MAX_EVENTS)
                send_events();
            if (!live[i].ended[c])
                end_choice(&live[i], c, FINISH_CANCELLED);
        }
    }
    send_events();
    promise(atomic_load(&worker.n_live) == 0 && worker.sessions == NULL);
    worker.engine = NULL;
    worker_fini(&worker);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    begin();
    while (size >= 3) {
        uint8_t kind = data[0] % 8;
        size_t n_bytes = (size_t)data[1] | (size_t)data[2] << 8;
        data += 3;
        size -= 3;
        n_bytes = n_bytes < size ? n_bytes : size;
        if (kind < 2)
            on_frame(&calls[kind], data, n_bytes);
        else if (kind < 4)
            lose(&calls[n_bytes ? data[0] % N_SESSIONS : 0], kind == 2);
        else if (kind == 4)
            run_queued();
        else if (kind == 5)
            step(data, n_bytes);
        else if (kind == 6)
            send_events();
        else
            session_end_requests(&worker);
        data += n_bytes;
        size -= n_bytes;
    }
    end();
    return 0;
}
