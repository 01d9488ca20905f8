#include "manager/rollout/traffic.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/rollout/lifecycle.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"

typedef Sluice__Manager__V1__TrafficWeight pb_weight;

const pb_traffic *traffic_find(const struct catalog *catalog, const char *model)
{
    struct row *row = catalog_get(catalog, TABLE_TRAFFIC, model);
    return row ? (const pb_traffic *)row_message(row) : NULL;
}

static pb_weight *find_weight(const pb_traffic *traffic, const char *version)
{
    for (size_t i = 0; traffic && i < traffic->n_weights; i++)
        if (strcmp(traffic->weights[i]->version, version) == 0)
            return traffic->weights[i];
    return NULL;
}

uint32_t traffic_weight(const pb_traffic *row, const char *version)
{
    const pb_weight *weight = find_weight(row, version);
    return weight ? weight->weight : 0;
}

static bool is_ready(const struct catalog *catalog, const pb_version *version)
{
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *replica = catalog_replica_at(catalog, i);
        if ((int)replica->state == REPLICA_READY && strcmp(replica->model, version->model) == 0 &&
            strcmp(replica->version, version->version) == 0)
            return true;
    }
    return false;
}

const pb_version *traffic_default(const struct catalog *catalog, const char *model)
{
    const pb_version *best = NULL;
    for (size_t i = catalog_first_version(catalog, model);; i++) {
        const pb_version *version = catalog_version_at(catalog, i);
        if (!version || strcmp(version->model, model) != 0)
            return best;
        if (is_ready(catalog, version) && (!best || version->sequence > best->sequence))
            best = version;
    }
}

bool traffic_set_weight(pb_traffic *traffic, const char *version, uint32_t weight)
{
    pb_weight *old = find_weight(traffic, version);
    if (old) {
        old->weight = weight;
        return true;
    }
    pb_weight *item = MESSAGE_NEW(pb_weight, sluice__manager__v1__traffic_weight__descriptor);
    if (!item)
        return false;
    item->weight = weight;
    if (message_set(&item->version, version) &&
        message_append(&traffic->n_weights, &traffic->weights, item))
        return true;
    message_free(&item->base);
    return false;
}

/* Removes all weights: the default rule. */
static void clear_weights(pb_traffic *traffic)
{
    for (size_t i = 0; i < traffic->n_weights; i++)
        message_free(&traffic->weights[i]->base);
    free(traffic->weights);
    traffic->weights = NULL;
    traffic->n_weights = 0;
}

/* "1=90 2=10, sticky", for people. */
static void describe(const pb_traffic *traffic, char *out, size_t n_out)
{
    size_t at = 0;
    out[0] = '\0';
    if (!traffic->n_weights)
        snprintf(out, n_out, "all to the ready version registered last");
    for (size_t i = 0; i < traffic->n_weights && at < n_out; i++)
        at += (size_t)snprintf(out + at, n_out - at, "%s%s=%" PRIu32, i ? " " : "",
                               traffic->weights[i]->version, traffic->weights[i]->weight);
    if (traffic->n_weights && traffic->sticky && at < n_out)
        snprintf(out + at, n_out - at, ", sticky");
}

int traffic_put(struct txn *txn, pb_traffic *traffic, const char *operation_id, struct error *err)
{
    const pb_traffic *old = traffic_find(txn_catalog(txn), traffic->model);
    char model[80], text[512];
    snprintf(model, sizeof(model), "%s", traffic->model);
    describe(traffic, text, sizeof(text));
    traffic->generation = (old ? old->generation : 0) + 1;
    failpoint("traffic.before_write");
    if (txn_put(txn, TABLE_TRAFFIC, &traffic->base, err) != 0 ||
        lifecycle_bump_model(txn, model, err) != 0)
        return err->status;
    struct txn_event event = {
        .type = "traffic.set", .model = model, .operation_id = operation_id, .message = text};
    int rc = txn_event(txn, &event, err);
    failpoint("traffic.before_commit");
    return rc;
}

int traffic_forget(struct txn *txn, const char *model, const char *version, struct error *err)
{
    const pb_traffic *row = traffic_find(txn_catalog(txn), model);
    if (!find_weight(row, version))
        return 0;
    pb_traffic *traffic = MESSAGE_COPY(pb_traffic, row);
    if (!traffic)
        return error_no_memory(err);
    size_t n = 0;
    uint64_t sum = 0;
    for (size_t i = 0; i < traffic->n_weights; i++) {
        if (strcmp(traffic->weights[i]->version, version) == 0) {
            message_free(&traffic->weights[i]->base);
            continue;
        }
        sum += traffic->weights[i]->weight;
        traffic->weights[n++] = traffic->weights[i];
    }
    traffic->n_weights = n;
    if (!sum)
        clear_weights(traffic);
    return traffic_put(txn, traffic, NULL, err);
}
