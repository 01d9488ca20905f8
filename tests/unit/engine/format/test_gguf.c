/* The GGUF reader: what a good file gives, and that every field of a bad one is refused by name. */
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/format/gguf.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_gguf.h"

/* Two tensors: a.weight F32 [4, 2] = 32 bytes at 0, b.weight Q8_0 [64, 2] = 136 bytes at 32. */
static void write_sample(struct gguf_writer *w)
{
    static const char *const names[] = {"one", "two", "\xC3\xA9"};
    gguf_begin(w);
    gguf_kv_string(w, "general.architecture", "llama");
    gguf_kv_u32(w, "general.alignment", 32);
    gguf_kv_bool(w, "x.flag", 1);
    gguf_kv_i32s(w, "x.list", (const int32_t[]){-1, 2, 3}, 3);
    gguf_kv_strings(w, "x.names", names, 3);
    gguf_kv_array(w, "x.flags", GGUF_BOOL, 2);
    gguf_label(w, "x.flags.first");
    gguf_u8(w, 0);
    gguf_u8(w, 1);
    gguf_kv(w, "x.float", GGUF_F64);
    gguf_u64(w, 0x3FF8000000000000ULL); /* 1.5 */
    gguf_kv(w, "x.small", GGUF_I8);
    gguf_u8(w, 0xFE);
    gguf_kv(w, "x.big", GGUF_U64);
    gguf_u64(w, UINT64_MAX);
    gguf_tensor(w, "a.weight", GGML_F32, 2, (const uint64_t[]){4, 2}, 0);
    gguf_tensor(w, "b.weight", GGML_Q8_0, 2, (const uint64_t[]){64, 2}, 32);
    gguf_label(w, "directory end");
    gguf_weights(w, 32, 168);
    gguf_finish(w);
}

static void test_open_when_file_is_good_then_everything_is_there(void **state)
{
    (void)state;
    struct gguf_writer w = {0};
    struct checkpoint *c;
    struct error err;
    write_sample(&w);
    assert_int_equal(gguf_open(&w, &c, &err), 0);
    uint64_t u;
    double f;
    bool b;
    const char *text;
    struct checkpoint_array array;
    assert_int_equal(checkpoint_n_keys(c), 9);
    assert_string_equal(checkpoint_format(c), "gguf");
    assert_int_equal(checkpoint_format_version(c), 3);
    assert_int_equal(checkpoint_get_string(c, "general.architecture", &text, NULL, &err), 0);
    assert_string_equal(text, "llama");
    assert_int_equal(checkpoint_get_u64(c, "general.alignment", &u, &err), 0);
    assert_int_equal(u, 32);
    assert_int_equal(checkpoint_get_u64(c, "x.big", &u, &err), 0);
    assert_true(u == UINT64_MAX);
    assert_int_equal(checkpoint_get_f64(c, "x.float", &f, &err), 0);
    assert_true(f == 1.5);
    assert_int_equal(checkpoint_get_f64(c, "x.small", &f, &err), 0);
    assert_true(f == -2.0);
    assert_int_equal(checkpoint_get_bool(c, "x.flag", &b, &err), 0);
    assert_true(b);
    assert_int_equal(checkpoint_get_array(c, "x.list", CHECKPOINT_INT, &array, &err), 0);
    assert_int_equal(array.n, 3);
    assert_int_equal(checkpoint_array_int(&array, 0), -1);
    assert_int_equal(checkpoint_array_int(&array, 2), 3);
    assert_int_equal(checkpoint_get_array(c, "x.names", CHECKPOINT_STRING, &array, &err), 0);
    size_t n;
    text = checkpoint_array_string(&array, 2, &n);
    assert_int_equal(n, 2);
    assert_memory_equal(text, "\xC3\xA9", 2);
    assert_int_equal(checkpoint_get_u64_or(c, "x.absent", 7, &u, &err), 0);
    assert_int_equal(u, 7);
    checkpoint_close(c);
    gguf_writer_fini(&w);
}

