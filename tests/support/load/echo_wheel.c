#include "tests/support/load/echo_wheel.h"

#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/status.h"
#include "proto/rpc/server/call.h"

enum { IDLE_TURN_MS = 100 };

char *echo_word(const char *text)
{
    return (char *)(uintptr_t)text;
}

void echo_request_free(struct echo *echo, struct request *request)
{
    hash_map_remove(&request->session->live, &request->id, sizeof(request->id));
    *request->at = request->next;
    if (request->next)
        request->next->at = request->at;
    echo->n_paused -= request->paused;
    if (--echo->n_live == 0)
        pthread_cond_broadcast(&echo->idle);
    free(request->prompt);
    free(request);
}

/* --- frames --- */

static void send_frame(struct session *session, Sluice__Worker__V1__StepItem **items, size_t n)
{
    struct echo *echo = session->echo;
    Sluice__Worker__V1__ServeResponse response = SLUICE__WORKER__V1__SERVE_RESPONSE__INIT;
    Sluice__Worker__V1__Step step = SLUICE__WORKER__V1__STEP__INIT;
    Sluice__Worker__V1__Load load = SLUICE__WORKER__V1__LOAD__INIT;
    struct error err;
    load.n_running = echo->n_live - echo->n_paused;
    load.n_ready = load.n_running;
    load.n_paused = echo->n_paused;
    load.progress = echo->progress;
    load.step_ns = echo->step_ns;
    step.step = ++session->n_steps;
    step.items = items;
    step.n_items = n;
    step.load = &load;
    response.frame_case = SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_STEP;
    response.step = &step;
    if (rpc_call_send(session->call, &response.base) != STATUS_RESOURCE_EXHAUSTED)
        return;
    error_set(&err, STATUS_RESOURCE_EXHAUSTED, "the server does not read its step frames");
    rpc_call_finish(session->call, &err);
}

void echo_send_error(struct session *session, uint64_t id, const struct error *why)
{
    Sluice__Worker__V1__StepItem item = SLUICE__WORKER__V1__STEP_ITEM__INIT, *list[1] = {&item};
    Sluice__V1__Error error = SLUICE__V1__ERROR__INIT;
    error.code = status_to_grpc(why->status);
    error.message = echo_word(why->message);
    error.reason = echo_word(error_reason_name(why));
    error.field = echo_word(why->field);
    item.id = id;
    item.error = &error;
    session->echo->counters.n_failed_requests++;
    send_frame(session, list, 1);
}

/* Returns a fresh item; NULL without memory (the stream then waits for its next turn). */
static struct item *next_item(struct echo *echo)
{
    if (echo->n_items == echo->items_capacity) {
        size_t capacity = echo->items_capacity ? echo->items_capacity * 2 : 256;
        struct item *items = realloc(echo->items, capacity * sizeof(*items));
        if (!items)
            return NULL;
        echo->items = items;
        Sluice__Worker__V1__StepItem **list = realloc(echo->list, capacity * sizeof(*list));
        if (!list)
            return NULL;
        echo->list = list;
        echo->items_capacity = capacity;
    }
    struct item *item = &echo->items[echo->n_items++];
    item->message = (Sluice__Worker__V1__StepItem)SLUICE__WORKER__V1__STEP_ITEM__INIT;
    return item;
}

/* Items move while a frame grows, so their pointers are set when the frame is complete. Until then
 * a non-NULL placeholder marks each field that an item has. */
static void settle_items(struct echo *echo)
{
    for (size_t i = 0; i < echo->n_items; i++) {
        struct item *item = &echo->items[i];
        echo->list[i] = &item->message;
        if (item->message.n_token_ids) {
            item->message.token_ids = &item->token;
            item->message.text = item->text;
        }
        if (item->message.prompt_info)
            item->message.prompt_info = &item->prompt_info;
        if (item->message.error)
            item->message.error = &item->error;
        if (!item->message.finished)
            continue;
        item->message.finished = &item->finished;
        if (item->finished.usage) {
            item->finished.usage = &item->usage;
            item->finished.receipt = &item->receipt;
        }
    }
}

static void add_prompt_info(struct request *request, struct item *item)
{
    item->prompt_info = (Sluice__V1__PromptInfo)SLUICE__V1__PROMPT_INFO__INIT;
    item->prompt_info.n_prompt_tokens = (uint32_t)request->n_prompt;
    item->prompt_info.prompt_token_ids = request->prompt;
    item->prompt_info.n_prompt_token_ids = request->n_prompt;
    item->message.prompt_info = &item->prompt_info;
    request->told = true;
}

