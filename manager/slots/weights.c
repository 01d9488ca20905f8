#include "manager/slots/weights.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/system/device_name.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/slots/fleet.h"
#include "manager/slots/slot.h"
#include "manager/store/catalog.h"

enum {
    KEY_BYTES = TABLE_KEY_BYTES + 64,
    /* above the numbers of the descriptors in the child, so that no dup2 overwrites one of these */
    FIRST_FD = 64,
};
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

/* The memory of one deployment in one packing. */
struct set {
    struct set *next;
    bool of_gpu; /* a park copy: the GPU's weights, then those of the CPU ranks; always sealed */
    char key[KEY_BYTES];
    char filler[SLOT_ID_BYTES]; /* replica that fills the memory; empty: none */
    size_t n_fds;
    int fds[WEIGHTS_MAX_RANKS]; /* owned */
};

struct weights {
    struct fleet *fleet;
    struct set *sets;
};

static void make_key(char out[KEY_BYTES], const char *model, const char *version, const char *group,
                     uint32_t tp, uint32_t pp, const char *kernels)
{
    char key[TABLE_KEY_BYTES];
    table_key(key, model, version, group);
    snprintf(out, KEY_BYTES, "%s tp%u pp%u %.32s", key, tp, pp ? pp : 1, kernels);
}

static bool is_of_gpus(const pb_group *group)
{
    return device_name_is_gpu(group->devices[0]);
}

/* Writes the key of the packing that the deployment's workers use now. Returns the number of
 * ranks; 0: they share nothing. */
static uint32_t deployment_key(const struct weights *weights, const pb_deployment *deployment,
                               char out[KEY_BYTES], bool *out_of_gpu)
{
    const struct catalog *catalog = weights->fleet->context->catalog;
    const pb_version *version = catalog_version(catalog, deployment->model, deployment->version);
    const pb_group *group = catalog_group(catalog, deployment->device_group);
    if (!version || !group || !group->n_devices || deployment->tp < 1 ||
        catalog_n_ranks(deployment) > WEIGHTS_MAX_RANKS)
        return 0;
    *out_of_gpu = is_of_gpus(group);
    const char *kernels = deployment->config && *deployment->config->kernels
                              ? deployment->config->kernels
                          : version->config ? version->config->kernels
                                            : "";
    make_key(out, deployment->model, deployment->version, deployment->device_group, deployment->tp,
             deployment->pp, kernels);
    return catalog_n_ranks(deployment);
}

static uint32_t replica_key(const struct weights *weights, const char *replica_id,
                            char out[KEY_BYTES], bool *out_of_gpu)
{
    const struct catalog *catalog = weights->fleet->context->catalog;
    const pb_replica *row = catalog_replica(catalog, replica_id);
    const pb_deployment *deployment =
        row ? catalog_deployment(catalog, row->model, row->version, row->device_group) : NULL;
    return deployment ? deployment_key(weights, deployment, out, out_of_gpu) : 0;
}

static struct set *find_set(struct weights *weights, const char *key)
{
    struct set *set = weights->sets;
    while (set && strcmp(set->key, key) != 0)
        set = set->next;
    return set;
}

static void drop_set(struct weights *weights, struct set *set)
{
    struct set **at = &weights->sets;
    if (!set)
        return;
    while (*at != set)
        at = &(*at)->next;
    *at = set->next;
    for (size_t i = 0; i < set->n_fds; i++)
        close(set->fds[i]);
    free(set);
}

static bool is_sealed(const struct set *set)
{
    for (size_t i = 0; i < set->n_fds; i++) {
        int seals = fcntl(set->fds[i], F_GET_SEALS);
        if (seals < 0 || (seals & SEALS) != SEALS)
            return false;
    }
    return true;
}

static bool is_untouched(const struct set *set)
{
    struct stat st;
    for (size_t i = 0; i < set->n_fds; i++)
        if (fstat(set->fds[i], &st) != 0 || st.st_size != 0 || fcntl(set->fds[i], F_GET_SEALS) != 0)
            return false;
    return true;
}

static struct set *add_set(struct weights *weights, const char *key, const char *filler)
{
    struct set *set = calloc(1, sizeof(*set));
    if (!set)
        return NULL;
    snprintf(set->key, sizeof(set->key), "%s", key);
    snprintf(set->filler, sizeof(set->filler), "%s", filler);
    set->next = weights->sets;
    weights->sets = set;
    return set;
}

/* Takes `fd` in any case. */
static bool add_fd(struct set *set, int fd)
{
    int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FD);
    if (fd >= 0)
        close(fd);
    if (high < 0)
        return false;
    set->fds[set->n_fds++] = high;
    return true;
}

