/* Random schedules on models with recurrent layers. Requests arrive, are cancelled, paused and
 * preempted. They hit prefixes at snapshots and elsewhere, have four choices, and draft. Engines
 * are killed, parked and drained. Each answer equals that of the request alone, to the byte.
 *
 * A kill closes the engine at any moment. Another engine with other sizes resumes the requests from
 * the tokens that were read. A park keeps the packed weights for the next engine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "tests/unit/engine/support/support_engine.h"
#include "tests/unit/engine/support/support_golden.h"

enum {
    N_JOBS = 24,
    MAX_PROMPT = 80,
    MAX_ANSWER = 40,
    MAX_TEXT = 4096,
    MAX_ITEMS = 16,
    MAX_TP = 2,
    MAX_PP = 2,
    MAX_RANKS = MAX_TP * MAX_PP,
};

static const char *const models[] = {"qwen35", "mamba2", "granitehybrid_moe", "lfm2"};
enum { N_MODELS = sizeof(models) / sizeof(models[0]) };

static uint64_t rng;

static uint32_t below(uint32_t n)
{
    rng = rng * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((rng >> 33) % n);
}

/* --- the requests --- */

static struct job {
    uint32_t prompt[MAX_PROMPT];
    struct engine_request req;
    struct run_result alone;
} jobs[N_JOBS];

/* A third of the prompts begin like another one, and end anywhere behind that. A third repeat
 * themselves, for drafts. */
static void make_prompt(uint32_t i, uint32_t n, uint32_t vocab)
{
    uint32_t *ids = jobs[i].prompt;
    run_random_prompt(100 + i, ids, n, vocab);
    if (i % 3 == 0)
        run_random_prompt(1000 + i % 2, ids, n < 8 + i * 2 ? n : 8 + i * 2, vocab);
    for (uint32_t k = 5; i % 3 == 1 && k < n; k++)
        ids[k] = ids[k - 5];
}

static void make_jobs(uint32_t vocab)
{
    static const char *const stops[] = {"e", "th"};
    for (uint32_t i = 0; i < N_JOBS; i++) {
        struct engine_request *req = &jobs[i].req;
        uint32_t n = 1 + i * 29 % MAX_PROMPT;
        make_prompt(i, n, vocab);
        engine_request_init(req);
        req->prompt_ids = jobs[i].prompt;
        req->n_prompt_ids = n;
        req->stopping.max_tokens = 4 + i * 13 % (MAX_ANSWER - 4);
        req->stopping.ignore_eos = i % 4 > 0;
        req->sampling.temperature = i % 2 ? 0.9f : 0.0f;
        req->sampling.seed = 7 + i;
        req->sampling.n = i % 6 == 5 ? 4 : 1;
        req->sampling.repetition_penalty = i % 7 == 3 ? 1.2f : 1.0f;
        if (i % 8 == 4) {
            req->stopping.stop = stops;
            req->stopping.n_stop = 2;
        }
    }
}

/* --- engines --- */

static const char *model;
/* packed weights of parked engines, by tp and pp */
static int shared_fds[MAX_TP + 1][MAX_PP + 1][MAX_RANKS];

static struct engine_config base_config(void)
{
    static char path[512];
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s", golden_source_dir(), model);
    struct engine_config cfg = run_config(path);
    cfg.target_itl_ms = 0;
    return cfg;
}

/* Few blocks, few slots and small steps, in all mixtures. The largest request fits. Half of the
 * engines have two stages, and so two steps in flight. */
