#include "clients/cli/serve/follow_replicas.h"

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "clients/cli/serve/announce.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/output.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

enum { AGAIN_MS = 200, MAX_DEAD = 64, ID_BYTES = 32 };

struct follower {
    struct cli *cli;
    uint64_t next;                 /* first event not yet seen; 0: events from now on */
    char dead[MAX_DEAD][ID_BYTES]; /* replicas that have died and are not ready again; "": free */
};

/* Returns the place of a dead replica; of "" a free place. NULL: none. */
static char *find_dead(struct follower *f, const char *id)
{
    for (size_t i = 0; i < MAX_DEAD; i++)
        if (strcmp(f->dead[i], id) == 0)
            return f->dead[i];
    return NULL;
}

static void tell(const struct follower *f, const char *event, const char *verb,
                 const Sluice__Manager__V1__Event *e, const char *message)
{
    announce(f->cli, event,
             json_pack("{s:s,s:s,s:s,s:s}", "replica", e->replica_id, "model", e->model, "version",
                       e->version, "message", message),
             "replica %s of %s %s %s%s%s", e->replica_id, e->model, e->version, verb,
             message[0] ? ": " : "", message);
}

static void handle_event(struct follower *f, const Sluice__Manager__V1__Event *e)
{
    char *dead = e->replica_id[0] ? find_dead(f, e->replica_id) : NULL;
    if (strcmp(e->type, "replica.died") == 0) {
        tell(f, "replica_ended", "died", e, e->message);
        if (!dead && (dead = find_dead(f, "")) != NULL)
            snprintf(dead, ID_BYTES, "%s", e->replica_id);
    } else if (strcmp(e->type, "replica.failed") == 0) {
        tell(f, "replica_failed", "failed and is not started again", e, e->message);
        if (dead)
            dead[0] = '\0';
    } else if (dead && strcmp(e->type, "replica.ready") == 0) {
        tell(f, "replica_restarted", "started again", e, "");
        dead[0] = '\0';
    } else if (dead && strcmp(e->type, "replica.stopped") == 0) {
        dead[0] = '\0';
    }
}

/* Reads events until the stream ends. */
static int read_events(struct follower *f, struct rpc_reader *reader, struct error *err)
{
    ProtobufCMessage *message = NULL;
    int rc;
    while ((rc = rpc_reader_next(reader, &message, err)) == 0 && message) {
        const Sluice__Manager__V1__WatchEventsResponse *batch =
            (const Sluice__Manager__V1__WatchEventsResponse *)message;
        for (size_t i = 0; i < batch->n_events && !f->cli->ending; i++) {
            handle_event(f, batch->events[i]);
            f->next = batch->events[i]->seq + 1;
        }
        rpc_message_free(message);
    }
    return rc;
}

static int watch(struct follower *f, struct error *err)
{
    Sluice__Manager__V1__WatchEventsRequest request =
        SLUICE__MANAGER__V1__WATCH_EVENTS_REQUEST__INIT;
    struct rpc_client *client;
    struct rpc_reader *reader;
    request.from_seq = f->next;
    int rc = cli_manager(f->cli, &client, err);
    if (!rc)
        rc = rpc_reader_open(client, &sluice__manager__v1__model_manager__descriptor, "WatchEvents",
                             &request.base, NULL, &reader, err);
    if (rc)
        return rc;
    rc = read_events(f, reader, err);
    rpc_reader_close(reader);
    return rc;
}

void follow_replicas(struct cli *cli)
{
    struct follower f = {.cli = cli};
    struct error err;
    while (!cli->ending) {
        int rc = watch(&f, &err);
        if (rc && (err.reason == REASON_EVENTS_GONE || err.reason == REASON_EVENTS_TO_COME))
            f.next = 0;
        if (!cli->ending)
            poll(NULL, 0, AGAIN_MS); /* the manager is being restarted */
    }
}