static void test_read_rows_when_in_range_then_bytes_are_the_files(void **state)
{
    (void)state;
    struct gguf_writer w = {0};
    struct checkpoint *c;
    struct error err;
    write_sample(&w);
    assert_int_equal(gguf_open(&w, &c, &err), 0);
    const struct checkpoint_tensor *t = checkpoint_tensor_find(c, "b.weight");
    assert_non_null(t);
    assert_null(checkpoint_tensor_find(c, "b.weigh"));
    assert_int_equal(t->dtype, DTYPE_Q8_0);
    assert_int_equal(t->n_rows, 2);
    assert_int_equal(t->row_bytes, 68);
    assert_int_equal(t->n_bytes, 136);
    assert_int_equal(t->offset_bytes, gguf_at(&w, "weights") + 32);
    unsigned char row[68];
    assert_int_equal(checkpoint_read_tensor_rows(c, t, 1, 1, row, &err), 0);
    for (int i = 0; i < 68; i++)
        assert_int_equal(row[i], 32 + 68 + i);
    assert_int_equal(checkpoint_read_tensor_rows(c, t, 2, 1, row, &err), STATUS_OUT_OF_RANGE);
    assert_int_equal(checkpoint_read_tensor_rows(c, t, UINT64_MAX, 2, row, &err),
                     STATUS_OUT_OF_RANGE);
    assert_int_equal(checkpoint_check(c, &err), 0);
    checkpoint_close(c);
    gguf_writer_fini(&w);
}

static void test_getters_when_type_differs_then_key_and_offset_are_named(void **state)
{
    (void)state;
    struct gguf_writer w = {0};
    struct checkpoint *c;
    struct error err;
    char expected[64];
    uint64_t u = 5;
    struct checkpoint_array array;
    write_sample(&w);
    assert_int_equal(gguf_open(&w, &c, &err), 0);
    assert_int_equal(checkpoint_get_u64(c, "general.architecture", &u, &err),
                     STATUS_INVALID_ARGUMENT);
    snprintf(expected, sizeof(expected), "offset %zu", gguf_at(&w, "general.architecture.value"));
    assert_non_null(strstr(err.message, expected));
    assert_true(names_all(err.message, "general.architecture"));
    assert_int_equal(err.reason, REASON_MODEL_FILE_INVALID);
    assert_int_equal(checkpoint_get_u64(c, "x.small", &u, &err), STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "-2"));
    assert_int_equal(checkpoint_get_u64(c, "x.nothing", &u, &err), STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "x.nothing"));
    assert_int_equal(checkpoint_get_array(c, "x.list", CHECKPOINT_STRING, &array, &err),
                     STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "i32"));
    assert_int_equal(u, 5);
    checkpoint_close(c);
    gguf_writer_fini(&w);
}

