#include "server/gateway/replicas/model_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"

enum { MAX_LIST_BYTES = 360 }; /* a text with further words has its place in an error */

int model_name_read(const char *text, const char *field, struct model_name *out_name,
                    struct error *err)
{
    size_t n_model = strcspn(text, ":");
    const char *version = text[n_model] ? text + n_model + 1 : "";
    if (!n_model || n_model >= MODEL_NAME_BYTES || strlen(version) >= MODEL_NAME_BYTES)
        return error_field(err, field, "must be NAME or NAME:VERSION, of at most %d bytes each",
                           MODEL_NAME_BYTES - 1);
    snprintf(out_name->model, sizeof(out_name->model), "%.*s", (int)n_model, text);
    snprintf(out_name->version, sizeof(out_name->version), "%s", version);
    return 0;
}

/* --- loaded models --- */

bool model_name_is_loaded(const route *r, const char *model, const char *version)
{
    return r->loaded && strcmp(r->model, model) == 0 &&
           (!version[0] || strcmp(r->version, version) == 0);
}

static int by_name(const void *a, const void *b)
{
    const route *const *left = a, *const *right = b;
    int order = strcmp((*left)->model, (*right)->model);
    if (order)
        return order;
    return (*left)->sequence < (*right)->sequence ? -1 : (*left)->sequence > (*right)->sequence;
}

const route **model_name_loaded(const struct route_table *routes, size_t *out_n)
{
    const Sluice__Manager__V1__RouteTable *message = route_table_message(routes);
    const route **list = calloc(message->n_routes + 1, sizeof(route *));
    size_t n = 0;
    for (size_t i = 0; list && i < message->n_routes; i++)
        if (message->routes[i]->loaded)
            list[n++] = message->routes[i];
    if (list)
        qsort(list, n, sizeof(list[0]), by_name);
    *out_n = n;
    return list;
}

size_t model_name_n_versions(const route **list, size_t n, size_t i)
{
    size_t k = i + 1;
    while (k < n && strcmp(list[k]->model, list[i]->model) == 0)
        k++;
    return k - i;
}

void model_name_write_list(const route **list, size_t n, struct strbuf *out)
{
    size_t n_named = 0, n_more = 0;
    strbuf_add_str(out, n ? "the loaded models are " : "no model is loaded");
    for (size_t i = 0; i < n; i += model_name_n_versions(list, n, i)) {
        if (n_named == MODEL_NAME_LISTED ||
            out->n_bytes + strlen(list[i]->model) > MAX_LIST_BYTES) {
            n_more++;
            continue;
        }
        strbuf_printf(out, "%s\"%s\"", n_named++ ? ", " : "", list[i]->model);
    }
    if (n_more)
        strbuf_printf(out, " and %zu more", n_more);
}

static int choose_only(const route **list, size_t n, const char *field, struct model_name *out_name,
                       struct error *err)
{
    struct strbuf names = {0};
    if (!n) {
        error_set(err, STATUS_FAILED_PRECONDITION,
                  "no model is loaded; load one with: sluice load MODEL");
        return error_reason(err, REASON_MODEL_NOT_LOADED);
    }
    if (model_name_n_versions(list, n, 0) == n)
        return model_name_read(list[0]->model, field, out_name, err);
    model_name_write_list(list, n, &names);
    int rc = error_field(err, field, "is missing, and %s", strbuf_str(&names));
    strbuf_fini(&names);
    return rc;
}

int model_name_choose(const struct route_table *routes, const char *text, const char *field,
                      struct model_name *out_name, struct error *err)
{
    size_t n;
    if (text)
        return model_name_read(text, field, out_name, err);
    const route **list = model_name_loaded(routes, &n);
    int rc = list ? choose_only(list, n, field, out_name, err) : error_no_memory(err);
    free(list);
    return rc;
}
