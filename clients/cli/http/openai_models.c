#include "clients/cli/http/openai_models.h"

#include <stdio.h>

#include "base/error.h"
#include "clients/cli/http/http_fetch.h"

enum { CONNECT_MS = 10000, LIST_MS = 10000 };

struct list {
    const char *wanted;
    struct openai_model model;
    size_t n;
    struct strbuf names;
};

static int on_list(void *ctx, const char *name, const char *json, size_t n_bytes, struct error *err)
{
    struct list *list = ctx;
    (void)name;
    return openai_reply_read_models(json, n_bytes, list->wanted, &list->model, &list->n,
                                    &list->names, err);
}

static int fetch_list(const struct http_target *target, struct list *list, struct error *err)
{
    const struct http_wire_limits limits = {CONNECT_MS, LIST_MS, LIST_MS};
    struct http_fetch *fetch = NULL;
    int rc = http_fetch_create(target, &limits, &fetch, err);
    if (!rc)
        rc = http_fetch_run(fetch, "/models", NULL, on_list, list, err);
    http_fetch_destroy(fetch);
    return rc;
}

int openai_models_find(const struct http_target *target, const char *id,
                       struct openai_model *out_model, struct error *err)
{
    struct list list = {.wanted = id};
    int rc = fetch_list(target, &list, err);
    if (!rc && list.n == 1 && !list.model.id[0]) {
        list.wanted = NULL;
        rc = fetch_list(target, &list, err);
    }
    strbuf_fini(&list.names);
    if (rc)
        return rc;
    *out_model = list.model;
    snprintf(out_model->id, sizeof(out_model->id), "%s", id);
    return 0;
}

int openai_models_choose(const struct http_target *target, struct openai_model *out_model,
                         struct error *err)
{
    struct list list = {.wanted = NULL};
    int rc = fetch_list(target, &list, err);
    if (!rc && list.n == 1 && list.model.id[0]) {
        *out_model = list.model;
    } else if (!rc && list.n == 0) {
        rc = error_set(
            err, STATUS_FAILED_PRECONDITION,
            "the server lists no model; load one there, in Sluice with: sluice load MODEL");
    } else if (!rc) {
        error_set(err, STATUS_INVALID_ARGUMENT, "give a MODEL: the server lists %zu models%s%.300s",
                  list.n, list.n ? ": " : "", strbuf_str(&list.names));
        rc = error_reason(err, REASON_USAGE);
    }
    strbuf_fini(&list.names);
    return rc;
}
