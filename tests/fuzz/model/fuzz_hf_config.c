/* Fuzzes the reader of config.json with random bytes. */
#include "tests/fuzz/model/fuzz_checkpoint.h"

static struct fuzz_folder folder;

static void remove_folder(void)
{
    static const char *const names[] = {"model.safetensors", NULL};
    fuzz_folder_remove(&folder, names);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    if (!folder.path[0]) {
        char shard[256];
        size_t n = fuzz_shard("a", shard);
        fuzz_folder_make(&folder, "config.json");
        fuzz_folder_add(&folder, "model.safetensors", shard, n);
        atexit(remove_folder);
    }
    fuzz_folder_open(&folder, data, n_bytes);
    return 0;
}
