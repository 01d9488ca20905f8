#include "manager/rollout/update_measure.h"

#include <string.h>

#include "manager/base/context.h"
#include "manager/replicas/replica_view.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"

/* Adds the histogram. All workers of a version must have the same bounds. Otherwise there is no
 * quantile, and the mean counts. */
static void add_first(struct update_counts *out, const Sluice__Worker__V1__Histogram *h, bool first)
{
    size_t n_bytes = h->n_bounds * sizeof(h->bounds[0]);
    bool good = h->n_bounds && h->n_bounds <= UPDATE_MAX_BOUNDS && h->n_counts == h->n_bounds + 1;
    if (first && good) {
        out->n_bounds = (uint32_t)h->n_bounds;
        memcpy(out->bounds_s, h->bounds, n_bytes);
    } else if (!good || out->n_bounds != h->n_bounds ||
               memcmp(out->bounds_s, h->bounds, n_bytes) != 0) {
        out->n_bounds = 0;
        return;
    }
    for (size_t i = 0; i < h->n_counts; i++)
        out->n_first[i] += h->counts[i];
}

static const Sluice__Worker__V1__Histogram *find_first(const Sluice__Worker__V1__WorkerCounters *c)
{
    for (size_t i = 0; i < c->n_histograms; i++)
        if (c->histograms[i]->kind ==
            SLUICE__WORKER__V1__HISTOGRAM_KIND__HISTOGRAM_KIND_FIRST_TOKEN_SECONDS)
            return c->histograms[i];
    return NULL;
}

static void add_histograms(struct update_counts *out,
                           const Sluice__Worker__V1__WorkerCounters *from)
{
    for (size_t i = 0; i < from->n_histograms; i++) {
        const Sluice__Worker__V1__Histogram *h = from->histograms[i];
        uint64_t n = 0;
        for (size_t j = 0; j < h->n_counts; j++)
            n += h->counts[j];
        if (h->kind == SLUICE__WORKER__V1__HISTOGRAM_KIND__HISTOGRAM_KIND_QUEUE_SECONDS) {
            out->n_queued += n;
            out->queue_s += h->sum;
        } else if (h->kind == SLUICE__WORKER__V1__HISTOGRAM_KIND__HISTOGRAM_KIND_PREFILL_SECONDS) {
            out->n_prefilled += n;
            out->prefill_s += h->sum;
        }
    }
}

bool update_measure(struct fleet *fleet, const pb_operation *row, const char *version,
                    struct update_counts *out)
{
    const struct catalog *catalog = fleet->context->catalog;
    bool first = true;
    *out = (struct update_counts){0};
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *replica = catalog_replica_at(catalog, i);
        struct replica_view view = {0};
        if ((int)replica->state != REPLICA_READY || strcmp(replica->model, row->model) != 0 ||
            strcmp(replica->version, version) != 0 ||
            strcmp(replica->device_group, row->device_group) != 0)
            continue;
        replica_view_take(fleet, replica->id, &view);
        if (!view.status || !view.status->counters)
            return false;
        out->n_ok += view.status->counters->n_ok_requests;
        out->n_failed += view.status->counters->n_failed_requests;
        add_histograms(out, view.status->counters);
        const Sluice__Worker__V1__Load *load = view.status->load;
        out->n_live += load ? (uint64_t)load->n_running + load->n_queued + load->n_paused : 0;
        const Sluice__Worker__V1__Histogram *times = find_first(view.status->counters);
        if (times)
            add_first(out, times, first);
        else
            out->n_bounds = 0;
        first = false;
    }
    return true;
}

/* A restarted worker starts its totals at zero, so the sums can fall. */
bool update_went_down(const struct update_counts *now, const struct update_counts *then)
{
    return now->n_ok < then->n_ok || now->n_failed < then->n_failed ||
           now->n_prefilled < then->n_prefilled || now->n_queued < then->n_queued;
}
