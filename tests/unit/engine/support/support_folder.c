#include "tests/unit/engine/support/support_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ftw.h>

#include "base/strbuf.h"
#include "tests/unit/engine/support/support_golden.h"

const char folder_config[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 4, "
    "\"eos_token_id\": 2}";
const char folder_header[] =
    "{\"__metadata__\": {\"format\": \"pt\"},"
    " \"a\": {\"dtype\": \"F32\", \"shape\": [2, 4], \"data_offsets\": [0, 32]},"
    " \"b\": {\"dtype\": \"F16\", \"shape\": [3, 2], \"data_offsets\": [32, 44]},"
    " \"c\": {\"dtype\": \"BF16\", \"shape\": [5], \"data_offsets\": [44, 54]}}";

void folder_create(struct test_folder *folder)
{
    snprintf(folder->path, sizeof(folder->path), "/tmp/sluice_folder_XXXXXX");
    if (!mkdtemp(folder->path))
        abort();
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

void folder_remove(struct test_folder *folder)
{
    if (nftw(folder->path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0)
        abort();
}

const char *folder_at(const struct test_folder *folder, const char *name)
{
    static char paths[4][512];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder->path, name);
    return path;
}

void folder_write(const struct test_folder *folder, const char *name, const void *bytes,
                  size_t n_bytes)
{
    char parent[512];
    snprintf(parent, sizeof(parent), "%s", folder_at(folder, name));
    for (char *slash = strchr(parent + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(parent, 0700); /* exists already, or is made */
        *slash = '/';
    }
    FILE *file = fopen(folder_at(folder, name), "wb");
    if (!file || fwrite(bytes, 1, n_bytes, file) != n_bytes || fclose(file) != 0)
        abort();
}

void folder_write_text(const struct test_folder *folder, const char *name, const char *text)
{
    folder_write(folder, name, text, strlen(text));
}

void folder_write_safetensors(const struct test_folder *folder, const char *name,
                              const char *header, size_t n_data)
{
    uint64_t n = strlen(header);
    struct strbuf bytes = {0};
    for (int i = 0; i < 8; i++)
        strbuf_add_char(&bytes, (char)(unsigned char)(n >> (8 * i)));
    strbuf_add_str(&bytes, header);
    for (size_t i = 0; i < n_data; i++)
        strbuf_add_char(&bytes, (char)(unsigned char)i);
    folder_write(folder, name, bytes.data, bytes.n_bytes);
    strbuf_fini(&bytes);
}

void folder_write_model(const struct test_folder *folder)
{
    folder_write_text(folder, "config.json", folder_config);
    folder_write_safetensors(folder, "model.safetensors", folder_header, FOLDER_DATA_BYTES);
}

/* --- copies of golden folders --- */

char *folder_read_golden(const char *golden, const char *name, size_t *out_n_bytes)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s/%s", golden_source_dir(), golden, name);
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0)
        abort();
    long n = ftell(file);
    rewind(file);
    char *bytes = malloc((size_t)n + 1);
    if (!bytes || fread(bytes, 1, (size_t)n, file) != (size_t)n)
        abort();
    fclose(file);
    bytes[n] = '\0';
    *out_n_bytes = (size_t)n;
    return bytes;
}

void folder_copy_golden(const struct test_folder *to, const char *golden, const char *name,
                        const char *old, const char *now)
{
    size_t n = 0, n_old = strlen(old), n_changed = 0;
    char *bytes = folder_read_golden(golden, name, &n);
    struct strbuf copy = {0};
    for (size_t i = 0; i < n;) {
        bool is_old = n_old && i + n_old <= n && memcmp(bytes + i, old, n_old) == 0;
        strbuf_add(&copy, is_old ? now : bytes + i, is_old ? strlen(now) : 1);
        i += is_old ? n_old : 1;
        n_changed += is_old;
    }
    if (n_old && !n_changed) {
        fprintf(stderr, "%s/%s has no %s\n", golden, name, old);
        abort();
    }
    folder_write(to, name, copy.data, copy.n_bytes);
    strbuf_fini(&copy);
    free(bytes);
}