/* A field to overwrite with n little-endian bytes. `where` labels the offset in the message. */
static const struct mutation {
    const char *label;
    size_t skip;
    int n_bytes;
    uint64_t value;
    const char *where;
    size_t where_skip;
    const char *text;
    int status;
} mutations[] = {
    {"version", 0, 4, 0, "version", 0, "version|0|2|3", 0},
    {"version", 0, 4, 1, "version", 0, "version|1|2|3", 0},
    {"version", 0, 4, 4, "version", 0, "version|4|2|3", 0},
    {"version", 0, 4, 0x03000000, "version", 0, "", 0},
    {"n_tensors", 0, 8, 1ULL << 63, "n_tensors", 0, "9223372036854775808", 0},
    {"n_tensors", 0, 8, 65537, "n_tensors", 0, "n_tensors|65537|65536", 0},
    {"n_tensors", 0, 8, 60000, "n_tensors", 0, "60000|33", 0},
    {"n_kv", 0, 8, 1ULL << 63, "n_kv", 0, "65536", 0},
    {"n_kv", 0, 8, 65536, "n_kv", 0, "65536|14", 0},
    {"general.architecture", 0, 8, UINT64_MAX, "general.architecture", 0,
     "key[0]|18446744073709551615|65535", 0},
    {"general.architecture", 0, 8, 0, "general.architecture", 0, "", 0},
    {"general.architecture", 8, 1, 0x0A, "general.architecture", 8, "0x0a", 0},
    {"general.architecture", 8, 1, 0xFF, "general.architecture", 8, "UTF-8|byte 0xff", 0},
    {"general.architecture.type", 0, 4, 13, "general.architecture.type", 0,
     "general.architecture|type|13|0|12", 0},
    {"general.architecture.value", 0, 8, UINT64_MAX, "general.architecture.value", 0,
     "general.architecture|value|18446744073709551615|1048576", 0},
    {"general.architecture.value", 0, 8, 1 << 20, "general.architecture.value", 8, "1048576", 0},
    {"general.architecture.value", 9, 1, 0xC0, "general.architecture.value", 9, "UTF-8|byte 0xc0",
     0},
    {"general.alignment.value", 0, 4, 0, "general.alignment.value", 0,
     "general.alignment|0|8|1073741824", 0},
    {"general.alignment.value", 0, 4, 3, "general.alignment.value", 0, "3", 0},
    {"general.alignment.value", 0, 4, 12, "general.alignment.value", 0, "12", 0},
    {"general.alignment.value", 0, 4, 1U << 31, "general.alignment.value", 0, "2147483648", 0},
    {"general.alignment.type", 0, 4, GGUF_I32, "general.alignment.value", 0, "i32|u32", 0},
    {"x.flag.value", 0, 1, 2, "x.flag.value", 0, "x.flag|value|0x02|0|1", 0},
    {"x.list.element", 0, 4, GGUF_ARRAY, "x.list.element", 0, "", 0},
    {"x.list.element", 0, 4, 99, "x.list.element", 0, "99", 0},
    {"x.list.length", 0, 8, UINT64_MAX, "x.list.length", 0, "16777216", 0},
    {"x.list.length", 0, 8, 16 << 20, "x.list.length", 0, "16777216|4", 0},
    {"x.names.length", 0, 8, 1 << 20, "x.names.length", 0, "1048576|8", 0},
    {"x.names.length", 8, 8, UINT64_MAX, "x.names.length", 8,
     "x.names|element[0]|18446744073709551615", 0},
    {"x.names.length", 8 + 11 + 11 + 8, 1, 0xE9, "x.names.length", 8 + 11 + 11 + 8,
     "element[2]|UTF-8", 0},
    {"x.flags.first", 1, 1, 0x80, "x.flags.first", 1, "0x80", 0},
    {"a.weight", 0, 8, 65, "a.weight", 0, "name[0]|65|64", 0},
    {"a.weight", 8, 1, 'b', "b.weight", 0, "b.weight", 0},
    {"a.weight", 10, 1, 0x1B, "a.weight", 10, "0x1b", 0},
    {"a.weight.n_dims", 0, 4, 0, "a.weight.n_dims", 0, "a.weight|n_dims|0|1|4", 0},
    {"a.weight.n_dims", 0, 4, 5, "a.weight.n_dims", 0, "5|1|4", 0},
    {"a.weight.n_dims", 0, 4, UINT32_MAX, "a.weight.n_dims", 0, "4294967295", 0},
    {"a.weight.dims", 0, 8, 0, "a.weight.dims", 0, "dims[0]|0", 0},
    {"a.weight.dims", 8, 8, UINT64_MAX, "a.weight.dims", 8, "2|63", 0},
    {"a.weight.dims", 8, 8, 1ULL << 60, "a.weight.type", 0, "", 0},
    {"a.weight.dims", 8, 8, 1ULL << 40, "a.weight", 0, "", 0},
    {"a.weight.type", 0, 4, 4, "a.weight.type", 0, "type|4", 0},
    {"a.weight.type", 0, 4, 43, "a.weight.type", 0, "43", 0},
    {"a.weight.type", 0, 4, 142, "a.weight.type", 0, "142", 0},
    {"a.weight.type", 0, 4, 33, "a.weight.type", 0, "Q4_0_8_8", STATUS_UNIMPLEMENTED},
    {"a.weight.type", 0, 4, 36, "a.weight.type", 0, "IQ4_NL", STATUS_UNIMPLEMENTED},
    {"a.weight.type", 0, 4, 40, "a.weight.type", 0, "NVFP4", STATUS_UNIMPLEMENTED},
    {"a.weight.type", 0, 4, 139, "a.weight.type", 0, "IQ4_K", STATUS_UNIMPLEMENTED},
    {"a.weight.type", 0, 4, 158, "a.weight.type", 0, "IQ1_KT", STATUS_UNIMPLEMENTED},
    {"a.weight.type", 0, 4, UINT32_MAX, "a.weight.type", 0, "4294967295", 0},
    {"a.weight.type", 0, 4, GGML_IQ1_S, "a.weight.type", 0, "IQ1_S", STATUS_UNIMPLEMENTED},
    {"a.weight.type", 0, 4, GGML_Q8_0, "a.weight.type", 0, "4|Q8_0|32", 0},
    {"a.weight.offset", 0, 8, 8, "a.weight.offset", 0, "8|32", 0},
    {"a.weight.offset", 0, 8, 1ULL << 62, "a.weight", 0, "", 0},
    {"a.weight.offset", 0, 8, 0ULL - 32, "a.weight", 0, "", 0},
    {"b.weight.offset", 0, 8, 0, "b.weight", 0, "32", 0},
    {"b.weight.dims", 8, 8, 3, "b.weight", 0, "204|32", 0},
    {"a.weight.dims", 8, 8, 1, "", 0, "",
     1}, /* the tensor is shorter and padding fills the gap: a legal file */
    {"b.weight.dims", 8, 8, 1, "", 0, "", 1},
};

