#include "server/worker/park/unpark.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/settings/options.h"
#include "base/system/device_name.h"
#include "base/system/memory_policy.h"
#include "proto/rpc/server/call.h"
#include "server/worker/base/settings.h"
#include "server/worker/place/place.h"
#include "server/worker/state/worker.h"

struct unpark_orders {
    struct settings settings;
    struct place place; /* the place of the wake's CPUs; empty if the wake names none */
    struct options *options;
    char **flags; /* NULL-terminated; the first is the name of the mode */
};

void unpark_orders_destroy(struct unpark_orders *orders)
{
    if (!orders)
        return;
    options_destroy(orders->options);
    place_fini(&orders->place);
    for (size_t i = 0; orders->flags && orders->flags[i]; i++)
        free(orders->flags[i]);
    free((void *)orders->flags);
    free(orders);
}

/* --- flags that only a start can set --- */

#define FLAG(field, flag)                                                                          \
    {                                                                                              \
        flag, offsetof(struct settings, field)                                                     \
    }
static const struct {
    const char *flag;
    size_t offset;
} texts[] =
    {
        FLAG(socket, "socket"),   FLAG(exit_report, "exit-report"),
        FLAG(replica, "replica"), FLAG(metrics, "metrics"),
        FLAG(model, "model"),
},
  numbers[] = {
      FLAG(tp, "tp"),
      FLAG(pp, "pp"),
      FLAG(packed_fds, "packed-fds"),
      FLAG(request_threads, "request-threads"),
      FLAG(max_message_bytes, "max-message-bytes"),
};

static const char *text_at(const struct settings *settings, size_t offset)
{
    const char *text;
    memcpy(&text, (const char *)settings + offset, sizeof(text));
    return text ? text : "";
}

static uint64_t number_at(const struct settings *settings, size_t offset)
{
    uint64_t number;
    memcpy(&number, (const char *)settings + offset, sizeof(number));
    return number;
}

static int flag_differs(const char *flag, struct error *err)
{
    error_set(err, STATUS_FAILED_PRECONDITION,
              "--%s flag_differs from the flag of this process; start a new process", flag);
    return error_reason(err, REASON_NEEDS_A_START);
}

/* A parked worker has no GPU open, so a wake may name another GPU. */
static bool is_gpu(const char *devices)
{
    return device_name_is_gpu(devices);
}

static int check(const struct settings *now, const struct settings *then, struct error *err)
{
    if (then->epoch != now->epoch) {
        error_set(err, STATUS_FAILED_PRECONDITION,
                  "the wake is for epoch %llu, this process has epoch %llu",
                  (unsigned long long)then->epoch, (unsigned long long)now->epoch);
        return error_reason(err, REASON_STALE_EPOCH);
    }
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (strcmp(text_at(now, texts[i].offset), text_at(then, texts[i].offset)) != 0)
            return flag_differs(texts[i].flag, err);
    if (strcmp(now->devices, then->devices) != 0 &&
        !(is_gpu(now->devices) && is_gpu(then->devices)))
        return flag_differs("devices", err);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (number_at(now, numbers[i].offset) != number_at(then, numbers[i].offset))
            return flag_differs(numbers[i].flag, err);
    if (now->config.n_threads != then->config.n_threads)
        return flag_differs("threads", err);
    if (*now->config.cpus && strcmp(now->config.cpus, then->config.cpus) != 0)
        return flag_differs("cpus", err);
    if (then->no_sandbox != now->no_sandbox)
        return flag_differs("no-sandbox", err);
    if (!then->parked)
        return 0;
    error_set(err, STATUS_FAILED_PRECONDITION, "--parked: a wake must serve; leave the flag out");
    return error_reason(err, REASON_NEEDS_A_START);
}

/* --- CPUs --- */

/* A parked worker has no CPUs of its own, because it computes nothing. Its threads, and those it
 * starts later, run on the CPUs of the wake. */
static int take_cpus(struct unpark_orders *orders, const struct settings *now, struct error *err)
{
    struct settings *then = &orders->settings;
    then->place = now->place;
    if (!is_gpu(then->devices))
        then->devices = now->devices;
    if (!*then->config.cpus)
        return 0;
    int rc = place_init(&orders->place, then, "/sys", err);
    if (!rc)
        rc = cpus_confine_process(&orders->place.cpus, err);
    if (rc)
        return rc;
    then->place = &orders->place;
    then->devices = orders->place.devices;
    return 0;
}

/* --- the call --- */

static int copy_flags(struct unpark_orders *orders, const Sluice__Worker__V1__WakeRequest *request)
{
    orders->flags = calloc(request->n_flags + 2, sizeof(*orders->flags));
    if (!orders->flags)
        return -1;
    orders->flags[0] = strdup("serve");
    for (size_t i = 0; orders->flags[i] && i < request->n_flags; i++)
        orders->flags[i + 1] = strdup(request->flags[i]);
    return orders->flags[request->n_flags] ? 0 : -1;
}