/* Returns NULL where memory or descriptors are exhausted; the worker then packs for itself. */
static struct set *create_set(struct weights *weights, const char *key, uint32_t n_ranks,
                              const char *filler)
{
    struct set *set = add_set(weights, key, filler);
    for (uint32_t r = 0; set && r < n_ranks; r++)
        if (!add_fd(set, memfd_create("sluice-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING))) {
            drop_set(weights, set);
            return NULL;
        }
    return set;
}

static bool is_filling(const struct weights *weights, const char *replica_id)
{
    struct slot *slot = slot_find(weights->fleet, replica_id);
    return slot && (slot->busy || slot_runs(slot));
}

/* True while an adopted worker may still report that it has or fills memory of this key. */
static bool may_still_report(const struct weights *weights, const char *key)
{
    struct fleet *fleet = weights->fleet;
    const struct catalog *catalog = weights->fleet->context->catalog;
    char other[KEY_BYTES];
    bool of_gpu;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const char *id = catalog_replica_at(catalog, i)->id;
        const struct slot *slot = slot_find(fleet, id);
        if (slot && slot->run.adopted && !slot->settled &&
            replica_key(weights, id, other, &of_gpu) && strcmp(other, key) == 0)
            return !fleet->settled_timeout;
    }
    return false;
}

bool weights_take(struct weights *weights, const char *replica_id, struct weights_fds *out_fds)
{
    char key[KEY_BYTES];
    bool of_gpu = false;
    uint32_t n_ranks = replica_key(weights, replica_id, key, &of_gpu);
    out_fds->n_fds = 0;
    if (!n_ranks)
        return true;
    struct set *set = find_set(weights, key);
    if (!set && of_gpu) /* a load does not fill a park copy */
        return !may_still_report(weights, key);
    if (set && !is_sealed(set)) {
        bool mine = strcmp(set->filler, replica_id) == 0;
        if (!mine && is_filling(weights, set->filler))
            return false;
        if (!mine || !is_untouched(set)) {
            drop_set(weights, set);
            set = NULL;
        }
    }
    if (!set && may_still_report(weights, key))
        return false;
    if (!set)
        set = create_set(weights, key, n_ranks, replica_id);
    if (!set)
        return true;
    memcpy(out_fds->fds, set->fds, sizeof(out_fds->fds));
    out_fds->n_fds = set->n_fds;
    return true;
}

void weights_ended(struct weights *weights, const char *replica_id)
{
    for (struct set *set = weights->sets, *next; set; set = next) {
        next = set->next;
        if (strcmp(set->filler, replica_id) != 0)
            continue;
        if (is_sealed(set))
            set->filler[0] = '\0';
        else
            drop_set(weights, set);
    }
}

/* Opens the memory that a worker reports, and compares the inode. The path may lead to a FIFO or
 * a terminal, since workers parse untrusted files. O_NONBLOCK keeps the open from waiting. */
static struct set *reopen(struct weights *weights, const char *key, const char *filler, pid_t pid,
                          const pb_status *status)
{
    struct set *set = add_set(weights, key, filler);
    char path[64];
    for (size_t i = 0; set && i < status->n_packed; i++) {
        const Sluice__Worker__V1__PackedMemory *packed = status->packed[i];
        struct stat st;
        snprintf(path, sizeof(path), "/proc/%ld/fd/%d", (long)pid, packed->fd);
        if (!add_fd(set, open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) ||
            fstat(set->fds[i], &st) != 0 || st.st_ino != packed->inode ||
            fcntl(set->fds[i], F_GET_SEALS) < 0) {
            log_warn(LOG_EVENT("packed weights not taken over"), LOG_STR("replica", filler),
                     LOG_I64("rank", (int64_t)i));
            drop_set(weights, set);
            return NULL;
        }
    }
    return set;
}

static bool same_memory(const struct set *set, const pb_status *status)
{
    struct stat st;
    for (size_t i = 0; i < set->n_fds; i++)
        if (i >= status->n_packed || fstat(set->fds[i], &st) != 0 ||
            st.st_ino != status->packed[i]->inode)
            return false;
    return set->n_fds == status->n_packed;
}

static bool take_over_park_copy(struct weights *weights, const char *key, const char *replica_id,
                                pid_t pid, const pb_status *status)
{
    if (!status->n_packed || status->n_packed > WEIGHTS_MAX_RANKS)
        return false;
    struct set *set = reopen(weights, key, replica_id, pid, status);
    if (set && !is_sealed(set)) {
        drop_set(weights, set);
        return false;
    }
    if (!set)
        return false;
    set->of_gpu = true;
    set->filler[0] = '\0';
    log_info(LOG_EVENT("park copy taken over"), LOG_STR("replica", replica_id));
    return true;
}

bool weights_on_status(struct weights *weights, const char *replica_id, pid_t pid,
                       const pb_status *status)
{
    char key[KEY_BYTES];
    bool of_gpu = false;
    uint32_t n_ranks = replica_key(weights, replica_id, key, &of_gpu);
    struct set *set = n_ranks ? find_set(weights, key) : NULL;
    if (n_ranks && of_gpu)
        return !set && take_over_park_copy(weights, key, replica_id, pid, status);
    bool sealed = status->n_packed == n_ranks;
    for (size_t i = 0; i < status->n_packed; i++)
        sealed &= status->packed[i]->sealed;
    if (!n_ranks)
        return false;
    if (set && same_memory(set, status)) {
        if (sealed)
            set->filler[0] = '\0';
        return sealed;
    }
    /* A worker that got memory and could not use it has packed weights of its own, which are
     * right now. */
    bool better = !set || *status->packed_note ||
                  (sealed && !is_sealed(set) && strcmp(set->filler, replica_id) == 0);
    if (status->n_packed == n_ranks && better && (sealed || !set)) {
        drop_set(weights, set);
        set = reopen(weights, key, replica_id, pid, status);
        if (set && sealed)
            set->filler[0] = '\0';
        if (set)
            log_info(LOG_EVENT("packed weights taken over"), LOG_STR("replica", replica_id));
        return true;
    }
    /* The replica was to fill the memory; its load is over and it reported none. */
    if (set && strcmp(set->filler, replica_id) == 0 && (int)status->state != WORKER_LOADING) {
        drop_set(weights, set);
        return true;
    }
    return false;
}

/* True where the replica serves from a GPU and is not to be parked: no park copy is needed. */
static bool serves_from_gpu(const struct catalog *catalog, const pb_replica *row)
{
    const pb_deployment *deployment =
        catalog_deployment(catalog, row->model, row->version, row->device_group);
    return (int)row->state == REPLICA_READY && (!deployment || !deployment->parked);
}

/* True where the replica may start again. A failed replica restarts on request, and its park
 * copy spares reading the file. A lack of memory may be over a moment later. A replica in a
 * crash loop gives its park copy back. */
static bool may_start_again(const pb_replica *row, bool of_gpu)
{
    if ((int)row->state == REPLICA_STOPPED)
        return false;
    return (int)row->state != REPLICA_FAILED ||
           (of_gpu && !reason_is(row->reason, REASON_CRASH_LOOP));
}

/* True where a replica of the deployment lives or may start. */
static bool has_users(const struct weights *weights, const struct set *set)
{
    const struct catalog *catalog = weights->fleet->context->catalog;
    char key[KEY_BYTES];
    bool of_gpu;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        if (replica_key(weights, row->id, key, &of_gpu) && strcmp(key, set->key) == 0 &&
            may_start_again(row, of_gpu) && !(of_gpu && serves_from_gpu(catalog, row)))
            return true;
    }
    return false;
}

