/* GGUF models in several files. */
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
#include "tests/unit/engine/support/support_gguf.h"

static struct test_folder folder;

static int make_folder(void **state)
{
    (void)state;
    folder_create(&folder);
    return 0;
}

static int drop_folder(void **state)
{
    (void)state;
    folder_remove(&folder);
    return 0;
}

static void kv_u16(struct gguf_writer *w, const char *key, uint16_t value)
{
    gguf_kv(w, key, GGUF_U16);
    gguf_u8(w, (uint8_t)value);
    gguf_u8(w, (uint8_t)(value >> 8));
}

/* Writes a part with one tensor of four floats; the first also has the model's metadata. */
static void write_part(const char *name, uint16_t part, uint16_t n_parts, const char *tensor,
                       uint32_t n_tensors)
{
    struct gguf_writer w = {0};
    gguf_begin(&w);
    kv_u16(&w, "split.no", part);
    kv_u16(&w, "split.count", n_parts);
    gguf_kv(&w, "split.tensors.count", GGUF_I32);
    gguf_u32(&w, n_tensors);
    if (part == 0)
        gguf_kv_string(&w, "general.architecture", "llama");
    gguf_tensor(&w, tensor, GGML_F32, 2, (const uint64_t[]){2, 2}, 0);
    gguf_weights(&w, 32, 16);
    gguf_finish(&w);
    w.bytes.data[w.bytes.n_bytes - 1] = (char)(0x60 + part);
    folder_write(&folder, name, w.bytes.data, w.bytes.n_bytes);
    gguf_writer_fini(&w);
}

static void write_three(void)
{
    write_part("m-00001-of-00003.gguf", 0, 3, "a", 3);
    write_part("m-00002-of-00003.gguf", 1, 3, "b", 3);
    write_part("m-00003-of-00003.gguf", 2, 3, "c", 3);
}

static void test_any_part_opens_the_whole_model(void **state)
{
    (void)state;
    static const char *const names[] = {"m-00001-of-00003.gguf", "m-00003-of-00003.gguf",
                                        "m-00002-of-00003.gguf", ""};
    uint8_t digest[2][SHA256_BYTES];
    write_three();
    for (int i = 0; i < 4; i++) {
        struct checkpoint *c;
        struct error err;
        unsigned char row[8];
        assert_int_equal(checkpoint_open(folder_at(&folder, names[i]), &c, &err), 0);
        assert_string_equal(checkpoint_name(c), "m-00001-of-00003.gguf");
        assert_string_equal(checkpoint_architecture(c), "llama");
        assert_int_equal(checkpoint_n_tensors(c), 3);
        assert_int_equal(checkpoint_n_files(c), 3);
        assert_string_equal(checkpoint_file_name(c, 2), "m-00003-of-00003.gguf");
        const struct checkpoint_tensor *t = checkpoint_tensor_find(c, "c");
        assert_int_equal(t->file, 2);
        assert_int_equal(checkpoint_read_tensor_rows(c, t, 1, 1, row, &err), 0);
        assert_int_equal(row[7], 0x62);
        assert_int_equal(checkpoint_bad_tensor(c, t, &err, "x"), STATUS_INVALID_ARGUMENT);
        assert_true(names_all(err.message, "m-00003-of-00003.gguf"));
        struct stat st;
        uint64_t n_bytes = 0;
        for (int k = 0; k < 3; k++) {
            assert_int_equal(stat(folder_at(&folder, names[k]), &st), 0);
            n_bytes += (uint64_t)st.st_size;
        }
        assert_int_equal(checkpoint_file_bytes(c), n_bytes);
        checkpoint_digest(c, digest[i != 0]);
        assert_memory_equal(digest[0], digest[i != 0], SHA256_BYTES);
        checkpoint_close(c);
    }
}

static void refuse(const char *open, const char *needles)
{
    struct checkpoint *c;
    struct error err;
    int rc = checkpoint_open(folder_at(&folder, open), &c, &err);
    if (rc != STATUS_INVALID_ARGUMENT || err.reason != REASON_MODEL_FILE_INVALID ||
        !names_all(err.message, needles))
        fail_msg("%d %s: want \"%s\"", rc, err.message, needles);
}

