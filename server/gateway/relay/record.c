/* The relay's record of its worker's reports: tokens, text and log-probabilities of each choice,
 * and facts of the prompt. Also the bounds on how much a worker may make the server keep. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "proto/rpc/message/message.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/base/limits.h"
#include "server/gateway/relay/relay_private.h"

/* Size of the prompt log-probabilities in one message; an entry has at most some 20 KiB. */
enum { MAX_PROMPT_PART_BYTES = 256 << 10 };

enum {
    MAX_TOKEN_TEXT = 4096,        /* bytes of one token's text: several times the longest in any
                                   * vocabulary in use */
    SPARE_TOKENS = 16,            /* allowance for text without ids: of ids that a stop string
                                   * cut */
    MAX_HELD_TEXT = 16 << 20,     /* allowance for a sequence that is being paused, beyond the
                                   * pending limits */
    MAX_TOKENS_UNTOLD = 16 << 20, /* bound where neither the request nor the route gives one */
};

ProtobufCMessage *relay_copy(const ProtobufCMessage *message)
{
    size_t n_bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(n_bytes ? n_bytes : 1);
    if (!bytes)
        return NULL;
    protobuf_c_message_pack(message, bytes);
    ProtobufCMessage *copy = protobuf_c_message_unpack(message->descriptor, NULL, n_bytes, bytes);
    free(bytes);
    return copy;
}

/* --- the prompt: its facts, then its log-probabilities in parts --- */

/* Moves the entries out of `from`. */
static bool append_prompt_logprobs(Sluice__V1__PromptInfo *to, Sluice__V1__PromptInfo *from)
{
    size_t n = to->n_prompt_logprobs + from->n_prompt_logprobs;
    Sluice__V1__TokenLogprob **grown = realloc(to->prompt_logprobs, n * sizeof(*grown));
    if (!grown)
        return false;
    memcpy(grown + to->n_prompt_logprobs, from->prompt_logprobs,
           from->n_prompt_logprobs * sizeof(*grown));
    to->prompt_logprobs = grown;
    to->n_prompt_logprobs = n;
    from->n_prompt_logprobs = 0; /* the array itself is freed with `from` */
    return true;
}

static size_t entry_bytes(const Sluice__V1__PromptInfo *info, size_t i)
{
    return protobuf_c_message_get_packed_size(&info->prompt_logprobs[i]->base);
}

bool relay_record_prompt(struct relay *relay, const Sluice__V1__PromptInfo *info)
{
    /* A worker that resumes reports its first prompt_info again; the client has that part. */
    uint32_t known = relay->n_prompt_logprobs;
    bool next = info->n_prompt_logprobs && info->first_prompt_logprob == known;
    if (relay->prompt_info && !next)
        return true;
    Sluice__V1__PromptInfo *copy = (Sluice__V1__PromptInfo *)relay_copy(&info->base);
    if (!copy)
        return false;
    relay->n_prompt_logprobs += (uint32_t)copy->n_prompt_logprobs;
    for (size_t i = 0; i < copy->n_prompt_logprobs; i++)
        relay->pending_bytes += entry_bytes(copy, i);
    if (!relay->prompt_info) {
        relay->prompt_info = copy;
        meter_started(&relay->meter, copy->n_prompt_tokens, copy->n_cached_tokens);
        return true;
    }
    bool ok = append_prompt_logprobs(relay->prompt_info, copy);
    rpc_message_free(&copy->base);
    return ok;
}

Sluice__V1__PromptInfo relay_prompt_info(struct relay *relay)
{
    Sluice__V1__PromptInfo info = *relay->prompt_info;
    const Sluice__V1__Output *output = relay->request->output;
    info.request_id = relay->request_id;
    info.model = relay->model;
    info.version = relay->version;
    info.seed = relay->seed;
    info.fingerprint = relay->fingerprint;
    info.first_prompt_logprob = relay->n_prompt_logprobs - (uint32_t)info.n_prompt_logprobs;
    if (!output || relay->prompt_info_sent ||
        !(output->return_prompt_token_ids || output->prompt_logprobs || output->return_full_text)) {
        info.n_prompt_token_ids = 0;
        info.prompt_token_ids = NULL;
    }
    return info;
}

/* Frees the first n entries, which are in a message for the client now. */
static void drop_prompt_logprobs(struct relay *relay, size_t n)
{
    Sluice__V1__PromptInfo *info = relay->prompt_info;
    for (size_t i = 0; i < n; i++) {
        relay->pending_bytes -= entry_bytes(info, i);
        rpc_message_free(&info->prompt_logprobs[i]->base);
    }
    info->n_prompt_logprobs -= n;
    if (info->n_prompt_logprobs)
        memmove(info->prompt_logprobs, info->prompt_logprobs + n,
                info->n_prompt_logprobs * sizeof(*info->prompt_logprobs));
}

