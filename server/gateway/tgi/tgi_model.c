#include "server/gateway/tgi/tgi_model.h"

#include "base/error.h"

enum { RETRY_MS = 5000 };

/* Copies the end tokens. The versions of a model rarely differ in them: the named or the first
 * loaded version counts. */
static void take_end_ids(const Sluice__Manager__V1__RouteTable *table, struct tgi_model *out)
{
    for (size_t i = 0; i < table->n_routes; i++) {
        const route *r = table->routes[i];
        if (!r->info || !model_name_is_loaded(r, out->name.model, out->name.version))
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
    int rc = model_name_choose(routes, wanted, "X-Sluice-Model", &model.name, err);
    if (rc && err->reason == REASON_MODEL_NOT_LOADED) {
        rc = error_set(err, STATUS_UNAVAILABLE,
                       "no model is loaded; load one with: sluice load MODEL");
        err->retry_after_ms = RETRY_MS;
    }
    if (rc)
        return rc;
    take_end_ids(table, &model);
    *out_model = model;
    return 0;
}
