#include "engine/format/checkpoint_files.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/system/source.h"
#include "engine/format/checkpoint_store.h"

int checkpoint_add_file(struct checkpoint *ckpt, struct source *source, const char *name,
                        const char *label, uint32_t *out_file, struct error *err)
{
    if (ckpt->n_files == CHECKPOINT_MAX_FILES) {
        error_set(err, STATUS_INVALID_ARGUMENT, "%s: more than %d files; " CHECKPOINT_REMEDY, label,
                  CHECKPOINT_MAX_FILES);
        return error_reason(err, REASON_MODEL_FILE_INVALID);
    }
    if (ckpt->n_files == ckpt->files_capacity) {
        uint32_t wider = ckpt->files_capacity ? 2 * ckpt->files_capacity : 8;
        struct checkpoint_file *grown = realloc(ckpt->files, wider * sizeof(*grown));
        if (!grown)
            return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", label);
        ckpt->files = grown;
        ckpt->files_capacity = wider;
    }
    struct checkpoint_file file = {
        .name = arena_strndup(&ckpt->arena, name, strlen(name)),
        .label = arena_strndup(&ckpt->arena, label, strlen(label)),
    };
    if (!file.name || !file.label)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", label);
    file.source = source;
    *out_file = ckpt->n_files;
    ckpt->files[ckpt->n_files++] = file;
    return 0;
}

void checkpoint_close_files(struct checkpoint *ckpt)
{
    for (uint32_t i = 0; i < ckpt->n_files; i++)
        source_close(ckpt->files[i].source);
    free(ckpt->files);
    ckpt->files = NULL;
    ckpt->n_files = ckpt->files_capacity = 0;
}

uint32_t checkpoint_n_files(const struct checkpoint *ckpt)
{
    return ckpt->n_files;
}

const char *checkpoint_file_name(const struct checkpoint *ckpt, uint32_t file)
{
    return ckpt->files[file].name;
}

struct source *checkpoint_file_source(const struct checkpoint *ckpt, uint32_t file)
{
    return ckpt->files[file].source;
}

const char *checkpoint_label(const struct checkpoint *ckpt, uint32_t file)
{
    return file < ckpt->n_files ? ckpt->files[file].label : ckpt->name;
}

uint64_t checkpoint_file_bytes(const struct checkpoint *ckpt)
{
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < ckpt->n_files; i++)
        n_bytes += source_size(ckpt->files[i].source);
    return n_bytes;
}

int checkpoint_check(const struct checkpoint *ckpt, struct error *err)
{
    for (uint32_t i = 0; i < ckpt->n_files; i++)
        if (source_check(ckpt->files[i].source, err) != 0)
            return err->status;
    return 0;
}

/* --- sidecars --- */

uint32_t checkpoint_find_sidecar(const struct checkpoint *ckpt, const char *name)
{
    for (uint32_t i = 0; i < ckpt->n_files; i++)
        if (ckpt->files[i].is_sidecar && strcmp(ckpt->files[i].name, name) == 0)
            return i;
    return UINT32_MAX;
}

uint32_t checkpoint_sidecar_at(const struct checkpoint *ckpt, uint32_t i)
{
    for (uint32_t k = 0; k < ckpt->n_files; k++)
        if (ckpt->files[k].is_sidecar && i-- == 0)
            return k;
    return UINT32_MAX;
}

int checkpoint_read_sidecar(const struct checkpoint *ckpt, const char *name, char **out_bytes,
                            size_t *out_n_bytes, struct error *err)
{
    uint32_t file = checkpoint_find_sidecar(ckpt, name);
    if (file == UINT32_MAX)
        return error_set(err, STATUS_NOT_FOUND, "%s: the model has no %s", ckpt->name, name);
    struct source *source = ckpt->files[file].source;
    size_t n_bytes = (size_t)source_size(source);
    char *bytes = malloc(n_bytes + 1);
    if (!bytes)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory",
                         ckpt->files[file].label);
    int rc = source_read(source, 0, bytes, n_bytes, err);
    if (!rc)
        rc = source_check(source, err);
    if (rc) {
        free(bytes);
        return rc;
    }
    bytes[n_bytes] = '\0';
    *out_bytes = bytes;
    *out_n_bytes = n_bytes;
    return 0;
}

uint32_t checkpoint_end_ids(const struct checkpoint *ckpt, const uint32_t **out_ids)
{
    *out_ids = ckpt->end_ids;
    return ckpt->n_end_ids;
}

/* --- rows of tensors --- */

/* Bytes of the elements, and of the scales, of a row of MXFP4 whose scales lie apart. */
static uint64_t element_bytes(const struct checkpoint_tensor *tensor)
{
    return tensor->dims[0] / 2;
}

static uint64_t scale_bytes(const struct checkpoint_tensor *tensor)
{
    return tensor->dims[0] / dtype_block_elems(DTYPE_MXFP4);
}

static int read_pairs(const struct checkpoint *ckpt, const struct checkpoint_tensor *tensor,
                      uint64_t row_begin, uint64_t n_rows, void *dst, struct error *err)
{
    size_t n_elements = (size_t)(n_rows * element_bytes(tensor));
    size_t n_scales = (size_t)(n_rows * scale_bytes(tensor));
    uint8_t *both = malloc(n_elements + n_scales + 1);
    if (!both)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %zu bytes of MXFP4",
                         n_elements + n_scales);
    int rc = source_read(ckpt->files[tensor->file].source,
                         tensor->offset_bytes + row_begin * element_bytes(tensor), both, n_elements,
                         err);
    if (!rc)
        rc = source_read(ckpt->files[tensor->scales_file].source,
                         tensor->scales_bytes + row_begin * scale_bytes(tensor), both + n_elements,
                         n_scales, err);
    if (!rc)
        dtype_mxfp4_from_pairs(both, both + n_elements, (size_t)(n_rows * tensor->dims[0]), dst);
    free(both);
    return rc;
}

int checkpoint_read_tensor_rows(const struct checkpoint *ckpt,
                                const struct checkpoint_tensor *tensor, uint64_t row_begin,
                                uint64_t n_rows, void *dst, struct error *err)
{
    int rc = checkpoint_check_type(ckpt, tensor, err);
    if (rc)
        return rc;
    if (row_begin > tensor->n_rows || n_rows > tensor->n_rows - row_begin)
        return error_set(err, STATUS_OUT_OF_RANGE,
                         "%s: tensor \"%s\": rows %" PRIu64 " to %" PRIu64 " of %" PRIu64,
                         checkpoint_label(ckpt, tensor->file), tensor->name, row_begin,
                         row_begin + n_rows, tensor->n_rows);
    if (tensor->scales_bytes)
        return read_pairs(ckpt, tensor, row_begin, n_rows, dst, err);
    return source_read(ckpt->files[tensor->file].source,
                       tensor->offset_bytes + row_begin * tensor->row_bytes, dst,
                       (size_t)(n_rows * tensor->row_bytes), err);
}

void checkpoint_drop_tensor_rows(const struct checkpoint *ckpt,
                                 const struct checkpoint_tensor *tensor, uint64_t row_begin,
                                 uint64_t n_rows)
{
    uint64_t row_bytes = tensor->scales_bytes ? element_bytes(tensor) : tensor->row_bytes;
    source_drop(ckpt->files[tensor->file].source, tensor->offset_bytes + row_begin * row_bytes,
                n_rows * row_bytes);
    if (tensor->scales_bytes)
        source_drop(ckpt->files[tensor->scales_file].source,
                    tensor->scales_bytes + row_begin * scale_bytes(tensor),
                    n_rows * scale_bytes(tensor));
}
