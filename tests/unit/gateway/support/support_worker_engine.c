#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/hash_map.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/gateway/support/support_worker_parts.h"

uint32_t fake_token(const uint32_t *prompt, size_t n_prompt, uint64_t seed, uint32_t choice,
                    uint32_t index)
{
    uint64_t place[2] = {choice, index};
    return (uint32_t)(hash_bytes(place, sizeof(place),
                                 hash_bytes(prompt, n_prompt * sizeof(*prompt), seed)) %
                      5000);
}

void fake_text(uint32_t id, uint32_t n_bytes, char *out_text)
{
    int n = snprintf(out_text, FAKE_TEXT_BYTES, "%u", id);
    while (n + 1 < (int)n_bytes && n + 2 < FAKE_TEXT_BYTES)
        out_text[n++] = '.';
    out_text[n++] = ' ';
    out_text[n] = '\0';
}

double fake_logprob_sum(const uint32_t *prompt, size_t n_prompt, uint64_t seed, uint32_t choice,
                        uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum -= (double)(fake_token(prompt, n_prompt, seed, choice, i) % 1000) / 100;
    return sum;
}

/* Everything below is called under the worker's lock. */

static void add_finish(struct arena *arena, struct fake_worker *worker,
                       struct fake_request *request, uint32_t choice,
                       Sluice__Worker__V1__StepItem *item)
{
    bool last = true;
    item->finished = arena_alloc(arena, sizeof(*item->finished));
    *item->finished = (Sluice__V1__Finished)SLUICE__V1__FINISHED__INIT;
    item->finished->choice = choice;
    item->finished->reason = SLUICE__V1__FINISH_REASON__FINISH_REASON_LENGTH;
    item->finished->n_tokens = request->n_generated[choice];
    item->finished->has_cumulative_logprob = request->sums;
    item->finished->cumulative_logprob = (float)item->logprob_sum;
    request->finished[choice] = true;
    for (uint32_t i = 0; i < request->n_choices; i++)
        last = last && request->finished[i];
    if (!last)
        return;
    item->finished->usage = arena_alloc(arena, sizeof(Sluice__V1__Usage));
    *item->finished->usage = (Sluice__V1__Usage)SLUICE__V1__USAGE__INIT;
    for (uint32_t i = 0; i < request->n_choices; i++)
        item->finished->usage->n_generated_tokens += request->n_generated[i];
    item->finished->receipt = arena_alloc(arena, sizeof(Sluice__V1__Receipt));
    *item->finished->receipt = (Sluice__V1__Receipt)SLUICE__V1__RECEIPT__INIT;
    item->finished->receipt->replica_id = worker->replica_id;
    item->finished->receipt->numerics_id = worker->numerics_id;
}

static void add_logprobs(struct arena *arena, Sluice__Worker__V1__StepItem *item)
{
    item->logprobs = arena_calloc(arena, item->n_token_ids + 1, sizeof(*item->logprobs));
    for (; item->n_logprobs < item->n_token_ids; item->n_logprobs++) {
        Sluice__V1__TokenLogprob *logprob = arena_alloc(arena, sizeof(*logprob));
        *logprob = (Sluice__V1__TokenLogprob)SLUICE__V1__TOKEN_LOGPROB__INIT;
        logprob->id = item->token_ids[item->n_logprobs];
        logprob->logprob = -1.5F;
        item->logprobs[item->n_logprobs] = logprob;
    }
}

/* Sends a token of a choice that has ended, which no worker may do. */
static Sluice__Worker__V1__StepItem *talk_on(struct arena *arena, struct fake_request *request,
                                             uint32_t choice)
{
    Sluice__Worker__V1__StepItem *item = arena_alloc(arena, sizeof(*item));
    *item = (Sluice__Worker__V1__StepItem)SLUICE__WORKER__V1__STEP_ITEM__INIT;
    item->id = request->id;
    item->choice = choice;
    item->token_ids = arena_calloc(arena, 1, sizeof(uint32_t));
    item->n_token_ids = item->n_released = 1;
    item->text = arena_calloc(arena, 2, 1);
    item->text[0] = 'x';
    return item;
}

/* Sends text without a token, again and again, which no worker may do either. */
static Sluice__Worker__V1__StepItem *talk_idly(struct arena *arena, struct fake_request *request)
{
    Sluice__Worker__V1__StepItem *item = arena_alloc(arena, sizeof(*item));
    *item = (Sluice__Worker__V1__StepItem)SLUICE__WORKER__V1__STEP_ITEM__INIT;
    item->id = request->id;
    item->text = arena_calloc(arena, FAKE_TEXT_BYTES, 1);
    memset(item->text, 'x', FAKE_TEXT_BYTES - 1);
    return item;
}

static void add_prompt_info(struct arena *arena, struct fake_request *request,
                            Sluice__Worker__V1__StepItem *item)
{
    item->prompt_info = arena_alloc(arena, sizeof(*item->prompt_info));
    *item->prompt_info = (Sluice__V1__PromptInfo)SLUICE__V1__PROMPT_INFO__INIT;
    item->prompt_info->n_prompt_tokens = (uint32_t)request->n_prompt;
    item->prompt_info->prompt_token_ids = request->prompt;
    item->prompt_info->n_prompt_token_ids = request->n_prompt;
    request->told = true;
}

/* Reports the begin of the first step, which is the prompt alone. */
static Sluice__Worker__V1__StepItem *begin(struct arena *arena, struct fake_request *request)
{
    Sluice__Worker__V1__StepItem *item = arena_alloc(arena, sizeof(*item));
    *item = (Sluice__Worker__V1__StepItem)SLUICE__WORKER__V1__STEP_ITEM__INIT;
    item->id = request->id;
    add_prompt_info(arena, request, item);
    return item;
}

