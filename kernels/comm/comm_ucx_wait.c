#include "kernels/comm/comm_ucx_wait.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "kernels/comm/comm_ucx.h"

/* Polls before a wait sleeps; longest sleep without a look at the clock; longest close. */
enum { N_SPINS = 200, MAX_SLEEP_MS = 100, CLOSE_MS = 500 };

static const char *const call_names[UCX_N_CALLS] = {
    [UCX_CALL_HELLO] = "the connection", [UCX_CALL_SUM_I32] = "a sum of i32",
    [UCX_CALL_SUM_F32] = "a sum of f32", [UCX_CALL_MAX_F32] = "a maximum of f32",
    [UCX_CALL_GATHER] = "a gather",      [UCX_CALL_SEND] = "the receipt of a message",
    [UCX_CALL_RECV] = "a message",
};

/* --- ends --- */

/* Polls until the request is done or the time is over, then releases it. */
static void finish_request(struct comm_ucx *u, void *request, int64_t deadline_ns)
{
    if (request == NULL || UCS_PTR_IS_ERR(request))
        return;
    while (u->ucx->request_check_status(request) == UCS_INPROGRESS && clock_now_ns() < deadline_ns)
        u->ucx->worker_progress(u->worker);
    u->ucx->request_free(request);
}

void comm_ucx_close_links(struct comm_ucx *u, bool now)
{
    static const ucp_request_param_t flush = {.op_attr_mask = 0};
    static const ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                              .flags = UCP_EP_CLOSE_FLAG_FORCE};
    void *closes[UCX_MAX_RANKS] = {NULL};
    int64_t deadline_ns = clock_now_ns() + CLOSE_MS * NS_PER_MS;
    for (uint32_t r = 0; r < u->base.size; r++) {
        struct ucx_link *link = &u->links[r];
        if (link->recv)
            u->ucx->request_cancel(u->worker, link->recv);
        if (link->ep)
            closes[r] =
                u->ucx->ep_close_nbx(link->ep, now || link->lost != UCS_OK ? &force : &flush);
        link->ep = NULL;
    }
    for (uint32_t r = 0; r < u->base.size; r++) {
        struct ucx_link *link = &u->links[r];
        finish_request(u, closes[r], deadline_ns);
        finish_request(u, link->recv, deadline_ns);
        finish_request(u, link->send, deadline_ns);
        link->recv = link->send = NULL;
    }
}

int comm_ucx_fail(struct comm_ucx *u, int status, const char *format, ...)
{
    if (!u->failure.status) {
        char text[ERROR_MESSAGE_BYTES];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        error_set(&u->failure, status, "%s", text);
    }
    comm_ucx_close_links(u, true);
    return u->failure.status;
}

static int fail_peer(struct comm_ucx *u, uint32_t rank, ucs_status_t status, enum ucx_call call,
                     size_t n_bytes)
{
    return comm_ucx_fail(u, STATUS_UNAVAILABLE, "rank %u, %s: %s; waited for %s, %zu bytes", rank,
                         u->links[rank].name, u->ucx->status_string(status), call_names[call],
                         n_bytes);
}

static int fail_cancelled(struct comm_ucx *u)
{
    pthread_mutex_lock(&u->lock);
    if (!u->failure.status)
        u->failure = u->cancel_why;
    pthread_mutex_unlock(&u->lock);
    comm_ucx_close_links(u, true);
    return u->failure.status;
}

void comm_ucx_cancel(struct comm *comm, const struct error *why)
{
    struct comm_ucx *u = (struct comm_ucx *)comm;
    pthread_mutex_lock(&u->lock);
    if (!atomic_load(&u->is_cancelled)) {
        u->cancel_why = *why;
        if (why->status >= 0)
            error_set(&u->cancel_why, STATUS_CANCELLED, "comm: cancelled");
        atomic_store(&u->is_cancelled, true);
    }
    pthread_mutex_unlock(&u->lock);
    u->ucx->worker_signal(u->worker);
}

/* --- links --- */

/* Called by UCX within a poll of the rank's thread. */
static void on_lost(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct ucx_link *link = arg;
    (void)ep;
    link->lost = status == UCS_OK ? UCS_ERR_CONNECTION_RESET : status;
}

int comm_ucx_open_link(struct comm_ucx *u, uint32_t rank, const struct comm_ucx_peer *peer)
{
    struct ucx_link *link = &u->links[rank];
    snprintf(link->name, sizeof(link->name), "%s", peer->name);
    if (peer->n_bytes == 0 || peer->n_bytes > COMM_UCX_MAX_ADDRESS_BYTES)
        return comm_ucx_fail(u, STATUS_INVALID_ARGUMENT,
                             "rank %u, %s: an address of %zu bytes, limit: 1 to %d", rank,
                             link->name, peer->n_bytes, COMM_UCX_MAX_ADDRESS_BYTES);
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = peer->address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_lost, .arg = link},
    };
    ucs_status_t status = u->ucx->ep_create(u->worker, &params, &link->ep);
    if (status == UCS_OK)
        return 0;
    link->ep = NULL;
    return comm_ucx_fail(u, STATUS_UNAVAILABLE, "rank %u, %s: %s", rank, link->name,
                         u->ucx->status_string(status));
}

/* --- messages --- */

int comm_ucx_check(struct comm_ucx *u, enum ucx_call call)
{
    if (u->failure.status)
        return u->failure.status;
    if (!u->is_connected)
        return comm_ucx_fail(u, STATUS_FAILED_PRECONDITION, "comm: %s before the connection",
                             call_names[call]);
    return 0;
}

