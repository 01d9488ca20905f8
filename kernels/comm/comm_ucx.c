/* Each rank has a worker of UCX. A call posts a receive from every other rank, each into its own
 * slot. Then the rank sends its message to all, and waits for both. The 64 bits of a tag name the
 * call, the sender and its count, so messages of different calls never match. UCX reads and writes
 * slots only, never the caller's memory: after a failure, late messages do no harm. */
#include "kernels/comm/comm_ucx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/comm/comm_reduce.h"
#include "kernels/comm/comm_ucx_wait.h"
#include "kernels/tensor.h"

enum { DEFAULT_TIMEOUT_MS = 30000, SLOT_ALIGN = 64 };

static const char KEEPALIVE_INTERVAL[] = "500ms";

/* The first message between two ranks. */
struct hello {
    char magic[8];
    uint64_t size, index, max_bytes;
};

static const char HELLO_MAGIC[8] = "sluice1";

static uint64_t tag_of(enum ucx_call call, uint32_t from, uint64_t count)
{
    return (uint64_t)call << 56 | (uint64_t)from << 48 | (count & 0xFFFFFFFFFFFFu);
}

/* Sends the rank's own slot to all others, and fills the slots of the others. */
static int exchange(struct comm_ucx *u, enum ucx_call call, size_t n_bytes)
{
    int rc = comm_ucx_check(u, call);
    uint64_t count = u->n_calls++;
    for (uint32_t r = 0; !rc && r < u->base.size; r++)
        if (r != u->base.index)
            rc = comm_ucx_post_recv(u, r, tag_of(call, r, count), n_bytes);
    for (uint32_t r = 0; !rc && r < u->base.size; r++)
        if (r != u->base.index)
            rc = comm_ucx_post_send(u, r, tag_of(call, u->base.index, count), n_bytes);
    return rc ? rc : comm_ucx_wait(u, call, n_bytes);
}

static int reduce_message(struct comm *base, void *data, size_t n, enum comm_reduce how)
{
    static const enum ucx_call calls[] = {
        [COMM_SUM_I32] = UCX_CALL_SUM_I32,
        [COMM_SUM_TREE_F32] = UCX_CALL_SUM_F32,
        [COMM_MAX_F32] = UCX_CALL_MAX_F32,
    };
    struct comm_ucx *u = (struct comm_ucx *)base;
    const uint8_t *slots[UCX_MAX_RANKS];
    memcpy(comm_ucx_slot(u, base->index), data, n * sizeof(float));
    int rc = exchange(u, calls[how], n * sizeof(float));
    if (rc)
        return rc;
    for (uint32_t r = 0; r < base->size; r++)
        slots[r] = comm_ucx_slot(u, r);
    comm_reduce_slots(data, slots, base->size, n, how);
    return 0;
}

static int all_reduce(struct comm *base, struct stream *s, struct tensor *t, enum comm_reduce how)
{
    (void)s;
    return comm_reduce_pieces(base, t, how, ((struct comm_ucx *)base)->slot_bytes, reduce_message);
}

static int all_gather(struct comm *base, struct stream *s, void *dst, const void *src,
                      size_t n_bytes)
{
    (void)s;
    struct comm_ucx *u = (struct comm_ucx *)base;
    size_t limit = u->slot_bytes;
    int rc = 0;
    for (size_t done = 0; !rc && done < n_bytes; done += limit) {
        size_t n = n_bytes - done < limit ? n_bytes - done : limit;
        memcpy(comm_ucx_slot(u, base->index), (const uint8_t *)src + done, n);
        rc = exchange(u, UCX_CALL_GATHER, n);
        for (uint32_t r = 0; !rc && r < base->size; r++)
            memcpy((uint8_t *)dst + r * n_bytes + done, comm_ucx_slot(u, r), n);
    }
    return rc;
}

static int send_message(struct comm *base, struct stream *s, uint32_t to, const void *src,
                        size_t n_bytes)
{
    (void)s;
    struct comm_ucx *u = (struct comm_ucx *)base;
    if (to >= base->size || to == base->index)
        return STATUS_INTERNAL;
    size_t done = 0;
    int rc;
    do { /* an empty message is a message, too */
        size_t n = n_bytes - done < u->slot_bytes ? n_bytes - done : u->slot_bytes;
        rc = comm_ucx_check(u, UCX_CALL_SEND);
        if (!rc && n > 0)
            memcpy(comm_ucx_slot(u, base->index), (const uint8_t *)src + done, n);
        uint64_t count = u->links[to].n_sent++;
        if (!rc)
            rc = comm_ucx_post_send(u, to, tag_of(UCX_CALL_SEND, base->index, count), n);
        if (!rc)
            rc = comm_ucx_wait(u, UCX_CALL_SEND, n);
        done += n;
    } while (!rc && done < n_bytes);
    return rc;
}

