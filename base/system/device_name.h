/* device_name.h: what people write for devices. Pure; any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* The list that was probably meant by one that is not written as it should be: "cuda0", "gpu:0",
 * "0" are "cuda:0", "cuda:0,cuda:1" is "cuda:0,1". False: nobody knows, out is as it was. */
bool device_name_meant(const char *text, char *out, size_t n_bytes);

/* Whether a list of devices ("cuda:0,1"), or one, is of GPUs. NULL: the CPU, which is what no list
 * means. */
bool device_name_is_gpu(const char *list);
