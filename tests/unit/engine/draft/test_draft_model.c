/* Tests of a draft model in the engine. Answers are the same with and without drafts. Cached keys
 * and values belong to one caller. Other tests check when the draft model runs, and why a load
 * refuses one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/draft/draft_model.h"
#include "engine/draft/draft_model_private.h"
#include "engine/format/checkpoint.h"
#include "engine/request/sequence.h"
#include "engine/text/tokenizer.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_engine.h"
#include "tests/unit/engine/support/support_same.h"

#define TINY SLUICE_SOURCE_DIR "/tests/golden/tiny/"

/* Model "q4_1" drafts for itself; "q4_0" has other weights and is almost never right. */
static const struct same_variant variants[] = {
    {"as it was", 1, 2, 16, 4096, 32, 128, 64, false, false, 0.75, 0, 0, NULL, 0},
    {"two at a time", 1, 2, 16, 4096, 32, 128, 3, false, false, 0, 0, 16, "q4_1", 0.1},
    {"all at once", 1, 2, 16, 4096, 32, 512, 64, false, false, 0, 0, 4, "q4_1", 0.1},
    {"tp 2", 2, 2, 16, 4096, 32, 128, 5, false, false, 0, 0, 8, "q4_1", 0.1},
    {"1 thread, blocks of 1", 1, 1, 1, 4096, 5, 64, 5, false, false, 0, 0, 8, "q4_1", 0.1},
    {"blocks of 32, no prefix cache", 1, 2, 32, 4096, 32, 128, 5, true, false, 0, 0, 8, "q4_1",
     0.1},
    {"small pool", 1, 2, 4, 320, 32, 64, 5, false, true, 0, 0, 16, "q4_1", 0.1},
    {"small pool, tp 2, 7 rows", 2, 2, 8, 320, 7, 7, 16, false, true, 0, 0, 16, "q4_1", 0},
    {"a model that is always wrong", 1, 2, 16, 4096, 32, 128, 5, false, false, 0, 0, 8, "q4_0", 0},
};

static void test_64_alone_equal_64_with_drafts(void **state)
{
    (void)state;
    same_check("q4_1", DTYPE_BF16, variants, sizeof(variants) / sizeof(variants[0]), 44);
}

static uint32_t prompt[64];

static struct engine_request simple(uint32_t n_prompt, uint32_t max_tokens)
{
    for (uint32_t i = 0; i < 64; i++)
        prompt[i] = 40 + i * 7 % 90;
    return run_request(prompt, n_prompt, max_tokens);
}

static struct engine_config draft_config(const char *draft, bool always)
{
    struct engine_config cfg = run_config("q4_1");
    cfg.draft_path = draft;
    cfg.draft_always = always;
    cfg.draft_tokens = 8;
    return cfg;
}

/* A model drafts its own tokens correctly, also with sampling: every step of k drafts gives k + 1
 * tokens. */
static void test_its_own_twin_is_always_right(void **state)
{
    struct engine_config cfg = draft_config(TINY "q4_1.gguf", true);
    struct engine *engine = run_open(&cfg);
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct engine_request req = simple(40, 100);
        struct run_result result, again;
        uint64_t before = run_stats(engine).n_decode_steps;
        req.sampling.temperature = i ? 1.2f : 0;
        req.sampling.top_p = i == 2 ? 0.9f : 1;
        req.sampling.seed = 7;
        run_submit(engine, &req, &result);
        run_wait(engine, &result, 1);
        uint64_t n_steps = run_stats(engine).n_decode_steps - before;
        assert_int_equal(result.usage.n_accepted_tokens, result.usage.n_drafted_tokens);
        assert_int_equal(n_steps + result.usage.n_accepted_tokens, 99);
        assert_true(n_steps <=
                    99 / 9 + 4); /* some steps more: the draft model computes the prompt first */
        req.speculate.drafter = ENGINE_DRAFTER_NONE;
        run_submit(engine, &req, &again);
        run_wait(engine, &again, 1);
        assert_int_equal(again.usage.n_drafted_tokens, 0);
        run_assert_same(&result, &again, "without drafts");
        run_result_fini(&result);
        run_result_fini(&again);
    }
    run_close(engine);
}

/* Cached keys and values of a prompt are found by requests that share the prompt's blocks, and by
 * no other request. */
