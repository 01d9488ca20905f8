/* What a worker may have the server keep for one request. */
#include <inttypes.h>

#include "server/gateway/gateway.h"
#include "server/gateway/relay/relay_private.h"

enum {
    MAX_TOKEN_TEXT = 4096,        /* bytes of one token's text: several times the longest of any
                                     vocabulary in use */
    SPARE_TOKENS = 16,            /* text that comes without ids, of ids cut by a stop string */
    MAX_HELD_TEXT = 16 << 20,     /* beyond what the client may let lie, once it is to pause */
    MAX_TOKENS_UNTOLD = 16 << 20, /* where neither request nor route tell how many there can be */
};

void relay_allow_tokens(struct relay *relay, const Sluice__V1__ModelInfo *info)
{
    const Sluice__V1__Stopping *stopping = relay->request->stopping;
    uint64_t most = info && info->context_length ? info->context_length : MAX_TOKENS_UNTOLD;
    if (stopping && stopping->has_max_tokens && stopping->max_tokens < most)
        most = stopping->max_tokens;
    if (most > relay->max_ids) /* a lower limit reaches the worker when it has more */
        relay->max_ids = most;
}

static int check_counts(const struct relay *relay, uint32_t i, struct error *err)
{
    const struct relay_choice *choice = &relay->choices[i];
    if (choice->generated.n <= relay->max_ids &&
        choice->text_bytes <= (choice->generated.n + SPARE_TOKENS) * MAX_TOKEN_TEXT)
        return 0; /* whatever the prompt has: its memory is not looked at for each token */
    const Sluice__V1__Output *output = relay->request->output;
    bool with_prompt = relay->prompt_info && output && output->return_full_text;
    uint64_t n_prompt = with_prompt ? relay->prompt_info->n_prompt_tokens : 0;
    uint64_t most = (choice->generated.n + n_prompt + SPARE_TOKENS) * MAX_TOKEN_TEXT;
    if (choice->generated.n > relay->max_ids)
        error_set(err, STATUS_INTERNAL,
                  "the worker made %zu tokens for choice %" PRIu32 ", which may have %" PRIu64,
                  choice->generated.n, i, relay->max_ids);
    else if (choice->text_bytes > most)
        error_set(err, STATUS_INTERNAL,
                  "the worker sent %" PRIu64 " bytes of text for %zu tokens of choice %" PRIu32
                  ", limit %" PRIu64,
                  choice->text_bytes, choice->generated.n, i, most);
    else
        return 0;
    return error_reason(err, "WORKER_TEXT");
}

/* A worker that was told to pause stops within a step or two. */
static int check_held(const struct relay *relay, uint32_t i, struct error *err)
{
    const struct gateway_limits *limits = &relay->gateway->config.limits;
    const struct strbuf *text = &relay->choices[i].text;
    uint64_t most = MAX_HELD_TEXT + limits->max_pending_bytes + limits->max_replay_bytes;
    if (relay->whole || relay_holds_back(relay) || text->n_bytes <= most)
        return 0;
    error_set(err, STATUS_INTERNAL,
              "the worker went on though it was to pause: %zu bytes of choice %" PRIu32
              " wait, limit %" PRIu64,
              text->n_bytes, i, most);
    return error_reason(err, "WORKER_TEXT");
}

int relay_check_answer(const struct relay *relay, size_t n_bytes, struct error *err)
{
    uint64_t limit = relay->gateway->config.limits.max_answer_bytes;
    if (n_bytes <= limit)
        return 0;
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "answer: %zu bytes are more than the limit of %" PRIu64
              " (max_answer_bytes); Generate sends it in parts",
              n_bytes, limit);
    counters_refusal(&relay->gateway->counters, LIMIT_ANSWER_BYTES);
    return error_reason(err, "ANSWER_TOO_LARGE");
}

int relay_check_bounds(const struct relay *relay, uint32_t i, struct error *err)
{
    int rc = check_counts(relay, i, err);
    if (!rc)
        rc = check_held(relay, i, err);
    /* Of those that are compared as many are kept as are made; which are sent is not known yet. */
    if (!rc && relay->whole)
        rc = relay_check_answer(relay, relay->pending_bytes / relay->n_choices * relay->n_answers,
                                err);
    return rc;
}
