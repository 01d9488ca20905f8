/* group_follower.h: a follower's side of a group of workers (proto/sluice/worker/v1/group.proto).
 * The order of calls: join, connect the own ranks to those of the roster, start, close. */
#pragma once

#include <stdint.h>

#include "server/worker/group/group_leader.h"
#include "sluice/worker/v1/group.pb-c.h"

struct error;
struct group_follower;
struct rpc_client_config;

struct group_follower_config {
    /* The leader's address, TLS and key; read by join (proto/rpc/client/client.h). */
    const struct rpc_client_config *client;
    const Sluice__Worker__V1__GroupMember *self; /* borrowed until close */
    uint32_t silence_ms;                         /* 0: GROUP_SILENCE_MS */
    group_end_fn *on_end;
    void *arg;
};

/* Connects, joins and waits for the roster, timeout_ms in all. *out_follower is owned. on_end may
 * come before join returns.
 * UNAVAILABLE without a leader, DEADLINE_EXCEEDED while other ranks are missing, INVALID_ARGUMENT
 * for a bad roster. The leader's refusal: group_book_join(). */
int group_follower_join(const struct group_follower_config *config, uint32_t timeout_ms,
                        struct group_follower **out_follower, struct error *err);
/* Borrowed until close. */
const Sluice__Worker__V1__GroupRoster *group_follower_roster(const struct group_follower *follower);

/* The own ranks are connected: tells the leader, and waits until the whole group has started.
 * DEADLINE_EXCEEDED, or the cause of the end. */
int group_follower_start(struct group_follower *follower, uint32_t timeout_ms, struct error *err);

/* Leaves the group, which ends it for all, and waits for the last callback. NULL is accepted. */
void group_follower_close(struct group_follower *follower);