bool relay_put_prompt(struct relay *relay, relay_put_fn *put, void *ctx)
{
    size_t n = 0, n_bytes = 0;
    if (!relay->prompt_info)
        return false;
    if (relay->prompt_info_sent &&
        (!relay->n_prompt_logprobs || !relay->prompt_info->n_prompt_logprobs))
        return false;
    struct relay_frame frame = {.kind = RELAY_FRAME_PROMPT_INFO,
                                .prompt_info = relay_prompt_info(relay)};
    while (n < frame.prompt_info.n_prompt_logprobs && n_bytes < MAX_PROMPT_PART_BYTES)
        n_bytes += entry_bytes(&frame.prompt_info, n++);
    frame.prompt_info.n_prompt_logprobs = n;
    put(ctx, &frame);
    drop_prompt_logprobs(relay, n);
    relay->prompt_info_sent = true;
    return true;
}

/* --- choices --- */

void relay_choice_fini(struct relay_choice *choice)
{
    free(choice->generated.ids);
    free(choice->text_ends.ids);
    strbuf_fini(&choice->text);
    for (size_t i = 0; i < choice->n_logprobs; i++)
        rpc_message_free(&choice->logprobs[i]->base);
    free(choice->logprobs);
    free(choice->runs);
    if (choice->finished)
        rpc_message_free(&choice->finished->base);
}

static bool reserve(struct relay_ids *list, size_t n)
{
    if (list->n + n <= list->capacity)
        return true;
    size_t capacity = list->capacity ? list->capacity * 2 : 64;
    while (capacity < list->n + n)
        capacity *= 2;
    uint32_t *grown = realloc(list->ids, capacity * sizeof(*grown));
    if (!grown)
        return false;
    list->ids = grown;
    list->capacity = capacity;
    return true;
}

static bool append_ids(struct relay_ids *list, const uint32_t *ids, size_t n)
{
    if (!reserve(list, n))
        return false;
    if (n)
        memcpy(list->ids + list->n, ids, n * sizeof(*ids));
    list->n += n;
    return true;
}

static bool append_logprobs(struct relay_choice *choice, Sluice__V1__TokenLogprob **logprobs,
                            size_t n)
{
    if (choice->n_logprobs + n > choice->logprobs_capacity) {
        size_t capacity = (choice->n_logprobs + n) * 2;
        Sluice__V1__TokenLogprob **grown = realloc(choice->logprobs, capacity * sizeof(*grown));
        if (!grown)
            return false;
        choice->logprobs = grown;
        choice->logprobs_capacity = capacity;
    }
    for (size_t i = 0; i < n; i++) {
        ProtobufCMessage *copy = relay_copy(&logprobs[i]->base);
        if (!copy)
            return false;
        choice->logprobs[choice->n_logprobs++] = (Sluice__V1__TokenLogprob *)copy;
    }
    return true;
}

/* Begins a run if the kind changes. Released ids and text of the item are not recorded yet. */
static bool append_run(struct relay_choice *choice, Sluice__V1__PartKind kind)
{
    Sluice__V1__PartKind last = choice->n_runs ? choice->runs[choice->n_runs - 1].kind
                                               : SLUICE__V1__PART_KIND__PART_KIND_UNSPECIFIED;
    if (kind == last)
        return true;
    if (choice->n_runs == choice->runs_capacity) {
        size_t capacity = choice->runs_capacity ? 2 * choice->runs_capacity : 4;
        struct relay_run *grown = realloc(choice->runs, capacity * sizeof(*grown));
        if (!grown)
            return false;
        choice->runs = grown;
        choice->runs_capacity = capacity;
    }
    choice->runs[choice->n_runs++] =
        (struct relay_run){choice->n_released, choice->text_bytes, kind};
    return true;
}

const struct relay_run *relay_choice_next_run(const struct relay_choice *choice,
                                              Sluice__V1__PartKind *out_kind)
{
    *out_kind = SLUICE__V1__PART_KIND__PART_KIND_UNSPECIFIED;
    for (size_t i = 0; i < choice->n_runs; i++) {
        const struct relay_run *run = &choice->runs[i];
        if (run->begin_id > choice->n_sent || run->begin_byte > choice->text_sent)
            return run;
        *out_kind = run->kind;
    }
    return NULL;
}

