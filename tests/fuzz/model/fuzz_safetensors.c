/* Fuzzes the reader of safetensors with random bytes as model.safetensors. */
#include "tests/fuzz/model/fuzz_checkpoint.h"

static struct fuzz_folder folder;

static void remove_folder(void)
{
    static const char *const names[] = {"config.json", NULL};
    fuzz_folder_remove(&folder, names);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    if (!folder.path[0]) {
        fuzz_folder_make(&folder, "model.safetensors");
        fuzz_folder_add(&folder, "config.json", "{}", 2);
        atexit(remove_folder);
    }
    fuzz_folder_open(&folder, data, n_bytes);
    return 0;
}
