#include "server/gateway/tgi/tgi_model.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "server/gateway/replicas/route_table.h"

enum { RETRY_MS = 5000 };

static const char header[] = "X-Sluice-Model";

/* Splits "name:version". */
static int take_header(const char *wanted, struct tgi_model *out, struct error *err)
{
    size_t n_name = strcspn(wanted, ":");
    const char *version = wanted[n_name] ? wanted + n_name + 1 : "";
    if (n_name == 0 || n_name >= sizeof(out->name) || strlen(version) >= sizeof(out->version))
        return error_field(err, header, "must be NAME or NAME:VERSION");
    snprintf(out->name, sizeof(out->name), "%.*s", (int)n_name, wanted);
    snprintf(out->version, sizeof(out->version), "%s", version);
    return 0;
}

/* Finds the only loaded model. */
static int take_only(const Sluice__Manager__V1__RouteTable *table, struct tgi_model *out,
                     struct error *err)
{
    const char *name = NULL;
    for (size_t i = 0; i < table->n_routes; i++) {
        const route *r = table->routes[i];
        if (!r->loaded)
            continue;
        if (name && strcmp(name, r->model) != 0)
            return error_field(err, header,
                               "is missing, and several models are loaded; name one of them");
        name = r->model;
    }
    if (name) {
        snprintf(out->name, sizeof(out->name), "%s", name);
        return 0;
    }
    error_set(err, STATUS_UNAVAILABLE, "no model is loaded");
    err->retry_after_ms = RETRY_MS;
    return STATUS_UNAVAILABLE;
}

/* Copies the end tokens. The versions of a model rarely differ in them: the named or the first
 * loaded version counts. */
static void take_end_ids(const Sluice__Manager__V1__RouteTable *table, struct tgi_model *out)
{
    for (size_t i = 0; i < table->n_routes; i++) {
        const route *r = table->routes[i];
        bool is_it = r->loaded && r->info && strcmp(r->model, out->name) == 0 &&
                     (!out->version[0] || strcmp(r->version, out->version) == 0);
        if (!is_it)
            continue;
        for (size_t k = 0; k < r->info->n_eos_token_ids && k < TGI_ANSWER_MAX_END_IDS; k++)
            out->end_ids[out->n_end_ids++] = r->info->eos_token_ids[k];
        return;
    }
}

int tgi_model_choose(const struct route_table *routes, const char *wanted,
                     struct tgi_model *out_model, struct error *err)
{
    const Sluice__Manager__V1__RouteTable *table = route_table_message(routes);
    struct tgi_model model = {.n_end_ids = 0};
    int rc = wanted ? take_header(wanted, &model, err) : take_only(table, &model, err);
    if (rc)
        return rc;
    take_end_ids(table, &model);
    *out_model = model;
    return 0;
}
