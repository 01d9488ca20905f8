/* The engine on a Hugging Face folder that is written here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "engine/engine.h"
#include "tests/unit/engine/support/support_engine.h"
#include "tests/unit/engine/support/support_folder.h"

enum { HIDDEN = 32, FFN = 64, N_ROWS = 736, N_TOKENS = 709 };

static const struct weight {
    const char *name;
    uint32_t rows, columns; /* columns 0: a norm */
} weights[] = {
    {"model.embed_tokens.weight", N_ROWS, HIDDEN},
    {"model.norm.weight", HIDDEN, 0},
    {"lm_head.weight", N_ROWS, HIDDEN},
    {"model.layers.0.input_layernorm.weight", HIDDEN, 0},
    {"model.layers.0.post_attention_layernorm.weight", HIDDEN, 0},
    {"model.layers.0.self_attn.q_norm.weight", HIDDEN / 2, 0},
    {"model.layers.0.self_attn.k_norm.weight", HIDDEN / 2, 0},
    {"model.layers.0.self_attn.q_proj.weight", HIDDEN, HIDDEN},
    {"model.layers.0.self_attn.k_proj.weight", HIDDEN, HIDDEN},
    {"model.layers.0.self_attn.v_proj.weight", HIDDEN, HIDDEN},
    {"model.layers.0.self_attn.o_proj.weight", HIDDEN, HIDDEN},
    {"model.layers.0.mlp.gate_proj.weight", FFN, HIDDEN},
    {"model.layers.0.mlp.up_proj.weight", FFN, HIDDEN},
    {"model.layers.0.mlp.down_proj.weight", HIDDEN, FFN},
};