/* Drops runs that lie before the held ids, but for the last of them. */
static void drop_runs(struct relay_choice *choice)
{
    size_t n = 0;
    while (n + 1 < choice->n_runs && choice->runs[n + 1].begin_id <= choice->n_held &&
           choice->runs[n + 1].begin_byte <= choice->text_held)
        n++;
    choice->n_runs -= n;
    if (n)
        memmove(choice->runs, choice->runs + n, choice->n_runs * sizeof(*choice->runs));
}

/* Records where the text of each released id ends. The last id gets the rest, so that ids and
 * text agree even if the worker's figures are wrong. */
static bool append_text_ends(struct relay_choice *choice, const Sluice__Worker__V1__StepItem *item,
                             size_t n)
{
    if (!reserve(&choice->text_ends, n))
        return false;
    bool known = item->n_released_text_bytes == item->n_released;
    uint64_t end = choice->text_bytes - strlen(item->text);
    for (size_t i = 0; i < n; i++) {
        end += known ? item->released_text_bytes[i] : 0;
        if (i + 1 == n || end > choice->text_bytes)
            end = choice->text_bytes;
        choice->text_ends.ids[choice->text_ends.n++] = (uint32_t)end;
    }
    return true;
}

/* Usage and receipt are sent with the choice that is sent last. That need not be the choice that
 * ended last. */
static bool take_finished(struct relay *relay, struct relay_choice *choice,
                          const Sluice__V1__Finished *finished)
{
    choice->finished = (Sluice__V1__Finished *)relay_copy(&finished->base);
    if (!choice->finished)
        return false;
    if (choice->finished->usage && !relay->usage) {
        relay->usage = choice->finished->usage;
        choice->finished->usage = NULL;
    }
    if (choice->finished->receipt && !relay->receipt) {
        relay->receipt = choice->finished->receipt;
        choice->finished->receipt = NULL;
    }
    return true;
}

bool relay_record_item(struct relay *relay, const Sluice__Worker__V1__StepItem *item)
{
    struct relay_choice *choice = &relay->choices[item->choice];
    size_t text_bytes = strlen(item->text), n_before = choice->n_logprobs;
    if (item->prompt_info && !relay_record_prompt(relay, item->prompt_info))
        return false;
    if ((text_bytes || item->n_released) && !append_run(choice, item->kind))
        return false;
    if (!append_ids(&choice->generated, item->token_ids, item->n_token_ids) ||
        !append_logprobs(choice, item->logprobs, item->n_logprobs) ||
        !strbuf_add(&choice->text, item->text, text_bytes))
        return false;
    choice->text_bytes += text_bytes;
    if (item->has_logprob_sum) {
        choice->has_logprob_sum = true;
        choice->logprob_sum = item->logprob_sum;
    }
    size_t held = choice->generated.n - choice->n_released;
    size_t n_released = item->n_released < held ? item->n_released : held;
    if (!append_text_ends(choice, item, n_released))
        return false;
    choice->n_released += n_released;
    meter_tokens(&relay->meter, item->choice, n_released);
    if (relay->whole && choice->n_released && !relay->first_token_ns)
        relay->first_token_ns = clock_now_ns();
    relay->pending_bytes += text_bytes + 4 * item->n_token_ids;
    for (size_t i = n_before; i < choice->n_logprobs; i++)
        relay->pending_bytes += protobuf_c_message_get_packed_size(&choice->logprobs[i]->base);
    return !item->finished || choice->finished || take_finished(relay, choice, item->finished);
}

bool relay_all_finished(const struct relay *relay)
{
    for (uint32_t i = 0; i < relay->n_choices; i++)
        if (!relay->choices[i].finished)
            return false;
    return true;
}

size_t relay_logprob_bytes(const struct relay_choice *choice, size_t begin, size_t end)
{
    size_t n_bytes = 0;
    for (size_t i = begin - choice->n_held; i < end - choice->n_held && i < choice->n_logprobs; i++)
        n_bytes += protobuf_c_message_get_packed_size(&choice->logprobs[i]->base);
    return n_bytes;
}

void relay_choice_drop(struct relay_choice *choice, size_t n)
{
    if (n <= choice->n_held)
        return;
    size_t n_drop = n - choice->n_held;
    n_drop = n_drop < choice->n_logprobs ? n_drop : choice->n_logprobs;
    for (size_t i = 0; i < n_drop; i++)
        rpc_message_free(&choice->logprobs[i]->base);
    choice->n_logprobs -= n_drop;
    if (choice->n_logprobs)
        memmove(choice->logprobs, choice->logprobs + n_drop,
                choice->n_logprobs * sizeof(*choice->logprobs));
    /* Only text that was sent is dropped with the ids. */
    uint64_t end = n == choice->n_sent ? choice->text_sent : choice->text_ends.ids[n - 1];
    strbuf_consume(&choice->text, (size_t)(end - choice->text_held));
    choice->text_held = end;
    choice->n_held = n;
    drop_runs(choice);
}