int comm_ucx_post_recv(struct comm_ucx *u, uint32_t from, uint64_t tag, size_t n_bytes)
{
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL};
    void *request =
        u->ucx->tag_recv_nbx(u->worker, comm_ucx_slot(u, from), n_bytes, tag, UINT64_MAX, &param);
    if (UCS_PTR_IS_ERR(request))
        return comm_ucx_fail(u, STATUS_UNAVAILABLE, "rank %u, %s: receive: %s", from,
                             u->links[from].name, u->ucx->status_string(UCS_PTR_STATUS(request)));
    u->links[from].recv = request;
    return 0;
}

int comm_ucx_post_send(struct comm_ucx *u, uint32_t to, uint64_t tag, size_t n_bytes)
{
    const ucp_request_param_t param = {.op_attr_mask = 0};
    struct ucx_link *link = &u->links[to];
    void *request =
        u->ucx->tag_send_nbx(link->ep, comm_ucx_slot(u, u->base.index), n_bytes, tag, &param);
    if (UCS_PTR_IS_ERR(request))
        return comm_ucx_fail(u, STATUS_UNAVAILABLE, "rank %u, %s: send: %s", to, link->name,
                             u->ucx->status_string(UCS_PTR_STATUS(request)));
    link->send = request;
    return 0;
}

/* --- waits --- */

static int finish_recv(struct comm_ucx *u, uint32_t r, enum ucx_call call, size_t n_bytes)
{
    struct ucx_link *link = &u->links[r];
    ucp_tag_recv_info_t info;
    ucs_status_t status = u->ucx->tag_recv_request_test(link->recv, &info);
    if (status == UCS_INPROGRESS)
        return 0;
    u->ucx->request_free(link->recv);
    link->recv = NULL;
    if (status == UCS_ERR_MESSAGE_TRUNCATED)
        return comm_ucx_fail(u, STATUS_INTERNAL,
                             "rank %u, %s: sent more than %zu bytes for %s; the ranks do not make "
                             "the same calls",
                             r, link->name, n_bytes, call_names[call]);
    if (status != UCS_OK)
        return fail_peer(u, r, status, call, n_bytes);
    if (info.length != n_bytes)
        return comm_ucx_fail(u, STATUS_INTERNAL,
                             "rank %u, %s: sent %zu bytes for %s, not %zu; the ranks do not make "
                             "the same calls",
                             r, link->name, info.length, call_names[call], n_bytes);
    return 0;
}

static int finish_send(struct comm_ucx *u, uint32_t r, enum ucx_call call, size_t n_bytes)
{
    struct ucx_link *link = &u->links[r];
    ucs_status_t status = u->ucx->request_check_status(link->send);
    if (status == UCS_INPROGRESS)
        return 0;
    u->ucx->request_free(link->send);
    link->send = NULL;
    return status == UCS_OK ? 0 : fail_peer(u, r, status, call, n_bytes);
}

/* Takes the finished messages. *out_waits_for is a rank whose message is under way, or `size`. A
 * lost rank matters only if a message of it is missing: the rank may have left after its last. */
static int finish_messages(struct comm_ucx *u, enum ucx_call call, size_t n_bytes,
                           uint32_t *out_waits_for)
{
    uint32_t waits_for = u->base.size;
    int rc = 0;
    for (uint32_t r = 0; !rc && r < u->base.size; r++) {
        struct ucx_link *link = &u->links[r];
        if (link->recv)
            rc = finish_recv(u, r, call, n_bytes);
        if (!rc && link->send)
            rc = finish_send(u, r, call, n_bytes);
        if (rc || (!link->recv && !link->send))
            continue;
        if (link->lost != UCS_OK)
            rc = fail_peer(u, r, link->lost, call, n_bytes);
        else if (waits_for == u->base.size || link->recv)
            waits_for = r;
    }
    *out_waits_for = waits_for;
    return rc;
}

/* Sleeps until UCX has something to do, at most until the deadline. */
static int sleep_until_event(struct comm_ucx *u, int64_t left_ns)
{
    ucs_status_t status = u->ucx->worker_arm(u->worker);
    if (status == UCS_ERR_BUSY)
        return 0;
    if (status != UCS_OK)
        return comm_ucx_fail(u, STATUS_INTERNAL, "UCX: wait: %s", u->ucx->status_string(status));
    struct pollfd event = {.fd = u->event_fd, .events = POLLIN};
    int64_t left_ms = left_ns / NS_PER_MS + 1;
    (void)poll(&event, 1, left_ms < MAX_SLEEP_MS ? (int)left_ms : MAX_SLEEP_MS);
    return 0;
}

int comm_ucx_wait(struct comm_ucx *u, enum ucx_call call, size_t n_bytes)
{
    int64_t deadline_ns = clock_now_ns() + u->timeout_ms * NS_PER_MS;
    for (uint32_t n_polls = 0;; n_polls++) {
        bool is_late = clock_now_ns() >= deadline_ns; /* before the last poll, not after it */
        uint32_t waits_for;
        while (u->ucx->worker_progress(u->worker) > 0) {
        }
        int rc = finish_messages(u, call, n_bytes, &waits_for);
        if (rc || waits_for == u->base.size)
            return rc;
        if (atomic_load(&u->is_cancelled))
            return fail_cancelled(u);
        if (is_late)
            return comm_ucx_fail(u, STATUS_DEADLINE_EXCEEDED,
                                 "rank %u, %s: silent for %u ms; waited for %s, %zu bytes",
                                 waits_for, u->links[waits_for].name, u->timeout_ms,
                                 call_names[call], n_bytes);
        if (n_polls < N_SPINS)
            continue;
        rc = sleep_until_event(u, deadline_ns - clock_now_ns());
        if (rc)
            return rc;
    }
}