static struct engine_config random_config(bool from_parked)
{
    struct engine_config cfg = base_config();
    cfg.executor.tp = 1 + below(2);
    cfg.executor.pp = 1 + below(2);
    cfg.executor.n_threads = cfg.executor.tp * cfg.executor.pp;
    cfg.executor.kv_block_size = below(2) ? 16 : 4;
    cfg.executor.kv_tokens = 512 + below(2) * below(1500);
    cfg.executor.state_slots = 6 + below(below(2) ? 3 : 20);
    cfg.max_concurrent = 4 + below(8);
    cfg.max_batch_tokens = 8 + below(64);
    cfg.prefill_chunk_tokens = 1 + below(40);
    cfg.prefix_cache = below(8) > 0;
    cfg.snapshot_blocks = below(4);
    cfg.draft_tokens = below(2) ? 4 + below(12) : 0;
    if (from_parked) {
        cfg.executor.packed_fds = shared_fds[cfg.executor.tp][cfg.executor.pp];
        cfg.executor.n_packed_fds = cfg.executor.tp * cfg.executor.pp;
    }
    return cfg;
}

static void open_shared(void)
{
    for (uint32_t tp = 1; tp <= MAX_TP; tp++)
        for (uint32_t pp = 1; pp <= MAX_PP; pp++)
            for (uint32_t r = 0; r < tp * pp; r++)
                assert_true((shared_fds[tp][pp][r] = memfd_create("fire", MFD_ALLOW_SEALING)) >= 0);
}

static void close_shared(void)
{
    for (uint32_t tp = 1; tp <= MAX_TP; tp++)
        for (uint32_t pp = 1; pp <= MAX_PP; pp++)
            for (uint32_t r = 0; r < tp * pp; r++)
                close(shared_fds[tp][pp][r]);
}

/* Computes each request by itself, without a cache. */
static void run_alone(void)
{
    struct engine_config cfg = base_config();
    cfg.prefix_cache = false;
    struct engine *engine = run_open(&cfg);
    make_jobs(engine_model_info(engine)->vocab_size);
    for (uint32_t i = 0; i < N_JOBS; i++) {
        run_submit(engine, &jobs[i].req, &jobs[i].alone);
        run_wait(engine, &jobs[i].alone, 1);
    }
    run_close(engine);
}

/* --- a schedule --- */

/* The client's part of a choice, over all engines that served the choice. */
struct answer {
    uint32_t ids[MAX_ANSWER], n_ids;
    char text[MAX_TEXT];
    size_t n_text;
    enum finish_reason reason; /* FINISH_NONE: the choice goes on */
};

static struct item {
    const struct job *job;
    struct answer answers[RUN_MAX_CHOICES];
    struct run_result now; /* events of the engine that serves the request now */
    bool cancelled, paused, done;
} items[MAX_ITEMS];
static uint32_t n_items;

static struct totals {
    uint64_t preemptions, snapshot_hits, hit_tokens, evictions, accepted, moved;
    uint64_t cancels, kills, parks, drains, resumed, fours;
} totals;

/* Adds the events of the current engine to what the client has. */
static void fold(struct item *item)
{
    for (uint32_t c = 0; c < item->now.n_choices; c++) {
        const struct run_choice *from = &item->now.choices[c];
        struct answer *to = &item->answers[c];
        assert_true(to->n_ids + from->n_ids <= MAX_ANSWER && to->n_text + from->n_text < MAX_TEXT);
        if (from->n_ids)
            memcpy(to->ids + to->n_ids, from->ids, from->n_ids * sizeof(*to->ids));
        if (from->n_text)
            memcpy(to->text + to->n_text, from->text, from->n_text);
        to->n_ids += from->n_ids;
        to->n_text += from->n_text;
        if (from->finished && to->reason == FINISH_NONE)
            to->reason = from->reason;
    }
    item->done = item->now.done;
    run_result_fini(&item->now);
}

static void submit(struct engine *engine, struct item *item, bool resumes)
{
    static const char *const callers[] = {"ann", "bob", "cid"};
    struct engine_resume resume[RUN_MAX_CHOICES];
    struct engine_request req = item->job->req;
    req.priority = (int32_t)below(3) - 1;
    req.caller = callers[below(3)];
    for (uint32_t c = 0; c < req.sampling.n; c++) {
        const struct answer *a = &item->answers[c];
        resume[c] =
            (struct engine_resume){a->ids, a->n_ids, (uint32_t)a->n_text, a->reason != FINISH_NONE};
    }
    req.resume = resumes ? resume : NULL;
    item->paused = false;
    run_submit(engine, &req, &item->now);
}

