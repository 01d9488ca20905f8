#include "server/worker/serve/heartbeat.h"

#include "base/clock.h"
#include "server/worker/serve/session.h"
#include "server/worker/state/worker.h"

void *heartbeat_run(void *arg)
{
    struct worker *worker = arg;
    int64_t sent_ns = 0;
    while (!atomic_load(&worker->ending)) {
        Sluice__Worker__V1__Load load = SLUICE__WORKER__V1__LOAD__INIT;
        int64_t now_ns = clock_now_ns();
        worker_fill_load(worker, worker->engine, &load);
        bool busy = load.n_ready || atomic_load(&worker->n_live);
        /* Sends early enough that the next round still keeps the promised interval. */
        if (busy || now_ns - sent_ns >= (HEARTBEAT_IDLE_MS - HEARTBEAT_BUSY_MS) * NS_PER_MS) {
            session_send_heartbeats(worker, &load);
            sent_ns = now_ns;
        }
        wake_wait(&worker->heartbeat, HEARTBEAT_BUSY_MS * NS_PER_MS);
    }
    return NULL;
}