static void test_its_keys_and_values_are_found_by_their_own_caller_alone(void **state)
{
    static const struct {
        const char *salt;
        bool finds;
    } rows[] = {{"a", false}, {"b", false}, {"a", true}, {"c", false}, {"b", true}};
    struct engine_config cfg = draft_config(TINY "q4_1.gguf", true);
    struct engine *engine = run_open(&cfg);
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct engine_request req = simple(64, 20);
        struct run_result result;
        struct engine_stats before = run_stats(engine), after;
        req.cache_salt = rows[i].salt;
        run_submit(engine, &req, &result);
        run_wait(engine, &result, 1);
        after = run_stats(engine);
        assert_int_equal(after.n_draft_found > before.n_draft_found, rows[i].finds);
        if (rows[i].finds) /* three blocks of 16 and more */
            assert_true(after.n_draft_found - before.n_draft_found >= 48 &&
                        after.n_draft_rows - before.n_draft_rows < 48);
        else
            assert_true(after.n_draft_rows - before.n_draft_rows >= 64);
        assert_int_equal(result.usage.n_accepted_tokens, result.usage.n_drafted_tokens);
        run_result_fini(&result);
    }
    run_close(engine);
}

/* The draft model computes reused blocks again. With the old contents, the drafts of the same model
 * would be wrong. */
static void test_blocks_that_were_taken_are_not_believed(void **state)
{
    struct engine_config cfg = draft_config(TINY "q4_1.gguf", true);
    struct run_result result;
    (void)state;
    cfg.executor.kv_tokens = 256;
    struct engine *engine = run_open(&cfg);
    for (uint32_t i = 0; i < 12; i++) {
        struct engine_request req = simple(64, 60);
        uint32_t other[64];
        memcpy(other, prompt, sizeof(other));
        other[0] = 40 + i % 4; /* four prompts in turn; the pool has room for two */
        req.prompt_ids = other;
        run_submit(engine, &req, &result);
        run_wait(engine, &result, 1);
        assert_int_equal(result.usage.n_accepted_tokens, result.usage.n_drafted_tokens);
        assert_true(result.usage.n_drafted_tokens > 20);
        run_result_fini(&result);
    }
    run_close(engine);
}

/* Choices, cancels, pauses, shortened answers and preemptions among sequences that draft. */
static void test_disturbed_drafts_lose_no_block_and_no_token(void **state)
{
    static struct run_result results[24], alone;
    struct engine_config cfg = draft_config(TINY "q4_1.gguf", true);
    (void)state;
    cfg.executor.kv_tokens = 1024;
    cfg.executor.kv_block_size = 4;
    struct engine *engine = run_open(&cfg);
    struct engine_request req = simple(64, 120);
    req.speculate.drafter = ENGINE_DRAFTER_NONE;
    run_submit(engine, &req, &alone);
    run_wait(engine, &alone, 1);
    run_slow_steps(NS_PER_MS / 4);
    for (uint32_t i = 0; i < 24; i++) {
        char salt[2] = {(char)('a' + i), 0};
        req = simple(64, 120);
        req.cache_salt = salt; /* without different salts all requests would share blocks */
        req.sampling.n = 1 + i % 2;
        run_submit(engine, &req, &results[i]);
    }
    run_disturb(engine, results, 24);
    for (uint32_t i = 0; i < 24; i++) {
        if (i % 3 == 1) /* all drafts were right, with and without preemption: the draft model's
                           cache was complete */
            assert_int_equal(results[i].usage.n_accepted_tokens, results[i].usage.n_drafted_tokens);
        for (uint32_t c = 0; c < results[i].n_choices; c++) {
            const struct run_choice *choice = &results[i].choices[c];
            assert_true(choice->n_ids >= (i % 3 == 2 ? 100 : i % 3));
            assert_memory_equal(choice->ids, alone.choices[0].ids,
                                choice->n_ids * sizeof(*choice->ids));
        }
        run_result_fini(&results[i]);
    }
    struct engine_stats s = run_stats(engine);
    assert_true(s.n_preemptions > 0 && s.n_accepted_tokens > 100);
    assert_int_equal(s.n_blocks_free, s.n_blocks);
    run_result_fini(&alone);
    run_close(engine);
}

/* --- when the draft model runs --- */