static bool is_live(const struct item *item)
{
    return !item->done && !item->now.done;
}

static bool any_runs(void)
{
    for (uint32_t i = 0; i < n_items; i++)
        if (is_live(&items[i]) && !items[i].paused)
            return true;
    return false;
}

static void add_stats(struct engine *engine)
{
    struct engine_stats s = run_stats(engine);
    totals.preemptions += s.n_preemptions;
    totals.snapshot_hits += s.n_snapshot_hits;
    totals.hit_tokens += s.n_prefix_hit_tokens;
    totals.evictions += s.n_snapshot_evictions;
    totals.accepted += s.n_accepted_tokens;
    totals.moved += s.n_moved_out;
}

/* Closes the engine in the middle of its work. Another one resumes what has not ended. */
static struct engine *replace(struct engine *engine, bool parks)
{
    run_poll(engine);
    add_stats(engine);
    run_close(engine);
    struct engine_config cfg = random_config(parks);
    engine = run_open(&cfg);
    for (uint32_t i = 0; i < n_items; i++) {
        struct item *item = &items[i];
        if (item->done)
            continue;
        fold(item);
        item->done |= item->cancelled;
        if (item->done)
            continue;
        submit(engine, item, true);
        totals.resumed++;
    }
    return engine;
}

static void finish_all(struct engine *engine)
{
    for (uint32_t i = 0; i < n_items; i++)
        if (is_live(&items[i])) {
            engine_pause(engine, items[i].now.id, false);
            items[i].paused = false;
        }
    for (uint32_t i = 0; i < n_items; i++)
        if (!items[i].done) {
            run_wait(engine, &items[i].now, 1);
            fold(&items[i]);
        }
    run_wait_idle(engine);
    struct engine_stats s = run_stats(engine);
    assert_int_equal(s.n_blocks_free, s.n_blocks);
    assert_int_equal(s.n_states_used, 0);
}

/* Refuses arrivals, lets the others end, and goes on with another engine. */
static struct engine *drain(struct engine *engine)
{
    uint64_t id;
    struct error err;
    engine_drain(engine);
    assert_int_equal(engine_submit(engine, &jobs[0].req, &id, &err), STATUS_UNAVAILABLE);
    finish_all(engine);
    add_stats(engine);
    run_close(engine);
    struct engine_config cfg = random_config(false);
    return run_open(&cfg);
}

static void disturb(struct engine *engine)
{
    struct item *item = &items[below(n_items)];
    if (!is_live(item) || item->cancelled)
        return;
    if (below(3) == 0) {
        engine_cancel(engine, item->now.id);
        item->cancelled = true;
        totals.cancels++;
    } else {
        item->paused = !item->paused;
        engine_pause(engine, item->now.id, item->paused);
    }
}

/* A cancelled request has a beginning of its answer; an event may have ended it before. */
static void check(uint32_t seed, const struct item *item)
{
    for (uint32_t c = 0; c < item->job->req.sampling.n; c++) {
        const struct answer *a = &item->answers[c];
        const struct run_choice *want = &item->job->alone.choices[c];
        bool part = item->cancelled && (a->reason == FINISH_CANCELLED || a->reason == FINISH_NONE);
        bool fits = part ? a->n_ids <= want->n_ids && a->n_text <= want->n_text
                         : a->n_ids == want->n_ids && a->n_text == want->n_text &&
                               a->reason == want->reason;
        if (!fits || (a->n_ids && memcmp(a->ids, want->ids, a->n_ids * sizeof(*a->ids)) != 0) ||
            (a->n_text && memcmp(a->text, want->text, a->n_text) != 0))
            fail_msg("%s, schedule %u: request %u, choice %u: %u ids and \"%.*s\" (end %d), alone "
                     "%u and \"%s\" (end %d)",
                     model, seed, (uint32_t)(item->job - jobs), c, a->n_ids, (int)a->n_text,
                     a->text, (int)a->reason, want->n_ids, want->text, (int)want->reason);
    }
}

