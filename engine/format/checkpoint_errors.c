/* Messages about keys, tensors and sidecars of a checkpoint. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text/escape.h"
#include "engine/format/checkpoint_store.h"

/* The remedy at the end of a message. Messages about unsupported content have their own. */
static const char *remedy_of(int status)
{
    return status == STATUS_INVALID_ARGUMENT ? "; " CHECKPOINT_REMEDY : "";
}

static int missing_name(const char *file, const char *kind, const char *name, struct error *err)
{
    char text[ESCAPE_MAX_BYTES];
    error_set(err, STATUS_INVALID_ARGUMENT, "%s: %s \"%s\" is missing, and the model needs it%s",
              file, kind, escape_text(name, strlen(name), text),
              remedy_of(STATUS_INVALID_ARGUMENT));
    return error_reason(err, REASON_MODEL_FILE_INVALID);
}

int checkpoint_missing_key(const struct checkpoint *ckpt, const char *key, struct error *err)
{
    return missing_name(checkpoint_label(ckpt, 0), "key", key, err);
}

int checkpoint_missing_tensor(const struct checkpoint *ckpt, const char *name, struct error *err)
{
    return missing_name(checkpoint_name(ckpt), "tensor", name, err);
}

static void about_key(const struct checkpoint *ckpt, const char *key, int status, struct error *err,
                      const char *format, va_list args) __attribute__((format(printf, 5, 0)));

static void about_key(const struct checkpoint *ckpt, const char *key, int status, struct error *err,
                      const char *format, va_list args)
{
    char text[ERROR_MESSAGE_BYTES / 2];
    char name[ESCAPE_MAX_BYTES];
    vsnprintf(text, sizeof(text), format, args);
    const struct checkpoint_entry *entry = checkpoint_entry_find(ckpt, key);
    if (entry && entry->spelled)
        key = entry->spelled;
    escape_text(key, strlen(key), name);
    if (entry)
        error_set(err, status, "%s: offset %" PRIu64 ": key \"%s\": %s%s",
                  checkpoint_label(ckpt, entry->file), entry->offset, name, text,
                  remedy_of(status));
    else
        error_set(err, status, "%s: key \"%s\" (absent): %s%s", checkpoint_label(ckpt, 0), name,
                  text, remedy_of(status));
}

int checkpoint_bad_key(const struct checkpoint *ckpt, const char *key, struct error *err,
                       const char *format, ...)
{
    va_list args;
    va_start(args, format);
    about_key(ckpt, key, STATUS_INVALID_ARGUMENT, err, format, args);
    va_end(args);
    return error_reason(err, REASON_MODEL_FILE_INVALID);
}

int checkpoint_unbuilt_key(const struct checkpoint *ckpt, const char *key, struct error *err,
                           const char *format, ...)
{
    va_list args;
    va_start(args, format);
    about_key(ckpt, key, STATUS_UNIMPLEMENTED, err, format, args);
    va_end(args);
    return STATUS_UNIMPLEMENTED;
}

static void about_tensor(const struct checkpoint *ckpt, const struct checkpoint_tensor *tensor,
                         int status, struct error *err, const char *format, va_list args)
    __attribute__((format(printf, 5, 0)));

static void about_tensor(const struct checkpoint *ckpt, const struct checkpoint_tensor *tensor,
                         int status, struct error *err, const char *format, va_list args)
{
    char text[ERROR_MESSAGE_BYTES / 2];
    char name[ESCAPE_MAX_BYTES];
    vsnprintf(text, sizeof(text), format, args);
    escape_text(tensor->name, strlen(tensor->name), name);
    error_set(err, status, "%s: offset %" PRIu64 ": tensor \"%s\": %s%s",
              checkpoint_label(ckpt, tensor->file), tensor->directory_bytes, name, text,
              remedy_of(status));
}

int checkpoint_bad_tensor(const struct checkpoint *ckpt, const struct checkpoint_tensor *tensor,
                          struct error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    about_tensor(ckpt, tensor, STATUS_INVALID_ARGUMENT, err, format, args);
    va_end(args);
    return error_reason(err, REASON_MODEL_FILE_INVALID);
}

int checkpoint_unbuilt_tensor(const struct checkpoint *ckpt, const struct checkpoint_tensor *tensor,
                              struct error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    about_tensor(ckpt, tensor, STATUS_UNIMPLEMENTED, err, format, args);
    va_end(args);
    return STATUS_UNIMPLEMENTED;
}

int checkpoint_bad_weights(const struct checkpoint *ckpt, const struct checkpoint_tensor *tensor,
                           struct error *err)
{
    if (err->status != STATUS_FAILED_PRECONDITION)
        return error_prefix(err, "%s: tensor \"%.100s\"", checkpoint_label(ckpt, tensor->file),
                            tensor->name);
    const struct error why = *err;
    error_set(err, why.status, "%s: tensor \"%.100s\": %.200s; " CHECKPOINT_REMEDY,
              checkpoint_label(ckpt, tensor->file), tensor->name, why.message);
    return error_reason(err, REASON_MODEL_FILE_INVALID);
}

int checkpoint_check_type(const struct checkpoint *ckpt, const struct checkpoint_tensor *tensor,
                          struct error *err)
{
    if (tensor->dtype != DTYPE_OTHER)
        return 0;
    checkpoint_unbuilt_tensor(
        ckpt, tensor, err,
        "type %s is not supported; get the model in F32, F16 or BF16, or as a "
        "GGUF file",
        tensor->type_name);
    return error_reason(err, REASON_TENSOR_TYPE_UNSUPPORTED);
}

int checkpoint_bad_sidecar(const struct checkpoint *ckpt, const char *name, uint64_t offset,
                           struct error *err, const char *format, ...)
{
    char text[ERROR_MESSAGE_BYTES / 2], where[48] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (offset != UINT64_MAX)
        snprintf(where, sizeof(where), "offset %" PRIu64 ": ", offset);
    error_set(err, STATUS_INVALID_ARGUMENT, "%s: %s%s; " CHECKPOINT_REMEDY,
              checkpoint_label(ckpt, checkpoint_find_sidecar(ckpt, name)), where, text);
    return error_reason(err, REASON_MODEL_FILE_INVALID);
}
