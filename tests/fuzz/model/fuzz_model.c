/* Fuzzes the reading of a model from typed facts. An input names a model below tests/golden/tiny
 * and changes to its keys and tensors. So each input reaches the tables of the architectures.
 * A changed model is read, and divided over ranks, or is refused with MODEL_FILE_INVALID (or
 * UNIMPLEMENTED). The empty input reads all models without a change.
 *
 *     input: u16 model | changes of 12 bytes: u8 what | u8 which | u16 index | u64 value */
#include <dirent.h>

#include "engine/format/checkpoint_store.h"
#include "engine/model/model.h"
#include "engine/model/rank.h"
#include "tests/fuzz/model/fuzz_checkpoint.h"

#define MODELS SLUICE_SOURCE_DIR "/tests/golden/tiny/"

enum { MAX_MODELS = 512, CHANGE_BYTES = 12, MAX_CHANGES = 32, MAX_ELEMENTS = 64 };

enum what {
    KEY_INT,
    KEY_FLOAT,
    KEY_BOOL,
    KEY_TEXT,
    KEY_LIST,
    KEY_DROP,
    TENSOR_DIM,
    TENSOR,
    N_WHATS
};

struct change {
    enum what what;
    uint8_t which;
    uint16_t index;
    uint64_t value;
};

static struct checkpoint *models[MAX_MODELS]; /* open until the end of the process */
static uint32_t n_models;

static int is_model(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && !strstr(entry->d_name, ".bin") &&
           strcmp(entry->d_name, "tokenizer.json") != 0;
}

static void open_models(void)
{
    struct dirent **entries = NULL;
    int n = scandir(MODELS, &entries, is_model, alphasort);
    for (int i = 0; i < n; i++) {
        char path[4096];
        struct error err = {0};
        snprintf(path, sizeof(path), "%s%s", MODELS, entries[i]->d_name);
        free(entries[i]);
        if (n_models == MAX_MODELS)
            continue;
        fuzz_require(checkpoint_open(path, &models[n_models], &err) == 0, path, &err);
        n_models++;
    }
    free(entries);
    if (!n_models)
        abort();
}

/* --- changes: what a reader of files may give --- */

static const char *text_of(const struct checkpoint *ckpt, const struct change *change)
{
    static const char *const texts[] = {"",
                                        "yarn",
                                        "linear",
                                        "llama3",
                                        "longrope",
                                        "dynamic",
                                        "default",
                                        "full_attention",
                                        "mamba",
                                        "linear_attention",
                                        "conv",
                                        "moe",
                                        "sliding_attention",
                                        "M*-E",
                                        "chunked_attention",
                                        "relu2",
                                        "gelu_new",
                                        "silu",
                                        "proportional",
                                        "\xC3\xA9"};
    enum { N_TEXTS = sizeof(texts) / sizeof(texts[0]) };
    if (change->which < 192)
        return texts[change->which % N_TEXTS];
    return ckpt->entries[change->value % ckpt->n_entries].key;
}

/* A list of up to MAX_ELEMENTS numbers, bools or texts. */
static void set_list(struct checkpoint *ckpt, struct checkpoint_entry *entry,
                     const struct change *change)
{
    static const enum value_type types[] = {VALUE_I64, VALUE_BOOL, VALUE_STRING, VALUE_F64};
    uint64_t n = change->index / 4 % (MAX_ELEMENTS + 1);
    uint64_t *numbers = arena_calloc(&ckpt->arena, n + 1, sizeof(*numbers));
    uint64_t *ends = arena_calloc(&ckpt->arena, n + 1, sizeof(*ends));
    enum value_type type = types[change->index % 4];
    const char *text = text_of(ckpt, change);
    size_t n_text = strlen(text);
    char *texts = arena_alloc(&ckpt->arena, n * n_text + 1);
    if (!numbers || !ends || !texts)
        abort();
    for (uint64_t i = 0; i < n; i++) {
        numbers[i] = change->which % 2 ? change->value : change->value >> i;
        memcpy(texts + i * n_text, text, n_text);
        ends[i] = (i + 1) * n_text;
    }
    if (type == VALUE_BOOL)
        for (uint64_t i = 0; i < n; i++)
            ((unsigned char *)numbers)[i] = change->value >> i % 64 & 1;
    entry->type = VALUE_ARRAY;
    entry->array.type = n ? type : VALUE_ARRAY;
    entry->array.n = n;
    entry->array.data = type == VALUE_STRING ? (unsigned char *)texts : (unsigned char *)numbers;
    entry->array.ends = type == VALUE_STRING ? ends : NULL;
}

/* Shortens a list, or changes one of its numbers. */
static void edit_list(struct checkpoint *ckpt, struct checkpoint_entry *entry,
                      const struct change *change)
{
    uint32_t n_bytes = checkpoint_value_bytes(entry->array.type);
    if (change->which % 2 || !n_bytes || !entry->array.n) {
        entry->array.n = change->value % (entry->array.n + 1);
        return;
    }
    unsigned char *data = arena_calloc(&ckpt->arena, entry->array.n + 1, n_bytes);
    if (!data)
        abort();
    memcpy(data, entry->array.data, entry->array.n * n_bytes);
    memcpy(data + change->which / 2 % entry->array.n * n_bytes, &change->value, n_bytes);
    entry->array.data = data;
}

