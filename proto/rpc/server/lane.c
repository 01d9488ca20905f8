#include "proto/rpc/server/lane.h"

#include "proto/rpc/core/core.h"
#include "proto/rpc/server/call_internal.h"

static _Thread_local const struct rpc_lane *mine;

void rpc_lane_init(struct rpc_lane *lane, grpc_completion_queue *queue)
{
    *lane = (struct rpc_lane){.queue = queue};
    pthread_mutex_init(&lane->lock, NULL);
}

void rpc_lane_fini(struct rpc_lane *lane)
{
    pthread_mutex_destroy(&lane->lock);
}

void *rpc_lane_run(void *arg)
{
    struct rpc_lane *lane = arg;
    mine = lane;
    return rpc_core_run_queue(lane->queue);
}

bool rpc_lane_is_mine(const struct rpc_lane *lane)
{
    return mine == lane;
}

bool rpc_lane_add(struct rpc_lane *lane, struct rpc_call *call)
{
    pthread_mutex_lock(&lane->lock);
    call->next_kicked = NULL;
    if (lane->first != NULL)
        lane->last->next_kicked = call;
    else
        lane->first = call;
    lane->last = call;
    bool wake = !lane->awake;
    lane->awake = true;
    pthread_mutex_unlock(&lane->lock);
    return wake;
}

void rpc_lane_pump(struct rpc_lane *lane)
{
    for (;;) {
        pthread_mutex_lock(&lane->lock);
        struct rpc_call *call = lane->first;
        lane->first = NULL;
        lane->awake = call != NULL;
        pthread_mutex_unlock(&lane->lock);
        if (call == NULL)
            return;
        while (call != NULL) {
            struct rpc_call *next = call->next_kicked; /* read before another kick changes it */
            rpc_call_pump_kicked(call);
            call = next;
        }
    }
}