static int recv_message(struct comm *base, struct stream *s, uint32_t from, void *dst,
                        size_t n_bytes)
{
    (void)s;
    struct comm_ucx *u = (struct comm_ucx *)base;
    if (from >= base->size || from == base->index)
        return STATUS_INTERNAL;
    size_t done = 0;
    int rc;
    do {
        size_t n = n_bytes - done < u->slot_bytes ? n_bytes - done : u->slot_bytes;
        rc = comm_ucx_check(u, UCX_CALL_RECV);
        uint64_t count = u->links[from].n_received++;
        if (!rc)
            rc = comm_ucx_post_recv(u, from, tag_of(UCX_CALL_SEND, from, count), n);
        if (!rc)
            rc = comm_ucx_wait(u, UCX_CALL_RECV, n);
        if (!rc && n > 0)
            memcpy((uint8_t *)dst + done, comm_ucx_slot(u, from), n);
        done += n;
    } while (!rc && done < n_bytes);
    return rc;
}

/* --- life --- */

static void destroy(struct comm *base)
{
    struct comm_ucx *u = (struct comm_ucx *)base;
    if (u->worker) {
        comm_ucx_close_links(u, u->failure.status != 0);
        if (u->address)
            u->ucx->worker_release_address(u->worker, u->address);
        u->ucx->worker_destroy(u->worker);
    }
    if (u->context)
        u->ucx->cleanup(u->context);
    pthread_mutex_destroy(&u->lock);
    free(u->slots);
    free(u);
}

static const struct comm_ops ops = {
    .name = "ucx",
    .destroy = destroy,
    .all_reduce = all_reduce,
    .all_gather = all_gather,
    .send = send_message,
    .recv = recv_message,
};

static int ucx_error(const struct comm_ucx *u, ucs_status_t status, const char *what,
                     struct error *err)
{
    return error_set(
        err, status == UCS_ERR_NO_MEMORY ? STATUS_RESOURCE_EXHAUSTED : STATUS_FAILED_PRECONDITION,
        "UCX: %s: %s", what, u->ucx->status_string(status));
}

static int open_context(struct comm_ucx *u, const struct comm_ucx_config *cfg, struct error *err)
{
    const struct ucx_library *ucx = u->ucx;
    ucp_config_t *config = NULL;
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
        .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP,
        .estimated_num_eps = u->base.size,
    };
    ucs_status_t status = ucx->config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return ucx_error(u, status, "settings (UCX_...)", err);
    /* Some transports have no connection that could break: UCX asks after such peers. */
    status = ucx->config_modify(config, "KEEPALIVE_INTERVAL", KEEPALIVE_INTERVAL);
    if (status == UCS_OK && cfg->transports)
        status = ucx->config_modify(config, "TLS", cfg->transports);
    if (status == UCS_OK)
        status = ucx->init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &u->context);
    ucx->config_release(config);
    if (status == UCS_OK)
        return 0;
    u->context = NULL;
    if (cfg->transports)
        return error_set(err, STATUS_INVALID_ARGUMENT, "UCX: transports \"%s\": %s",
                         cfg->transports, ucx->status_string(status));
    return ucx_error(u, status, "start", err);
}

static int open_worker(struct comm_ucx *u, struct error *err)
{
    const struct ucx_library *ucx = u->ucx;
    const ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    ucs_status_t status = ucx->worker_create(u->context, &params, &u->worker);
    if (status != UCS_OK) {
        u->worker = NULL;
        return ucx_error(u, status, "worker", err);
    }
    status = ucx->worker_get_efd(u->worker, &u->event_fd);
    if (status == UCS_OK)
        status = ucx->worker_get_address(u->worker, &u->address, &u->address_bytes);
    if (status != UCS_OK)
        return ucx_error(u, status, "address", err);
    if (u->address_bytes > COMM_UCX_MAX_ADDRESS_BYTES)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "UCX: the address has %zu bytes, limit %d; name fewer network devices "
                         "in UCX_NET_DEVICES",
                         u->address_bytes, COMM_UCX_MAX_ADDRESS_BYTES);
    return 0;
}

int comm_ucx_version(char *out_version, size_t n_bytes, struct error *err)
{
    unsigned major, minor, release;
    const struct ucx_library *ucx = ucx_library_open(err);
    if (!ucx)
        return err->status;
    ucx->get_version(&major, &minor, &release);
    snprintf(out_version, n_bytes, "%u.%u.%u", major, minor, release);
    return 0;
}