static void change_key(struct checkpoint *ckpt, const struct change *change)
{
    struct checkpoint_entry *entry = &ckpt->entries[change->index % ckpt->n_entries];
    switch (change->what) {
    case KEY_INT:
        entry->type = change->which % 2 ? VALUE_I64 : VALUE_U64;
        entry->u = change->value;
        break;
    case KEY_FLOAT:
        entry->type = VALUE_F64;
        memcpy(&entry->f, &change->value, sizeof(entry->f));
        break;
    case KEY_BOOL:
        entry->type = VALUE_BOOL;
        entry->u = change->value & 1;
        break;
    case KEY_TEXT:
        entry->type = VALUE_STRING;
        entry->string.data = text_of(ckpt, change);
        entry->string.n_bytes = strlen(entry->string.data);
        break;
    case KEY_LIST:
        if (entry->type == VALUE_ARRAY && change->which < 128)
            edit_list(ckpt, entry, change);
        else
            set_list(ckpt, entry, change);
        break;
    default:
        *entry = ckpt->entries[--ckpt->n_entries];
    }
}

/* True if a reader accepts the shape. */
static bool measure(struct checkpoint_tensor *t)
{
    uint32_t block = dtype_block_elems(t->dtype);
    t->n_elems = 1;
    for (uint32_t i = 0; i < CHECKPOINT_MAX_DIMS; i++) {
        t->dims[i] = i < t->n_dims ? t->dims[i] : 1;
        if (!t->dims[i] || __builtin_mul_overflow(t->n_elems, t->dims[i], &t->n_elems) ||
            t->n_elems > INT64_MAX)
            return false;
    }
    if (!block || t->dims[0] % block)
        return false;
    t->n_rows = t->n_elems / t->dims[0];
    return !__builtin_mul_overflow(t->dims[0] / block, (uint64_t)dtype_block_bytes(t->dtype),
                                   &t->row_bytes) &&
           !__builtin_mul_overflow(t->row_bytes, t->n_rows, &t->n_bytes) && t->n_bytes <= INT64_MAX;
}

static void change_tensor(struct checkpoint *ckpt, const struct change *change)
{
    struct checkpoint_tensor *tensor = &ckpt->tensors[change->index % ckpt->n_tensors];
    struct checkpoint_tensor changed = *tensor;
    if (change->what == TENSOR_DIM) {
        changed.dims[change->which % changed.n_dims] = change->value;
    } else if (change->which % 3 == 0) {
        *tensor = ckpt->tensors[--ckpt->n_tensors];
        return;
    } else if (change->which % 3 == 1) {
        changed.dtype = (enum dtype)(change->value % DTYPE_OTHER);
    } else {
        changed.n_dims = 1 + (uint32_t)(change->value % 4);
    }
    if (measure(&changed))
        *tensor = changed;
}

/* --- a run --- */

static bool next_change(const uint8_t **data, size_t *n_bytes, struct change *out)
{
    if (*n_bytes < CHANGE_BYTES)
        return false;
    out->what = (enum what)((*data)[0] % N_WHATS);
    out->which = (*data)[1];
    memcpy(&out->index, *data + 2, sizeof(out->index));
    memcpy(&out->value, *data + 4, sizeof(out->value));
    *data += CHANGE_BYTES;
    *n_bytes -= CHANGE_BYTES;
    return true;
}

static void divide(const struct model_shape *shape)
{
    for (uint32_t tp = 1; tp <= 2; tp++) {
        const struct rank rank = {
            .tp = tp, .index = tp - 1, .n_stages = 1, .n_layers = shape->n_layers};
        struct rank_split split;
        struct error err = {0};
        int rc = rank_split_init(&split, &rank, shape, &err);
        fuzz_require(rc == 0 || (tp > 1 && rc == STATUS_INVALID_ARGUMENT), "ranks", &err);
        rank_split_fini(&split);
    }
}

/* Returns true if the model is read. */
static bool read_model(const struct checkpoint *ckpt)
{
    struct model model = {0};
    struct error err = {0};
    int rc = model_init(&model, ckpt, NULL, &err);
    if (rc == 0)
        divide(&model.shape);
    else
        fuzz_require(err.message[0] &&
                         (rc == STATUS_UNIMPLEMENTED || (rc == STATUS_INVALID_ARGUMENT &&
                                                         err.reason == REASON_MODEL_FILE_INVALID)),
                     "model", &err);
    model_fini(&model);
    return rc == 0;
}

/* The copy shares the files and the texts, and has entries, tensors and indices of its own. */
static void copy_facts(struct checkpoint *to, const struct checkpoint *from)
{
    *to = *from;
    arena_init(&to->arena, 0, 0);
    to->entries = arena_calloc(&to->arena, from->n_entries + 1, sizeof(*to->entries));
    to->tensors = arena_calloc(&to->arena, from->n_tensors + 1, sizeof(*to->tensors));
    if (!to->entries || !to->tensors)
        abort();
    memcpy(to->entries, from->entries, from->n_entries * sizeof(*to->entries));
    memcpy(to->tensors, from->tensors, from->n_tensors * sizeof(*to->tensors));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct checkpoint ckpt;
    struct change change;
    uint64_t first, second;
    uint16_t i;
    if (!n_models)
        open_models();
    for (uint32_t k = 0; !n_bytes && k < n_models; k++)
        if (!read_model(models[k]))
            abort();
    if (n_bytes < sizeof(i))
        return 0;
    memcpy(&i, data, sizeof(i));
    copy_facts(&ckpt, models[i % n_models]);
    data += sizeof(i);
    n_bytes -= sizeof(i);
    for (uint32_t k = 0; k < MAX_CHANGES && next_change(&data, &n_bytes, &change); k++) {
        if (change.what < TENSOR_DIM && ckpt.n_entries)
            change_key(&ckpt, &change);
        else if (change.what >= TENSOR_DIM && ckpt.n_tensors)
            change_tensor(&ckpt, &change);
    }
    if (!checkpoint_index_entries(&ckpt, &first, &second) ||
        !checkpoint_index_tensors(&ckpt, &first, &second))
        abort();
    read_model(&ckpt);
    arena_fini(&ckpt.arena);
    return 0;
}
