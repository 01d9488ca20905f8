#include "tests/unit/engine/support/support_bad.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/model/model.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_folder.h"

static int read_model(struct checkpoint *ckpt, struct error *err)
{
    struct model model = {0};
    int rc = model_init(&model, ckpt, NULL, err);
    model_fini(&model);
    return rc;
}

/* Returns 1 for an unexpected result, which the call prints. */
static uint32_t expect(const char *golden, const char *what, int rc, const struct error *err,
                       int status, const char *named)
{
    bool invalid = rc == STATUS_INVALID_ARGUMENT;
    if (rc == status && names_all(err->message, named) &&
        (!invalid || err->reason == REASON_MODEL_FILE_INVALID))
        return 0;
    print_message("%s with %s: %s \"%s\", want %s and %s\n", golden, what, status_name(rc),
                  rc ? err->message : "", status_name(status), named);
    return 1;
}

static int read_folder(const char *golden, const char *old, const char *now, struct error *err)
{
    struct test_folder folder;
    struct checkpoint *ckpt = NULL;
    folder_create(&folder);
    folder_copy_golden(&folder, golden, "model.safetensors", "", "");
    folder_copy_golden(&folder, golden, "config.json", old, now);
    int rc = checkpoint_open(folder.path, &ckpt, err);
    rc = rc ? rc : read_model(ckpt, err);
    checkpoint_close(ckpt);
    folder_remove(&folder);
    return rc;
}

void bad_folders_check(const struct bad_folder *rows, size_t n)
{
    uint32_t n_bad = 0;
    for (size_t i = 0; i < n; i++) {
        struct error err = {0};
        int rc = read_folder(rows[i].golden, rows[i].old, rows[i].now, &err);
        n_bad += expect(rows[i].golden, rows[i].now, rc, &err, rows[i].status, rows[i].named);
    }
    assert_int_equal(n_bad, 0);
}

static int read_gguf(const char *golden, const struct dialect *d, struct error *err)
{
    uint64_t data = 0;
    struct checkpoint *ckpt = dialect_open(golden, d, &data);
    int rc = read_model(ckpt, err);
    checkpoint_close(ckpt);
    return rc;
}

void bad_ggufs_check(const struct bad_gguf *rows, size_t n)
{
    uint32_t n_bad = 0;
    for (size_t i = 0; i < n; i++) {
        struct error err = {0};
        const struct dialect d = {
            .from = rows[i].arch, .to = rows[i].arch, .edits = &rows[i].edit, .n_edits = 1};
        int rc = read_gguf(rows[i].golden, &d, &err);
        n_bad += expect(rows[i].golden, rows[i].edit.key, rc, &err, rows[i].status, rows[i].named);
    }
    assert_int_equal(n_bad, 0);
}

void bad_tensors_check(const struct bad_tensor *rows, size_t n)
{
    uint32_t n_bad = 0;
    for (size_t i = 0; i < n; i++) {
        struct error err = {0};
        const char *const renamed[1][2] = {{rows[i].tensor, "other.tensor"}};
        const struct dialect d = {
            .from = rows[i].arch, .to = rows[i].arch, .tensors = renamed, .n_tensors = 1};
        int rc = read_gguf(rows[i].golden, &d, &err);
        n_bad += expect(rows[i].golden, rows[i].tensor, rc, &err, STATUS_INVALID_ARGUMENT,
                        rows[i].named);
    }
    assert_int_equal(n_bad, 0);
}
