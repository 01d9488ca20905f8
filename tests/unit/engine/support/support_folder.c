#include "tests/unit/engine/support/support_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ftw.h>

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
    unsigned char *bytes = malloc(8 + n + n_data);
    if (!bytes)
        abort();
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(n >> (8 * i));
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < n_data; i++)
        bytes[8 + n + i] = (unsigned char)i;
    folder_write(folder, name, bytes, 8 + n + n_data);
    free(bytes);
}

void folder_write_model(const struct test_folder *folder)
{
    folder_write_text(folder, "config.json", folder_config);
    folder_write_safetensors(folder, "model.safetensors", folder_header, FOLDER_DATA_BYTES);
}