static void check_message(const struct gguf_writer *w, const struct mutation *m,
                          const struct error *err)
{
    char expected[64];
    snprintf(expected, sizeof(expected), ": offset %zu: ", gguf_at(w, m->where) + m->where_skip);
    if (!strstr(err->message, expected) || !names_all(err->message, m->text))
        fail_msg("want \"%s\" and \"%s\" in: %s", expected, m->text, err->message);
}

static void test_open_when_a_field_is_broken_then_offset_field_and_rule_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(mutations) / sizeof(mutations[0]); i++) {
        const struct mutation *m = &mutations[i];
        struct gguf_writer w = {0};
        struct checkpoint *c = NULL;
        struct error err = {0};
        write_sample(&w);
        size_t at = gguf_at(&w, m->label) + m->skip;
        for (int k = 0; k < m->n_bytes; k++)
            w.bytes.data[at + k] = (char)(m->value >> (8 * k));
        int rc = gguf_open(&w, &c, &err);
        if (m->status == 1) {
            if (rc)
                fail_msg("mutation %zu: refused: %s", i, err.message);
        } else {
            int want = m->status ? m->status : STATUS_INVALID_ARGUMENT;
            if (rc != want)
                fail_msg("mutation %zu (%s): status %d, want %d: %s", i, m->text, rc, want,
                         err.message);
            check_message(&w, m, &err);
            if (!m->status)
                assert_int_equal(err.reason, REASON_MODEL_FILE_INVALID);
        }
        checkpoint_close(c);
        gguf_writer_fini(&w);
    }
}

static void test_open_when_cut_anywhere_in_header_then_refused_at_an_offset(void **state)
{
    (void)state;
    struct gguf_writer w = {0};
    write_sample(&w);
    size_t total = w.bytes.n_bytes;
    for (size_t n = 0; n < total; n++) {
        struct checkpoint *c = NULL;
        struct error err = {0};
        int rc = gguf_open_bytes(w.bytes.data, n, &c, &err);
        if (rc != STATUS_INVALID_ARGUMENT || err.reason != REASON_MODEL_FILE_INVALID ||
            (n >= 4 && !strstr(err.message, ": offset ")))
            fail_msg("cut at %zu: %d %s", n, rc, err.message);
    }
    gguf_writer_fini(&w);
}

static void test_open_when_any_header_byte_changes_then_it_opens_or_names_an_offset(void **state)
{
    (void)state;
    static const unsigned char masks[] = {0x01, 0x80, 0xFF};
    struct gguf_writer w = {0};
    write_sample(&w);
    size_t n_opened = 0, n_refused = 0;
    for (size_t i = 0; i < gguf_at(&w, "directory end"); i++)
        for (size_t k = 0; k < sizeof(masks); k++) {
            struct checkpoint *c = NULL;
            struct error err = {0};
            w.bytes.data[i] = (char)(w.bytes.data[i] ^ masks[k]);
            int rc = gguf_open(&w, &c, &err);
            w.bytes.data[i] = (char)(w.bytes.data[i] ^ masks[k]);
            checkpoint_close(c);
            n_opened += rc == 0;
            n_refused += rc != 0;
            if (rc && ((rc != STATUS_INVALID_ARGUMENT && rc != STATUS_UNIMPLEMENTED) ||
                       (i >= 4 && !strstr(err.message, ": offset "))))
                fail_msg("byte %zu ^ %02x: %d %s", i, masks[k], rc, err.message);
        }
    assert_true(n_opened > 100 && n_refused > 300);
    gguf_writer_fini(&w);
}