struct drafter {
    struct checkpoint *ckpt;
    struct executor *target;
    struct tokenizer *tokenizer;
    struct draft_model *model;
    struct request *request;
    uint32_t table[64];
};

static void open_drafter(struct drafter *d, const struct engine_config *cfg,
                         const struct engine_request *req, const struct request_limits *limits)
{
    struct executor_config ex = cfg->executor;
    struct error err;
    ex.kv_tokens = 1024;
    ex.max_rows = 128;
    ex.max_seqs = 4;
    assert_int_equal(checkpoint_open(cfg->model_path, &d->ckpt, &err), 0);
    assert_int_equal(tokenizer_open(d->ckpt, &d->tokenizer, &err), 0);
    assert_int_equal(executor_open(d->ckpt, &ex, NULL, NULL, NULL, &d->target, &err), 0);
    assert_int_equal(
        draft_model_open(TINY "q4_0.gguf", &ex, d->target, d->tokenizer, "target", &d->model, &err),
        0);
    assert_int_equal(request_create(req, limits, &d->request, &err), 0);
    for (uint32_t i = 0; i < 64; i++)
        d->table[i] = 63 - i;
}

static void close_drafter(struct drafter *d)
{
    request_release(d->request);
    draft_model_close(d->model);
    executor_close(d->target);
    tokenizer_close(d->tokenizer);
    checkpoint_close(d->ckpt);
}

/* Replaces the measured times of the model: every pass is expected to take `ns`. */
static void foretell(struct draft_model *model, int64_t ns)
{
    memset(&model->time, 0, sizeof(model->time));
    for (int i = 0; i < 16; i++)
        step_time_saw(&model->time, &(struct step_shape){.n_decode = 1}, ns);
}

/* Tests the drafter alone, at given costs. A drafter that is right continues. A drafter that is
 * wrong, or costs more than it saves, is tried ever less often. A drafter without time for a pass
 * is not asked. Symptom of the fourth row: trials took longer than expected, as on a busy machine.
 * Drafts behind their first token then caused a new trial every fourth step. */
static void test_one_that_pays_goes_on_and_one_that_does_not_rests(void **state)
{
    (void)state;
    struct engine_config cfg = draft_config(NULL, false);
    struct engine_request req = simple(1, 2000);
    struct request_limits limits = {.vocab_size = 288,
                                    .context_tokens = 4096,
                                    .max_concurrent = 8,
                                    .draft_tokens = 4,
                                    .has_draft_model = true};
    static const struct {
        const char *name;
        bool right;
        float row_ns;
        int64_t late_room_ns, foretold_ns;
        uint32_t least, most, late_least, late_most;
    } rows[] = {
        {"right", true, 1e9f, INT64_MAX, 0, 1000, 1600, 700, 1600},
        {"wrong", false, 1e9f, INT64_MAX, 0, 4, 300, 0, 60},
        {"dear", true, 10.0f, INT64_MAX, 0, 2, 40, 0, 30},
        {"dearer than foretold", true, 10.0f, INT64_MAX, 1000, 4, 40, 1, 30},
        {"no time", true, 1e9f, 10, 0, 50, 300, 0, 0},
    };
    for (size_t i_row = 0; i_row < sizeof(rows) / sizeof(rows[0]); i_row++) {
        struct drafter d;
        uint32_t n_drafted = 0, n_late = 0;
        open_drafter(&d, &cfg, &req, &limits);
        struct sequence *seq = &d.request->choices[0];
        sequence_append(seq, 50);
        for (uint32_t i = 0; i < 400; i++) {
            struct draft_job job = {.seq = seq, .table = d.table, .n_most = 4};
            struct draft_bounds bounds = {
                .n_rows = 1,
                .base_rows = 30,
                .row_ns = rows[i_row].row_ns,
                .margin = 1.1f,
                .room_ns = i > 50 ? rows[i_row].late_room_ns : INT64_MAX,
                .catch_ns = INT64_MAX,
            };
            uint32_t before = seq->n_ids;
            if (rows[i_row].foretold_ns)
                foretell(d.model, rows[i_row].foretold_ns);
            draft_model_propose(d.model, &job, 1, &bounds);
            n_drafted += seq->draft->n_ids;
            n_late += i > 100 ? seq->draft->n_ids : 0;
            /* Plays the target model: accepts all drafts, or none of them. */
            for (uint32_t k = 0; rows[i_row].right && k < seq->draft->n_ids; k++)
                sequence_append(seq, seq->draft->ids[k]);
            if (seq->n_ids == before)
                sequence_append(seq, seq->draft->n_ids && seq->draft->ids[0] == 60 ? 61 : 60);
            if (sequence_n_tokens(seq) > 400) { /* the context is 512 */
                seq->n_ids = 1;
                draft_cut(seq->draft, 0);
            }
        }
        print_message("%s: %u drafted, %u late\n", rows[i_row].name, n_drafted, n_late);
        assert_in_range(n_drafted, rows[i_row].least, rows[i_row].most);
        assert_in_range(n_late, rows[i_row].late_least, rows[i_row].late_most);
        close_drafter(&d);
    }
}

