#include "server/worker/base/template_file.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/system/source.h"
#include "engine/engine.h"

int template_file_load(const char *path, struct chat_template **out_template, struct error *err)
{
    struct source *source = NULL;
    int rc = source_open(path, &source, err);
    if (rc)
        return error_prefix(err, "--chat-template-file");
    uint64_t n = source_size(source);
    char *text = NULL;
    if (n > CHAT_TEMPLATE_MAX_TEXT_BYTES)
        rc = error_set(err, STATUS_INVALID_ARGUMENT, "%s: %llu bytes exceed the limit of %d",
                       source_name(source), (unsigned long long)n, CHAT_TEMPLATE_MAX_TEXT_BYTES);
    else if (!(text = malloc((size_t)n + 1)))
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", source_name(source));
    if (!rc)
        rc = source_read(source, 0, text, (size_t)n, err);
    if (!rc)
        rc = chat_template_compile(text, (size_t)n, out_template, err);
    source_close(source);
    free(text);
    return rc ? error_prefix(err, "--chat-template-file") : 0;
}
