#include "server/worker/tools/bench_speculate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/engine.h"
#include "server/worker/base/message.h"
#include "server/worker/base/wake.h"

/* Prose, lists, code, quotes and explanations: the share of right drafts differs between them. */
static const char *const texts[] = {
    "Once upon a time, in a small village between two rivers, there lived an old clockmaker who",
    "The seven days of the week, one on each line, and after each what people do on it:\nMonday:",
    "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n"
    "    return area(width, height) * depth\n\n\n# The same two functions with types:\ndef area(",
    "Why is the sky blue? Sunlight is made of all colours, and when it enters the atmosphere",
    "The meeting began at nine. The chair thanked the members for coming. The minutes of the last "
    "meeting were read and approved. The treasurer reported that",
    "Ingredients: 250 g of flour, 2 eggs, half a litre of milk, a pinch of salt.\nMethod: 1.",
};
enum { N_TEXTS = sizeof(texts) / sizeof(texts[0]) };

struct answer {
    struct token_list prompt;
    uint32_t *ids[2]; /* owned; [n_tokens] ids without and with drafts, of the last repetition */
    uint32_t n_ids[2];
};

struct run {
    const struct bench_speculate_config *cfg;
    struct engine *engine;
    struct engine_event_buffer *buffer;
    struct wake wake;
    struct answer *answers; /* [n_seqs] */
    double *samples[2];     /* [repetitions] tokens per second */
    uint64_t n_drafted, n_accepted;
};

static void on_notify(void *ctx)
{
    wake_signal(ctx);
}

static int make_prompts(struct run *r, struct error *err)
{
    uint32_t n_tokens = r->cfg->n_tokens, context = engine_context_tokens(r->engine);
    for (uint32_t i = 0; i < r->cfg->n_seqs; i++) {
        struct answer *a = &r->answers[i];
        const char *text = texts[i % N_TEXTS];
        int rc = tokenizer_encode(engine_tokenizer(r->engine), text, strlen(text),
                                  TOKENIZER_ADD_BOS, &a->prompt, NULL, err);
        if (rc)
            return rc;
        if (!a->prompt.n_ids || a->prompt.n_ids + n_tokens > context)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "--generate: %" PRIu32 " tokens after a prompt of %zu exceed "
                             "the context of %" PRIu32,
                             n_tokens, a->prompt.n_ids, context);
        for (int k = 0; k < 2; k++)
            if (!(a->ids[k] = calloc(n_tokens, sizeof(*a->ids[k]))))
                return error_set(err, STATUS_RESOURCE_EXHAUSTED, "bench: out of memory");
    }
    return 0;
}

static int submit_all(struct run *r, int drafts, struct error *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < r->cfg->n_seqs && !rc; i++) {
        struct answer *a = &r->answers[i];
        struct engine_request request;
        uint64_t id;
        engine_request_init(&request);
        request.prompt_ids = a->prompt.ids;
        request.n_prompt_ids = (uint32_t)a->prompt.n_ids;
        request.stopping.max_tokens = r->cfg->n_tokens;
        request.stopping.ignore_eos = true;
        request.speculate.drafter = drafts ? ENGINE_DRAFTER_DEFAULT : ENGINE_DRAFTER_NONE;
        request.user_data = i;
        a->n_ids[drafts] = 0;
        rc = engine_submit(r->engine, &request, &id, err);
    }
    return rc;
}

/* Follows all answers to their end. Fills the ids, the draft counts and the longest decode time. */
static int follow_all(struct run *r, int drafts, int64_t *out_ns, uint64_t out_drafts[2],
                      struct error *err)
{
    uint32_t n_left = r->cfg->n_seqs;
    *out_ns = 0;
    out_drafts[0] = out_drafts[1] = 0;
    while (n_left) {
        const struct engine_event *events;
        size_t n = engine_read_events(r->engine, r->buffer, &events);
        if (!n)
            wake_wait(&r->wake, 100);
        if (r->cfg->stop && *r->cfg->stop)
            return error_set(err, STATUS_CANCELLED, "stopped by a signal");
        for (size_t i = 0; i < n; i++) {
            const struct engine_event *e = &events[i];
            struct answer *a = &r->answers[e->user_data];
            if (e->n_ids)
                memcpy(a->ids[drafts] + a->n_ids[drafts], e->ids, e->n_ids * sizeof(*e->ids));
            a->n_ids[drafts] += e->n_ids;
            if (e->type != ENGINE_EVENT_FINISHED)
                continue;
            if (e->reason == FINISH_ERROR)
                return error_set(err, e->status, "%s", e->message);
            out_drafts[0] += e->usage.n_drafted_tokens;
            out_drafts[1] += e->usage.n_accepted_tokens;
            *out_ns = e->usage.decode_ns > *out_ns ? e->usage.decode_ns : *out_ns;
            n_left--;
        }
    }
    return 0;
}

