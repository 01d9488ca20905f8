/* Folders in F32 and F16 give the logits of the golden folders in BF16. The values are the same, so
 * transformers would compute the same. */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/strbuf.h"
#include "kernels/dtype.h"
#include "tests/unit/engine/support/support_folder.h"
#include "tests/unit/engine/support/support_match.h"
#include "tests/unit/engine/support/support_model.h"

static const double F32_BOUND = 2e-5, CONTRACT_BOUND = 5e-2;

/* Copies the text up to the next `word` and behind it. Returns the place there; NULL without it. */
static const char *copy_until(struct strbuf *out, const char *text, const char *word)
{
    const char *at = strstr(text, word);
    if (at)
        strbuf_add(out, text, (size_t)(at - text) + strlen(word));
    return at ? at + strlen(word) : NULL;
}

/* The header with another type. Offsets grow by the factor. */
static void write_header(struct strbuf *out, const char *header, const char *type, uint64_t factor)
{
    for (const char *next; (next = copy_until(out, header, "\"dtype\":\"")) != NULL;) {
        assert_memory_equal(next, "BF16\"", 5);
        strbuf_add_str(out, type);
        header = copy_until(out, next + strlen("BF16"), "\"data_offsets\":[");
        assert_non_null(header);
        char *end;
        uint64_t from = strtoull(header, &end, 10), to = strtoull(end + 1, &end, 10);
        strbuf_printf(out, "%" PRIu64 ",%" PRIu64, from * factor, to * factor);
        header = end;
    }
    strbuf_add_str(out, header);
}

/* Writes the golden folder with its values in another type, which holds them. */
static void write_folder(const struct test_folder *to, const char *golden, enum dtype type)
{
    size_t n = 0;
    uint64_t n_header = 0;
    char *bytes = folder_read_golden(golden, "model.safetensors", &n);
    for (int i = 7; i >= 0; i--)
        n_header = n_header << 8 | (unsigned char)bytes[i];
    struct strbuf header = {0}, file = {0};
    strbuf_printf(&header, "%.*s", (int)n_header, bytes + 8);
    strbuf_add(&file, "12345678", 8); /* room for the length */
    write_header(&file, strbuf_str(&header), type == DTYPE_F32 ? "F32" : "F16",
                 type == DTYPE_F32 ? 2 : 1);
    uint64_t n_new = file.n_bytes - 8;
    for (size_t i = 8 + n_header; i < n; i += 2) {
        float value = dtype_bf16_to_f32(
            (uint16_t)((unsigned char)bytes[i] | (unsigned)(unsigned char)bytes[i + 1] << 8));
        uint16_t half = dtype_f32_to_f16(value);
        if (type == DTYPE_F32)
            strbuf_add(&file, &value, sizeof(value));
        else
            strbuf_add(&file, &half, sizeof(half));
        assert_true(fabsf(dtype_f16_to_f32(half) - value) <= 0x1p-25f); /* tiny ones are rounded */
    }
    size_t n_file = file.n_bytes;
    char *out = strbuf_take(&file);
    for (int i = 0; i < 8; i++)
        out[i] = (char)(n_new >> (8 * i));
    folder_copy_golden(to, golden, "config.json", "", "");
    folder_write(to, "model.safetensors", out, n_file);
    free(out);
    strbuf_fini(&header);
    free(bytes);
}

static void test_folders_in_f32_and_f16_have_the_logits_of_bf16(void **state)
{
    static const char *const names[] = {"llama3", "gpt2", "gptneox", "gemma2", "gpt_oss"};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16};
    static const char *const sets[] = {"f32", "auto"};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        for (size_t t = 0; t < 4; t++) {
            struct executor_config cfg = model_run_config(sets[t % 2]);
            struct test_folder folder;
            folder_create(&folder);
            write_folder(&folder, names[i], types[t / 2]);
            cfg.tp = 2;
            double error = match_path(folder.path, names[i], &cfg, 16).error;
            print_message("%-8s %-4s %-4s %.1e\n", names[i], dtype_name(types[t / 2]), cfg.kernels,
                          error);
            if (!(error <= (t % 2 ? CONTRACT_BOUND : F32_BOUND)))
                fail_msg("%s in %s, kernels %s: relative error %.3g", names[i],
                         dtype_name(types[t / 2]), cfg.kernels, error);
            folder_remove(&folder);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folders_in_f32_and_f16_have_the_logits_of_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
