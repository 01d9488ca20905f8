#include "tests/unit/engine/support/support_logits.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

size_t logits_read_columns(const unsigned char *bytes, size_t n_bytes, uint32_t n_all,
                           struct logits_columns *out)
{
    uint32_t n;
    if (n_bytes < sizeof(n))
        return 0;
    memcpy(&n, bytes, sizeof(n));
    if (n == 0 || n > n_all || n_all > UINT16_MAX + 1u ||
        n > (n_bytes - sizeof(n)) / sizeof(uint16_t))
        return 0;
    uint16_t *list = malloc(n * sizeof(*list));
    assert_non_null(list);
    memcpy(list, bytes + sizeof(n), n * sizeof(*list));
    for (uint32_t i = 0; i < n; i++)
        if (list[i] >= n_all || (i > 0 && list[i] <= list[i - 1])) {
            free(list);
            return 0;
        }
    *out = (struct logits_columns){.n_all = n_all, .n = n, .list = list};
    return sizeof(n) + n * sizeof(*list);
}

static void list_all(struct logits_columns *columns, uint32_t n_all)
{
    uint16_t *list = malloc(n_all * sizeof(*list));
    assert_non_null(list);
    for (uint32_t i = 0; i < n_all; i++)
        list[i] = (uint16_t)i;
    *columns = (struct logits_columns){.n_all = n_all, .n = n_all, .list = list};
}

void logits_open(struct logits_file *file, const char *name)
{
    char path[128];
    *file = (struct logits_file){0};
    snprintf(path, sizeof(path), "tiny/%.100s.bin", name);
    struct golden *g = &file->golden;
    golden_open(g, path, "SLT");
    file->has_rest = *golden_take(g, 1) == 'C';
    file->n_seqs = golden_u32(g);
    uint32_t n_all = golden_u32(g);
    if (file->has_rest) {
        size_t n = logits_read_columns(g->bytes + g->at, g->n_bytes - g->at, n_all, &file->columns);
        if (n == 0)
            fail_msg("%s: the list of columns is malformed", path);
        golden_take(g, n);
    } else {
        list_all(&file->columns, n_all);
    }
}

void logits_close(struct logits_file *file)
{
    assert_int_equal(file->golden.at, file->golden.n_bytes);
    golden_close(&file->golden);
    free(file->columns.list);
    free(file->row);
    *file = (struct logits_file){0};
}

void logits_next(struct logits_file *file, struct logits_sequence *out)
{
    out->n_ids = golden_u32(&file->golden);
    out->n_rows = golden_u32(&file->golden);
    out->ids = golden_copy(&file->golden, out->n_ids);
}

uint32_t logits_row(struct logits_file *file)
{
    struct golden *g = &file->golden;
    uint32_t position = golden_u32(g);
    file->scale = golden_f32(g);
    file->rest = file->has_rest ? golden_f32(g) : 0;
    free(file->row);
    file->row = golden_numbers(g, file->scale, file->columns.n);
    return position;
}

double logits_row_error(const struct logits_file *file, const float *got, uint32_t n_got)
{
    const struct logits_columns *columns = &file->columns;
    double most = 0, rest = 0;
    uint32_t n_rest = 0;
    for (uint32_t i = 0, at = 0; i < n_got; i++) {
        bool is_listed = at < columns->n && columns->list[at] == i;
        double error = is_listed ? fabs((double)got[i] - (double)file->row[at++]) : 0;
        if (isnan(got[i]) || isnan(error))
            return (double)NAN;
        most = fmax(most, error);
        rest += is_listed ? 0 : (double)got[i];
        n_rest += !is_listed;
    }
    if (n_rest > 0)
        most = fmax(most, fabs(rest - (double)file->rest) / sqrt(n_rest));
    return most / (double)file->scale;
}