/* --- other files --- */

struct file {
    char *bytes;
    size_t n_bytes;
    char path[64];
};

static struct file read_tiny(const char *path)
{
    struct file f = {.path = "/tmp/sluice_draft_XXXXXX"};
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    f.bytes = malloc(1 << 20);
    assert_non_null(f.bytes);
    f.n_bytes = fread(f.bytes, 1, 1 << 20, in);
    fclose(in);
    return f;
}

static void write_file(struct file *f)
{
    int fd = mkstemp(f->path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, f->bytes, f->n_bytes), (ssize_t)f->n_bytes);
    close(fd);
}

static void remove_file(struct file *f)
{
    unlink(f->path);
    free(f->bytes);
}

/* The first place of these bytes. */
static char *find(const struct file *f, const void *bytes, size_t n)
{
    for (size_t i = 0; i + n <= f->n_bytes; i++)
        if (memcmp(f->bytes + i, bytes, n) == 0)
            return f->bytes + i;
    fail_msg("the file does not hold what is looked for");
    return NULL;
}

static void put_u32(char *at, uint32_t value)
{
    memcpy(at, &value, sizeof(value));
}

static uint64_t get_u64(const char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof(value));
    return value;
}

static void put_u64(char *at, uint64_t value)
{
    memcpy(at, &value, sizeof(value));
}

/* Removes the last rows of the token embedding. The embedding is the first tensor of the file,
 * Q4_0, and also the output matrix. */
static void narrow_vocabulary(struct file *f, uint64_t n_rows)
{
    enum { ROW_BYTES = 96 / 32 * 18 };
    static const char tensor[] = "token_embd.weight";
    char *at = find(f, tensor, sizeof(tensor) - 1) - 8;
    uint64_t n_cut = 0, n_old = 0, n_tensors = get_u64(f->bytes + 8);
    for (uint64_t i = 0; i < n_tensors; i++) {
        at += 8 + get_u64(at);
        uint32_t n_dims = (uint32_t)(unsigned char)at[0];
        char *dims = at + 4;
        at = dims + 8 * n_dims + 4;
        if (i == 0) {
            n_old = get_u64(dims + 8);
            n_cut = (n_old - n_rows) * ROW_BYTES;
            put_u64(dims + 8, n_rows);
        } else {
            put_u64(at, get_u64(at) - n_cut);
        }
        at += 8;
    }
    size_t data = ((size_t)(at - f->bytes) + 31) / 32 * 32;
    char *end = f->bytes + data + n_old * ROW_BYTES;
    memmove(end - n_cut, end, f->n_bytes - (size_t)(end - f->bytes));
    f->n_bytes -= n_cut;
}

/* The draft model has the shorter context. Beyond that context there are no drafts, and the answer
 * continues. */