static void test_missing_parts_are_named(void **state)
{
    (void)state;
    write_three();
    unlink(folder_at(&folder, "m-00001-of-00003.gguf"));
    unlink(folder_at(&folder, "m-00002-of-00003.gguf"));
    refuse("m-00003-of-00003.gguf", "m-00001-of-00003.gguf|m-00002-of-00003.gguf|2");
}

static void test_parts_that_disagree_are_refused(void **state)
{
    (void)state;
    write_three();
    write_part("m-00002-of-00003.gguf", 2, 3, "b", 3); /* two files say that they are the third */
    refuse("m-00001-of-00003.gguf", "m-00002-of-00003.gguf|3|2");
    write_three();
    write_part("m-00002-of-00003.gguf", 1, 3, "a", 3);
    refuse("m-00001-of-00003.gguf", "m-00002-of-00003.gguf|tensor \"a\"|m-00001-of-00003.gguf");
    write_three();
    write_part("m-00001-of-00003.gguf", 0, 3, "a", 4);
    refuse("m-00003-of-00003.gguf", "split.tensors.count|4|3");
    write_part("m-00001-of-00003.gguf", 3, 3, "a", 3);
    refuse("m-00001-of-00003.gguf", "split.no|3");
    write_part("m-00001-of-00003.gguf", 0, 65535, "a", 3);
    refuse("m-00001-of-00003.gguf", "split.count|65535|2048");
    write_part("renamed.gguf", 0, 3, "a", 3);
    refuse("renamed.gguf", "split.count|-00001-of-00003.gguf");
}

static void test_a_later_part_that_is_no_file_is_refused(void **state)
{
    (void)state;
    write_three();
    unlink(folder_at(&folder, "m-00002-of-00003.gguf"));
    assert_int_equal(mkfifo(folder_at(&folder, "m-00002-of-00003.gguf"), 0600), 0);
    refuse("m-00001-of-00003.gguf", "m-00002-of-00003.gguf");
}

static void test_change_of_any_part_is_noticed(void **state)
{
    (void)state;
    struct checkpoint *c;
    struct error err;
    write_three();
    assert_int_equal(checkpoint_open(folder_at(&folder, "m-00001-of-00003.gguf"), &c, &err), 0);
    assert_int_equal(truncate(folder_at(&folder, "m-00003-of-00003.gguf"), 8), 0);
    assert_int_equal(checkpoint_check(c, &err), STATUS_FAILED_PRECONDITION);
    assert_int_equal(err.reason, REASON_MODEL_FILE_CHANGED);
    assert_true(names_all(err.message, "m-00003-of-00003.gguf"));
    checkpoint_close(c);
}

/* Symptom: repositories of GGUF files have a config.json too, and their folders were refused. */
static void test_a_config_beside_a_gguf_file_is_no_hugging_face_model(void **state)
{
    (void)state;
    struct checkpoint *c;
    struct error err;
    write_part("other.gguf", 0, 1, "a", 1);
    folder_write_text(&folder, "config.json", "{}");
    assert_int_equal(checkpoint_open(folder.path, &c, &err), 0);
    assert_string_equal(checkpoint_format(c), "gguf");
    assert_string_equal(checkpoint_name(c), "other.gguf");
    checkpoint_close(c);
}

static void test_a_folder_with_two_models_names_them(void **state)
{
    (void)state;
    write_three();
    write_part("other.gguf", 0, 1, "a", 1);
    refuse("", "m-00001-of-00003.gguf|other.gguf");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_any_part_opens_the_whole_model, make_folder,
                                        drop_folder),
        cmocka_unit_test_setup_teardown(test_missing_parts_are_named, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_parts_that_disagree_are_refused, make_folder,
                                        drop_folder),
        cmocka_unit_test_setup_teardown(test_a_later_part_that_is_no_file_is_refused, make_folder,
                                        drop_folder),
        cmocka_unit_test_setup_teardown(test_change_of_any_part_is_noticed, make_folder,
                                        drop_folder),
        cmocka_unit_test_setup_teardown(test_a_config_beside_a_gguf_file_is_no_hugging_face_model,
                                        make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_a_folder_with_two_models_names_them, make_folder,
                                        drop_folder),
    };
    return cmocka_run_group_tests_name("gguf_split", tests, NULL, NULL);
}
