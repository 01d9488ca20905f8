#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/core/engine_private.h"
#include "engine/draft/draft_model.h"
#include "engine/format/checkpoint.h"
#include "engine/forward/executor.h"
#include "engine/model/model.h"
#include "engine/model/plan.h"
#include "engine/model/step.h"
#include "engine/request/draft.h"
#include "engine/template/chat_templates.h"
#include "engine/text/tokenizer.h"

enum { LARGEST_CONCURRENT = 4096, LARGEST_QUEUE = 1 << 16, LARGEST_CONTEXT = 1 << 24 };
enum { LARGEST_TARGET_MS = 60000 };

void engine_config_init(struct engine_config *cfg)
{
    *cfg = (struct engine_config){
        .executor =
            {
                .kernels = "auto",
                .tp = 1,
                .pp = 1,
                .kv_dtype = DTYPE_BF16,
                .kv_block_size = 32,
                .n_score_rows = ENGINE_SCORE_ROWS + ENGINE_DRAFT_ROWS,
                .gpu_layers = EXECUTOR_GPU_LAYERS_AUTO,
            },
        .max_concurrent = 256,
        .max_queued = 512,
        .max_batch_tokens = 512,
        .prefill_chunk_tokens = 256,
        .target_itl_ms = ENGINE_TARGET_ITL_AUTO,
        .prefix_cache = true,
        .suppresses_tokens = true,
    };
}

static int check_config(const struct engine_config *cfg, struct error *err)
{
    const struct {
        const char *field;
        uint32_t value, low, high;
    } ranges[] = {
        {"max_concurrent", cfg->max_concurrent, 1, LARGEST_CONCURRENT},
        {"max_queued", cfg->max_queued, 1, LARGEST_QUEUE},
        {"max_batch_tokens", cfg->max_batch_tokens, 2, 1 << 16},
        {"prefill_chunk_tokens", cfg->prefill_chunk_tokens, 1, 1 << 16},
        {"draft_tokens", cfg->draft_tokens, 0, ENGINE_MAX_DRAFT_TOKENS},
        {"max_input_tokens", cfg->max_input_tokens, 0, LARGEST_CONTEXT},
        {"max_total_tokens", cfg->max_total_tokens, 0, LARGEST_CONTEXT},
    };
    if (!cfg->model_path || !cfg->model_path[0])
        return error_field(err, "model_path", "empty");
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high)
            return error_field(err, ranges[i].field, "%u is not in %u..%u", ranges[i].value,
                               ranges[i].low, ranges[i].high);
    if (cfg->target_itl_ms > LARGEST_TARGET_MS && cfg->target_itl_ms != ENGINE_TARGET_ITL_AUTO)
        return error_field(err, "target_itl_ms", "%u is not in 0..%d", cfg->target_itl_ms,
                           LARGEST_TARGET_MS);
    if (cfg->max_total_tokens == 1)
        return error_field(err, "max_total_tokens",
                           "1 is too small: use 2 or more, or 0 for the context length");
    return 0;
}

/* --- opening --- */

_Static_assert(TOKENIZER_MAX_TEMPLATES + 1 == (int)CHAT_TEMPLATES_MAX,
               "the named templates and the default one");

static int open_templates(struct engine *e, struct error *err)
{
    const struct tokenizer_info *info = tokenizer_info(e->tokenizer);
    int rc = chat_templates_create(&e->templates, err);
    if (!rc && info->chat_template)
        rc = chat_templates_add(e->templates, CHAT_TEMPLATES_DEFAULT, info->chat_template, err);
    for (uint32_t i = 0; i < info->n_templates && !rc; i++) {
        rc =
            chat_templates_add(e->templates, info->templates[i].name, info->templates[i].text, err);
        if (rc == STATUS_INVALID_ARGUMENT)
            rc = 0; /* no request can give that name */
    }
    return rc;
}

/* Opens the draft model beside the model, in the other_bytes that the model's load left free. */
static int open_draft_model(struct engine *e, const char *name, struct error *err)
{
    int rc = draft_model_open(e->cfg.draft_path, &e->cfg.executor, e->executor, e->tokenizer, name,
                              &e->draft_model, err);
    if (rc)
        return rc;
    engine_add_plan(&e->memory, draft_model_memory(e->draft_model));
    if (e->cfg.draft_always)
        draft_model_set_always(e->draft_model);
    if (!e->cfg.draft_tokens)
        e->cfg.draft_tokens = ENGINE_DEFAULT_DRAFT_TOKENS;
    return 0;
}

