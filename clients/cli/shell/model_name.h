/* model_name.h: a model's name from its file's name. */
#pragma once

#include <stddef.h>

/* "Models/SmolLM2-135M.Q4_1.gguf" → "smollm2-135m.q4_1": the stem in lower case, every byte outside
 * a-z 0-9 . _ - as '-', at most 63 bytes, starting with a letter or digit ("model" where nothing is
 * left). */
void model_name_from_path(const char *path, char out_name[64]);
