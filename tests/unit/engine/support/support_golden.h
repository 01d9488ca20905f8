/* support_golden.h: reads tests/golden's files of logits (layouts in its README). A file is held in
 * memory; pointers go into it. Fails the test where a file is missing or cut. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct golden {
    unsigned char *bytes; /* owned */
    size_t n_bytes, at;
};

/* Where the sources are: SLUICE_TEST_SOURCE_DIR where the programs were moved to another machine.
 */
const char *golden_source_dir(void);
/* Opens <source dir>/tests/golden/<name> and checks the letters at its start. */
void golden_open(struct golden *g, const char *name, const char *magic);
void golden_close(struct golden *g);
/* The next n bytes, or one number. Offsets in these files are not aligned: copy out. */
const unsigned char *golden_take(struct golden *g, size_t n_bytes);
uint32_t golden_u32(struct golden *g);
float golden_f32(struct golden *g);
/* Copies the next n numbers of 4 bytes; malloc'ed, the caller frees. */
void *golden_copy(struct golden *g, size_t n);
/* The next n numbers of a row that tests/golden/torch_models/rows.py packed; malloc'ed, the caller
 * frees. */
float *golden_row(struct golden *g, size_t n);
/* The same behind the row's scale. */
float *golden_numbers(struct golden *g, float scale, size_t n);
