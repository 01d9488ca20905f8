/* sim_world.c: random numbers, clock, libev's timers, asyncs and watches, failpoints. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "manager/base/failpoint.h"
#include "tests/sim/sim.h"

struct sim sim;

/* xoroshiro128+, seeded by splitmix64 (Blackman and Vigna, 2018). */
void sim_seed(uint64_t seed)
{
    for (int i = 0; i < 2; i++) {
        uint64_t z = (seed += 0x9e3779b97f4a7c15ULL);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
        sim.rng[i] = z ^ (z >> 31);
    }
}

static uint64_t rotate(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

uint64_t sim_random(void)
{
    uint64_t a = sim.rng[0], b = sim.rng[1], result = a + b;
    b ^= a;
    sim.rng[0] = rotate(a, 24) ^ b ^ (b << 16);
    sim.rng[1] = rotate(b, 37);
    return result;
}

uint64_t sim_below(uint64_t n)
{
    return (sim_random() >> 11) % n;
}

bool sim_chance(unsigned percent)
{
    return sim_below(100) < percent;
}

int64_t sim_soon(int64_t from_ms, int64_t to_ms)
{
    return sim.now_ns + (from_ms + (int64_t)sim_below((uint64_t)(to_ms - from_ms + 1))) * NS_PER_MS;
}

void sim_broken(const char *format, ...)
{
    va_list args;
    if (sim.broken)
        return;
    sim.broken = true;
    va_start(args, format);
    vsnprintf(sim.why, sizeof(sim.why), format, args);
    va_end(args);
}

void sim_trace(const char *format, ...)
{
    va_list args;
    if (!sim.verbose)
        return;
    fprintf(stderr, "%10.3f ", (double)sim.now_ns / 1e9);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

/* -- base/clock.h ---------------------------------------------------------------------------------
 */

/* The manager's own work takes time: the clock moves on every read. */
int64_t clock_now_ns(void)
{
    enum { ONE_IN = 8, MOST_US = 500 };
    if (sim.in_manager && sim_below(ONE_IN) == 0)
        sim.now_ns += (int64_t)sim_below(MOST_US) * 1000;
    return sim.now_ns;
}

int64_t clock_wall_ns(void)
{
    return sim.now_ns + sim.wall_offset_ns;
}

int64_t clock_thread_cpu_ns(void)
{
    return 0;
}

/* -- base/rng.h: hash tables draw the order of their entries from here, so a seed replays -------
 */

void rng_bytes(void *out, size_t n_bytes)
{
    unsigned char *p = out;
    while (n_bytes-- > 0)
        *p++ = (unsigned char)sim_below(256);
}

uint64_t rng_u64(void)
{
    return sim_random();
}

/* -- libev ----------------------------------------------------------------------------------------
 */

/* Timers count from the loop's last read of its clock (ev_now), a little earlier than now. */
void ev_timer_start(struct ev_loop *loop, ev_timer *timer)
{
    (void)loop;
    if (timer->active)
        return;
    if (sim.n_timers == SIM_MAX_TIMERS) {
        sim_broken("timers: more than %d run", SIM_MAX_TIMERS);
        return;
    }
    sim.timers[sim.n_timers++] = (struct sim_timer){
        .timer = timer,
        .at_ns = sim.began_ns + (int64_t)llround(timer->at * 1e9),
        .order = sim.order++,
    };
    timer->active = 1;
}

void ev_timer_stop(struct ev_loop *loop, ev_timer *timer)
{
    (void)loop;
    if (!timer->active)
        return;
    timer->active = 0;
    for (size_t i = 0; i < sim.n_timers; i++)
        if (sim.timers[i].timer == timer) {
            sim.timers[i] = sim.timers[--sim.n_timers];
            return;
        }
}

static size_t earliest(void)
{
    size_t best = 0;
    for (size_t i = 1; i < sim.n_timers; i++) {
        const struct sim_timer *a = &sim.timers[i], *b = &sim.timers[best];
        if (a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->order < b->order))
            best = i;
    }
    return best;
}

int64_t sim_timers_next_ns(void)
{
    return sim.n_timers ? sim.timers[earliest()].at_ns : INT64_MAX;
}

bool sim_timer_due(size_t *out_i)
{
    *out_i = earliest();
    return sim.n_timers && sim.timers[*out_i].at_ns <= sim.now_ns;
}

void sim_timer_fire(size_t i)
{
    ev_timer *timer = sim.timers[i].timer;
    if (timer->repeat > 0) {
        sim.timers[i].at_ns = sim.began_ns + (int64_t)llround(timer->repeat * 1e9);
        sim.timers[i].order = sim.order++;
    } else {
        ev_timer_stop(NULL, timer);
    }
    timer->cb(NULL, timer, EV_TIMER);
}

void ev_async_start(struct ev_loop *loop, ev_async *watcher)
{
    (void)loop;
    sim.async = watcher;
}

void ev_async_stop(struct ev_loop *loop, ev_async *watcher)
{
    (void)loop;
    (void)watcher;
    sim.async = NULL;
    sim.async_sent = false;
}

void ev_async_send(struct ev_loop *loop, ev_async *watcher)
{
    (void)loop;
    (void)watcher;
    sim.async_sent = true;
}

void ev_io_start(struct ev_loop *loop, ev_io *watcher)
{
    (void)loop;
    size_t i = (size_t)(watcher->fd - SIM_FIRST_FD);
    if (watcher->fd >= SIM_FIRST_FD && i < sim.n_processes)
        sim.processes[i].watch = watcher;
    watcher->active = 1;
}

void ev_io_stop(struct ev_loop *loop, ev_io *watcher)
{
    (void)loop;
    size_t i = (size_t)(watcher->fd - SIM_FIRST_FD);
    if (watcher->fd >= SIM_FIRST_FD && i < sim.n_processes && sim.processes[i].watch == watcher)
        sim.processes[i].watch = NULL;
    watcher->active = 0;
}

/* -- the end of a manager -------------------------------------------------------------------------
 */

void sim_kill_manager(bool cut)
{
    if (!sim.up || sim.dead)
        return;
    cut = cut && !sim.io_failed;
    sim_trace("manager killed%s", cut ? ", and the power is gone" : "");
    sim_check_before_crash();
    sim.dead = true;
    sim.cut = cut;
    sim.stats.n_crashes++;
    sim.stats.n_power_cuts += cut;
    sim_disk_crash(cut);
    if (cut)
        sim_processes_cut();
}

#if SLUICE_DEBUG_CHECKS
void failpoint(const char *name)
{
    if (!sim.up || sim.dead || !sim.failpoint_in || --sim.failpoint_in)
        return;
    sim_trace("failpoint %s", name);
    sim.stats.n_failpoints++;
    sim_kill_manager(sim.failpoint_cuts);
}
#endif