/* Refuses flags of a command line that a manager never sends: they would read another file, or
 * do nothing. */
static int check_flags(const Sluice__Worker__V1__WakeRequest *request, struct error *err)
{
    static const char *const others[] = {"--help", "-h", "--config"};
    for (size_t i = 0; i < request->n_flags; i++)
        for (size_t k = 0; k < sizeof(others) / sizeof(others[0]); k++)
            if (strncmp(request->flags[i], others[k], strlen(others[k])) == 0)
                return error_set(err, STATUS_INVALID_ARGUMENT, "flags: %s is not allowed in a wake",
                                 others[k]);
    return 0;
}

static int check_no_arguments(const struct unpark_orders *orders, struct error *err)
{
    return options_n_positionals(orders->options)
               ? error_set(err, STATUS_INVALID_ARGUMENT, "flags: an argument is not a flag")
               : 0;
}

static int read_orders(const struct worker *worker, const Sluice__Worker__V1__WakeRequest *request,
                       struct unpark_orders **out_orders, struct error *err)
{
    const struct settings *now = worker->settings;
    struct unpark_orders *orders = calloc(1, sizeof(*orders));
    int rc = 0;
    if (!orders || copy_flags(orders, request) != 0)
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "wake: out of memory");
    if (!rc)
        rc = check_flags(request, err);
    if (!rc)
        rc = settings_parse(MODE_SERVE, (int)request->n_flags + 1, orders->flags, &orders->settings,
                            &orders->options, err);
    if (!rc)
        rc = check_no_arguments(orders, err);
    if (!rc)
        rc = check(now, &orders->settings, err);
    if (!rc)
        rc = take_cpus(orders, now, err);
    if (rc)
        unpark_orders_destroy(orders);
    else
        *out_orders = orders;
    return rc;
}

static bool is_parked(const struct worker *worker)
{
    return worker->state == SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_PARKED;
}

/* Concurrent calls are read one after the other, under the lock: parsing flags uses a shared
 * table. */
static int take_orders(struct worker *worker, const Sluice__Worker__V1__WakeRequest *request,
                       struct error *err)
{
    struct unpark_orders *orders = NULL;
    int rc = 0;
    pthread_mutex_lock(&worker->lock);
    if (!is_parked(worker)) {
        error_set(err, STATUS_FAILED_PRECONDITION, "the worker is not parked");
        rc = error_reason(err, REASON_NOT_PARKED);
    }
    if (!rc)
        rc = read_orders(worker, request, &orders, err);
    if (!rc) {
        worker->orders = orders;
        worker->orders_taken = false;
        worker->planned = (struct executor_plan){0};
        worker->started_ns = clock_now_ns();
        worker->state = SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_LOADING;
    }
    pthread_mutex_unlock(&worker->lock);
    return rc;
}

void unpark_handle_wake(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct worker *worker = context;
    const Sluice__Worker__V1__WakeResponse reply = SLUICE__WORKER__V1__WAKE_RESPONSE__INIT;
    struct error err;
    if (take_orders(worker, (const Sluice__Worker__V1__WakeRequest *)message, &err) != 0) {
        log_info(LOG_EVENT("wake refused"), LOG_STR("reason", error_reason_name(&err)),
                 LOG_STR("message", err.message));
        rpc_call_finish(call, &err);
        return;
    }
    wake_signal(&worker->main);
    wake_signal(&worker->status);
    rpc_call_reply(call, &reply.base);
}

bool unpark_is_asked(struct worker *worker)
{
    pthread_mutex_lock(&worker->lock);
    bool asked = worker->orders && !worker->orders_taken;
    pthread_mutex_unlock(&worker->lock);
    return asked;
}

static void set_log(const struct settings *settings)
{
    enum log_level level = LOG_LEVEL_INFO;
    enum log_format format = LOG_FORMAT_KV;
    (void)log_level_parse(settings->log_level, &level); /* the option table has checked the
                                                         * values */
    (void)log_format_parse(settings->log_format, &format);
    log_set(level, format);
}

void unpark_take(struct worker *worker)
{
    pthread_mutex_lock(&worker->lock);
    worker->orders_taken = true;
    pthread_mutex_unlock(&worker->lock);
    worker->settings = &worker->orders->settings; /* the old settings stay: threads may be
                                                   * reading them */
    set_log(worker->settings);
    /* A memory policy belongs to a thread, and to the threads it starts later. */
    if (*worker->orders->settings.config.cpus) {
        struct error why;
        memory_policy_set(NULL, 0, &why); /* removes the policy of the process's start, if there
                                           * was one */
        (void)place_enter(&worker->orders->place, &worker->orders->place.failure);
    }
    log_info(LOG_EVENT("woken"), LOG_STR("replica", worker->settings->replica),
             LOG_U64("epoch", worker->settings->epoch));
}
