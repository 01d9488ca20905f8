#include "tests/gpu/bench/big_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "engine/forward/executor_private.h"
#include "tests/unit/engine/support/support_gguf.h"
#include "tests/unit/kernels/support/support_kernels.h"

enum { ALIGNMENT = 32, MATRICES = 7, MAX_TENSORS = 1024 };

struct big_spec big_spec_8b(enum dtype type)
{
    return (struct big_spec){32, 4096, 14336, 32, 8, 128, 128256, 16384, type};
}

struct big_spec big_spec_small(enum dtype type)
{
    return (struct big_spec){2, 512, 1024, 8, 2, 64, 1024, 2048, type};
}

/* Type numbers as they stand in files; UINT32_MAX: none. */
static uint32_t file_type(enum dtype type)
{
    static const struct {
        enum dtype type;
        uint32_t number;
    } types[] = {{DTYPE_F32, 0},   {DTYPE_F16, 1},   {DTYPE_Q4_0, 2},  {DTYPE_Q4_1, 3},
                 {DTYPE_Q5_0, 6},  {DTYPE_Q5_1, 7},  {DTYPE_Q8_0, 8},  {DTYPE_Q2_K, 10},
                 {DTYPE_Q3_K, 11}, {DTYPE_Q4_K, 12}, {DTYPE_Q5_K, 13}, {DTYPE_Q6_K, 14},
                 {DTYPE_BF16, 30}};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (types[i].type == type)
            return types[i].number;
    return UINT32_MAX;
}

struct entry {
    enum dtype type;
    uint32_t cols, rows;
    uint64_t at;
};

struct directory {
    struct gguf_writer *w;
    uint64_t at;
    uint32_t n_entries;
    struct entry entries[MAX_TENSORS];
};

