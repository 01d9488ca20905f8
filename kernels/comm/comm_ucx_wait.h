/* comm_ucx_wait.h: connections, messages and waits of a communicator over UCX (comm_ucx.h): every
 * wait ends. Private to kernels/comm. The rank's thread, except where a function says otherwise. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "kernels/comm.h"
#include "kernels/comm/ucx_library.h"
#include "kernels/segments.h"

enum { UCX_MAX_RANKS = N_SEGMENTS, UCX_MAX_NAME_BYTES = 96 };

struct comm_ucx_peer;

/* Calls of comm.h, for tags and errors. */
enum ucx_call {
    UCX_CALL_HELLO,
    UCX_CALL_SUM_I32,
    UCX_CALL_SUM_F32,
    UCX_CALL_MAX_F32,
    UCX_CALL_GATHER,
    UCX_CALL_SEND,
    UCX_CALL_RECV,
    UCX_N_CALLS
};

/* The connection to another rank. */
struct ucx_link {
    ucp_ep_h ep; /* NULL: not open */
    char name[UCX_MAX_NAME_BYTES];
    ucs_status_t lost; /* UCS_OK while the connection holds */
    void *send, *recv; /* UCX's requests under way, or NULL */
    uint64_t n_sent, n_received;
};

struct comm_ucx {
    struct comm base;
    const struct ucx_library *ucx;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    size_t address_bytes;
    int event_fd; /* UCX's: readable when the worker has something to do */
    uint32_t timeout_ms;
    size_t slot_bytes;
    uint8_t *slots; /* [size][slot_bytes] */
    uint64_t n_calls;
    bool is_connected;
    struct error failure; /* status 0 while the communicator works */
    struct ucx_link links[UCX_MAX_RANKS];
    /* any thread */
    pthread_mutex_t lock;
    atomic_bool is_cancelled;
    struct error cancel_why; /* under the lock */
};

static inline uint8_t *comm_ucx_slot(const struct comm_ucx *u, uint32_t rank)
{
    return u->slots + rank * u->slot_bytes;
}

/* Keeps the first failure, withdraws all requests and closes all links. Returns `status`. */
int comm_ucx_fail(struct comm_ucx *u, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

int comm_ucx_open_link(struct comm_ucx *u, uint32_t rank, const struct comm_ucx_peer *peer);
/* Without `now`, first delivers what was sent, for a limited time. */
void comm_ucx_close_links(struct comm_ucx *u, bool now);

/* 0 if a call may begin. */
int comm_ucx_check(struct comm_ucx *u, enum ucx_call call);
/* Start a message into the slot of `from`, or from this rank's slot. At most one each way and link
 * at a time. */
int comm_ucx_post_recv(struct comm_ucx *u, uint32_t from, uint64_t tag, size_t n_bytes);
int comm_ucx_post_send(struct comm_ucx *u, uint32_t to, uint64_t tag, size_t n_bytes);
/* Waits for all messages under way, which have n_bytes each. */
int comm_ucx_wait(struct comm_ucx *u, enum ucx_call call, size_t n_bytes);
