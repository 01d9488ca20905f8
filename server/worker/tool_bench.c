#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/engine.h"
#include "server/worker/message.h"
#include "server/worker/process.h"
#include "server/worker/settings.h"
#include "server/worker/tool.h"
#include "server/worker/wake.h"

struct bench {
    const struct settings *settings;
    struct engine *engine;
    struct wake wake;
    uint32_t n_started, n_ended; /* sequences with a first token, and done */
    int64_t submitted_ns, prefilled_ns, ended_ns;
    int64_t *steps; /* owned; times between reads of events while decoding */
    size_t n_steps, n_steps_max;
};

static void on_notify(void *ctx)
{
    wake_signal(ctx);
}

static int submit_all(struct bench *b, struct error *err)
{
    const struct settings *s = b->settings;
    uint32_t vocab_size = engine_model_info(b->engine)->vocab_size;
    uint32_t *ids = calloc(s->prompt_tokens, sizeof(*ids));
    int rc = ids ? 0 : error_set(err, STATUS_RESOURCE_EXHAUSTED, "bench: out of memory");
    b->submitted_ns = clock_now_ns();
    for (uint64_t k = 0; k < s->batch && !rc; k++) {
        struct engine_request request;
        uint64_t id;
        /* Any ids do: the work does not depend on them. Another start per sequence, so that no
         * prefix is shared. */
        for (uint64_t i = 0; i < s->prompt_tokens; i++)
            ids[i] = (uint32_t)((i * 7919 + k * 104729 + 17) % vocab_size);
        engine_request_init(&request);
        request.prompt_ids = ids;
        request.n_prompt_ids = (uint32_t)s->prompt_tokens;
        request.sampling.temperature = 0;
        request.stopping.max_tokens = (uint32_t)s->max_tokens;
        request.stopping.ignore_eos = true;
        request.user_data = k;
        rc = engine_submit(b->engine, &request, &id, err);
    }
    free(ids);
    return rc;
}

static int on_event(struct bench *b, const struct engine_event *event, bool *started,
                    struct error *err)
{
    if (event->n_ids && !started[event->user_data]) {
        started[event->user_data] = true;
        if (++b->n_started == b->settings->batch)
            b->prefilled_ns = clock_now_ns();
    }
    if (event->type != ENGINE_EVENT_FINISHED)
        return 0;
    b->n_ended++;
    if (event->reason == FINISH_ERROR)
        return error_set(err, event->status, "%s", event->message);
    return 0;
}

static int follow(struct bench *b, struct error *err)
{
    struct engine_event_buffer *buffer = NULL;
    bool *started = calloc(b->settings->batch, sizeof(*started));
    int64_t last_ns = 0;
    b->n_steps_max = b->settings->max_tokens * b->settings->batch + 16;
    b->steps = calloc(b->n_steps_max, sizeof(*b->steps));
    int rc = started && b->steps
                 ? engine_event_buffer_create(&buffer, err)
                 : error_set(err, STATUS_RESOURCE_EXHAUSTED, "bench: out of memory");
    while (!rc && b->n_ended < b->settings->batch) {
        const struct engine_event *events;
        size_t n = engine_read_events(b->engine, buffer, &events);
        if (!n) {
            wake_wait(&b->wake, -1);
            continue;
        }
        for (size_t i = 0; i < n && !rc; i++)
            rc = on_event(b, &events[i], started, err);
        int64_t now_ns = clock_now_ns();
        if (b->prefilled_ns && last_ns >= b->prefilled_ns && b->n_steps < b->n_steps_max)
            b->steps[b->n_steps++] = now_ns - last_ns;
        last_ns = now_ns;
    }
    b->ended_ns = clock_now_ns();
    engine_event_buffer_destroy(buffer);
    free(started);
    return rc;
}

static int compare_ns(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static Sluice__Worker__V1__BenchRow *add_row(struct arena *arena, const char *phase,
                                             uint64_t n_tokens, uint64_t batch, int64_t ns,
                                             Sluice__Worker__V1__BenchReport *report)
{
    Sluice__Worker__V1__BenchRow *row = arena_alloc(arena, sizeof(*row));
    if (!row)
        return NULL;
    sluice__worker__v1__bench_row__init(row);
    row->phase = message_text(arena, phase);
    row->batch = (uint32_t)batch;
    row->n_tokens = (uint32_t)n_tokens;
    row->tokens_per_second = ns > 0 ? (double)n_tokens * 1e9 / (double)ns : 0.0;
    report->rows[report->n_rows++] = row;
    return row;
}

static int fill_report(struct bench *b, struct arena *arena,
                       Sluice__Worker__V1__BenchReport *report, struct error *err)
{
    const struct settings *s = b->settings;
    report->rows = arena_calloc(arena, 2, sizeof(*report->rows));
    if (!report->rows)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "bench: out of memory");
    report->numerics_id = message_text(arena, engine_numerics_id(b->engine));
    report->n_threads = (uint32_t)s->threads;
    report->resident_bytes = process_memory_bytes();
    int64_t decode_ns = b->ended_ns - b->prefilled_ns;
    add_row(arena, "prefill", s->batch * s->prompt_tokens, s->batch,
            b->prefilled_ns - b->submitted_ns, report);
    Sluice__Worker__V1__BenchRow *row =
        add_row(arena, "decode", s->batch * (s->max_tokens - 1), s->batch, decode_ns, report);
    if (!row || !b->n_steps)
        return 0;
    qsort(b->steps, b->n_steps, sizeof(*b->steps), compare_ns);
    row->step_p50_ns = (uint64_t)b->steps[b->n_steps / 2];
    row->step_p99_ns = (uint64_t)b->steps[b->n_steps * 99 / 100];
    /* Each decode step reads every weight once. */
    row->weight_gb_per_second = (double)engine_memory(b->engine)->weights_bytes *
                                (double)(s->max_tokens - 1) / (double)decode_ns;
    return 0;
}

int tool_bench(const struct settings *settings, struct arena *arena,
               Sluice__Worker__V1__ToolReport *report, struct error *err)
{
    struct bench b = {.settings = settings};
    struct engine_config cfg;
    Sluice__Worker__V1__BenchReport *out = arena_alloc(arena, sizeof(*out));
    int rc = out ? settings_engine_config(settings, &cfg, err)
                 : error_set(err, STATUS_RESOURCE_EXHAUSTED, "bench: out of memory");
    if (rc)
        return rc;
    sluice__worker__v1__bench_report__init(out);
    wake_init(&b.wake);
    cfg.notify = on_notify;
    cfg.notify_ctx = &b.wake;
    cfg.max_concurrent = (uint32_t)settings->batch;
    cfg.prefix_cache = false;
    int64_t start_ns = clock_now_ns();
    rc = engine_open(&cfg, &b.engine, err);
    out->load_ms = (uint64_t)((clock_now_ns() - start_ns) / NS_PER_MS);
    if (!rc)
        rc = submit_all(&b, err);
    if (!rc)
        rc = follow(&b, err);
    if (!rc)
        rc = fill_report(&b, arena, out, err);
    engine_close(b.engine);
    wake_fini(&b.wake);
    free(b.steps);
    if (rc)
        return rc;
    report->result_case = SLUICE__WORKER__V1__TOOL_REPORT__RESULT_BENCH;
    report->bench = out;
    return 0;
}
