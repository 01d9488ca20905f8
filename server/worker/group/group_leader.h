/* group_leader.h: the leader's side of a group of workers (proto/sluice/worker/v1/group.proto). The
 * order of calls: open, gather, connect the own ranks, start, close. Each waits at most as long as
 * its caller allows, and ends at once when the group ends.
 *
 * Before gather returns, a follower that goes away frees its ranks for another. Afterwards the
 * first loss ends the group for all: there is no partial group. */
#pragma once

#include <stdint.h>

#include "sluice/worker/v1/group.pb-c.h"

struct access;
struct error;
struct group_leader;

enum { GROUP_BEAT_MS = 300, GROUP_SILENCE_MS = 1500, GROUP_MEMBER_MS = 5000 };

/* Called once when the group ends before close: `why` has the machine and the cause. Any thread.
 * The callback may not call functions of the leader or follower. */
typedef void group_end_fn(void *arg, const struct error *why);

struct group_leader_config {
    const char *listen; /* "0.0.0.0:7600", or "unix:PATH" for processes of one machine */
    /* Identifies followers, which need the role operator. Required for TCP. Borrowed until close.
     * NULL: the mode of the socket file admits this user alone. */
    struct access *access;
    const Sluice__Worker__V1__GroupMember *self; /* copied */
    /* 0: the values above. How long a worker may be silent, and how long a call may take to send
     * its member. */
    uint32_t silence_ms, member_ms;
    group_end_fn *on_end;
    void *arg;
};

/* Listens. *out_leader is owned. INVALID_ARGUMENT for a bad member of the own, or a TCP port
 * without access; errors of rpc_server_listen_tcp(). */
int group_leader_open(const struct group_leader_config *config, struct group_leader **out_leader,
                      struct error *err);
/* The TCP port, or 0. */
uint16_t group_leader_port(const struct group_leader *leader);

/* Waits until all ranks have joined, then sends the roster to all. *out_roster is borrowed until
 * close. DEADLINE_EXCEEDED with the ranks that are missing: may be called again. */
int group_leader_gather(struct group_leader *leader, uint32_t timeout_ms,
                        const Sluice__Worker__V1__GroupRoster **out_roster, struct error *err);

/* The own ranks are connected: waits until those of all followers are, and starts the group.
 * DEADLINE_EXCEEDED with a machine that is not connected, or the cause of the end. */
int group_leader_start(struct group_leader *leader, uint32_t timeout_ms, struct error *err);

/* Tells the followers that the leader leaves, and waits for the last callback. NULL is accepted. */
void group_leader_close(struct group_leader *leader);