static void test_open_when_a_key_occurs_twice_then_both_offsets_are_named(void **state)
{
    (void)state;
    struct gguf_writer w = {0};
    struct checkpoint *c;
    struct error err;
    char expected[64];
    gguf_begin(&w);
    gguf_kv_u32(&w, "x.a", 1);
    gguf_kv_u32(&w, "x.b", 1);
    gguf_label(&w, "second");
    gguf_kv_u32(&w, "x.a", 2);
    gguf_finish(&w);
    assert_int_equal(gguf_open(&w, &c, &err), STATUS_INVALID_ARGUMENT);
    snprintf(expected, sizeof(expected), "offset %zu|x.a", gguf_at(&w, "second") + 8 + 3 + 4);
    assert_true(names_all(err.message, expected));
    gguf_writer_fini(&w);
}

static void test_open_when_weights_leave_a_hole_then_refused(void **state)
{
    (void)state;
    struct gguf_writer w = {0};
    struct checkpoint *c;
    struct error err;
    gguf_begin(&w);
    gguf_tensor(&w, "a", GGML_F32, 1, (const uint64_t[]){8}, 0);
    gguf_tensor(&w, "b", GGML_F32, 1, (const uint64_t[]){8}, 64);
    gguf_weights(&w, 32, 96);
    gguf_finish(&w);
    assert_int_equal(gguf_open(&w, &c, &err), STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "b|offset|64|32"));
    gguf_writer_fini(&w);
}

static void test_open_when_version_2_then_read_like_3(void **state)
{
    (void)state;
    struct gguf_writer w = {0};
    struct checkpoint *c;
    struct error err;
    write_sample(&w);
    w.bytes.data[4] = 2;
    assert_int_equal(gguf_open(&w, &c, &err), 0);
    assert_int_equal(checkpoint_format_version(c), 2);
    checkpoint_close(c);
    gguf_writer_fini(&w);
}

/* Symptom: files with an alignment of 4, 24 or 1 MiB were refused. */
static void test_open_when_alignment_is_unusual_then_rows_are_found(void **state)
{
    (void)state;
    static const uint32_t alignments[] = {1, 4, 24, 32, 40, 1 << 20};
    for (size_t i = 0; i < sizeof(alignments) / sizeof(alignments[0]); i++) {
        struct gguf_writer w = {0};
        struct checkpoint *c;
        struct error err;
        uint8_t row[16];
        uint32_t a = alignments[i];
        uint64_t second = (16 + a - 1) / a * a;
        gguf_begin(&w);
        gguf_kv_u32(&w, "general.alignment", a);
        gguf_tensor(&w, "a", GGML_F32, 1, (const uint64_t[]){4}, 0);
        gguf_tensor(&w, "b", GGML_F32, 1, (const uint64_t[]){4}, second);
        gguf_weights(&w, a, second + 16);
        gguf_finish(&w);
        assert_int_equal(gguf_open(&w, &c, &err), 0);
        const struct checkpoint_tensor *t = checkpoint_tensor_find(c, "b");
        assert_int_equal(checkpoint_read_tensor_rows(c, t, 0, 1, row, &err), 0);
        assert_int_equal(row[0], (uint8_t)second);
        checkpoint_close(c);
        gguf_writer_fini(&w);
    }
}

/* Symptom: a LoRA adapter was refused because its file has no tokenizer. */
static void test_open_when_the_file_holds_no_model_then_unimplemented_by_type(void **state)
{
    (void)state;
    static const char *const types[] = {"adapter", "mmproj", "imatrix", "model", "new"};
    for (size_t i = 0; i < 5; i++) {
        struct gguf_writer w = {0};
        struct checkpoint *c = NULL;
        struct error err = {0};
        gguf_begin(&w);
        gguf_kv_string(&w, "general.type", types[i]);
        gguf_finish(&w);
        int rc = gguf_open(&w, &c, &err);
        assert_int_equal(rc, i < 3 ? STATUS_UNIMPLEMENTED : 0);
        assert_true(!rc || strstr(err.message, "key \"general.type\""));
        checkpoint_close(c);
        gguf_writer_fini(&w);
    }
}