static void run_schedule(uint32_t seed)
{
    struct engine_config cfg = random_config(false);
    struct engine *engine = run_open(&cfg);
    uint32_t n_most = 5 + below(MAX_ITEMS - 4);
    n_items = 0;
    memset(items, 0, sizeof(items));
    while (n_items < n_most || any_runs()) {
        uint32_t event = below(64);
        run_poll(engine);
        if (n_items < n_most && event < 24) {
            struct item *item = &items[n_items++];
            item->job = &jobs[below(N_JOBS)];
            totals.fours += item->job->req.sampling.n > 1;
            submit(engine, item, false);
        } else if (event < 34 && n_items) {
            disturb(engine);
        } else if (event == 34 || event == 35) {
            totals.kills++;
            engine = replace(engine, false);
        } else if (event == 36) {
            totals.parks++;
            engine = replace(engine, true);
        } else if (event == 37) {
            totals.drains++;
            engine = drain(engine);
        } else if (any_runs()) {
            run_pause();
        }
    }
    finish_all(engine);
    add_stats(engine);
    run_close(engine);
    for (uint32_t i = 0; i < n_items; i++)
        check(seed, &items[i]);
}

/* Each event happens; how often depends on timing. */
static void check_totals(uint32_t n)
{
    print_message("%u schedules: %llu preemptions, %llu moved out, %llu snapshots found (%llu "
                  "tokens), %llu evicted, %llu drafts accepted\n",
                  n, (unsigned long long)totals.preemptions, (unsigned long long)totals.moved,
                  (unsigned long long)totals.snapshot_hits, (unsigned long long)totals.hit_tokens,
                  (unsigned long long)totals.evictions, (unsigned long long)totals.accepted);
    print_message("%llu cancels, %llu kills, %llu parks, %llu drains, %llu resumed, %llu of four\n",
                  (unsigned long long)totals.cancels, (unsigned long long)totals.kills,
                  (unsigned long long)totals.parks, (unsigned long long)totals.drains,
                  (unsigned long long)totals.resumed, (unsigned long long)totals.fours);
    if (n < 100)
        return;
    assert_true(totals.preemptions > n / 10 && totals.snapshot_hits > n / 10);
    assert_true(totals.evictions && totals.accepted);
    assert_true(totals.cancels > n / 4 && totals.kills > n / 4 && totals.fours > n / 4);
    assert_true(totals.parks > n / 8 && totals.drains > n / 8 && totals.resumed > n / 4);
}

/* SLUICE_SCHEDULES in the environment sets the number of schedules, SLUICE_SEED the first. */
static void test_answers_under_fire_equal_those_alone(void **state)
{
    const char *text = getenv("SLUICE_SCHEDULES"), *seed_text = getenv("SLUICE_SEED");
    uint32_t n = text ? (uint32_t)strtoul(text, NULL, 10) : 200, at = 0;
    uint32_t first = seed_text ? (uint32_t)strtoul(seed_text, NULL, 10) : 1;
    (void)state;
    for (uint32_t m = 0; m < N_MODELS; m++) {
        model = models[m];
        run_alone();
        open_shared();
        for (; at < (uint64_t)n * (m + 1) / N_MODELS; at++) {
            rng = (first + at) * 0x9E3779B97F4A7C15ull;
            run_schedule(first + at);
        }
        close_shared();
        for (uint32_t i = 0; i < N_JOBS; i++)
            run_result_fini(&jobs[i].alone);
    }
    check_totals(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_under_fire_equal_those_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
