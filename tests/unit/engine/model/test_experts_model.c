/* Folders of models with experts where a tensor has another name or type. Each is refused by the
 * tensor's name. The folders are copies of golden ones with a few bytes changed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "engine/format/checkpoint.h"
#include "engine/model/model.h"
#include "tests/unit/engine/support/support_folder.h"

static int open_model(const struct test_folder *folder, struct error *err)
{
    struct checkpoint *ckpt = NULL;
    struct model model = {0};
    int rc = checkpoint_open(folder->path, &ckpt, err);
    if (!rc) {
        rc = model_init(&model, ckpt, NULL, err);
        model_fini(&model);
    }
    checkpoint_close(ckpt);
    return rc;
}

static const struct change {
    const char *folder, *old, *now;
    int status;
    const char *named;
} changes[] = {
    {"qwen3moe", "layers.1.mlp.experts.3.up_proj", "layers.1.mlp.experts.9.up_proj",
     STATUS_INVALID_ARGUMENT, "model.layers.1.mlp.experts.3.up_proj.weight"},
    {"qwen3moe", "layers.0.mlp.gate.weight", "layers.0.mlp.gone.weight", STATUS_INVALID_ARGUMENT,
     "model.layers.0.mlp.gate.weight"},
    {"qwen3moe_fused", "layers.2.mlp.experts.gate_up_proj", "layers.2.mlp.experts.gate_up_prox",
     STATUS_INVALID_ARGUMENT, "model.layers.2.mlp.experts.0.gate_proj.weight"},
    /* The width says that there are shared experts. */
    {"qwen2moe", "layers.1.mlp.shared_expert.up_proj", "layers.1.mlp.shared_expert.xx_proj",
     STATUS_INVALID_ARGUMENT, "model.layers.1.mlp.shared_expert.up_proj.weight"},
    {"granitemoe_shared", "layers.0.shared_mlp.output_linear", "layers.0.shared_mlp.0utput_linear",
     STATUS_INVALID_ARGUMENT, "model.layers.0.shared_mlp.output_linear.weight"},
    /* A layer behind the model's own is skipped, one behind those is not. */
    {"glm4moe", "layers.2.eh_proj", "layers.3.eh_proj", STATUS_UNIMPLEMENTED,
     "model.layers.3.eh_proj.weight"},
    /* Experts of two types: the op would read activations that were prepared for the first. */
    {"qwen3moe", "layers.0.mlp.experts.1.gate_proj.weight\":{\"dtype\":\"BF16\"",
     "layers.0.mlp.experts.1.gate_proj.weight\":{\"dtype\": \"F16\"", STATUS_UNIMPLEMENTED,
     "model.layers.0.mlp.experts.1.gate_proj.weight"},
    {"gpt_oss_mxfp4", "layers.1.mlp.experts.down_proj_scales",
     "layers.1.mlp.experts.down_proj_scalez", STATUS_INVALID_ARGUMENT,
     "model.layers.1.mlp.experts.down_proj_scales"},
};

static void test_folder_without_a_tensor_is_refused_by_its_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        const struct change *c = &changes[i];
        struct test_folder folder;
        struct error err = {0};
        folder_create(&folder);
        folder_copy_golden(&folder, c->folder, "config.json", "", "");
        folder_copy_golden(&folder, c->folder, "model.safetensors", "", "");
        if (open_model(&folder, &err) != 0)
            fail_msg("%s: the copy is refused: %s", c->folder, err.message);
        folder_copy_golden(&folder, c->folder, "model.safetensors", c->old, c->now);
        int rc = open_model(&folder, &err);
        if (rc != c->status || !strstr(err.message, c->named))
            fail_msg("%s without %s: %d \"%s\"", c->folder, c->old, rc, err.message);
        folder_remove(&folder);
    }
}

#define ENTRY "{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}"

/* Writes the golden folder's model.safetensors with another shape of one tensor. The tensor's data
 * move to the end of the file. Its old place becomes a tensor that is ignored. */