/* Sets other_bytes and other_graph_bytes: the draft model's part of the memory plan. */
static int plan_draft_model(struct engine *e, struct checkpoint *ckpt, struct error *err)
{
    struct executor_plan plan, alone;
    int rc = engine_plan(&e->cfg, ckpt, &plan, err);
    if (!rc)
        rc = executor_plan(ckpt, &e->cfg.executor, &alone, err);
    if (rc)
        return rc;
    engine_add_host_states(&alone, e->cfg.executor.max_seqs);
    e->cfg.executor.other_bytes = plan.weights_bytes - alone.weights_bytes + plan.kv_bytes -
                                  alone.kv_bytes + plan.state_bytes - alone.state_bytes +
                                  plan.workspace_bytes - alone.workspace_bytes;
    e->cfg.executor.other_graph_bytes = plan.devices[plan.n_devices - 1].graph_bytes -
                                        alone.devices[alone.n_devices - 1].graph_bytes;
    return 0;
}

/* A running sequence holds a slot of its state. */
static void count_memory(struct engine *e)
{
    e->memory = *executor_actual(e->executor);
    uint32_t n = e->memory.n_running_states;
    if (n && n < e->cfg.max_concurrent)
        e->cfg.max_concurrent = n;
    engine_add_host_states(&e->memory, e->cfg.max_concurrent);
}

/* Keeps the ids that the model's files suppress. */
static void read_suppressed(struct engine *e, const struct checkpoint *ckpt)
{
    struct default_sampling sampling;
    default_sampling_read(ckpt, &sampling, NULL);
    e->n_suppressed = e->cfg.suppresses_tokens ? sampling.n_suppressed : 0;
    memcpy(e->suppressed_ids, sampling.suppressed_ids, sizeof(e->suppressed_ids));
}

static int open_model(struct engine *e, struct checkpoint *ckpt, struct error *err)
{
    struct executor_config *cfg = &e->cfg.executor;
    uint8_t digest[SHA256_BYTES];
    int rc = 0;
    cfg->max_rows = e->cfg.max_batch_tokens;
    cfg->max_seqs = e->cfg.max_concurrent;
    cfg->splits_windows = true;
    checkpoint_digest(ckpt, digest);
    sha256_hex(digest, e->digest);
    read_suppressed(e, ckpt);
    if (!e->tokenizer)
        rc = tokenizer_open(ckpt, &e->tokenizer, err);
    if (!rc)
        checkpoint_set_n_tokens(ckpt, tokenizer_info(e->tokenizer)->vocab_size);
    if (!rc)
        rc = open_templates(e, err);
    if (!rc)
        rc = engine_choose_sizes(&e->cfg, ckpt, err);
    if (!rc && e->cfg.draft_path)
        rc = plan_draft_model(e, ckpt, err);
    if (!rc)
        rc = executor_open(ckpt, cfg, e->cfg.progress, e->cfg.progress_ctx, e->cfg.cancel_load,
                           &e->executor, err);
    if (!rc)
        count_memory(e);
    if (!rc && e->cfg.draft_path)
        rc = open_draft_model(e, checkpoint_name(ckpt), err);
    return rc;
}

static int open_file(struct engine *e, struct error *err)
{
    struct checkpoint *ckpt = NULL;
    if (e->cfg.checkpoint)
        return open_model(e, e->cfg.checkpoint, err);
    int rc = checkpoint_open(e->cfg.model_path, &ckpt, err);
    if (!rc)
        rc = open_model(e, ckpt, err);
    checkpoint_close(ckpt);
    return rc;
}

/* Sequences with a recurrent state that run at once; 0: the model has no states. */
static uint32_t running_states(const struct engine *e)
{
    uint32_t n = executor_actual(e->executor)->n_running_states;
    return n < e->cfg.max_concurrent ? n : e->cfg.max_concurrent;
}