/* Returns the step of one choice; NULL without a new token or end. */
static Sluice__Worker__V1__StepItem *step_choice(struct arena *arena, struct fake_worker *worker,
                                                 struct fake_request *request, uint32_t choice)
{
    uint32_t made = request->n_generated[choice], n = 0;
    uint32_t most = request->max_tokens + worker->more_tokens;
    if (worker->starts && !request->told)
        return begin(arena, request);
    if (request->finished[choice] && worker->talks_on)
        return talk_on(arena, request, choice);
    if (worker->idle_text && choice == 0 && made >= worker->stop_after)
        return talk_idly(arena, request);
    if (request->finished[choice] || made >= worker->stop_after ||
        request->credit + worker->late_credit <= 0)
        return NULL;
    Sluice__Worker__V1__StepItem *item = arena_alloc(arena, sizeof(*item));
    *item = (Sluice__Worker__V1__StepItem)SLUICE__WORKER__V1__STEP_ITEM__INIT;
    item->id = request->id;
    item->choice = worker->bad_choice ? worker->bad_choice : choice;
    if (!request->told)
        add_prompt_info(arena, request, item);
    item->token_ids = arena_calloc(arena, worker->tokens_per_step + 1, sizeof(uint32_t));
    for (; n < worker->tokens_per_step && made + n < most && made + n < worker->stop_after; n++)
        item->token_ids[n] =
            fake_token(request->prompt, request->n_prompt, request->seed, choice, made + n);
    item->n_token_ids = n;
    request->n_generated[choice] = made += n;
    bool end = made >= most || (worker->talks_on && choice == 0 && made >= 3);
    uint32_t release = end ? made : made > worker->hold ? made - worker->hold : 0;
    char *text = arena_calloc(arena, (release - request->n_released[choice]) + 1, FAKE_TEXT_BYTES);
    uint32_t *shares =
        arena_calloc(arena, (release - request->n_released[choice]) + 1, sizeof(*shares));
    size_t n_text = 0;
    for (uint32_t i = request->n_released[choice]; i < release; i++) {
        fake_text(fake_token(request->prompt, request->n_prompt, request->seed, choice, i),
                  worker->text_bytes, text + n_text);
        shares[i - request->n_released[choice]] = (uint32_t)strlen(text + n_text);
        n_text += strlen(text + n_text);
    }
    item->text = text;
    item->released_text_bytes = shares;
    item->n_released_text_bytes = worker->no_shares ? 0 : release - request->n_released[choice];
    if (request->credit != INT64_MAX)
        request->credit -= release - request->n_released[choice];
    item->has_logprob_sum = request->sums;
    item->logprob_sum =
        fake_logprob_sum(request->prompt, request->n_prompt, request->seed, choice, made);
    item->n_released = release - request->n_released[choice];
    request->n_released[choice] = release;
    if (request->logprobs)
        add_logprobs(arena, item);
    if (end && !worker->split_ends)
        add_finish(arena, worker, request, choice, item);
    return item;
}

/* Returns the end of a choice whose tokens were all sent. */
static Sluice__Worker__V1__StepItem *split_end(struct arena *arena, struct fake_worker *worker,
                                               struct fake_request *request, uint32_t choice)
{
    if (!worker->split_ends || request->finished[choice] ||
        request->n_generated[choice] < request->max_tokens)
        return NULL;
    Sluice__Worker__V1__StepItem *item = arena_alloc(arena, sizeof(*item));
    *item = (Sluice__Worker__V1__StepItem)SLUICE__WORKER__V1__STEP_ITEM__INIT;
    item->id = request->id;
    item->choice = choice;
    add_finish(arena, worker, request, choice, item);
    return item;
}

static bool is_over(const struct fake_request *request)
{
    for (uint32_t i = 0; i < request->n_choices; i++)
        if (!request->finished[i])
            return false;
    return true;
}

void fake_session_step(struct fake_worker *worker, struct fake_session *session)
{
    struct arena arena;
    size_t n = 0;
    arena_init(&arena, 1 << 16, 0);
    Sluice__Worker__V1__StepItem **items =
        arena_calloc(&arena, (worker->n_live + 1) * 2 * FAKE_MAX_CHOICES,
                     sizeof(Sluice__Worker__V1__StepItem *));
    for (struct fake_request *r = session->requests; r; r = r->next) {
        for (uint32_t i = 0; i < r->n_choices && (!r->paused || worker->deaf); i++) {
            items[n] = step_choice(&arena, worker, r, i);
            n += items[n] != NULL;
        }
        for (uint32_t i = 0; i < r->n_choices; i++) {
            items[n] = split_end(&arena, worker, r, i);
            n += items[n] != NULL;
        }
        bool is_meant = !worker->fail_prompt || r->n_prompt == worker->fail_prompt;
        if (worker->fail_status && is_meant && !r->failed &&
            r->n_generated[0] >= worker->fail_after)
            r->failed = true;
    }
    worker->progress += n != 0;
    if (n)
        fake_session_send(session, items, n);
    for (struct fake_request **at = &session->requests; *at;) {
        if ((*at)->failed)
            fake_session_fail(session, (*at)->id, worker->fail_status, worker->fail_reason);
        if ((*at)->failed || is_over(*at))
            fake_request_free(worker, at);
        else
            at = &(*at)->next;
    }
    arena_fini(&arena);
}
