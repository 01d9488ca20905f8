/* Tests of files that people take for models. The first bytes identify each kind, and no prefix of
 * a file is taken for another kind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/format/file_kind.h"
#include "tests/unit/engine/support/support_gguf.h"

#define BYTES(text) text, sizeof(text) - 1

static const struct {
    const char *name;
    enum file_kind kind;
    const char *bytes;
    size_t n_bytes;
} rows[] = {
    {"empty", FILE_KIND_EMPTY, BYTES("")},
    {"LFS pointer", FILE_KIND_LFS_POINTER,
     BYTES("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 91739744\n")},
    {"old LFS pointer", FILE_KIND_LFS_POINTER,
     BYTES("version https://hawser.github.com/spec/v1\n")},
    {"safetensors", FILE_KIND_SAFETENSORS,
     BYTES("\x18\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\"}}    \0\0\0\0")},
    {"safetensors index", FILE_KIND_SAFETENSORS_INDEX,
     BYTES("{\n  \"metadata\": {},\n  \"weight_map\": {}\n}")},
    {"PyTorch zip", FILE_KIND_PYTORCH, BYTES("PK\x03\x04\0\0\x08\x08\0\0archive/data.pklFB\0\0")},
    {"PyTorch pickle", FILE_KIND_PYTORCH,
     BYTES("\x80\x02\x8A\nl\xFC\x9C\x46\xF9\x20\x6A\xA8P\x19.")},
    {"zip", FILE_KIND_ZIP, BYTES("PK\x03\x04\x14\0\0\0\x08\0model.gguf")},
    {"GGML", FILE_KIND_GGML, BYTES("lmgg\0\0\0\0")},
    {"GGJT", FILE_KIND_GGML, BYTES("tjgg\3\0\0\0")},
    {"Ollama manifest", FILE_KIND_OLLAMA_MANIFEST,
     BYTES("{\"schemaVersion\":2,\"mediaType\":\"application/"
           "vnd.docker.distribution.manifest.v2+json\","
           "\"layers\":[{\"mediaType\":\"application/"
           "vnd.ollama.image.model\",\"digest\":\"sha256:ab\"}]}")},
    {"config.json", FILE_KIND_HF_CONFIG, BYTES("{\"architectures\": [\"LlamaForCausalLM\"]}")},
    {"JSON error", FILE_KIND_JSON, BYTES(" {\"error\": \"Repository not found\"}\n")},
    {"JSON list", FILE_KIND_JSON, BYTES("\xEF\xBB\xBF[1, 2]")},
    {"web page", FILE_KIND_HTML, BYTES("\n\n<!DOCTYPE html>\n<html>")},
    {"web page without a type", FILE_KIND_HTML, BYTES("<HTML><head>")},
    {"XML error", FILE_KIND_HTML, BYTES("<?xml version=\"1.0\"?><Error><Code>AccessDenied")},
    {"gzip", FILE_KIND_GZIP, BYTES("\x1F\x8B\x08\0\0\0\0\0")},
    {"Zstandard", FILE_KIND_ZSTD, BYTES("\x28\xB5\x2F\xFD\0\0\0\0")},
    {"xz", FILE_KIND_XZ,
     BYTES("\xFD"
           "7zXZ\0\0\4")},
    {"bzip2", FILE_KIND_BZIP2, BYTES("BZh91AY&SY")},
    {"7z", FILE_KIND_7Z, BYTES("7z\xBC\xAF\x27\x1C\0\4")},
    {"HDF5", FILE_KIND_HDF5, BYTES("\x89HDF\r\n\x1A\n\0")},
    {"NumPy", FILE_KIND_NUMPY, BYTES("\x93NUMPY\1\0v\0")},
    {"ELF", FILE_KIND_PROGRAM,
     BYTES("\x7F"
           "ELF\2\1\1\0")},
    {"script", FILE_KIND_PROGRAM, BYTES("#!/bin/sh\n")},
    {"zeros", FILE_KIND_ZEROS, BYTES("\0\0\0\0\0\0\0\0\0\0\0\0")},
    {"text", FILE_KIND_TEXT, BYTES("Entry not found")},
    {"Latin-1 text", FILE_KIND_TEXT, BYTES("Acc\xE8s refus\xE9")},
    {"other bytes", FILE_KIND_UNKNOWN, BYTES("\1\2\3\4\5\6\7\x08")},
    {"other magic", FILE_KIND_UNKNOWN, BYTES("FUGG\3\0\0\0\0\0\0\0")},
};

static void test_every_kind_is_told_and_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct checkpoint *ckpt = NULL;
        struct error err = {0};
        enum file_kind kind =
            file_kind_of((const unsigned char *)rows[i].bytes, rows[i].n_bytes, rows[i].n_bytes);
        if (kind != rows[i].kind)
            fail_msg("%s: told for kind %d, want %d", rows[i].name, (int)kind, (int)rows[i].kind);
        assert_int_equal(gguf_open_bytes(rows[i].bytes, rows[i].n_bytes, &ckpt, &err),
                         STATUS_INVALID_ARGUMENT);
        assert_int_equal(err.reason, REASON_MODEL_FILE_INVALID);
    }
}

static void test_a_tar_archive_is_told_by_its_middle(void **state)
{
    (void)state;
    unsigned char tar[512] = "model.gguf";
    memcpy(tar + 257, "ustar", 6);
    assert_int_equal(file_kind_of(tar, sizeof(tar), 10240), FILE_KIND_TAR);
}

/* Runs under the address sanitizer, too: no beginning is read beyond its end. */
static void test_every_beginning_of_every_kind_is_read_within_its_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (size_t n = 0; n <= rows[i].n_bytes; n++) {
            unsigned char *copy = malloc(n ? n : 1);
            assert_non_null(copy);
            memcpy(copy, rows[i].bytes, n);
            assert_true(file_kind_of(copy, n, n) < N_FILE_KINDS);
            assert_true(file_kind_of(copy, n, n) != FILE_KIND_GGUF);
            free(copy);
        }
    assert_int_equal(file_kind_of((const unsigned char *)"GGUF", 4, 4), FILE_KIND_GGUF);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind_is_told_and_refused),
        cmocka_unit_test(test_a_tar_archive_is_told_by_its_middle),
        cmocka_unit_test(test_every_beginning_of_every_kind_is_read_within_its_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