static void set_limits(struct engine *e)
{
    const struct executor_plan *plan = executor_actual(e->executor);
    const struct tokenizer_info *tok = tokenizer_info(e->tokenizer);
    uint64_t pool = (uint64_t)plan->n_blocks * e->cfg.executor.kv_block_size;
    uint32_t vocab = executor_model_info(e->executor)->vocab_size;
    e->limits = (struct request_limits){
        .vocab_size = tok->vocab_size < vocab ? tok->vocab_size : vocab,
        .n_logits = vocab,
        .context_tokens = plan->context_tokens < pool ? plan->context_tokens : (uint32_t)pool,
        .max_concurrent = e->cfg.max_concurrent,
        .n_running_states = running_states(e),
        .state_bytes = plan->state_slot_bytes,
        .draft_tokens = e->cfg.draft_tokens,
        .has_draft_model = e->draft_model != NULL,
        .max_input_tokens = e->cfg.max_input_tokens,
        .max_total_tokens = e->cfg.max_total_tokens,
    };
    for (uint32_t i = 0; i < tok->n_end_ids; i++)
        if (tok->end_ids[i] < e->limits.vocab_size)
            e->limits.end_ids[e->limits.n_end_ids++] = tok->end_ids[i];
    for (uint32_t i = 0; i < e->n_suppressed; i++)
        if (e->suppressed_ids[i] < e->limits.vocab_size)
            e->suppressed_ids[e->limits.n_suppressed_ids++] = e->suppressed_ids[i];
    e->limits.suppressed_ids = e->suppressed_ids;
}

/* Marks the ids with a token, if the tokenizer has holes between its ids. */
static int mark_drawable(struct engine *e, struct error *err)
{
    const struct request_limits *l = &e->limits;
    if (!tokenizer_info(e->tokenizer)->n_holes)
        return 0;
    uint32_t n_bits = l->n_logits > l->vocab_size ? l->n_logits : l->vocab_size;
    e->drawable = calloc(n_bits / 32 + 1ull, sizeof(*e->drawable));
    if (!e->drawable)
        return error_no_memory(err);
    for (uint32_t id = 0; id < l->vocab_size; id++)
        if (!tokenizer_is_hole(e->tokenizer, id))
            e->drawable[id / 32] |= 1u << id % 32;
    e->limits.drawable = e->drawable;
    return 0;
}

/* The draft model runs on the threads of the last stage, so they must rest when it drafts. */
static uint32_t most_flights(const struct engine *e)
{
    uint32_t n = executor_max_flights(e->executor), most = e->cfg.max_flights;
    if (e->draft_model)
        return 1;
    return most && most < n ? most : n;
}

static int open_flights(struct engine *e, const struct step_limits *limits, struct error *err)
{
    int rc = 0;
    e->flights = calloc(e->max_flights, sizeof(*e->flights));
    if (!e->flights)
        return error_no_memory(err);
    for (uint32_t i = 0; !rc && i < e->max_flights; i++)
        rc = step_batch_create(limits, &e->flights[i].batch, err);
    return rc;
}

