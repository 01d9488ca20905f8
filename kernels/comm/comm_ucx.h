/* comm_ucx.h: collectives between ranks in several processes, on one machine or many. UCX carries
 * the bytes over TCP or InfiniBand, and adds no numbers. Each rank gathers the
 * pieces of all ranks and reduces them by comm_reduce.h. So the bits are those of
 * comm_shm_create().
 *
 * Life: create, exchange addresses by other means (server/worker/group), connect, calls of comm.h,
 * comm_destroy(). A rank calls from one thread at a time; only cancel is for any thread.
 *
 * Failure: every wait ends after timeout_ms, when the connection to a peer breaks, or by cancel.
 * The communicator is dead then: this call and all later ones return an error, and
 * comm_ucx_failure() has the cause. Peers notice the end and fail too. UCX 1.13 does not notice the
 * end of a peer in shared memory, so processes of one machine use TCP.
 *
 * Trust: UCX neither encrypts nor identifies peers. Its ports belong on a private network, and
 * addresses must come over an authenticated channel. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/comm.h"

enum { COMM_UCX_MAX_ADDRESS_BYTES = 8192, COMM_UCX_MAX_NAME = 95 };

struct comm_ucx_config {
    uint32_t index, size;   /* this rank, and the number of ranks: 2, 4 or 8 */
    size_t max_bytes;       /* longer data goes in pieces of this size; equal on all ranks */
    uint32_t timeout_ms;    /* longest wait for one piece; 0: 30,000 */
    const char *transports; /* as in UCX_TLS, for example "tcp"; NULL: UCX chooses */
};

struct comm_ucx_peer {
    const char *name;    /* for errors: "node-b (10.0.0.2)"; cut after COMM_UCX_MAX_NAME */
    const void *address; /* the peer's comm_ucx_address() */
    size_t n_bytes;
};

/* Writes "1.13.1", or fails like comm_ucx_create(). All ranks need the same version, because the
 * form of addresses depends on it. */
int comm_ucx_version(char *out_version, size_t n_bytes, struct error *err);

/* *out_comm is owned. FAILED_PRECONDITION, with the name of the package, without UCX.
 * INVALID_ARGUMENT for a bad size, or transports that this machine lacks. */
int comm_ucx_create(const struct comm_ucx_config *config, struct comm **out_comm,
                    struct error *err);

/* The address for other ranks; borrowed until comm_destroy(). */
void comm_ucx_address(const struct comm *comm, const void **out_address, size_t *out_n_bytes);

/* Connects to all ranks and compares sizes with them. Every rank calls it, once. `peers` has an
 * entry for each rank; the own entry is not read. UNAVAILABLE or DEADLINE_EXCEEDED with the rank
 * and its name, FAILED_PRECONDITION with both sides' values. */
int comm_ucx_connect(struct comm *comm, const struct comm_ucx_peer *peers, struct error *err);

/* Ends the current call and all later ones with a copy of `why`. Any thread; not during
 * comm_destroy(). */
void comm_ucx_cancel(struct comm *comm, const struct error *why);

/* Copies the cause of the failure: "rank 1, node-b (10.0.0.2): connection reset; waited for a sum
 * of f32, 4096 bytes". Status 0 without a failure. The calling rank's thread. */
void comm_ucx_failure(struct comm *comm, struct error *out_failure);