static void add_finish(struct echo *echo, struct request *request, uint32_t choice,
                       struct item *item)
{
    request->finished |= (uint8_t)(1u << choice);
    item->finished = (Sluice__V1__Finished)SLUICE__V1__FINISHED__INIT;
    item->finished.choice = choice;
    item->finished.reason = SLUICE__V1__FINISH_REASON__FINISH_REASON_LENGTH;
    item->finished.n_tokens = request->n_generated[choice];
    item->message.finished = &item->finished;
    if (request->finished != (1u << request->n_choices) - 1)
        return;
    item->usage = (Sluice__V1__Usage)SLUICE__V1__USAGE__INIT;
    item->usage.n_prompt_tokens = (uint32_t)request->n_prompt;
    for (uint32_t i = 0; i < request->n_choices; i++)
        item->usage.n_generated_tokens += request->n_generated[i];
    item->receipt = (Sluice__V1__Receipt)SLUICE__V1__RECEIPT__INIT;
    item->receipt.model = echo_word(echo->config.model);
    item->receipt.version = echo_word(echo->config.version);
    item->receipt.replica_id = echo_word(echo->config.replica_id);
    item->receipt.numerics_id = echo_word(echo->config.numerics_id);
    item->finished.usage = &item->usage;
    item->finished.receipt = &item->receipt;
    request->over = true;
    echo->counters.n_ok_requests++;
}

static void turn_choice(struct echo *echo, struct request *request, uint32_t choice)
{
    bool silent = !echo->config.rate || request->paused || request->credit == 0;
    if ((request->finished >> choice & 1) || (silent && request->told))
        return;
    struct item *item = next_item(echo);
    if (!item)
        return;
    item->message.id = request->id;
    item->message.choice = choice;
    if (!request->told)
        add_prompt_info(request, item);
    if (silent)
        return;
    uint32_t index = request->n_generated[choice];
    if (index < request->max_tokens) {
        item->token = echo_token(request->prompt, request->n_prompt, choice, index);
        echo_text(item->token, index, item->text);
        item->text[ECHO_TEXT_BYTES] = '\0';
        item->message.n_token_ids = item->message.n_released = 1;
        request->n_generated[choice]++;
        request->credit -= request->credit > 0;
        echo->counters.n_generated_tokens++;
    }
    if (request->n_generated[choice] >= request->max_tokens)
        add_finish(echo, request, choice, item);
}

static void expire(struct echo *echo, struct request *request)
{
    struct item *item = next_item(echo);
    if (!item)
        return;
    item->message.id = request->id;
    item->error = (Sluice__V1__Error)SLUICE__V1__ERROR__INIT;
    item->error.code = status_to_grpc(STATUS_DEADLINE_EXCEEDED);
    item->error.message = echo_word("the deadline passed");
    item->message.error = &item->error;
    request->over = true;
    echo->counters.n_expired_requests++;
}

/* --- turns --- */

/* Handles one pass over a slot: sends its frame, then removes the ended streams. */
static void turn_slot(struct echo *echo, struct session *session, uint32_t i_slot, int64_t now_ns)
{
    struct request *request, *next;
    echo->n_items = 0;
    for (request = session->slots[i_slot]; request; request = request->next) {
        if (request->deadline_ns && now_ns >= request->deadline_ns) {
            expire(echo, request);
            continue;
        }
        for (uint32_t i = 0; i < request->n_choices; i++)
            turn_choice(echo, request, i);
    }
    settle_items(echo);
    if (session->greeted)
        send_frame(session, echo->list, echo->n_items);
    for (request = session->slots[i_slot]; request; request = next) {
        next = request->next;
        if (request->over)
            echo_request_free(echo, request);
    }
}

void *echo_turn_wheel(void *arg)
{
    struct echo *echo = arg;
    const struct echo_config *config = &echo->config;
    int64_t period_ns = config->rate ? NS_PER_S / ((int64_t)config->rate * config->n_slots)
                                     : IDLE_TURN_MS * NS_PER_MS;
    int64_t at_ns = clock_now_ns();
    for (;;) {
        at_ns += period_ns;
        int64_t started_ns = clock_now_ns();
        /* the process was stopped: send no burst of missed frames */
        if (at_ns < started_ns - NS_PER_S)
            at_ns = started_ns;
        struct timespec until = {.tv_sec = at_ns / NS_PER_S, .tv_nsec = at_ns % NS_PER_S};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
            ;
        pthread_mutex_lock(&echo->lock);
        started_ns = clock_now_ns();
        echo->i_slot = (echo->i_slot + 1) % config->n_slots;
        echo->progress++;
        echo->counters.n_steps++;
        for (struct session *s = echo->sessions; s; s = s->next)
            turn_slot(echo, s, echo->i_slot, started_ns);
        echo->step_ns = (uint64_t)(clock_now_ns() - started_ns);
        pthread_mutex_unlock(&echo->lock);
    }
    return NULL;
}
