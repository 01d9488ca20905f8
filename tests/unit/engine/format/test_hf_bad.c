/* Hugging Face folders with damaged, incomplete or hostile files: each is refused by name. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/format/checkpoint_files.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_folder.h"

static struct test_folder folder;

static int make_folder(void **state)
{
    (void)state;
    folder_create(&folder);
    folder_write_model(&folder);
    return 0;
}

static int drop_folder(void **state)
{
    (void)state;
    folder_remove(&folder);
    return 0;
}

static void refuse_with(const char *path, int status, const char *named)
{
    struct checkpoint *c = NULL;
    struct error err = {0};
    int rc = checkpoint_open(path, &c, &err);
    if (rc != status || !names_all(err.message, named))
        fail_msg("%d, want %d: \"%s\" in: %s", rc, status, named, err.message);
    if (status == STATUS_INVALID_ARGUMENT)
        assert_int_equal(err.reason, REASON_MODEL_FILE_INVALID);
}

static void refuse(const char *named)
{
    refuse_with(folder.path, STATUS_INVALID_ARGUMENT, named);
}

static void accept(void)
{
    struct checkpoint *c = NULL;
    struct error err = {0};
    if (checkpoint_open(folder.path, &c, &err) != 0)
        fail_msg("%s", err.message);
    checkpoint_close(c);
}

/* --- safetensors --- */

#define T(name, type, shape, offsets)                                                              \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct {
    const char *header;
    size_t n_data;
    const char *named;
} headers[] = {
    {"x", 0, "10"},
    {"xx", 0, "offset 8"},
    {"[]", 0, "offset 8"},
    {"{}", 1, "offset 10|1"},
    {"{\"a\xFF\":1}", 0, "offset 11|UTF-8"},
    {"{" T("a", "F32", "[2]", "[0,8]") "} x", 8, "x"},
    {"{\"a\":[]}", 0, "tensor \"a\"|offset 13"},
    {"{\"a\":{}}", 0, "tensor \"a\"|dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 8, "tensor \"a\"|dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"more\":1}}", 8, "more"},
    {"{\"a\":{\"dtype\":7}}", 8, "tensor \"a\"|7"},
    {"{\"\":{}}", 0, "offset 9"},
    {"{\"a\\u0007\":{}}", 0, "0x07"},
    {"{" T("a", "F32", "[2]", "[0,8]") "," T("a", "F32", "[2]", "[8,16]") "}", 16,
     "tensor \"a\""},                                                              /* BI-6 */
    {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[4,12]") "}", 12, /* BI-8 */
     "tensor \"b\""},
    {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[0,8]") "}", 8, "tensor \"b\""},
    {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[12,20]") "}", 20, /* BI-9 */
     "tensor \"b\""},
    {"{" T("a", "F32", "[2]", "[4,12]") "}", 12, "tensor \"a\""},
    {"{" T("a", "F32", "[2]", "[0,8]") "}", 12, "4"},
    {"{" T("a", "F32", "[4294967296,4294967296]", "[0,8]") "}", 8, "4294967296"}, /* BI-10 */
    {"{" T("a", "F64", "[2305843009213693952]", "[0,8]") "}", 8, "2305843009213693952"},
    {"{" T("a", "F32", "[9223372036854775808]", "[0,8]") "}", 8, "9223372036854775808"},
    {"{" T("a", "F32", "[18446744073709551617]", "[0,8]") "}", 8, "tensor \"a\""},
    {"{" T("a", "F32", "[0]", "[0,0]") "}", 0, "tensor \"a\"|0"},
    {"{" T("a", "F32", "[-2]", "[0,8]") "}", 8, "-2"},
    {"{" T("a", "F32", "[1.5]", "[0,8]") "}", 8, "1.5"},
    {"{" T("a", "F32", "[1e400]", "[0,8]") "}", 8, "tensor \"a\""},
    {"{" T("a", "F32", "[NaN]", "[0,8]") "}", 8, "tensor \"a\""},
    {"{" T("a", "F32", "[\"2\"]", "[0,8]") "}", 8, "tensor \"a\""},
    {"{" T("a", "F32", "2", "[0,8]") "}", 8, "tensor \"a\""},
    {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", 8, "tensor \"a\"|8"},
    {"{" T("a", "F31", "[2]", "[0,8]") "}", 8, "F31"}, /* BI-11 */
    {"{" T("a", "f32", "[2]", "[0,8]") "}", 8, "f32"},
    {"{" T("a", "F32", "[2]", "[0,4]") "}", 8, "tensor \"a\"|4|F32"},
    {"{" T("a", "F4", "[3]", "[0,1]") "}", 1, "F4"},
    {"{" T("a", "F32", "[2]", "[8,0]") "}", 8, "tensor \"a\"|8|0"},
    {"{" T("a", "F32", "[2]", "[0,-8]") "}", 8, "-8"},
    {"{" T("a", "F32", "[2]", "[0,8,9]") "}", 8, "tensor \"a\""},
    {"{" T("a", "F32", "[2]", "[0]") "}", 8, "tensor \"a\""},
    {"{" T("a", "F32", "[2]", "[0,9223372036854775807]") "}", 8,
     "9223372036854775807|8"}, /* BI-17 */
    {"{" T("a", "F32", "[2]", "[0,16]") "}", 8, "16|8"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__"},
    {"{\"__metadata__\":[]}", 0, "__metadata__"},
};