static int check_same(const struct run *r, struct error *err)
{
    for (uint32_t i = 0; i < r->cfg->n_seqs; i++) {
        const struct answer *a = &r->answers[i];
        if (a->n_ids[0] != a->n_ids[1] ||
            memcmp(a->ids[0], a->ids[1], a->n_ids[0] * sizeof(*a->ids[0])) != 0)
            return error_set(err, STATUS_INTERNAL, "bench: answer %" PRIu32 " differs with drafts",
                             i);
    }
    return 0;
}

/* Runs without and with drafts; repetition -1 warms up and is not counted. */
static int repeat(struct run *r, int64_t repetition, struct error *err)
{
    uint64_t drafts[2];
    int64_t ns;
    for (int k = 0; k < 2; k++) {
        int rc = submit_all(r, k, err);
        if (!rc)
            rc = follow_all(r, k, &ns, drafts, err);
        if (rc)
            return rc;
        if (repetition < 0)
            continue;
        double n = (double)r->cfg->n_seqs * (r->cfg->n_tokens - 1);
        r->samples[k][repetition] = n * 1e9 / (double)(ns > 0 ? ns : 1);
        r->n_drafted += drafts[0];
        r->n_accepted += drafts[1];
    }
    return check_same(r, err);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *samples, size_t n)
{
    qsort(samples, n, sizeof(*samples), by_value);
    return n % 2 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2;
}

static int run_all(struct run *r, struct error *err)
{
    int rc = make_prompts(r, err);
    for (int64_t i = -1; i < (int64_t)r->cfg->repetitions && !rc; i++)
        rc = repeat(r, i, err);
    return rc;
}

static void fini(struct run *r)
{
    for (uint32_t i = 0; r->answers && i < r->cfg->n_seqs; i++) {
        token_list_fini(&r->answers[i].prompt);
        free(r->answers[i].ids[0]);
        free(r->answers[i].ids[1]);
    }
    engine_close(r->engine);
    engine_event_buffer_destroy(r->buffer);
    wake_fini(&r->wake);
    free(r->answers);
    free(r->samples[0]);
    free(r->samples[1]);
}

int bench_speculate_run(const struct engine_config *engine_cfg,
                        const struct bench_speculate_config *cfg, struct arena *arena,
                        Sluice__Worker__V1__BenchSpeculation *out, struct error *err)
{
    struct engine_config opened = *engine_cfg;
    struct run r = {.cfg = cfg};
    uint32_t context;
    wake_init(&r.wake);
    opened.prefix_cache = false;
    opened.notify = on_notify;
    opened.notify_ctx = &r.wake;
    r.answers = calloc(cfg->n_seqs, sizeof(*r.answers));
    r.samples[0] = calloc(cfg->repetitions, sizeof(double));
    r.samples[1] = calloc(cfg->repetitions, sizeof(double));
    int rc = r.answers && r.samples[0] && r.samples[1]
                 ? engine_event_buffer_create(&r.buffer, err)
                 : error_set(err, STATUS_RESOURCE_EXHAUSTED, "bench: out of memory");
    if (!rc)
        rc = engine_open(&opened, &r.engine, err);
    if (!rc)
        rc = run_all(&r, err);
    if (!rc) {
        const char *name = engine_draft_name(r.engine, &context);
        out->drafter = message_text(arena, name ? "draft model" : "prompt lookup");
        out->draft_file = message_text(arena, name ? name : "");
        out->max_draft_tokens =
            opened.draft_tokens ? opened.draft_tokens : (uint32_t)ENGINE_DEFAULT_DRAFT_TOKENS;
        out->batch = cfg->n_seqs;
        out->n_tokens = cfg->n_seqs * cfg->n_tokens;
        out->n_drafted_tokens = r.n_drafted;
        out->n_accepted_tokens = r.n_accepted;
        out->tokens_per_second_without = median(r.samples[0], cfg->repetitions);
        out->tokens_per_second = median(r.samples[1], cfg->repetitions);
    }
    fini(&r);
    return rc;
}