/* A sparse file: 65 strings of 1 MiB, so that the array is over 64 MiB while each string is not. */
static void test_open_when_array_strings_are_too_much_together_then_refused(void **state)
{
    (void)state;
    struct gguf_writer w = {0};
    struct checkpoint *c;
    struct error err;
    char path[64];
    gguf_begin(&w);
    gguf_kv_array(&w, "x.blobs", GGUF_STRING, 65);
    gguf_finish(&w);
    int fd = memfd_create("blobs.gguf", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, w.bytes.data, w.bytes.n_bytes, 0), w.bytes.n_bytes);
    off_t at = (off_t)w.bytes.n_bytes;
    off_t last = at;
    for (int i = 0; i < 65; i++) {
        uint64_t n = 1 << 20;
        assert_int_equal(pwrite(fd, &n, sizeof(n), at), sizeof(n));
        last = at;
        at += 8 + (1 << 20);
    }
    assert_int_equal(ftruncate(fd, at), 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    assert_int_equal(checkpoint_open(path, &c, &err), STATUS_INVALID_ARGUMENT);
    char expected[128];
    snprintf(expected, sizeof(expected), "offset %lld|x.blobs|element[64]|67108864",
             (long long)last);
    if (!names_all(err.message, expected))
        fail_msg("want %s in %s", expected, err.message);
    close(fd);
    gguf_writer_fini(&w);
}

static void test_open_when_not_a_regular_file_then_refused(void **state)
{
    (void)state;
    struct checkpoint *c;
    struct error err;
    char dir[] = "/tmp/sluice-gguf-XXXXXX";
    char fifo[64];
    assert_non_null(mkdtemp(dir));
    snprintf(fifo, sizeof(fifo), "%s/fifo", dir);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    const char *const paths[] = {dir, fifo, "/dev/null"};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(checkpoint_open(paths[i], &c, &err), STATUS_INVALID_ARGUMENT);
        assert_int_equal(err.reason, REASON_MODEL_FILE_INVALID);
    }
    unlink(fifo);
    rmdir(dir);
    assert_int_equal(checkpoint_open("/nonexistent/x.gguf", &c, &err), STATUS_NOT_FOUND);
    assert_null(strstr(err.message, "/nonexistent"));
}

static void test_names_when_hostile_then_escaped_in_messages(void **state)
{
    (void)state;
    struct gguf_writer w = {0};
    struct checkpoint *c;
    struct error err;
    gguf_begin(&w);
    gguf_kv_u32(&w, "a\"b\xC2\x9B\xE2\x80\xAEz", 1);
    w.bytes.data[w.bytes.n_bytes - 8] = 77; /* the type */
    gguf_finish(&w);
    assert_int_equal(gguf_open(&w, &c, &err), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "key \"a\\x22b\\xc2\\x9b\\xe2\\x80\\xaez\""));
    gguf_writer_fini(&w);
}

static void test_digest_when_header_or_size_changes_then_differs(void **state)
{
    (void)state;
    struct gguf_writer w = {0};
    struct error err;
    uint8_t digests[4][SHA256_BYTES];
    for (int i = 0; i < 4; i++) {
        struct checkpoint *c;
        write_sample(&w);
        if (i == 1) /* a weight: not part of the identity */
            w.bytes.data[w.bytes.n_bytes - 1] ^= 1;
        if (i == 2)
            w.bytes.data[gguf_at(&w, "x.list.length") + 8] ^= 1;
        if (i == 3)
            gguf_u8(&w, 0);
        assert_int_equal(gguf_open(&w, &c, &err), 0);
        checkpoint_digest(c, digests[i]);
        checkpoint_close(c);
        gguf_writer_fini(&w);
    }
    assert_memory_equal(digests[0], digests[1], SHA256_BYTES);
    assert_memory_not_equal(digests[0], digests[2], SHA256_BYTES);
    assert_memory_not_equal(digests[0], digests[3], SHA256_BYTES);
}

static void test_check_when_file_changes_after_open_then_failed_precondition(void **state)
{
    (void)state;
    struct gguf_writer w = {0};
    struct checkpoint *c;
    struct error err;
    char path[] = "/tmp/sluice-gguf-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    write_sample(&w);
    assert_int_equal(write(fd, w.bytes.data, w.bytes.n_bytes), w.bytes.n_bytes);
    assert_int_equal(checkpoint_open(path, &c, &err), 0);
    assert_int_equal(ftruncate(fd, (off_t)w.bytes.n_bytes - 100), 0);
    assert_int_equal(checkpoint_check(c, &err), STATUS_FAILED_PRECONDITION);
    assert_int_equal(err.reason, REASON_MODEL_FILE_CHANGED);
    unsigned char row[68];
    const struct checkpoint_tensor *t = checkpoint_tensor_find(c, "b.weight");
    assert_int_equal(checkpoint_read_tensor_rows(c, t, 1, 1, row, &err), STATUS_DATA_LOSS);
    checkpoint_close(c);
    close(fd);
    unlink(path);
    gguf_writer_fini(&w);
}

