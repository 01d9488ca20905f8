/* lane.h: a server thread with its completion queue, and the calls that other threads want
 * pumped. A thread with tokens for a thousand calls must not send them itself. Each send causes
 * an event that wakes the queue's thread. Instead the calls are put on the lane, whose thread
 * wakes once and sends for all of them. That thread then finds the events of its sends. Private
 * to proto/rpc. Any thread; lock inside. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include <grpc/grpc.h>

struct rpc_call;

struct rpc_lane {
    grpc_completion_queue *queue;
    pthread_mutex_t lock; /* taken while a call's lock is held */
    struct rpc_call *first, *last;
    bool awake; /* the thread will read the list, or is reading it */
};

void rpc_lane_init(struct rpc_lane *lane, grpc_completion_queue *queue);
void rpc_lane_fini(struct rpc_lane *lane);

/* Serves the lane's queue until that is shut down. A pthread start routine: arg is the lane. */
void *rpc_lane_run(void *lane);
/* True if the caller is the lane's thread. */
bool rpc_lane_is_mine(const struct rpc_lane *lane);

/* Adds a call that is not on a lane (the list takes the caller's reference). True if the caller
 * must wake the thread, which then calls rpc_lane_pump. */
bool rpc_lane_add(struct rpc_lane *lane, struct rpc_call *call);
/* Lane thread only: pumps until the list is empty. */
void rpc_lane_pump(struct rpc_lane *lane);