static void add(struct directory *d, const char *name, enum dtype type, uint32_t cols,
                uint32_t rows)
{
    d->w->n_tensors++; /* not by gguf_tensor(), which has no room for so many tensors */
    gguf_text(d->w, name, strlen(name));
    gguf_u32(d->w, rows > 1 ? 2 : 1);
    gguf_u64(d->w, cols);
    if (rows > 1)
        gguf_u64(d->w, rows);
    gguf_u32(d->w, file_type(type));
    gguf_u64(d->w, d->at);
    d->entries[d->n_entries++] = (struct entry){type, cols, rows, d->at};
    d->at += (dtype_row_bytes(type, cols) * rows + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void add_layer(struct directory *d, const struct big_spec *s, uint32_t layer)
{
    uint32_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    const struct {
        const char *name;
        uint32_t cols, rows;
    } matrices[MATRICES] = {{"attn_q", s->hidden, q},        {"attn_k", s->hidden, kv},
                            {"attn_v", s->hidden, kv},       {"attn_output", q, s->hidden},
                            {"ffn_gate", s->hidden, s->ffn}, {"ffn_up", s->hidden, s->ffn},
                            {"ffn_down", s->ffn, s->hidden}};
    char name[64];
    snprintf(name, sizeof(name), "blk.%u.attn_norm.weight", layer);
    add(d, name, DTYPE_F32, s->hidden, 1);
    snprintf(name, sizeof(name), "blk.%u.ffn_norm.weight", layer);
    add(d, name, DTYPE_F32, s->hidden, 1);
    for (size_t i = 0; i < MATRICES; i++) {
        snprintf(name, sizeof(name), "blk.%u.%s.weight", layer, matrices[i].name);
        add(d, name, s->type, matrices[i].cols, matrices[i].rows);
    }
}

static void write_keys(struct gguf_writer *w, const struct big_spec *s)
{
    const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {{"llama.block_count", s->n_layers},
                   {"llama.context_length", s->context},
                   {"llama.embedding_length", s->hidden},
                   {"llama.feed_forward_length", s->ffn},
                   {"llama.attention.head_count", s->n_heads},
                   {"llama.attention.head_count_kv", s->n_kv_heads},
                   {"llama.attention.key_length", s->head_dim},
                   {"llama.attention.value_length", s->head_dim},
                   {"llama.rope.dimension_count", s->head_dim},
                   {"llama.vocab_size", s->vocab}};
    const float reals[] = {1e-5F, 500000.0F};
    static const char *const real_keys[] = {"llama.attention.layer_norm_rms_epsilon",
                                            "llama.rope.freq_base"};
    gguf_kv_string(w, "general.architecture", "llama");
    gguf_kv_string(w, "general.name", "big");
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        gguf_kv_u32(w, numbers[i].key, numbers[i].value);
    for (size_t i = 0; i < 2; i++) {
        uint32_t bits;
        memcpy(&bits, &reals[i], sizeof(bits));
        gguf_kv(w, real_keys[i], GGUF_F32);
        gguf_u32(w, bits);
    }
}

/* Writes 256 byte tokens, then the tokens t0, t1 and so on. */
static void write_tokenizer(struct gguf_writer *w, uint32_t vocab)
{
    uint32_t n = vocab - 256;
    char(*names)[12] = malloc((size_t)n * sizeof(*names));
    const char **tokens = malloc((size_t)n * sizeof(*tokens));
    for (uint32_t i = 0; names && tokens && i < n; i++) {
        snprintf(names[i], sizeof(names[i]), "t%u", i);
        tokens[i] = names[i];
    }
    if (names && tokens)
        gguf_vocab(w, &(struct gguf_vocab){.tokens = tokens, .n_tokens = n});
    free(tokens);
    free(names);
}

static bool write_rows(FILE *file, const struct entry *entry, struct random *random)
{
    size_t row_bytes = dtype_row_bytes(entry->type, entry->cols);
    uint32_t n = entry->rows < WEIGHT_PACK_ROWS ? entry->rows : WEIGHT_PACK_ROWS;
    uint8_t *rows = random_rows(random, entry->type, n, entry->cols);
    bool good = true;
    for (uint32_t at = 0; good && at < entry->rows; at += n)
        good = fwrite(rows, row_bytes, entry->rows - at < n ? entry->rows - at : n, file) > 0;
    free(rows);
    return good;
}

static bool write_bytes(FILE *file, uint64_t begin, const struct directory *d)
{
    struct random random = {17};
    bool good = true;
    for (uint32_t i = 0; good && i < d->n_entries; i++)
        good = fseeko(file, (off_t)(begin + d->entries[i].at), SEEK_SET) == 0 &&
               write_rows(file, &d->entries[i], &random);
    return good;
}

int big_write(const struct big_spec *spec, const char *path, bool filled, struct error *err)
{
    struct gguf_writer w = {0};
    struct directory d = {.w = &w};
    gguf_begin(&w);
    write_keys(&w, spec);
    write_tokenizer(&w, spec->vocab);
    add(&d, "token_embd.weight", spec->type, spec->hidden, spec->vocab);
    add(&d, "output_norm.weight", DTYPE_F32, spec->hidden, 1);
    add(&d, "output.weight", spec->type, spec->hidden, spec->vocab);
    for (uint32_t i = 0; i < spec->n_layers; i++)
        add_layer(&d, spec, i);
    gguf_finish(&w);
    FILE *file = fopen(path, "wb");
    size_t n = w.bytes.n_bytes, begin = (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    bool good = file && fwrite(strbuf_str(&w.bytes), 1, n, file) == n && fflush(file) == 0 &&
                ftruncate(fileno(file), (off_t)(begin + d.at)) == 0 &&
                (!filled || write_bytes(file, begin, &d));
    if (file && fclose(file) != 0)
        good = false;
    if (!good)
        error_set(err, STATUS_INTERNAL, "%s cannot be written", path);
    gguf_writer_fini(&w);
    return err->status;
}

/* --- filling --- */

/* Fills a vector with ones, and with a large number in a share of the 64-column chunks. So the
 * normalized rows have outliers in these columns, as in real models. */
static int fill_vector(struct executor *ex, const struct weight_place *place, unsigned char *data,
                       double outliers, struct random *random, struct error *err)
{
    enum { CHUNK = 64 };
    const struct device_ops *ops = ex->gpu->ops;
    struct stream *s = ex->streams[head_rank(ex)];
    uint32_t n = place->desc.k_total;
    float *ones = malloc(n * sizeof(*ones));
    for (uint32_t i = 0; ones && i < n; i++)
        ones[i] = 1.0F;
    for (uint32_t i = 0; ones && outliers > 0 && i + CHUNK <= n; i += CHUNK)
        if ((double)random_uniform(random, 0.0F, 1.0F) < outliers)
            ones[i + random_u32(random) % CHUNK] = 40.0F;
    int rc = ones ? ops->upload(s, data, ones, n * sizeof(*ones)) : STATUS_RESOURCE_EXHAUSTED;
    if (!rc)
        rc = ops->stream_sync(s, err);
    free(ones);
    return rc;
}

/* Copies the pieces of the first rows for every 64 further rows. From one copy to the next, all
 * pieces move by the same distance. */
static int repeat(struct executor *ex, const struct weight_place *place, unsigned char *data,
                  const struct weight_copy *first, const struct weight_copy *second,
                  uint32_t n_copies)
{
    const struct device_ops *ops = ex->gpu->ops;
    struct stream *s = ex->streams[head_rank(ex)];
    uint32_t n_chunks = place->desc.n_rows / WEIGHT_PACK_ROWS;
    int rc = 0;
    for (uint32_t i = 0; i < n_copies; i++)
        for (uint32_t c = 1; !rc && c < n_chunks; c++)
            rc = ops->copy(s, data + first[i].to + c * (second[i].to - first[i].to),
                           data + first[i].to, first[i].n_bytes);
    return rc;
}

static int fill_matrix(struct executor *ex, const struct weight_place *place, unsigned char *data,
                       struct random *random, struct error *err)
{
    const struct op_table *table = ex->ops[head_rank(ex)];
    const struct device_ops *ops = ex->gpu->ops;
    struct stream *s = ex->streams[head_rank(ex)];
    struct weight_copy first[WEIGHT_MAX_COPIES], second[WEIGHT_MAX_COPIES];
    uint32_t n_copies = 0, rows = WEIGHT_PACK_ROWS;
    if (place->desc.n_rows % rows != 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%u rows are no multiple of %u",
                         place->desc.n_rows, rows);
    size_t n_bytes = (weight_slice_bytes(table, &place->desc, rows) + 63) / 64 * 64;
    unsigned char *slice = aligned_alloc(64, n_bytes);
    uint8_t *raw = random_rows(random, place->desc.source, rows, place->desc.k_total);
    int rc = weight_pack_slice(table, &place->desc, rows < place->desc.n_rows ? rows : 0, rows, raw,
                               slice, second, &n_copies, err);
    if (!rc)
        rc = weight_pack_slice(table, &place->desc, 0, rows, raw, slice, first, &n_copies, err);
    for (uint32_t i = 0; !rc && i < n_copies; i++)
        rc = ops->upload(s, data + first[i].to, slice + first[i].from, first[i].n_bytes);
    if (!rc)
        rc = repeat(ex, place, data, first, second, n_copies);
    struct error why;
    int synced = ops->stream_sync(s, rc ? &why : err);
    free(raw);
    free(slice);
    return rc ? rc : synced;
}

int big_fill(struct executor *ex, double outliers, struct error *err)
{
    const struct rank_plan *plan = &ex->plans[head_rank(ex)];
    struct random random = {17};
    int rc = 0;
    for (uint32_t i = 0; !rc && i < plan->n_places; i++) {
        const struct weight_place *place = &plan->places[i];
        unsigned char *data = (unsigned char *)ex->device_memory + place->offset_bytes;
        rc = place->desc.role == WEIGHT_VECTOR
                 ? fill_vector(ex, place, data, outliers, &random, err)
                 : fill_matrix(ex, place, data, &random, err);
    }
    return rc;
}