static void test_bad_headers_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        char named[128];
        snprintf(named, sizeof(named), "model.safetensors|offset|%s", headers[i].named);
        folder_write_safetensors(&folder, "model.safetensors", headers[i].header,
                                 headers[i].n_data);
        refuse(named);
    }
}

static void test_bad_lengths_are_refused(void **state)
{
    static const uint64_t lengths[] = {0, 1, 100000001, 1ULL << 63, UINT64_MAX, 1000};
    (void)state;
    folder_write(&folder, "model.safetensors", "", 0);
    refuse("model.safetensors|0");
    folder_write(&folder, "model.safetensors", "1234567", 7);
    refuse("model.safetensors|7");
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        unsigned char bytes[64] = {0};
        for (int k = 0; k < 8; k++)
            bytes[k] = (unsigned char)(lengths[i] >> (8 * k));
        bytes[8] = '{';
        bytes[9] = '}';
        bytes[20] = 1;
        folder_write(&folder, "model.safetensors", bytes, sizeof(bytes));
        refuse("model.safetensors|offset 0|100000000|56");
    }
}

/* BI-3: a header beyond the limit is refused by its length, before memory is taken for it. */
static void test_a_header_over_the_limit_is_refused(void **state)
{
    (void)state;
    unsigned char bytes[9] = {0x01, 0xE1, 0xF5, 0x05, 0, 0, 0, 0, '{'}; /* 100,000,001 */
    folder_write(&folder, "model.safetensors", bytes, sizeof(bytes));
    assert_int_equal(truncate(folder_at(&folder, "model.safetensors"), 200000000), 0);
    refuse("model.safetensors|offset 0|100000001|100000000");
}

/* BI-7 */
static void test_a_deep_text_is_refused(void **state)
{
    static char text[10032];
    (void)state;
    memcpy(text, "{\"a\":", 5);
    memset(text + 5, '[', 10000);
    folder_write_safetensors(&folder, "model.safetensors", text, 0);
    refuse("model.safetensors|tensor \"a\"");
    folder_write_model(&folder);
    folder_write_text(&folder, "config.json", text);
    refuse("config.json|64");
}

static size_t read_file(const char *name, char *out, size_t n_out)
{
    int fd = open(folder_at(&folder, name), O_RDONLY);
    ssize_t n = read(fd, out, n_out);
    close(fd);
    assert_true(n > 0);
    return (size_t)n;
}

/* BI-12: each file is cut at each byte. */
static void test_every_truncation_is_refused(void **state)
{
    static const char *const names[] = {"model.safetensors", "config.json"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        char bytes[2048], named[32];
        size_t n = read_file(names[i], bytes, sizeof(bytes));
        snprintf(named, sizeof(named), "%s|offset", names[i]);
        for (size_t k = 0; k < n; k++) {
            folder_write(&folder, names[i], bytes, k);
            refuse(named);
        }
        folder_write(&folder, names[i], bytes, n);
        accept();
    }
}

