/* support_rpc.h: a server with known behaviour on its own unix socket, and a client of it. The
 * request's `model` chooses the behaviour:
 *
 *     Tokenize        "echo" answers version = text · "late" the same from another thread after
 *                     20 ms · "fail" an error with every detail · "never" nothing until cancelled ·
 *                     "silent" OK without a message
 *     Generate        "push" n messages by rpc_call_send · "pull" n messages by next
 *                     (n = sampling.seed) · "hang" one message, then nothing until cancelled
 *     GenerateStream  echoes each request's id and priority; "pause" as id: stops reading for 50 ms
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "proto/rpc/server/call.h"
#include "proto/rpc/server/server.h"
#include "sluice/v1/inference.pb-c.h"

struct error;

struct rpc_fixture {
    struct rpc_server *server;
    struct rpc_client *client;
    char dir[64], socket[96], target[104];

    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned n_cancelled, n_done, n_hanging; /* calls of "never" and "hang" */
    int64_t cancelled_ns;                    /* clock_now_ns() of the last on_cancel */
    uint64_t n_refused;                      /* pushes refused by the cap */
    uint64_t max_pending_seen;
};

/* Starts the server and the client. `config` may be NULL for defaults; the fixture sets the
 * services. Fails the test on an error. */
void rpc_fixture_start(struct rpc_fixture *fixture, const struct rpc_server_config *config);
void rpc_fixture_stop(struct rpc_fixture *fixture);
/* Creates a server with the fixture's handlers, without listening. */
int rpc_fixture_server(struct rpc_fixture *fixture, const struct rpc_server_config *config,
                       struct rpc_server **out_server, struct error *err);

/* Waits up to 5 s until *counter >= n. */
bool rpc_fixture_wait(struct rpc_fixture *fixture, const unsigned *counter, unsigned n);

unsigned rpc_fixture_read(struct rpc_fixture *fixture, const unsigned *counter);

/* A new folder under TMPDIR for sockets. */
void rpc_fixture_dir(char out_dir[64]);

/* Calls Tokenize. *out_version (owned by the caller) is the version in the answer. */
int rpc_fixture_tokenize(struct rpc_client *client, const char *model, const char *text,
                         uint64_t timeout_ms, char **out_version, struct error *err);