static void test_a_shorter_context_ends_the_drafts(void **state)
{
    static const char key[] = "llama.context_length";
    struct file f = read_tiny(TINY "q4_1.gguf");
    uint32_t context;
    (void)state;
    put_u32(find(&f, key, sizeof(key) - 1) + sizeof(key) - 1 + 4, 100);
    write_file(&f);
    struct engine_config cfg = draft_config(f.path, true);
    struct engine *engine = run_open(&cfg);
    assert_non_null(engine_draft_name(engine, &context));
    assert_int_equal(context, 100);
    struct engine_request req = simple(40, 200);
    struct run_result result, again;
    run_submit(engine, &req, &result);
    run_wait(engine, &result, 1);
    req.speculate.drafter = ENGINE_DRAFTER_NONE;
    run_submit(engine, &req, &again);
    run_wait(engine, &again, 1);
    run_assert_same(&result, &again, "without drafts");
    assert_int_equal(result.usage.n_accepted_tokens, result.usage.n_drafted_tokens);
    assert_true(result.usage.n_accepted_tokens >= 45 && result.usage.n_accepted_tokens <= 60);
    run_result_fini(&result);
    run_result_fini(&again);
    /* A prompt that is longer than the context of the draft model. */
    static uint32_t longer[150];
    run_random_prompt(3, longer, 150, 288);
    req = simple(40, 20);
    req.prompt_ids = longer;
    req.n_prompt_ids = 150;
    run_submit(engine, &req, &result);
    run_wait(engine, &result, 1);
    assert_int_equal(result.usage.n_drafted_tokens, 0);
    run_result_fini(&result);
    run_close(engine);
    remove_file(&f);
}

/* The draft model's output matrix is narrower than the model's, or wider. Ids that one model lacks
 * are never drafted, and a sequence with such an id gets no drafts. Biases and masks name such ids
 * too. */
static void test_vocabularies_of_other_sizes_draft_what_both_have(void **state)
{
    (void)state;
    for (int narrow = 0; narrow < 2; narrow++) {
        struct file f = read_tiny(TINY "q4_0.gguf");
        static const char key[] = "llama.vocab_size";
        put_u32(find(&f, key, sizeof(key) - 1) + sizeof(key) - 1 + 4, 272);
        narrow_vocabulary(&f, 272);
        write_file(&f);
        struct engine_config cfg = draft_config(narrow ? f.path : TINY "q4_0.gguf", true);
        cfg.model_path = narrow ? TINY "q4_0.gguf" : f.path;
        struct engine *engine = run_open(&cfg);
        uint32_t n_accepted = 0;
        for (uint32_t i = 0; i < 24; i++) {
            struct sample_bias bias = {narrow ? 285 : 271, i % 3 ? 4.0f : -INFINITY};
            struct engine_request req = simple(40, 60);
            struct run_result results[2];
            uint32_t allowed[] = {271, 60, 61, narrow ? 287 : 270};
            req.sampling.logit_bias = &bias;
            req.sampling.n_logit_bias = 1;
            req.sampling.temperature = i % 2 ? 1.0f : 0;
            req.sampling.seed = i;
            req.sampling.allowed_ids = allowed;
            req.sampling.n_allowed_ids = i % 4 == 3 ? 4 : 0;
            req.sampling.repetition_penalty = 1.1f;
            req.stopping.min_tokens = 5;
            req.stopping.ignore_eos = i % 2;
            for (int k = 0; k < 2; k++) {
                req.speculate.drafter = k ? ENGINE_DRAFTER_MODEL : ENGINE_DRAFTER_NONE;
                run_submit(engine, &req, &results[k]);
                run_wait(engine, &results[k], 1);
            }
            n_accepted += results[1].usage.n_accepted_tokens;
            run_assert_same(&results[1], &results[0], narrow ? "narrow draft" : "narrow model");
            run_result_fini(&results[0]);
            run_result_fini(&results[1]);
        }
        print_message("%s: %u accepted\n", narrow ? "narrow draft" : "narrow model", n_accepted);
        assert_true(
            n_accepted >
            (narrow ? 20 : 100)); /* the bias favours id 285, whose sequences get no drafts */
        run_close(engine);
        remove_file(&f);
    }
}

static void assert_refused(const struct engine_config *cfg, int status, const char *reason,
                           const char *text)
{
    struct engine *engine;
    struct error err = {0};
    assert_int_equal(engine_open(cfg, &engine, &err), status);
    if (!names_all(err.message, text))
        fail_msg("\"%s\" does not say \"%s\"", err.message, text);
    assert_string_equal(error_reason_name(&err), reason);
}

