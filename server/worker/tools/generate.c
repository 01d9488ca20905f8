#include "server/worker/tools/generate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "engine/engine.h"
#include "server/worker/base/facts.h"
#include "server/worker/base/process.h"
#include "server/worker/base/prompt.h"
#include "server/worker/base/settings.h"
#include "server/worker/base/template_file.h"
#include "server/worker/base/wake.h"
#include "server/worker/place/kv_size.h"
#include "server/worker/place/place.h"

struct generation {
    const struct settings *settings;
    struct engine *engine;
    struct chat_templates *own_templates; /* template of --chat-template-file */
    struct token_list prompt;
    struct wake wake;
    int64_t started_ns, loaded_ns, first_token_ns, ended_ns;
    struct engine_usage usage;
    enum finish_reason reason;
};

static void on_notify(void *ctx)
{
    wake_signal(ctx);
}

static int make_chat_prompt(struct generation *g, const struct chat_templates *templates,
                            struct error *err)
{
    Sluice__V1__Chat chat = SLUICE__V1__CHAT__INIT;
    Sluice__V1__ChatMessage system = SLUICE__V1__CHAT_MESSAGE__INIT;
    Sluice__V1__ChatMessage user = SLUICE__V1__CHAT_MESSAGE__INIT;
    Sluice__V1__ChatMessage *messages[2];
    char role_system[] = "system", role_user[] = "user";
    struct strbuf text = {0};
    struct prompt_guard guard = {0};
    /* protobuf-c's strings are not const, but only read here */
    system.role = role_system;
    system.content = (char *)(uintptr_t)g->settings->system;
    user.role = role_user;
    user.content = (char *)(uintptr_t)g->settings->prompt;
    if (g->settings->system[0])
        messages[chat.n_messages++] = &system;
    messages[chat.n_messages++] = &user;
    chat.messages = messages;
    const struct tokenizer *tok = engine_tokenizer(g->engine);
    struct chat_template_limits limits = settings_template_limits(g->settings);
    int rc = prompt_render_chat(templates, &limits, tok, &chat, "chat", clock_wall_ns() / NS_PER_S,
                                &text, &guard, err);
    if (!rc)
        rc = prompt_encode_rendered(tok, &text, &guard, &g->prompt, err);
    prompt_guard_fini(&guard);
    strbuf_fini(&text);
    return rc;
}

static int make_prompt(struct generation *g, struct error *err)
{
    const struct settings *s = g->settings;
    const struct chat_templates *templates = engine_chat_templates(g->engine);
    if (s->chat_template_file[0]) {
        struct chat_template *own = NULL;
        int rc = template_file_load(s->chat_template_file, &own, err);
        if (!rc)
            rc = chat_templates_create(&g->own_templates, err);
        if (!rc)
            rc = chat_templates_add_compiled(g->own_templates, CHAT_TEMPLATES_DEFAULT, own, err);
        if (rc) {
            chat_template_destroy(own);
            return rc;
        }
        templates = g->own_templates;
    }
    if (s->chat || (chat_templates_can_chat(templates) && !s->raw))
        return make_chat_prompt(g, templates, err);
    return prompt_encode_text(engine_tokenizer(g->engine), s->prompt, true, s->special, &g->prompt,
                              err);
}

static int submit(struct generation *g, struct error *err)
{
    const struct settings *s = g->settings;
    struct engine_request request;
    uint64_t id;
    engine_request_init(&request);
    request.prompt_ids = g->prompt.ids;
    request.n_prompt_ids = (uint32_t)g->prompt.n_ids;
    request.sampling.temperature = (float)s->temperature;
    request.sampling.top_k = (uint32_t)s->top_k;
    request.sampling.top_p = (float)s->top_p;
    request.sampling.min_p = (float)s->min_p;
    request.sampling.repetition_penalty = (float)s->repetition_penalty;
    request.sampling.seed = s->seed;
    request.stopping.max_tokens = (uint32_t)s->max_tokens;
    request.stopping.stop = &s->stop;
    request.stopping.n_stop = s->stop ? 1 : 0;
    request.keep_special_tokens = s->special;
    return engine_submit(g->engine, &request, &id, err);
}

static void print_event(const struct generation *g, const struct engine_event *event)
{
    if (g->settings->ids)
        for (uint32_t i = 0; i < event->n_ids; i++)
            printf("%" PRIu32 "\n", event->ids[i]);
    else
        fwrite(event->text, 1, event->n_text_bytes, stdout);
    fflush(stdout);
}

