/* Fuzzes the reader of model.safetensors.index.json with random bytes, beside two shards. */
#include "tests/fuzz/model/fuzz_checkpoint.h"

static struct fuzz_folder folder;

static void remove_folder(void)
{
    static const char *const names[] = {"config.json", "1.safetensors", "2.safetensors", NULL};
    fuzz_folder_remove(&folder, names);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    if (!folder.path[0]) {
        char shard[256];
        fuzz_folder_make(&folder, "model.safetensors.index.json");
        fuzz_folder_add(&folder, "config.json", "{}", 2);
        size_t n = fuzz_shard("a", shard);
        fuzz_folder_add(&folder, "1.safetensors", shard, n);
        n = fuzz_shard("b", shard);
        fuzz_folder_add(&folder, "2.safetensors", shard, n);
        atexit(remove_folder);
    }
    fuzz_folder_open(&folder, data, n_bytes);
    return 0;
}