void weights_sweep(struct weights *weights)
{
    for (struct set *set = weights->sets, *next; set; set = next) {
        next = set->next;
        if (!has_users(weights, set))
            drop_set(weights, set);
    }
}

bool weights_park_copy_at(const struct weights *weights, size_t i, uint64_t *out_bytes,
                          uint64_t *out_id)
{
    const struct set *set = weights->sets;
    struct stat st;
    for (; set && (!set->of_gpu || i-- > 0); set = set->next)
        ;
    *out_bytes = *out_id = 0;
    for (size_t k = 0; set && k < set->n_fds; k++)
        if (fstat(set->fds[k], &st) == 0) {
            *out_bytes += (uint64_t)st.st_size;
            *out_id = k ? *out_id : st.st_ino;
        }
    return set != NULL;
}

bool weights_are_whole(struct weights *weights, const char *replica_id)
{
    char key[KEY_BYTES];
    bool of_gpu;
    struct set *set =
        replica_key(weights, replica_id, key, &of_gpu) ? find_set(weights, key) : NULL;
    return set && is_sealed(set);
}

bool weights_are_held(struct weights *weights, const char *model, const char *version,
                      const char *group, uint32_t tp, uint32_t pp, const char *kernels)
{
    char key[KEY_BYTES];
    make_key(key, model, version, group, tp, pp, kernels);
    struct set *set = find_set(weights, key);
    return set && is_sealed(set) && !set->of_gpu; /* a new replica on a GPU takes GPU memory all
                                                   * the same */
}

int weights_create(struct fleet *fleet, struct weights **out_weights, struct error *err)
{
    struct weights *weights = calloc(1, sizeof(*weights));
    if (!weights)
        return error_no_memory(err);
    weights->fleet = fleet;
    *out_weights = weights;
    return 0;
}

void weights_destroy(struct weights *weights)
{
    if (!weights)
        return;
    while (weights->sets)
        drop_set(weights, weights->sets);
    free(weights);
}
