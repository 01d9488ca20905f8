#include "clients/cli/http/sse.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

void sse_init(struct sse *sse, sse_event_fn *on_event, void *ctx)
{
    *sse = (struct sse){.on_event = on_event, .ctx = ctx};
    strbuf_init(&sse->line, SSE_LINE_BYTES);
    strbuf_init(&sse->data, SSE_EVENT_BYTES);
}

void sse_fini(struct sse *sse)
{
    strbuf_fini(&sse->line);
    strbuf_fini(&sse->data);
}

static int too_long(struct error *err)
{
    return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                     "an event of the server's stream has over %d bytes", SSE_EVENT_BYTES);
}

static int end_event(struct sse *sse, struct error *err)
{
    bool has_data = sse->has_data;
    int rc = 0;
    sse->has_data = false;
    if (has_data)
        rc = sse->on_event(sse->ctx, sse->name, strbuf_str(&sse->data), sse->data.n_bytes, err);
    strbuf_clear(&sse->data);
    sse->name[0] = '\0';
    return rc;
}

static bool add_data(struct sse *sse, const char *value, size_t n)
{
    bool fits = !sse->has_data || strbuf_add_char(&sse->data, '\n');
    sse->has_data = true;
    return fits && strbuf_add(&sse->data, value, n);
}

/* Handles a line without its end. */
static int end_line(struct sse *sse, struct error *err)
{
    static const char mark[] = "\xEF\xBB\xBF"; /* a byte order mark before the first line */
    const char *line = strbuf_str(&sse->line);
    size_t n = sse->line.n_bytes;
    if (!sse->has_line && n >= 3 && memcmp(line, mark, 3) == 0) {
        line += 3;
        n -= 3;
    }
    sse->has_line = true;
    if (n == 0)
        return end_event(sse, err);
    const char *colon = memchr(line, ':', n);
    size_t n_name = colon ? (size_t)(colon - line) : n;
    const char *value = colon ? colon + 1 : line + n;
    size_t n_value = n - (size_t)(value - line);
    if (n_value && *value == ' ') {
        value++;
        n_value--;
    }
    if (n_name == 4 && memcmp(line, "data", 4) == 0)
        return add_data(sse, value, n_value) ? 0 : too_long(err);
    if (n_name == 5 && memcmp(line, "event", 5) == 0)
        snprintf(sse->name, sizeof(sse->name), "%.*s",
                 (int)(n_value < SSE_NAME_BYTES ? n_value : SSE_NAME_BYTES - 1), value);
    return 0; /* comments have an empty name; id and retry do not matter here */
}

int sse_feed(struct sse *sse, const char *bytes, size_t n_bytes, struct error *err)
{
    const char *end = bytes + n_bytes;
    for (const char *at = bytes; at < end;) {
        if (sse->after_cr) {
            sse->after_cr = false;
            if (*at == '\n') {
                at++;
                continue;
            }
        }
        const char *stop = at;
        while (stop < end && *stop != '\n' && *stop != '\r')
            stop++;
        if (!strbuf_add(&sse->line, at, (size_t)(stop - at)))
            return too_long(err);
        if (stop == end)
            return 0;
        sse->after_cr = *stop == '\r';
        at = stop + 1;
        int rc = end_line(sse, err);
        strbuf_clear(&sse->line);
        if (rc)
            return rc;
    }
    return 0;
}

int sse_end(struct sse *sse, struct error *err)
{
    int rc = sse->line.n_bytes ? end_line(sse, err) : 0;
    strbuf_clear(&sse->line);
    return rc ? rc : end_event(sse, err);
}
