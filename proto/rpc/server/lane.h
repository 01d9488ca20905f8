/* lane.h: one server thread with its completion queue, and the calls that others asked it to
 * pump. A thread that has a token for each of a thousand calls must not send them itself: every
 * send ends with an event on the call's queue, and each of those would wake the queue's thread. It
 * puts the calls on the lane instead; the lane's thread is woken once, sends for all of them, and
 * finds the events when it is through. Private to proto/rpc. Any thread; lock inside. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include <grpc/grpc.h>

struct rpc_call;

struct rpc_lane {
    grpc_completion_queue *queue;
    pthread_mutex_t lock; /* taken with a call's lock held */
    struct rpc_call *first, *last;
    bool awake; /* its thread will look at the list, or is doing so */
};

void rpc_lane_init(struct rpc_lane *lane, grpc_completion_queue *queue);
void rpc_lane_fini(struct rpc_lane *lane);

/* Serves the lane's queue until that is shut down. A pthread start routine: arg is the lane. */
void *rpc_lane_run(void *lane);
/* Whether the caller is that thread. */
bool rpc_lane_is_mine(const struct rpc_lane *lane);

/* Adds a call that is not on a lane (the list takes the caller's reference). True where the caller
 * must wake the thread, which is to call rpc_lane_pump then. */
bool rpc_lane_add(struct rpc_lane *lane, struct rpc_call *call);
/* On the lane's thread: pumps until the list is empty. */
void rpc_lane_pump(struct rpc_lane *lane);
