/* fuzz_http_response.c: fuzzes the command line's readers of a server's answer. These are the
 * framing of the response, the events of a stream, and the JSON of each event. The outcome must not
 * depend on how the bytes are cut. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "clients/cli/http/http_response.h"
#include "clients/cli/http/openai_error.h"
#include "clients/cli/http/openai_reply.h"
#include "clients/cli/http/sse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_BODY = 1 << 16 };

struct outcome {
    unsigned status;
    bool is_broken, is_over;
    struct strbuf seen; /* texts of events, and statuses of errors */
};

static int on_event(void *ctx, const char *name, const char *data, size_t n_bytes,
                    struct error *err)
{
    struct outcome *out = ctx;
    struct openai_reply reply = {0};
    struct openai_model model;
    struct strbuf names = {0};
    struct error ignored = {0};
    size_t n;
    int rc = openai_reply_read(&reply, data, n_bytes, &ignored);
    if (!rc != !ignored.status)
        abort();
    strbuf_printf(&out->seen, "%s %d %s\n", name, rc, reply.finish);
    strbuf_add(&out->seen, strbuf_str(&reply.text), reply.text.n_bytes);
    openai_reply_fini(&reply);
    (void)openai_reply_read_models(data, n_bytes, NULL, &model, &n, &names, &ignored);
    strbuf_fini(&names);
    (void)err;
    return 0;
}

static void read_all(const char *bytes, size_t n, size_t step, struct outcome *out)
{
    struct http_response response = {0};
    struct strbuf body;
    struct sse sse;
    struct error err = {0};
    size_t at = 0;
    strbuf_init(&body, MAX_BODY);
    sse_init(&sse, on_event, out);
    while (!out->is_broken && at < n && response.state != HTTP_RESPONSE_OVER) {
        size_t used = 0, before = body.n_bytes;
        out->is_broken = http_response_feed(&response, bytes + at, n - at < step ? n - at : step,
                                            &used, &body, &err) != 0;
        at += used;
        if (!out->is_broken &&
            sse_feed(&sse, strbuf_str(&body) + before, body.n_bytes - before, &err) != 0)
            abort(); /* the body is below the limits of lines and events */
        if (!out->is_broken && !used)
            abort();
    }
    if (!out->is_broken)
        (void)sse_end(&sse, &err);
    out->status = out->is_broken ? 0 : response.status;
    out->is_over = !out->is_broken && response.state == HTTP_RESPONSE_OVER;
    if (out->is_over)
        openai_error_of_response(response.status, response.location, strbuf_str(&body),
                                 body.n_bytes, &err);
    if (out->is_broken) /* how much of a broken body came before the error depends on the cuts */
        strbuf_clear(&out->seen);
    sse_fini(&sse);
    strbuf_fini(&body);
    http_response_fini(&response);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t steps[] = {1, 7, SIZE_MAX / 2};
    struct outcome outcomes[3] = {{0}};
    for (size_t i = 0; i < 3; i++)
        read_all((const char *)data, size, steps[i], &outcomes[i]);
    for (size_t i = 1; i < 3; i++)
        if (outcomes[i].status != outcomes[0].status ||
            outcomes[i].is_broken != outcomes[0].is_broken ||
            outcomes[i].is_over != outcomes[0].is_over ||
            outcomes[i].seen.n_bytes != outcomes[0].seen.n_bytes ||
            memcmp(strbuf_str(&outcomes[i].seen), strbuf_str(&outcomes[0].seen),
                   outcomes[0].seen.n_bytes) != 0)
            abort();
    for (size_t i = 0; i < 3; i++)
        strbuf_fini(&outcomes[i].seen);
    return 0;
}
