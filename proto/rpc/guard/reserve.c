#include "proto/rpc/guard/reserve.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "proto/rpc/guard/guard.h"

/* PER_CPU: the most threads of gRPC's executor for each processor. */
enum { PER_CPU = 2, LEAST = 4, MOST = 64, STACK_BYTES = 1 << 20 };

typedef int create_fn(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                      void *arg);

/* A thread that waits. Freed by the thread itself when it begins to work. */
struct waiter {
    struct waiter *next;
    pthread_t thread;
    pthread_cond_t begun;
    void *(*start)(void *);
    void *arg;
};

static struct {
    pthread_once_t found, started;
    create_fn *create; /* libc's */
    pthread_mutex_t lock;
    struct waiter *first;
    uint32_t n_waiting, n_wanted;
    size_t stack_bytes; /* the default of the system */
    bool has_told;      /* the log has an event about the empty reserve */
} reserve = {
    .found = PTHREAD_ONCE_INIT, .started = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

static void find_create(void)
{
    union {
        void *symbol;
        create_fn *create;
    } next = {dlsym(RTLD_NEXT, "pthread_create")};
    reserve.create = next.create;
}

static void *wait_for_work(void *arg)
{
    struct waiter *waiter = arg;
    pthread_mutex_lock(&reserve.lock);
    while (waiter->start == NULL)
        pthread_cond_wait(&waiter->begun, &reserve.lock);
    pthread_mutex_unlock(&reserve.lock);
    void *(*start)(void *) = waiter->start;
    void *its = waiter->arg;
    pthread_cond_destroy(&waiter->begun);
    free(waiter);
    return start(its);
}

/* Under the lock: starts one more waiting thread. */
static bool add_waiter(void)
{
    struct waiter *waiter = calloc(1, sizeof(*waiter));
    pthread_attr_t attr;
    sigset_t every, before;
    if (waiter == NULL)
        return false;
    pthread_cond_init(&waiter->begun, NULL);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    bool made = reserve.create(&waiter->thread, &attr, wait_for_work, waiter) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (!made) {
        pthread_cond_destroy(&waiter->begun);
        free(waiter);
        return false;
    }
    waiter->next = reserve.first;
    reserve.first = waiter;
    reserve.n_waiting++;
    return true;
}

static void start_once(void)
{
    pthread_attr_t attr;
    long n = sysconf(_SC_NPROCESSORS_CONF) * PER_CPU;
    pthread_once(&reserve.found, find_create);
    pthread_attr_init(&attr);
    pthread_mutex_lock(&reserve.lock);
    pthread_attr_getstacksize(&attr, &reserve.stack_bytes);
    reserve.n_wanted = (uint32_t)(n < LEAST ? LEAST : n > MOST ? MOST : n);
    while (reserve.n_waiting < reserve.n_wanted && add_waiter())
        ;
    pthread_mutex_unlock(&reserve.lock);
    pthread_attr_destroy(&attr);
}

void rpc_reserve_start(void)
{
    pthread_once(&reserve.started, start_once);
}

uint32_t rpc_reserve_n_waiting(void)
{
    pthread_mutex_lock(&reserve.lock);
    uint32_t n = reserve.n_waiting;
    pthread_mutex_unlock(&reserve.lock);
    return n;
}

/* True for a thread of gRPC: it has attributes and asks for no size of its stack. Sluice's own
 * threads have no attributes or a size, so their makers learn that the system refuses a thread. */
static bool is_of_grpc(const pthread_attr_t *attr)
{
    size_t bytes;
    return attr != NULL && pthread_attr_getstacksize(attr, &bytes) == 0 &&
           bytes == reserve.stack_bytes;
}

/* Under the lock: a waiting thread does the work. */
static bool lend(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
    struct waiter *waiter = reserve.first;
    int detached = PTHREAD_CREATE_JOINABLE;
    if (waiter == NULL)
        return false;
    reserve.first = waiter->next;
    reserve.n_waiting--;
    *thread = waiter->thread;
    pthread_attr_getdetachstate(attr, &detached);
    if (detached == PTHREAD_CREATE_DETACHED)
        pthread_detach(waiter->thread);
    waiter->arg = arg;
    waiter->start = start;
    pthread_cond_signal(&waiter->begun);
    return true;
}

int rpc_guard_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                             void *arg)
{
    pthread_once(&reserve.found, find_create);
    int rc = reserve.create(thread, attr, start, arg);
    if (!is_of_grpc(attr))
        return rc;
    pthread_mutex_lock(&reserve.lock);
    bool lent = rc != 0 && lend(thread, attr, start, arg);
    bool tells = rc != 0 && !lent && !reserve.has_told;
    reserve.has_told = reserve.has_told || tells;
    if (rc == 0 && reserve.n_waiting < reserve.n_wanted)
        add_waiter();
    pthread_mutex_unlock(&reserve.lock);
    if (lent)
        log_warn(LOG_EVENT("thread taken from the reserve"), LOG_STR("why", strerror(rc)));
    if (tells)
        log_error(LOG_EVENT("gRPC cannot start a thread"), LOG_STR("why", strerror(rc)),
                  LOG_STR("hint", "connections may stand still; raise the limit and restart"));
    return lent ? 0 : rc;
}
