/* device_name.h: repairs device lists that users misspell. Pure; any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Writes the well-formed list that a misspelled list probably means: "cuda:0" for "cuda0", "gpu:0"
 * or "0"; "cuda:0,1" for "cuda:0,cuda:1". False, `out` untouched, if there is no such list. */
bool device_name_meant(const char *text, char *out, size_t n_bytes);

/* Returns true if a list of devices ("cuda:0,1") names GPUs. NULL means the CPU. */
bool device_name_is_gpu(const char *list);