static int open_scheduler(struct engine *e, struct error *err)
{
    const struct executor_plan *plan = executor_actual(e->executor);
    uint32_t bs = e->cfg.executor.kv_block_size;
    struct step_limits limits = {
        .max_rows = e->cfg.max_batch_tokens,
        .max_seqs = e->cfg.max_concurrent,
        .max_blocks_per_seq = plan->context_tokens / bs + (plan->context_tokens % bs != 0),
        .n_score_rows = ENGINE_SCORE_ROWS + ENGINE_DRAFT_ROWS,
        .has_windows = plan->n_window_blocks > 0,
    };
    e->max_flights = most_flights(e);
    uint32_t n_running = running_states(e);
    uint32_t n_host_states = engine_host_states(plan, e->cfg.max_concurrent);
    struct scheduler_config cfg = {
        .max_rows = limits.max_rows,
        .max_seqs = limits.max_seqs,
        .max_blocks_per_seq = limits.max_blocks_per_seq,
        .n_score_rows = ENGINE_SCORE_ROWS,
        .n_draft_rows = ENGINE_DRAFT_ROWS,
        .n_blocks = plan->n_blocks,
        .block_size = bs,
        .n_window_blocks = plan->n_window_blocks,
        .window_reach = plan->window_reach,
        .windows_are_chunks = plan->windows_are_chunks,
        .prefill_chunk_tokens = e->cfg.prefill_chunk_tokens,
        .max_requests = e->cfg.max_queued + e->cfg.max_concurrent,
        .max_flights = e->max_flights,
        .target_step_ns = e->cfg.target_itl_ms == ENGINE_TARGET_ITL_AUTO
                              ? SCHEDULER_TARGET_AUTO
                              : e->cfg.target_itl_ms * NS_PER_MS,
        .long_rope_after = executor_model_info(e->executor)->long_rope_after,
        .n_state_slots = plan->n_state_slots,
        .n_running_states = n_running,
        .n_host_states = n_host_states,
        .snapshot_blocks = e->cfg.snapshot_blocks ? e->cfg.snapshot_blocks
                                                  : (ENGINE_SNAPSHOT_TOKENS + bs - 1) / bs,
        .prefix_cache = e->cfg.prefix_cache,
        /* Path P equals path D to the bit on the CPU. On a GPU the two sum attention in different
         * orders. */
        .share_generated = !engine_is_on_gpu(&e->cfg),
        .propose = e->draft_model ? draft_model_propose : NULL,
        .forget_block = e->draft_model ? draft_model_forget : NULL,
        .draft_ctx = e->draft_model,
        .n_draft_seqs = e->draft_model ? DRAFT_MODEL_MAX_SEQS : 0,
    };
    int rc = scheduler_create(&cfg, &e->scheduler, err);
    if (!rc)
        rc = engine_moves_open(e, n_host_states, err);
    if (!rc)
        rc = open_flights(e, &limits, err);
    if (rc)
        return rc;
    uint32_t n_rows = limits.max_seqs + limits.n_score_rows;
    e->params = calloc(n_rows, sizeof(*e->params));
    e->n_results = n_rows;
    rc = executor_alloc_results(e->executor, n_rows, &e->results, err);
    if (!rc)
        rc = executor_alloc_results(e->executor, n_rows, &e->last_results, err);
    if (rc)
        return rc;
    e->to_draw = calloc(n_rows, sizeof(*e->to_draw));
    e->drawn = calloc(n_rows, sizeof(*e->drawn));
    e->deferred = calloc(n_rows, sizeof(struct sequence *));
    e->deferred_ended = calloc(n_rows, sizeof(struct sequence *));
    e->deferred_result = calloc(n_rows, sizeof(*e->deferred_result));
    e->defers = (e->cfg.defer_text || executor_is_async(e->executor)) && e->max_flights == 1;
    if (!e->params || !e->to_draw || !e->drawn || !e->deferred || !e->deferred_ended ||
        !e->deferred_result)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %u sequences",
                         limits.max_seqs);
    atomic_store(&e->admission.n_places, n_running ? n_running : limits.max_seqs);
    e->admission.longest_prompt = plan->n_blocks / 4 * bs;
    return admission_init(&e->admission, cfg.max_requests, err);
}

static int start_thread(struct engine *e, struct error *err)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&e->sleep_lock, NULL);
    pthread_mutex_init(&e->registry_lock, NULL);
    pthread_mutex_init(&e->events_lock, NULL);
    pthread_cond_init(&e->wake, &attr);
    pthread_condattr_destroy(&attr);
    e->has_locks = true;
    engine_stats_refresh(e, 0);
    int rc = pthread_create(&e->thread, NULL, engine_loop_run, e);
    if (rc)
        return error_errno(err, rc, "the engine thread cannot be started");
    e->has_thread = true;
    return 0;
}

