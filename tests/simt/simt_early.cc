#include "tests/simt/simt_early.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/simt/simt_processor.h"

struct simt_early {
    enum { IDLE, BEGUN, HELD, STOPPED } state = IDLE;
    std::mutex lock; /* guards all other fields */
    std::condition_variable changed;
    const simt_grid *grid = NULL;
    uint64_t number = 0;
    bool released = false;
    std::thread thread;
};

static void run(simt_early *e)
{
    simt_processor *p = simt_processor_create();
    std::unique_lock<std::mutex> hold(e->lock);
    for (;;) {
        e->changed.wait(hold, [e] { return e->state == e->BEGUN || e->state == e->STOPPED; });
        if (e->state == e->STOPPED)
            break;
        hold.unlock();
        simt_processor_begin(p, e->grid);
        simt_processor_hold(p, e);
        simt_processor_run(p, e->number, simt_block_seed(e->number));
        simt_processor_end(p);
        hold.lock();
        e->state = e->IDLE;
        e->changed.notify_all();
    }
    hold.unlock();
    simt_processor_destroy(p);
    simt_tls.processor = NULL;
}

simt_early *simt_early_create(void)
{
    simt_early *e = new simt_early;
    e->thread = std::thread(run, e);
    return e;
}

static void set_state(simt_early *e, decltype(simt_early::state) state)
{
    std::lock_guard<std::mutex> hold(e->lock);
    e->state = state;
    e->changed.notify_all();
}

void simt_early_destroy(simt_early *e)
{
    if (e == NULL)
        return;
    set_state(e, e->STOPPED);
    e->thread.join();
    delete e;
}

void simt_early_begin(simt_early *e, const simt_grid *grid, uint64_t number)
{
    std::unique_lock<std::mutex> hold(e->lock);
    e->grid = grid;
    e->number = number;
    e->released = false;
    e->state = e->BEGUN;
    e->changed.notify_all();
    e->changed.wait(hold, [e] { return e->state != e->BEGUN; });
}

void simt_early_hold(simt_early *e)
{
    std::unique_lock<std::mutex> hold(e->lock);
    e->state = e->HELD;
    e->changed.notify_all();
    e->changed.wait(hold, [e] { return e->released; });
}

void simt_early_release(simt_early *e)
{
    std::lock_guard<std::mutex> hold(e->lock);
    e->released = true;
    e->changed.notify_all();
}

void simt_early_join(simt_early *e)
{
    std::unique_lock<std::mutex> hold(e->lock);
    e->changed.wait(hold, [e] { return e->state == e->IDLE; });
}