static void write_reshaped(const struct test_folder *to, const char *folder, const char *name,
                           const char *shape, size_t n_tensor)
{
    size_t n = 0, n_header = 0;
    char *bytes = folder_read_golden(folder, "model.safetensors", &n);
    for (int i = 7; i >= 0; i--)
        n_header = n_header << 8 | (unsigned char)bytes[i];
    size_t n_data = n - 8 - n_header;
    struct strbuf file = {0}, rest = {0};
    strbuf_printf(&rest, "%.*s", (int)n_header, bytes + 8);
    const char *header = strbuf_str(&rest), *at = strstr(header, name);
    if (!at)
        fail_msg("%s: no tensor \"%s\"", folder, name);
    at += strlen(name) + strlen("\":");
    char *next = strstr(at, "data_offsets\":[") + strlen("data_offsets\":[");
    size_t begin = strtoul(next, &next, 10), end = strtoul(next + 1, &next, 10);
    char size[24];
    snprintf(size, sizeof(size), "%zu", (end - begin) / 2);
    strbuf_add(&file, "12345678", 8); /* room for the length */
    strbuf_add(&file, header, (size_t)(at - header));
    strbuf_printf(&file, ENTRY, shape, n_data, n_data + n_tensor);
    strbuf_add_str(&file, ",\"visual.rest\":");
    strbuf_printf(&file, ENTRY, size, begin, end);
    strbuf_add_str(&file, next + strlen("]}"));
    uint64_t n_new = file.n_bytes - 8;
    strbuf_add(&file, bytes + 8 + n_header, n_data);
    for (size_t i = 0; i < n_tensor; i++)
        strbuf_add(&file, "", 1);
    char *out = strbuf_take(&file);
    for (int i = 0; i < 8; i++)
        out[i] = (char)(n_new >> (8 * i));
    folder_write(to, "model.safetensors", out, 8 + n_new + n_data + n_tensor);
    free(out);
    strbuf_fini(&rest);
    free(bytes);
}

/* Symptom: all experts got the first expert's weights. A tensor of two dimensions under the joined
 * name has the shape of one expert. In the other direction, a tensor of three dimensions had the
 * name of one expert. Expert i then took block i of its own tensor. */
static void test_experts_lie_in_one_tensor_or_in_one_each(void **state)
{
    static const struct {
        const char *folder, *tensor, *good, *bad;
        size_t n_good, n_bad; /* bytes */
    } rows[] = {
        {"qwen3moe_fused", "model.layers.2.mlp.experts.down_proj", "5,32,36", "32,36",
         5 * 32 * 36 * 2, 32 * 36 * 2},
        {"qwen3moe_fused", "model.layers.0.mlp.experts.gate_up_proj", "5,72,32", "72,32",
         5 * 72 * 32 * 2, 72 * 32 * 2},
        {"qwen3moe", "model.layers.1.mlp.experts.0.up_proj.weight", "40,32", "5,40,32", 40 * 32 * 2,
         5 * 40 * 32 * 2},
        {"qwen3moe", "model.layers.1.mlp.experts.3.up_proj.weight", "40,32", "5,40,32", 40 * 32 * 2,
         5 * 40 * 32 * 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct test_folder folder;
        struct error err = {0};
        folder_create(&folder);
        folder_copy_golden(&folder, rows[i].folder, "config.json", "", "");
        write_reshaped(&folder, rows[i].folder, rows[i].tensor, rows[i].good, rows[i].n_good);
        if (open_model(&folder, &err) != 0)
            fail_msg("%s: the copy is refused: %s", rows[i].folder, err.message);
        write_reshaped(&folder, rows[i].folder, rows[i].tensor, rows[i].bad, rows[i].n_bad);
        int rc = open_model(&folder, &err);
        if (rc != STATUS_INVALID_ARGUMENT || err.reason != REASON_MODEL_FILE_INVALID ||
            !strstr(err.message, "experts"))
            fail_msg("%s of %s: %d \"%s\"", rows[i].tensor, rows[i].bad, rc, err.message);
        folder_remove(&folder);
    }
}

/* The keys of MXFP4 are known to the table of gpt-oss only. */
static void test_mxfp4_of_another_architecture_is_refused(void **state)
{
    struct test_folder folder;
    struct error err = {0};
    (void)state;
    folder_create(&folder);
    folder_copy_golden(&folder, "qwen3moe", "model.safetensors", "", "");
    size_t n = 0;
    char *config = folder_read_golden("qwen3moe", "config.json", &n);
    char text[4096];
    snprintf(text, sizeof(text), "{\"quantization_config\": {\"quant_method\": \"mxfp4\"}, %.*s",
             (int)n - 1, config + 1);
    free(config);
    folder_write_text(&folder, "config.json", text);
    assert_int_equal(open_model(&folder, &err), STATUS_UNIMPLEMENTED);
    assert_non_null(strstr(err.message, "quantization_config.quant_method"));
    folder_remove(&folder);
}

/* Numbers of config.json that the ops refuse in the first step, or that would not fit their memory.
 */
static const struct {
    const char *folder, *old, *now, *named;
} numbers[] = {
    {"glm4moe", "\"n_group\": 2", "\"n_group\": 4", "4 groups"},
    {"glm4moe", "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 5", "1 of 2 groups"},
    {"falcon", "\"hidden_size\": 48", "\"hidden_size\": 3600", "head dimension 1200"},
};

static void test_numbers_that_no_op_takes_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        struct test_folder folder;
        struct error err = {0};
        folder_create(&folder);
        folder_copy_golden(&folder, numbers[i].folder, "model.safetensors", "", "");
        folder_copy_golden(&folder, numbers[i].folder, "config.json", numbers[i].old,
                           numbers[i].now);
        int rc = open_model(&folder, &err);
        if (rc != STATUS_INVALID_ARGUMENT || !strstr(err.message, numbers[i].named))
            fail_msg("%s with %s: %d \"%s\"", numbers[i].folder, numbers[i].now, rc, err.message);
        folder_remove(&folder);
    }
}