/* Every byte of the header is replaced; the folder is read or refused, and the refusal is precise.
 */
static void test_every_changed_byte_is_read_or_refused(void **state)
{
    static const char values[] = {0, '"', '{', '}', '[', ']', ',', '9', '\\', (char)0xFF};
    char bytes[2048];
    (void)state;
    size_t n = read_file("model.safetensors", bytes, sizeof(bytes)) - FOLDER_DATA_BYTES;
    for (size_t k = 0; k < n; k++)
        for (size_t v = 0; v < sizeof(values); v++) {
            struct checkpoint *c = NULL;
            struct error err = {0};
            char old = bytes[k];
            bytes[k] = values[v];
            folder_write(&folder, "model.safetensors", bytes, n + FOLDER_DATA_BYTES);
            bytes[k] = old;
            if (checkpoint_open(folder.path, &c, &err) == 0) {
                checkpoint_close(c);
            } else {
                assert_int_equal(err.status, STATUS_INVALID_ARGUMENT);
                assert_int_equal(err.reason, REASON_MODEL_FILE_INVALID);
                assert_true(names_all(err.message, "model.safetensors|offset"));
            }
        }
}

/* --- configs --- */

static void test_bad_configs_are_refused(void **state)
{
    static const struct {
        const char *text, *named;
    } cases[] = {
        {"", "offset 0"},
        {"[]", "offset 0"},
        {"{\"a\": 1} x", "offset 9"},
        {"{\"a\": 1, \"a\": 2}", "key \"a\"|offset 14|6"},
        {"{\"a\": null, \"a\": 2}", "key \"a\""},
        {"{\"a\": {\"b\": 1}, \"a\": {\"c\": 1}}", "key \"a\""},
        {"{\"a\": {\"b\": 1, \"b\": 1}}", "key \"a.b\""},
        {"{\"a\": \"\xC3\"}", "UTF-8|offset 7"},
        {"{\"a\": 1e999}", "key \"a\"|offset 6"},
        {"{\"a\": \"\\ud800\"}", "key \"a\""},
        {"{\"eos_token_id\": -1}", "eos_token_id|-1"},
        {"{\"eos_token_id\": 4294967296}", "eos_token_id"},
        {"{\"eos_token_id\": \"</s>\"}", "eos_token_id"},
        {"{\"eos_token_id\": [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,"
         "26,27,28,29,30,31,32]}",
         "eos_token_id|32"},
        {"{\"architectures\": 7}", "architectures"},
        {"{\"architectures\": [7]}", "architectures"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char named[128];
        snprintf(named, sizeof(named), "config.json|%s", cases[i].named);
        folder_write_text(&folder, "config.json", cases[i].text);
        refuse(named);
    }
    folder_write_text(&folder, "config.json", folder_config);
    folder_write_text(&folder, "generation_config.json", "{\"eos_token_id\": 1.5}");
    refuse("generation_config.json|eos_token_id");
}

static void test_a_config_has_limits(void **state)
{
    (void)state;
    size_t n = 1 << 20;
    char *text = malloc(6 * n);
    assert_non_null(text);
    size_t at = 0;
    text[at++] = '{';
    for (int i = 0; i <= 16384; i++)
        at += (size_t)snprintf(text + at, 32, "%s\"k%d\":0", i ? "," : "", i);
    text[at++] = '}';
    folder_write(&folder, "config.json", text, at);
    refuse("config.json|16384");
    memset(text, ' ', 6 * n);
    folder_write(&folder, "config.json", text, 6 * n);
    refuse("config.json|4194304");
    memcpy(text, "{\"a\": \"", 7);
    memset(text + 7, 'x', n + 1);
    memcpy(text + 8 + n, "\"}", 2);
    folder_write(&folder, "config.json", text, n + 10);
    refuse("config.json|key \"a\"|1048576");
    free(text);
}

/* BI-3: files beside the weights are refused by their length, before memory is taken for them. */
static void test_a_file_over_its_limit_is_refused(void **state)
{
    static const struct {
        const char *name;
        off_t limit;
        const char *named;
    } files[] = {
        {"tokenizer.json", 256 << 20, "268435457|268435456"},
        {"tokenizer.model", 64 << 20, "67108865|67108864"},
        {"tekken.json", 256 << 20, "268435457|268435456"},
        {"tiktoken.model", 64 << 20, "67108865|67108864"},
        {"tokenizer_config.json", 32 << 20, "33554433|33554432"},
        {"added_tokens.json", 32 << 20, "33554433|33554432"},
        {"special_tokens_map.json", 32 << 20, "33554433|33554432"},
        {"chat_template.jinja", 4 << 20, "4194305|4194304"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char named[96];
        snprintf(named, sizeof(named), "%s|%s", files[i].name, files[i].named);
        folder_write_text(&folder, files[i].name, "");
        assert_int_equal(truncate(folder_at(&folder, files[i].name), files[i].limit + 1), 0);
        refuse(named);
        unlink(folder_at(&folder, files[i].name));
    }
}

static void test_quantized_checkpoints_are_refused_by_name(void **state)
{
    static const struct {
        const char *text, *named;
    } cases[] = {
        {"{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4}}", "gptq"},
        {"{\"quantization_config\": {\"bits\": 4}}", "quantization_config.bits"},
        {"{\"quantization\": {\"group_size\": 64}}", "quantization.group_size"},
        {"{\"text_config\": {\"quantization_config\": {\"quant_method\": \"fp8\"}}}", "fp8"},
        {"{\"compression_config\": {\"quant_method\": \"compressed-tensors\"}}",
         "compressed-tensors"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        folder_write_text(&folder, "config.json", cases[i].text);
        refuse_with(folder.path, STATUS_UNIMPLEMENTED, cases[i].named);
    }
    folder_write_text(&folder, "config.json", "{\"quantization_config\": null}");
    accept();
    folder_write_text(&folder, "config.json", "{\"quantization_config\": {}}");
    accept();
    folder_write_safetensors(&folder, "model.safetensors",
                             "{\"__metadata__\":{\"format\":\"mlx\"}}", 0);
    refuse_with(folder.path, STATUS_UNIMPLEMENTED, "model.safetensors|MLX");
}

/* --- the index --- */

static void write_shard(const char *name, const char *tensor)
{
    char header[128];
    snprintf(header, sizeof(header),
             "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", tensor);
    folder_write_safetensors(&folder, name, header, 8);
}

static void test_bad_indices_are_refused(void **state)
{
    static const struct {
        const char *text, *named;
    } cases[] = {
        {"", "offset 0"},
        {"{}", "weight_map"},
        {"{\"weight_map\": {}}", "weight_map"},
        {"{\"weight_map\": []}", "offset 15"},
        {"{\"weight_map\": {\"a\": 1}}", "tensor \"a\"|offset 21"},
        {"{\"weight_map\": {\"a\": \"one.safetensors\"}, \"weight_map\": {}}", "weight_map"},
        {"{\"weight_map\": {\"a\": \"one.safetensors\", \"a\": \"two.safetensors\"}}",
         "tensor \"a\""},
        {"{\"weight_map\": {\"a\": \"../one.safetensors\"}}", "tensor \"a\"|../one.safetensors"},
        {"{\"weight_map\": {\"a\": \"/etc/x.safetensors\"}}", "/etc/x.safetensors"},
        {"{\"weight_map\": {\"a\": \"sub/one.safetensors\"}}", "sub/one.safetensors"},
        {"{\"weight_map\": {\"a\": \"..\"}}", "tensor \"a\""},
        {"{\"weight_map\": {\"a\": \"\"}}", "tensor \"a\""},
        {"{\"weight_map\": {\"a\": \".safetensors\"}}", "tensor \"a\""},
        {"{\"weight_map\": {\"a\": \"config.json\"}}", "config.json"},
        {"{\"weight_map\": {\"a\": \"x\\u0000.safetensors\"}}", "tensor \"a\""},
        {"{\"weight_map\": {\"a\": \"x\\n.safetensors\"}}", "tensor \"a\""},
        {"{\"weight_map\": {\"a\": \"one.safetensors\", \"b\": \"three.safetensors\", \"c\": "
         "\"four.safetensors\"}}",
         "2|three.safetensors|four.safetensors"},
        {"{\"weight_map\": {\"a\": \"one.safetensors\", \"z\": \"two.safetensors\"}}",
         "tensor \"z\"|two.safetensors"},
        {"{\"weight_map\": {\"a\": \"two.safetensors\", \"b\": \"one.safetensors\"}}",
         "one.safetensors|two.safetensors"},
        {"{\"weight_map\": {\"a\": \"one.safetensors\"", "offset 38"},
        {"{\"metadata\": {\"x\": tru}, \"weight_map\": {\"a\": \"one.safetensors\"}}", "offset 19"},
    };
    (void)state;
    unlink(folder_at(&folder, "model.safetensors"));
    write_shard("one.safetensors", "a");
    write_shard("two.safetensors", "b");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char named[160];
        snprintf(named, sizeof(named), "model.safetensors.index.json|%s", cases[i].named);
        folder_write_text(&folder, "model.safetensors.index.json", cases[i].text);
        refuse(named);
    }
    static const char good[] = "{\"metadata\": {\"total_size\": 16.0, \"x\": [{}, null]}, "
                               "\"weight_map\": {\"a\": \"one.safetensors\", \"b\": "
                               "\"two.safetensors\"}}";
    folder_write_text(&folder, "model.safetensors.index.json", good);
    accept();
    for (size_t n = 0; n < sizeof(good) - 1; n++) {
        folder_write(&folder, "model.safetensors.index.json", good, n);
        refuse("model.safetensors.index.json|offset");
    }
    folder_write_text(&folder, "model.safetensors.index.json", good);
    write_shard("two.safetensors", "a");
    refuse("two.safetensors|tensor \"a\"|one.safetensors");
}

/* --- files of other kinds --- */

static void test_files_of_other_kinds_are_refused(void **state)
{
    static const char *const names[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "model.safetensors",
                                        "tokenizer.model",
                                        "tekken.json",
                                        "tiktoken.model",
                                        "tokenizer_config.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "special_tokens_map.json",
                                        "merges.txt",
                                        "chat_template.jinja",
                                        "model.safetensors.index.json"};
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *path = folder_at(&folder, names[i]);
        if (strstr(names[i], "index")) /* an index counts where there is no single file */
            unlink(folder_at(&folder, "model.safetensors"));
        unlink(path);
        assert_int_equal(mkfifo(path, 0600), 0);
        refuse(names[i]);
        unlink(path);
        assert_int_equal(mkdir(path, 0700), 0);
        refuse(names[i]);
        rmdir(path);
        assert_int_equal(symlink("/dev/zero", path), 0);
        refuse(names[i]);
        unlink(path);
        assert_int_equal(symlink("nowhere", path), 0); /* an unfinished download */
        refuse(names[i]);
        unlink(path);
        folder_write_model(&folder);
    }
    folder_write_text(&folder, "model.safetensors", pointer);
    refuse("model.safetensors|Git LFS");
    folder_write_text(&folder, "model.safetensors", "<html>404</html>");
    refuse("model.safetensors|web page");
}

static void test_folders_without_a_model_say_what_is_missing(void **state)
{
    (void)state;
    unlink(folder_at(&folder, "model.safetensors"));
    refuse("model.safetensors|model.safetensors.index.json");
    folder_write_text(&folder, "pytorch_model.bin", "");
    refuse("pytorch_model.bin");
    unlink(folder_at(&folder, "config.json"));
    refuse("config.json");
    folder_write_text(&folder, "adapter_config.json", "{}");
    refuse("adapter");
    folder_write_model(&folder);
    refuse_with(folder_at(&folder, "model.safetensors"), STATUS_INVALID_ARGUMENT, "config.json");
    refuse_with(folder_at(&folder, "config.json"), STATUS_INVALID_ARGUMENT, "folder");
    refuse_with(folder_at(&folder, "none"), STATUS_NOT_FOUND, "none");
}

static void test_links_out_of_the_root_are_refused(void **state)
{
    struct test_folder outside;
    char marked[128];
    (void)state;
    folder_create(&outside);
    folder_write_model(&outside);
    folder_write_text(&folder, "in/config.json", folder_config);
    snprintf(marked, sizeof(marked), "%s/./in", folder.path);
    static const char *const names[] = {"model.safetensors", "config.json", "tokenizer.json",
                                        "tokenizer.model",   "tekken.json", "chat_template.jinja"};
    enum { N_NAMES = sizeof(names) / sizeof(names[0]), N_OF_MODEL = 2 };
    assert_int_equal(
        rename(folder_at(&folder, "model.safetensors"), folder_at(&folder, "in/model.safetensors")),
        0);
    for (int i = N_OF_MODEL; i < N_NAMES; i++) {
        char inside[64];
        snprintf(inside, sizeof(inside), "in/%s", names[i]);
        folder_write_text(&folder, inside, "{}");
        folder_write_text(&outside, names[i], "{}");
    }
    for (int i = 0; i < N_NAMES; i++) {
        char inside[64], relative[128], kept[64];
        snprintf(inside, sizeof(inside), "in/%s", names[i]);
        snprintf(kept, sizeof(kept), "in/kept");
        snprintf(relative, sizeof(relative), "../../%s/%s", strrchr(outside.path, '/') + 1,
                 names[i]);
        assert_int_equal(rename(folder_at(&folder, inside), folder_at(&folder, kept)), 0);
        assert_int_equal(symlink(folder_at(&outside, names[i]), folder_at(&folder, inside)), 0);
        refuse_with(marked, STATUS_PERMISSION_DENIED, names[i]);
        unlink(folder_at(&folder, inside));
        assert_int_equal(symlink(relative, folder_at(&folder, inside)), 0);
        refuse_with(marked, STATUS_PERMISSION_DENIED, names[i]);
        unlink(folder_at(&folder, inside));
        assert_int_equal(rename(folder_at(&folder, kept), folder_at(&folder, inside)), 0);
    }
    struct checkpoint *c = NULL;
    struct error err = {0};
    if (checkpoint_open(marked, &c, &err) != 0)
        fail_msg("%s", err.message);
    checkpoint_close(c);
    folder_remove(&outside);
}

static void test_a_change_after_the_opening_is_noticed(void **state)
{
    static const char *const names[] = {"config.json", "model.safetensors", "tokenizer.json"};
    (void)state;
    folder_write_text(&folder, "tokenizer.json", "{}");
    for (int i = 0; i < 3; i++) {
        struct checkpoint *c = NULL;
        struct error err = {0};
        assert_int_equal(checkpoint_open(folder.path, &c, &err), 0);
        assert_int_equal(checkpoint_check(c, &err), 0);
        assert_int_equal(truncate(folder_at(&folder, names[i]), 1), 0);
        assert_int_equal(checkpoint_check(c, &err), STATUS_FAILED_PRECONDITION);
        assert_int_equal(err.reason, REASON_MODEL_FILE_CHANGED);
        assert_true(names_all(err.message, names[i]));
        if (i == 1) {
            unsigned char row[16];
            const struct checkpoint_tensor *t = checkpoint_tensor_find(c, "a");
            assert_int_equal(checkpoint_read_tensor_rows(c, t, 0, 1, row, &err), STATUS_DATA_LOSS);
            assert_int_equal(err.reason, REASON_MODEL_FILE_CHANGED);
        }
        checkpoint_close(c);
        folder_write_model(&folder);
        folder_write_text(&folder, "tokenizer.json", "{}");
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, drop_folder)
    const struct CMUnitTest tests[] = {
        TEST(test_bad_headers_are_refused),
        TEST(test_bad_lengths_are_refused),
        TEST(test_a_header_over_the_limit_is_refused),
        TEST(test_a_deep_text_is_refused),
        TEST(test_every_truncation_is_refused),
        TEST(test_every_changed_byte_is_read_or_refused),
        TEST(test_bad_configs_are_refused),
        TEST(test_a_config_has_limits),
        TEST(test_a_file_over_its_limit_is_refused),
        TEST(test_quantized_checkpoints_are_refused_by_name),
        TEST(test_bad_indices_are_refused),
        TEST(test_files_of_other_kinds_are_refused),
        TEST(test_folders_without_a_model_say_what_is_missing),
        TEST(test_links_out_of_the_root_are_refused),
        TEST(test_a_change_after_the_opening_is_noticed),
    };
    return cmocka_run_group_tests_name("hf_bad", tests, NULL, NULL);
}
