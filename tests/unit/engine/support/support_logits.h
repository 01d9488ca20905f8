/* support_logits.h: reads tests/golden's files of logits of whole models, tiny/NAME.bin. A file
 * lists all columns of a row (SLTR), or some columns and the sum of all others (SLTC). A reader
 * takes the sequences in order, and the rows of each. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/unit/engine/support/support_golden.h"

struct logits_columns {
    uint32_t n_all; /* columns of a whole row */
    uint32_t n;     /* listed columns */
    uint16_t *list; /* owned; ascending */
};

struct logits_file {
    struct golden golden;
    uint32_t n_seqs;
    struct logits_columns columns;
    float *row; /* owned; [columns.n], of the last logits_row() */
    float scale, rest;
    bool has_rest; /* the file does not list all columns */
};

struct logits_sequence {
    uint32_t n_ids, n_rows;
    uint32_t *ids; /* owned by the caller */
};

/* Reads a list of columns that begins at `bytes`: u32 n | u16 list[n]. The list ascends, all
 * columns are below `n_all`, and 1 to n_all are listed. Returns the bytes of the list; 0 and leaves
 * *out unchanged where the list is cut or malformed. The caller frees out->list. */
size_t logits_read_columns(const unsigned char *bytes, size_t n_bytes, uint32_t n_all,
                           struct logits_columns *out);

/* Opens tests/golden/tiny/<name>.bin. Fails the test where the file is missing or malformed. */
void logits_open(struct logits_file *file, const char *name);
void logits_close(struct logits_file *file);
/* The next sequence. */
void logits_next(struct logits_file *file, struct logits_sequence *out);
/* Reads the next row of the sequence, and returns its position. */
uint32_t logits_row(struct logits_file *file);
/* The error of `got` [n_got] against the row that was read last, as a share of the row's largest
 * magnitude. The largest error of a listed column counts, and that of the other columns' sum over
 * the root of their number. Columns behind n_got are padding; the file lists them. NaN if a value
 * is NaN. */
double logits_row_error(const struct logits_file *file, const float *got, uint32_t n_got);