/* Adds the directory entry of a tensor of n elements that begins at *end. */
static void add_tensor(struct strbuf *header, size_t *end, const char *name, const char *shape,
                       size_t n)
{
    strbuf_printf(header, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                  *end ? "," : "", name, shape, *end, *end + 2 * n);
    *end += 2 * n;
}

static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

enum { MANY_LAYERS = 512, MANY_IGNORED = 30000 };

/* Each ignored tensor was compared with every slot of every layer: seconds at each load, and hours
 * for a hostile file. The bound is the time that reading the file takes. */
static void test_many_ignored_tensors_cost_no_more_than_their_names(void **state)
{
    static const char *const slots[] = {
        "input_layernorm",  "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
        "self_attn.v_proj", "self_attn.o_proj",         "mlp.gate_proj",    "mlp.up_proj",
        "mlp.down_proj"};
    struct test_folder folder;
    struct checkpoint *ckpt = NULL;
    struct model model;
    struct error err = {0};
    struct strbuf header;
    size_t n_bytes = 0;
    char name[128];
    (void)state;
    strbuf_init(&header, 0);
    strbuf_add_char(&header, '{');
    add_tensor(&header, &n_bytes, "model.embed_tokens.weight", "2,2", 4);
    add_tensor(&header, &n_bytes, "lm_head.weight", "2,2", 4);
    add_tensor(&header, &n_bytes, "model.norm.weight", "2", 2);
    for (int layer = 0; layer < MANY_LAYERS; layer++)
        for (size_t i = 0; i < sizeof(slots) / sizeof(slots[0]); i++) {
            snprintf(name, sizeof(name), "model.layers.%d.%s.weight", layer, slots[i]);
            add_tensor(&header, &n_bytes, name, i < 2 ? "2" : "2,2", i < 2 ? 2 : 4);
        }
    for (int i = 0; i < MANY_IGNORED; i++) {
        snprintf(name, sizeof(name), "visual.%d", i);
        add_tensor(&header, &n_bytes, name, "1", 1);
    }
    strbuf_add_char(&header, '}');
    folder_create(&folder);
    folder_write_text(&folder, "config.json",
                      "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 2, "
                      "\"num_hidden_layers\": 512, \"num_attention_heads\": 1, "
                      "\"intermediate_size\": 2, \"max_position_embeddings\": 8, "
                      "\"rms_norm_eps\": 1e-5}");
    folder_write_safetensors(&folder, "model.safetensors", header.data, n_bytes);
    strbuf_fini(&header);
    double start = cpu_ms();
    if (checkpoint_open(folder.path, &ckpt, &err) != 0)
        fail_msg("%s", err.message);
    double opened = cpu_ms();
    if (model_init(&model, ckpt, NULL, &err) != 0)
        fail_msg("%s", err.message);
    double bound = cpu_ms();
    print_message("opened in %.0f ms, bound in %.0f ms\n", opened - start, bound - opened);
    assert_true(bound - opened < 3 * (opened - start));
    model_fini(&model);
    checkpoint_close(ckpt);
    folder_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder_without_a_tensor_is_refused_by_its_name),
        cmocka_unit_test(test_experts_lie_in_one_tensor_or_in_one_each),
        cmocka_unit_test(test_mxfp4_of_another_architecture_is_refused),
        cmocka_unit_test(test_numbers_that_no_op_takes_are_refused),
        cmocka_unit_test(test_many_ignored_tensors_cost_no_more_than_their_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