/* --- bounds --- */

void relay_allow_tokens(struct relay *relay, const Sluice__V1__ModelInfo *info)
{
    const Sluice__V1__Stopping *stopping = relay->request->stopping;
    uint64_t most = info && info->context_length ? info->context_length : MAX_TOKENS_UNTOLD;
    if (stopping && stopping->has_max_tokens && stopping->max_tokens < most)
        most = stopping->max_tokens;
    if (most > relay->max_ids) /* a lower limit may reach the worker after it has made more
                                * tokens */
        relay->max_ids = most;
}

void relay_take_sampling(struct relay *relay, const Sluice__V1__ModelInfo *info)
{
    Sluice__V1__DefaultSampling none = SLUICE__V1__DEFAULT_SAMPLING__INIT;
    relay->default_sampling = info && info->default_sampling ? *info->default_sampling : none;
    relay->default_sampling.base = none.base; /* unknown fields and lists belong to `info` */
    relay->default_sampling.n_suppress_tokens = 0;
    relay->default_sampling.suppress_tokens = NULL;
}

static int check_counts(const struct relay *relay, uint32_t i, struct error *err)
{
    const struct relay_choice *choice = &relay->choices[i];
    if (choice->generated.n <= relay->max_ids &&
        choice->text_bytes <= (choice->generated.n + SPARE_TOKENS) * MAX_TOKEN_TEXT)
        return 0; /* enough without the prompt's text; avoids a read of the prompt's memory per
                   * token */
    const Sluice__V1__Output *output = relay->request->output;
    bool with_prompt = relay->prompt_info && output && output->return_full_text;
    uint64_t n_prompt = with_prompt ? relay->prompt_info->n_prompt_tokens : 0;
    uint64_t most = (choice->generated.n + n_prompt + SPARE_TOKENS) * MAX_TOKEN_TEXT;
    if (choice->generated.n > relay->max_ids)
        error_set(err, STATUS_INTERNAL,
                  "the worker made %zu tokens for choice %" PRIu32 ", limit %" PRIu64,
                  choice->generated.n, i, relay->max_ids);
    else if (choice->text_bytes > most)
        error_set(err, STATUS_INTERNAL,
                  "the worker sent %" PRIu64 " bytes of text for %zu tokens of choice %" PRIu32
                  ", limit %" PRIu64,
                  choice->text_bytes, choice->generated.n, i, most);
    else
        return 0;
    return error_reason(err, REASON_WORKER_TEXT);
}

/* Bounds the text of a paused sequence: a worker stops within a step or two after a pause. */
static int check_held(const struct relay *relay, uint32_t i, struct error *err)
{
    const struct gateway_limits *limits = relay->shared->limits;
    const struct strbuf *text = &relay->choices[i].text;
    uint64_t most = MAX_HELD_TEXT + limits->max_pending_bytes + limits->max_replay_bytes;
    if (relay->whole || relay_holds_back(relay) || text->n_bytes <= most)
        return 0;
    error_set(err, STATUS_INTERNAL,
              "the worker continued after a pause: %zu bytes of choice %" PRIu32
              " wait, limit %" PRIu64,
              text->n_bytes, i, most);
    return error_reason(err, REASON_WORKER_TEXT);
}

int relay_check_answer(const struct relay *relay, size_t n_bytes, struct error *err)
{
    uint64_t limit = relay->shared->limits->max_answer_bytes;
    if (n_bytes <= limit)
        return 0;
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "answer: %zu bytes are more than the limit of %" PRIu64
              " (max_answer_bytes); use Generate, which sends the answer in parts",
              n_bytes, limit);
    counters_refusal(relay->shared->counters, LIMIT_ANSWER_BYTES);
    return error_reason(err, REASON_ANSWER_TOO_LARGE);
}

int relay_check_bounds(const struct relay *relay, uint32_t i, struct error *err)
{
    int rc = check_counts(relay, i, err);
    if (!rc)
        rc = check_held(relay, i, err);
    /* With best_of all choices are kept, and which are sent is not known yet. So the mean size
     * is checked. */
    if (!rc && relay->whole)
        rc = relay_check_answer(relay, relay->pending_bytes / relay->n_choices * relay->n_answers,
                                err);
    return rc;
}