int engine_open(const struct engine_config *cfg, struct engine **out_engine, struct error *err)
{
    int rc = check_config(cfg, err);
    struct engine *e = rc ? NULL : calloc(1, sizeof(*e));
    if (!rc && !e)
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for an engine");
    if (rc) {
        tokenizer_close(cfg->tokenizer);
        return rc;
    }
    e->cfg = *cfg;
    e->tokenizer = cfg->tokenizer;
    rc = open_file(e, err);
    e->cfg.model_path = e->cfg.draft_path = NULL; /* the pointers were borrowed for the call */
    e->cfg.checkpoint = NULL;
    e->cfg.tokenizer = NULL;
    if (!rc) {
        set_limits(e);
        rc = mark_drawable(e, err);
    }
    if (!rc)
        rc = open_scheduler(e, err);
    if (!rc)
        rc = start_thread(e, err);
    if (!rc)
        *out_engine = e;
    else
        engine_close(e);
    return rc;
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    if (e->has_thread) {
        pthread_mutex_lock(&e->sleep_lock);
        atomic_store(&e->closing, true);
        pthread_cond_signal(&e->wake);
        pthread_mutex_unlock(&e->sleep_lock);
        pthread_join(e->thread, NULL);
    }
    size_t cursor = 0;
    struct request *r;
    while ((r = hash_map_next(&e->registry, &cursor, NULL, NULL)))
        request_release(r);
    hash_map_fini(&e->registry);
    if (e->has_locks) {
        pthread_mutex_destroy(&e->sleep_lock);
        pthread_mutex_destroy(&e->registry_lock);
        pthread_mutex_destroy(&e->events_lock);
        pthread_cond_destroy(&e->wake);
    }
    scheduler_destroy(e->scheduler);
    for (uint32_t i = 0; e->flights && i < e->max_flights; i++)
        step_batch_destroy(e->flights[i].batch);
    free(e->flights);
    admission_fini(&e->admission);
    free(e->drawable);
    free(e->params);
    if (e->executor) {
        executor_free_results(e->executor, e->results, e->n_results);
        executor_free_results(e->executor, e->last_results, e->n_results);
    }
    engine_moves_close(e);
    free(e->to_draw);
    free(e->drawn);
    free(e->deferred);
    free(e->deferred_ended);
    free(e->deferred_result);
    draft_model_close(e->draft_model);
    executor_close(e->executor);
    chat_templates_destroy(e->templates);
    tokenizer_close(e->tokenizer);
    free(e);
}

/* --- facts --- */

const struct tokenizer *engine_tokenizer(const struct engine *e)
{
    return e->tokenizer;
}

const struct chat_templates *engine_chat_templates(const struct engine *e)
{
    return e->templates;
}

const struct model_info *engine_model_info(const struct engine *e)
{
    return executor_model_info(e->executor);
}

int engine_read_model_info(const struct checkpoint *ckpt, struct model_info *out_info,
                           struct error *err)
{
    struct model model;
    int rc = model_init(&model, ckpt, NULL, err);
    if (!rc)
        *out_info = model.info;
    model_fini(&model);
    return rc;
}

void engine_get_packed(const struct engine *e, struct executor_packed *out_packed)
{
    executor_get_packed(e->executor, out_packed);
}

int engine_keep(const struct engine *e, const struct executor_keep *terms,
                struct executor_packed *out_kept, struct error *err)
{
    return executor_keep(e->executor, terms, out_kept, err);
}

const struct executor_plan *engine_memory(const struct engine *e)
{
    return &e->memory;
}

const char *engine_draft_name(const struct engine *e, uint32_t *out_context_tokens)
{
    *out_context_tokens = e->draft_model ? draft_model_context(e->draft_model) : 0;
    return e->draft_model ? draft_model_name(e->draft_model) : NULL;
}

const char *engine_numerics_id(const struct engine *e)
{
    return executor_numerics_id(e->executor);
}

const char *engine_weights_digest(const struct engine *e)
{
    return e->digest;
}

uint32_t engine_context_tokens(const struct engine *e)
{
    return e->limits.context_tokens;
}

/* --- statistics --- */