static void test_values_when_printed_then_readable_and_bounded(void **state)
{
    (void)state;
    static const char *const expected[][2] = {
        {"string", "\"llama\""},
        {"u32", "32"},
        {"bool", "true"},
        {"array of i32", "[-1, 2, 3]"},
        {"array of string", "[\"one\", \"two\", \"\xC3\xA9\"]"},
        {"array of bool", "[false, true]"},
        {"f64", "1.5"},
        {"i8", "-2"},
        {"u64", "18446744073709551615"},
    };
    struct gguf_writer w = {0};
    struct checkpoint *c;
    struct error err;
    struct strbuf text = {0};
    write_sample(&w);
    assert_int_equal(gguf_open(&w, &c, &err), 0);
    for (uint64_t i = 0; i < checkpoint_n_keys(c); i++) {
        strbuf_clear(&text);
        checkpoint_key_type(c, i, &text);
        assert_string_equal(strbuf_str(&text), expected[i][0]);
        strbuf_clear(&text);
        checkpoint_key_value(c, i, 100, &text);
        assert_string_equal(strbuf_str(&text), expected[i][1]);
    }
    strbuf_clear(&text);
    checkpoint_key_value(c, 4, 6, &text);
    assert_string_equal(strbuf_str(&text), "[\"one\", ... 3 elements]");
    strbuf_fini(&text);
    checkpoint_close(c);
    gguf_writer_fini(&w);
}

static void test_sample_model_when_opened_then_its_figures_are_known(void **state)
{
    (void)state;
    struct checkpoint *c;
    struct error err = {0};
    if (checkpoint_open(gguf_sample_path(), &c, &err) != 0)
        fail_msg("%s: %s (etc/fetch_model.sh brings it)", gguf_sample_path(), err.message);
    uint64_t u;
    double f;
    assert_int_equal(checkpoint_n_tensors(c), 272);
    assert_int_equal(checkpoint_get_u64(c, "llama.embedding_length", &u, &err), 0);
    assert_int_equal(u, 576);
    assert_int_equal(checkpoint_get_f64(c, "llama.rope.freq_base", &f, &err), 0);
    assert_true(f == 100000.0);
    const struct checkpoint_tensor *t = checkpoint_tensor_find(c, "blk.29.ffn_down.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, DTYPE_Q4_1);
    assert_int_equal(t->dims[0], 1536);
    assert_int_equal(t->n_rows, 576);
    checkpoint_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_when_file_is_good_then_everything_is_there),
        cmocka_unit_test(test_read_rows_when_in_range_then_bytes_are_the_files),
        cmocka_unit_test(test_getters_when_type_differs_then_key_and_offset_are_named),
        cmocka_unit_test(test_open_when_a_field_is_broken_then_offset_field_and_rule_are_named),
        cmocka_unit_test(test_open_when_cut_anywhere_in_header_then_refused_at_an_offset),
        cmocka_unit_test(test_open_when_any_header_byte_changes_then_it_opens_or_names_an_offset),
        cmocka_unit_test(test_open_when_a_key_occurs_twice_then_both_offsets_are_named),
        cmocka_unit_test(test_open_when_weights_leave_a_hole_then_refused),
        cmocka_unit_test(test_open_when_version_2_then_read_like_3),
        cmocka_unit_test(test_open_when_the_file_holds_no_model_then_unimplemented_by_type),
        cmocka_unit_test(test_open_when_alignment_is_unusual_then_rows_are_found),
        cmocka_unit_test(test_open_when_array_strings_are_too_much_together_then_refused),
        cmocka_unit_test(test_open_when_not_a_regular_file_then_refused),
        cmocka_unit_test(test_names_when_hostile_then_escaped_in_messages),
        cmocka_unit_test(test_digest_when_header_or_size_changes_then_differs),
        cmocka_unit_test(test_check_when_file_changes_after_open_then_failed_precondition),
        cmocka_unit_test(test_values_when_printed_then_readable_and_bounded),
        cmocka_unit_test(test_sample_model_when_opened_then_its_figures_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