int comm_ucx_create(const struct comm_ucx_config *cfg, struct comm **out_comm, struct error *err)
{
    if (cfg->size != 2 && cfg->size != 4 && cfg->size != 8)
        return error_set(err, STATUS_INVALID_ARGUMENT, "comm: %u ranks, limit: one of 2, 4, 8",
                         cfg->size);
    if (cfg->index >= cfg->size)
        return error_set(err, STATUS_INVALID_ARGUMENT, "comm: rank %u of %u ranks", cfg->index,
                         cfg->size);
    if (cfg->max_bytes == 0 || cfg->max_bytes > SIZE_MAX / 4 / UCX_MAX_RANKS)
        return error_set(err, STATUS_INVALID_ARGUMENT, "comm: messages of %zu bytes",
                         cfg->max_bytes);
    const struct ucx_library *ucx = ucx_library_open(err);
    if (!ucx)
        return err->status;
    struct comm_ucx *u = calloc(1, sizeof(*u));
    if (!u)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "comm: out of memory");
    u->base = (struct comm){&ops, cfg->index, cfg->size};
    u->ucx = ucx;
    u->timeout_ms = cfg->timeout_ms ? cfg->timeout_ms : DEFAULT_TIMEOUT_MS;
    u->slot_bytes = (cfg->max_bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
    pthread_mutex_init(&u->lock, NULL);
    u->slots = aligned_alloc(SLOT_ALIGN, cfg->size * u->slot_bytes);
    int rc = 0;
    if (!u->slots)
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "comm: %zu bytes needed for slots",
                       cfg->size * u->slot_bytes);
    if (!rc)
        rc = open_context(u, cfg, err);
    if (!rc)
        rc = open_worker(u, err);
    if (rc) {
        destroy(&u->base);
        return rc;
    }
    *out_comm = &u->base;
    return 0;
}

void comm_ucx_address(const struct comm *comm, const void **out_address, size_t *out_n_bytes)
{
    const struct comm_ucx *u = (const struct comm_ucx *)comm;
    *out_address = u->address;
    *out_n_bytes = u->address_bytes;
}

/* Compares the group as every rank sees it. */
static int compare_hellos(struct comm_ucx *u)
{
    for (uint32_t r = 0; r < u->base.size; r++) {
        struct hello hello;
        memcpy(&hello, comm_ucx_slot(u, r), sizeof(hello));
        const char *name = r == u->base.index ? "this process" : u->links[r].name;
        if (memcmp(hello.magic, HELLO_MAGIC, sizeof(hello.magic)) != 0 || hello.index != r)
            return comm_ucx_fail(u, STATUS_FAILED_PRECONDITION,
                                 "rank %u, %s: another process answered at its address", r, name);
        if (hello.size != u->base.size || hello.max_bytes != u->slot_bytes)
            return comm_ucx_fail(u, STATUS_FAILED_PRECONDITION,
                                 "rank %u, %s: has %llu ranks and messages of %llu bytes; rank %u "
                                 "has %u ranks and messages of %zu bytes",
                                 r, name, (unsigned long long)hello.size,
                                 (unsigned long long)hello.max_bytes, u->base.index, u->base.size,
                                 u->slot_bytes);
    }
    return 0;
}

int comm_ucx_connect(struct comm *comm, const struct comm_ucx_peer *peers, struct error *err)
{
    struct comm_ucx *u = (struct comm_ucx *)comm;
    struct hello hello = {.size = u->base.size, .index = u->base.index, .max_bytes = u->slot_bytes};
    if (u->is_connected)
        return error_set(err, STATUS_FAILED_PRECONDITION, "comm: connected already");
    int rc = 0;
    for (uint32_t r = 0; !rc && r < comm->size; r++)
        if (r != comm->index)
            rc = comm_ucx_open_link(u, r, &peers[r]);
    memcpy(hello.magic, HELLO_MAGIC, sizeof(hello.magic));
    memcpy(comm_ucx_slot(u, comm->index), &hello, sizeof(hello));
    u->is_connected = !rc;
    if (!rc)
        rc = exchange(u, UCX_CALL_HELLO, sizeof(hello));
    if (!rc)
        rc = compare_hellos(u);
    if (rc)
        *err = u->failure;
    return rc;
}

void comm_ucx_failure(struct comm *comm, struct error *out_failure)
{
    *out_failure = ((struct comm_ucx *)comm)->failure;
}
