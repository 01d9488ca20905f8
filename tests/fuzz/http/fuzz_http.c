/* fuzz_http.c: fuzzes what reads a client's HTTP: heads and chunked bodies, request after request
 * on one connection. The verdict and the bodies must not depend on how the bytes are cut. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"
#include "proto/http/http_chunks.h"
#include "proto/http/http_head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_HEAD = 4096, MAX_BODY = 4096 };

/* The requests that were read from a connection's bytes. */
struct outcome {
    unsigned n_requests, status; /* status of the refusal; 0: more bytes are needed */
    struct strbuf seen;          /* paths, lengths and bodies */
};

/* Reads a request from the first n bytes. Returns how many bytes it took; 0 if more are needed, or
 * with a refusal. */
static size_t read_request(const char *bytes, size_t n, size_t step, struct outcome *out)
{
    size_t scanned = 0, end = 0;
    enum http_head_end found = HTTP_HEAD_PART;
    struct http_head head;
    const char *why = NULL;
    while (found == HTTP_HEAD_PART && end < n) {
        end = n - end < step ? n : end + step;
        found = http_head_find_end(bytes, end, &scanned);
    }
    if (found != HTTP_HEAD_WHOLE || scanned > MAX_HEAD) {
        out->status = found == HTTP_HEAD_BROKEN ? 400 : scanned > MAX_HEAD ? 431 : 0;
        return 0;
    }
    char *copy = malloc(scanned);
    if (!copy)
        abort();
    memcpy(copy, bytes, scanned);
    out->status = http_head_parse(copy, scanned, &head, &why);
    if (!out->status != !why)
        abort();
    if (out->status) {
        free(copy);
        return 0;
    }
    strbuf_printf(&out->seen, "%s?%s %u\n", head.path, head.query, head.n_headers);
    for (uint32_t i = 0; i < head.n_headers; i++)
        if (http_head_header(&head, head.headers[i].name) == NULL)
            abort();
    bool is_chunked = head.is_chunked;
    uint64_t n_body = head.n_body;
    free(copy);
    if (!is_chunked) {
        if (n_body > n - scanned)
            return 0;
        strbuf_add(&out->seen, bytes + scanned, (size_t)n_body);
        return scanned + (size_t)n_body;
    }
    struct http_chunks chunks = {0};
    struct strbuf body;
    strbuf_init(&body, MAX_BODY);
    size_t at = scanned;
    unsigned status = 0;
    while (!status && at < n) {
        size_t used = 0;
        status =
            http_chunks_decode(&chunks, bytes + at, n - at < step ? n - at : step, &used, &body);
        at += used;
    }
    if (!strbuf_failed(&body) && status != 400)
        strbuf_add(&out->seen, strbuf_str(&body), body.n_bytes);
    strbuf_fini(&body);
    out->status = status == 200 ? 0 : status;
    return status == 200 ? at : 0;
}

static void read_all(const char *bytes, size_t n, size_t step, struct outcome *out)
{
    size_t at = 0;
    while (at < n) {
        size_t used = read_request(bytes + at, n - at, step, out);
        if (!used)
            return;
        out->n_requests++;
        at += used;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t steps[] = {1, 7, SIZE_MAX / 2};
    struct outcome outcomes[3] = {{0}};
    for (size_t i = 0; i < 3; i++)
        read_all((const char *)data, size, steps[i], &outcomes[i]);
    for (size_t i = 1; i < 3; i++)
        if (outcomes[i].n_requests != outcomes[0].n_requests ||
            outcomes[i].status != outcomes[0].status ||
            outcomes[i].seen.n_bytes != outcomes[0].seen.n_bytes ||
            memcmp(strbuf_str(&outcomes[i].seen), strbuf_str(&outcomes[0].seen),
                   outcomes[0].seen.n_bytes) != 0)
            abort();
    for (size_t i = 0; i < 3; i++)
        strbuf_fini(&outcomes[i].seen);
    return 0;
}