static void publish_stats(struct engine *e)
{
    struct shared_stats *shared = &e->shared_stats;
    uint64_t words[STATS_WORDS] = {0};
    e->stats.graph_bytes = executor_graphs_taken(e->executor);
    if (e->draft_model)
        e->stats.graph_bytes += draft_model_graphs_taken(e->draft_model);
    memcpy(words, &e->stats, sizeof(e->stats));
    uint32_t sequence = atomic_load_explicit(&shared->sequence, memory_order_relaxed);
    atomic_store_explicit(&shared->sequence, sequence + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (size_t i = 0; i < STATS_WORDS; i++)
        atomic_store_explicit(&shared->words[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&shared->sequence, sequence + 2, memory_order_release);
}

/* Fills admission's entries with the live requests. */
struct request_list {
    struct admission *admission;
    uint32_t n;
};

static void list_request(void *ctx, const struct request *r, uint32_t n_tokens)
{
    struct request_list *list = ctx;
    struct admission_entry entry = {.caller = r->caller_hash,
                                    .priority = r->priority,
                                    .n_tokens = n_tokens,
                                    .queued = r->state == REQUEST_WAITING};
    admission_set_entry(list->admission, list->n++, &entry);
}

void engine_stats_refresh(struct engine *e, uint32_t n_seen)
{
    struct scheduler_stats s;
    scheduler_get_stats(e->scheduler, &s);
    e->stats.n_queued = s.n_queued;
    e->stats.n_running = s.n_running;
    e->stats.n_paused = s.n_paused;
    e->stats.n_ready = s.n_ready;
    e->stats.n_blocks = s.n_blocks;
    e->stats.n_blocks_free = s.n_blocks_free;
    e->stats.n_blocks_cached = s.n_blocks_cached;
    e->stats.n_window_blocks = s.n_window_blocks;
    e->stats.n_window_blocks_free = s.n_window_blocks_free;
    e->stats.n_window_blocks_cached = s.n_window_blocks_cached;
    e->stats.n_preemptions = s.n_preemptions;
    e->stats.n_rope_crossings = s.n_rope_crossings;
    e->stats.n_prefix_hit_tokens = s.n_prefix_hit_tokens;
    e->stats.n_state_slots = s.n_state_slots;
    e->stats.n_states_used = s.n_states_used;
    e->stats.n_snapshots = s.n_snapshots;
    e->stats.n_snapshot_hits = s.n_snapshot_hits;
    e->stats.n_snapshot_evictions = s.n_snapshot_evictions;
    e->stats.n_moved_out = s.n_moved_out;
    e->stats.n_prefix_query_tokens = s.n_prefix_query_tokens;
    e->stats.queued_prompt_tokens = s.queued_tokens;
    if (e->draft_model) {
        struct draft_model_stats draft;
        draft_model_get_stats(e->draft_model, &draft);
        e->stats.n_draft_rows = draft.n_rows;
        e->stats.n_draft_found = draft.n_found;
    }
    atomic_fetch_add(&e->waiting,
                     (uint64_t)s.n_queued - e->n_queued_counted - n_seen * ENGINE_INCOMING);
    e->n_queued_counted = s.n_queued;
    atomic_store(&e->admission.n_used, s.n_used_slots);
    atomic_store(&e->admission.lowest, s.lowest_priority);
    atomic_store(&e->admission.n_lowest, s.n_lowest);
    atomic_store(&e->admission.n_several, s.n_several);
    struct request_list list = {.admission = &e->admission};
    scheduler_each(e->scheduler, list_request, &list);
    admission_set_n_waiting(&e->admission, list.n);
    publish_stats(e);
}

void engine_get_stats(const struct engine *e, struct engine_stats *out_stats)
{
    const struct shared_stats *shared = &e->shared_stats;
    uint64_t words[STATS_WORDS];
    uint32_t before, after;
    do {
        before = atomic_load_explicit(&shared->sequence, memory_order_acquire);
        for (size_t i = 0; i < STATS_WORDS; i++)
            words[i] = atomic_load_explicit(&shared->words[i], memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        after = atomic_load_explicit(&shared->sequence, memory_order_relaxed);
    } while (before != after || (before & 1));
    memcpy(out_stats, words, sizeof(*out_stats));
    /* Requests that the loop has not taken from the inbox yet wait, too. */
    uint32_t n_incoming =
        (uint32_t)(atomic_load_explicit(&e->waiting, memory_order_relaxed) / ENGINE_INCOMING);
    out_stats->n_queued += n_incoming;
    out_stats->n_ready += n_incoming;
    out_stats->n_submitted = atomic_load_explicit(&e->n_submitted, memory_order_relaxed);
    out_stats->n_refused = atomic_load_explicit(&e->n_refused, memory_order_relaxed);
    out_stats->progress_counter = executor_progress_counter(e->executor);
    if (e->draft_model)
        out_stats->progress_counter += draft_model_progress_counter(e->draft_model);
}