/* Prints events until the request's last event. */
static int follow(struct generation *g, struct error *err)
{
    struct engine_event_buffer *buffer = NULL;
    bool over = false;
    int rc = engine_event_buffer_create(&buffer, err);
    while (!rc && !over) {
        const struct engine_event *events;
        size_t n = engine_read_events(g->engine, buffer, &events);
        if (!n)
            wake_wait(&g->wake, -1);
        for (size_t i = 0; i < n && !rc; i++) {
            if (events[i].n_ids && !g->first_token_ns)
                g->first_token_ns = clock_now_ns();
            print_event(g, &events[i]);
            if (events[i].type != ENGINE_EVENT_FINISHED)
                continue;
            over = true;
            g->usage = events[i].usage;
            g->reason = events[i].reason;
            if (events[i].reason == FINISH_ERROR)
                rc = error_set(err, events[i].status, "%s", events[i].message);
        }
    }
    engine_event_buffer_destroy(buffer);
    if (!g->settings->ids)
        putchar('\n');
    if (fflush(stdout) != 0 && !rc)
        rc = error_set(err, STATUS_UNAVAILABLE, "standard output: cannot write");
    return rc;
}

static double seconds(int64_t ns)
{
    return (double)ns / (double)NS_PER_S;
}

static double rate(uint64_t n, int64_t ns)
{
    return ns > 0 ? (double)n / seconds(ns) : 0.0;
}

static void print_stats(const struct generation *g)
{
    static const char *const reasons[] = {"none",      "stop",     "length", "context length",
                                          "cancelled", "deadline", "error"};
    uint32_t n = g->usage.n_generated_tokens;
    fprintf(stderr, "load         %.3f s, %s, %.1f MiB of weights, %.1f MiB of KV\n",
            seconds(g->loaded_ns - g->started_ns), engine_numerics_id(g->engine),
            (double)engine_memory(g->engine)->weights_bytes / 1048576.0,
            (double)engine_memory(g->engine)->kv_bytes / 1048576.0);
    fprintf(stderr, "prefill      %" PRIu32 " tokens, %.1f tokens/s\n", g->usage.n_prompt_tokens,
            rate(g->usage.n_prompt_tokens, g->first_token_ns - g->loaded_ns));
    fprintf(stderr, "decode       %" PRIu32 " tokens, %.1f tokens/s\n", n,
            rate(n ? n - 1 : 0, g->ended_ns - g->first_token_ns));
    if (g->usage.n_drafted_tokens)
        fprintf(stderr, "drafted      %" PRIu32 " tokens, %" PRIu32 " accepted\n",
                g->usage.n_drafted_tokens, g->usage.n_accepted_tokens);
    fprintf(stderr, "first token  %.3f s after the prompt, %.3f s after the start\n",
            seconds(g->first_token_ns - g->loaded_ns), seconds(g->first_token_ns - g->started_ns));
    fprintf(stderr, "memory       %.1f MiB resident, beyond files\n",
            (double)process_memory_bytes() / 1048576.0);
    fprintf(stderr, "ended by     %s\n", reasons[g->reason]);
}

/* Applies the settings that need the file: checks the digest, and converts --kv-bytes to tokens. */
static int apply_file_settings(const struct settings *s, struct engine_config *cfg,
                               struct error *err)
{
    struct checkpoint *ckpt = NULL;
    if (!s->digest[0] && !s->config.kv_bytes)
        return 0;
    int rc = checkpoint_open(cfg->model_path, &ckpt, err);
    if (!rc)
        rc = facts_check_digest(ckpt, s->digest, err);
    if (!rc && s->config.kv_bytes)
        rc = kv_size_resolve(ckpt, s, cfg, err);
    checkpoint_close(ckpt);
    return rc;
}

int generate_run(const struct settings *settings, struct error *err)
{
    struct generation g = {.settings = settings, .started_ns = clock_now_ns()};
    struct engine_config cfg;
    int rc = place_engine_config(settings, &cfg, err);
    if (rc)
        return rc;
    wake_init(&g.wake);
    cfg.notify = on_notify;
    cfg.notify_ctx = &g.wake;
    if (!settings->config.max_concurrent_requests)
        cfg.max_concurrent = 1;
    rc = apply_file_settings(settings, &cfg, err);
    if (!rc)
        rc = engine_open(&cfg, &g.engine, err);
    g.loaded_ns = clock_now_ns();
    if (!rc)
        rc = make_prompt(&g, err);
    if (!rc)
        rc = submit(&g, err);
    if (!rc)
        rc = follow(&g, err);
    g.ended_ns = clock_now_ns();
    if (!rc && settings->stats)
        print_stats(&g);
    engine_close(g.engine);
    chat_templates_destroy(g.own_templates);
    token_list_fini(&g.prompt);
    wake_fini(&g.wake);
    return rc;
}