static const char config[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"hidden_size\":32,"
    "\"num_hidden_layers\":1,\"vocab_size\":736,\"intermediate_size\":64,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":2,\"head_dim\":16,\"hidden_act\":\"silu\","
    "\"max_position_embeddings\":256,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"
    "\"tie_word_embeddings\":false,\"torch_dtype\":\"float32\"}";

static void write_weights(const struct test_folder *folder)
{
    struct strbuf header = {0}, file = {0};
    uint64_t at = 0;
    strbuf_add_str(&header, "{");
    for (size_t i = 0; i < sizeof(weights) / sizeof(weights[0]); i++) {
        const struct weight *w = &weights[i];
        uint64_t n = 4ull * w->rows * (w->columns ? w->columns : 1);
        strbuf_printf(&header, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%u", i ? "," : "", w->name,
                      w->rows);
        if (w->columns)
            strbuf_printf(&header, ",%u", w->columns);
        strbuf_printf(&header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                      (unsigned long long)(at + n));
        at += n;
    }
    strbuf_add_str(&header, "}");
    uint64_t n_header = header.n_bytes;
    strbuf_add(&file, &n_header, sizeof(n_header));
    strbuf_add(&file, header.data, header.n_bytes);
    uint32_t state = 1;
    for (uint64_t i = 0; i < at / 4; i++) {
        state = state * 1664525u + 1013904223u;
        float value = (float)(state >> 8) / (float)(1 << 24) - 0.5f;
        strbuf_add(&file, &value, sizeof(value));
    }
    folder_write(folder, "model.safetensors", file.data, file.n_bytes);
    strbuf_fini(&header);
    strbuf_fini(&file);
}

static void copy_tokenizer(const struct test_folder *folder)
{
    struct strbuf text = {0};
    char part[4096];
    size_t n;
    FILE *file = fopen(SLUICE_SOURCE_DIR "/tests/golden/tokenizers/qwen2.json", "rb");
    assert_non_null(file);
    while ((n = fread(part, 1, sizeof(part), file)) > 0)
        strbuf_add(&text, part, n);
    fclose(file);
    folder_write(folder, "tokenizer.json", text.data, text.n_bytes);
    strbuf_fini(&text);
}

static struct engine *open_folder(struct test_folder *folder, const char *tokenizer_config,
                                  const char *generation_config, bool suppresses_tokens)
{
    struct engine_config cfg = run_config("q4_1");
    struct error err = {0};
    cfg.suppresses_tokens = suppresses_tokens;
    folder_create(folder);
    folder_write_text(folder, "generation_config.json", generation_config);
    folder_write_text(folder, "config.json", config);
    folder_write_text(folder, "tokenizer_config.json", tokenizer_config);
    write_weights(folder);
    copy_tokenizer(folder);
    if (checkpoint_open(folder->path, &cfg.checkpoint, &err))
        fail_msg("%s", err.message);
    struct engine *engine = run_open(&cfg);
    checkpoint_close(cfg.checkpoint);
    return engine;
}

/* Draws 200 tokens nearly at random. */
static void draw(struct engine *engine, const uint32_t *allowed, uint32_t n_allowed,
                 struct run_result *out)
{
    struct engine_request req;
    const uint32_t prompt[] = {5, 6, 7, 8};
    engine_request_init(&req);
    req.prompt_ids = prompt;
    req.n_prompt_ids = 4;
    req.stopping.max_tokens = 200;
    req.stopping.ignore_eos = true;
    req.sampling.temperature = 100;
    req.sampling.seed = 5;
    req.sampling.allowed_ids = allowed;
    req.sampling.n_allowed_ids = n_allowed;
    run_submit(engine, &req, out);
    run_wait(engine, out, 1);
    assert_int_equal(out->choices[0].reason, FINISH_LENGTH);
    assert_int_equal(out->choices[0].n_ids, 200);
}

/* Symptom: a folder whose matrices have more rows than its tokenizer has tokens drew ids without a
 * text. */
static void test_rows_beyond_a_folders_tokenizer_are_never_drawn(void **state)
{
    (void)state;
    struct test_folder folder;
    struct run_result r;
    struct engine *engine = open_folder(&folder, "{}", "{}", true);
    assert_int_equal(engine_model_info(engine)->vocab_size, N_TOKENS);
    draw(engine, NULL, 0, &r);
    for (uint32_t i = 0; i < 200; i++)
        assert_true(r.choices[0].ids[i] < N_TOKENS);
    run_result_fini(&r);
    run_close(engine);
    folder_remove(&folder);
}

/* Symptom: an id between the vocabulary and an added token far behind it was drawn. */
static void test_ids_without_a_token_are_never_drawn(void **state)
{
    (void)state;
    struct test_folder folder;
    struct run_result r;
    const uint32_t allowed[] = {7, N_TOKENS + 3, 730};
    struct engine *engine = open_folder(
        &folder, "{\"added_tokens_decoder\":{\"730\":{\"content\":\"<far>\",\"special\":true}}}",
        "{}", true);
    assert_int_equal(engine_model_info(engine)->vocab_size, 731);
    draw(engine, NULL, 0, &r);
    for (uint32_t i = 0; i < 200; i++)
        assert_true(r.choices[0].ids[i] < N_TOKENS || r.choices[0].ids[i] == 730);
    run_result_fini(&r);
    draw(engine, allowed, 3, &r);
    for (uint32_t i = 0; i < 200; i++)
        assert_true(r.choices[0].ids[i] == 7 || r.choices[0].ids[i] == 730);
    run_result_fini(&r);
    run_close(engine);
    folder_remove(&folder);
}

/* Ids that the folder suppresses are never drawn, though a caller allows them. A bias of the caller
 * does not bring them back. */
static void test_suppressed_tokens_are_never_drawn(void **state)
{
    (void)state;
    struct test_folder folder;
    struct run_result r;
    struct engine_request req;
    struct error err = {0};
    const uint32_t allowed[] = {7, 9, 11, 13}, prompt[] = {5};
    const struct sample_bias bias = {9, 50.0f};
    uint64_t id;
    for (uint32_t suppresses = 0; suppresses < 2; suppresses++) {
        uint32_t n_drawn[14] = {0};
        struct engine *engine =
            open_folder(&folder, "{}", "{\"suppress_tokens\": [9, 99999, 13]}", suppresses);
        draw(engine, allowed, 4, &r);
        for (uint32_t i = 0; i < 200; i++)
            n_drawn[r.choices[0].ids[i]]++;
        assert_true(n_drawn[7] > 10 && n_drawn[11] > 10);
        assert_true(suppresses ? n_drawn[9] + n_drawn[13] == 0 : n_drawn[9] && n_drawn[13]);
        run_result_fini(&r);
        engine_request_init(&req);
        req.prompt_ids = prompt;
        req.n_prompt_ids = 1;
        req.stopping.max_tokens = 20;
        req.stopping.ignore_eos = true;
        req.sampling.logit_bias = &bias;
        req.sampling.n_logit_bias = 1;
        run_submit(engine, &req, &r);
        run_wait(engine, &r, 1);
        for (uint32_t i = 0; i < 20; i++)
            assert_true((r.choices[0].ids[i] == 9) == !suppresses);
        run_result_fini(&r);
        req.sampling.allowed_ids = allowed + 1;
        req.sampling.n_allowed_ids = 1;
        if (suppresses) {
            assert_int_equal(engine_submit(engine, &req, &id, &err), STATUS_INVALID_ARGUMENT);
            assert_non_null(strstr(err.message, "suppress_tokens"));
        } else {
            run_submit(engine, &req, &r);
            run_wait(engine, &r, 1);
            run_result_fini(&r);
        }
        run_close(engine);
        folder_remove(&folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_beyond_a_folders_tokenizer_are_never_drawn),
        cmocka_unit_test(test_ids_without_a_token_are_never_drawn),
        cmocka_unit_test(test_suppressed_tokens_are_never_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