/* Two tokens have changed places: the file speaks another vocabulary. */
static void test_another_vocabulary_is_refused_with_both_names(void **state)
{
    struct file f = read_tiny(TINY "q4_0.gguf");
    struct engine_config cfg = draft_config(f.path, false);
    static const char a[] = "\x01\0\0\0\0\0\0\0A\x01\0\0\0\0\0\0\0B";
    char *at = find(&f, a, sizeof(a) - 1);
    (void)state;
    at[8] = 'B';
    at[17] = 'A';
    write_file(&f);
    cfg.draft_path = f.path;
    assert_refused(&cfg, STATUS_FAILED_PRECONDITION, "DRAFT_MISMATCH", "288|q4_1.gguf");
    assert_refused(&cfg, STATUS_FAILED_PRECONDITION, "DRAFT_MISMATCH", f.path + 5);
    assert_refused(&cfg, STATUS_FAILED_PRECONDITION, "DRAFT_MISMATCH", "A|B");
    remove_file(&f);
    cfg.draft_path = TINY "q4_0.bin";
    assert_refused(&cfg, STATUS_INVALID_ARGUMENT, "MODEL_FILE_INVALID", "q4_0.bin");
    cfg.draft_path = TINY "nothing.gguf";
    assert_refused(&cfg, STATUS_NOT_FOUND, "", "nothing.gguf");
}

static void test_a_drafter_that_is_not_there_is_refused(void **state)
{
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct engine_request req = simple(4, 4);
    struct error err = {0};
    uint64_t id;
    (void)state;
    req.speculate.drafter = ENGINE_DRAFTER_MODEL;
    assert_int_equal(engine_submit(engine, &req, &id, &err), STATUS_FAILED_PRECONDITION);
    assert_int_equal(err.reason, REASON_NO_DRAFT_MODEL);
    assert_string_equal(err.field, "speculate.drafter");
    run_close(engine);
}

/* The memory of the draft model is part of the plan, the counts and the report of the model. */
static void test_its_memory_is_part_of_the_plan(void **state)
{
    struct engine_config cfg = draft_config(TINY "f32.gguf", false), alone = cfg;
    struct executor_plan plan, without;
    struct checkpoint *ckpt;
    struct error err;
    (void)state;
    alone.draft_path = NULL;
    cfg.executor.max_rows = alone.executor.max_rows = cfg.max_batch_tokens;
    cfg.executor.max_seqs = alone.executor.max_seqs = cfg.max_concurrent;
    assert_int_equal(checkpoint_open(cfg.model_path, &ckpt, &err), 0);
    assert_int_equal(engine_plan(&cfg, ckpt, &plan, &err), 0);
    assert_int_equal(engine_plan(&alone, ckpt, &without, &err), 0);
    checkpoint_close(ckpt);
    assert_int_equal(plan.kv_bytes, 2 * without.kv_bytes); /* both models have the same shape */
    assert_int_equal(plan.draft_bytes, plan.weights_bytes - without.weights_bytes);
    assert_true(plan.draft_bytes > without.weights_bytes);
    assert_true(plan.workspace_bytes > without.workspace_bytes);
    struct engine *engine = run_open(&cfg);
    const struct executor_plan *taken = engine_memory(engine);
    assert_int_equal(taken->weights_bytes, plan.weights_bytes);
    assert_int_equal(taken->kv_bytes, plan.kv_bytes);
    assert_int_equal(taken->draft_bytes, plan.draft_bytes);
    run_close(engine);
    cfg.executor.kv_tokens =
        1ULL << 31; /* more than the machine has, though the target model alone may fit */
    assert_refused(&cfg, STATUS_RESOURCE_EXHAUSTED, "DEVICE_MEMORY", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_64_alone_equal_64_with_drafts),
        cmocka_unit_test(test_its_own_twin_is_always_right),
        cmocka_unit_test(test_its_keys_and_values_are_found_by_their_own_caller_alone),
        cmocka_unit_test(test_blocks_that_were_taken_are_not_believed),
        cmocka_unit_test(test_disturbed_drafts_lose_no_block_and_no_token),
        cmocka_unit_test(test_one_that_pays_goes_on_and_one_that_does_not_rests),
        cmocka_unit_test(test_a_shorter_context_ends_the_drafts),
        cmocka_unit_test(test_vocabularies_of_other_sizes_draft_what_both_have),
        cmocka_unit_test(test_another_vocabulary_is_refused_with_both_names),
        cmocka_unit_test(test_a_drafter_that_is_not_there_is_refused),
        cmocka_unit_test(test_its_memory_is_part_of_the_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
