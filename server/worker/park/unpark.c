#include "server/worker/park/unpark.h"

#include <stddef.h>
#include <stdio.h>
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
};

void unpark_orders_destroy(struct unpark_orders *orders)
{
    if (!orders)
        return;
    settings_free(&orders->settings, orders->options);
    place_fini(&orders->place);
    free(orders);
}

/* --- fields that only a start can set --- */

static int needs_a_start(struct error *err, const char *field, const char *text)
{
    error_set(err, STATUS_FAILED_PRECONDITION, "%s%s%s; start a new process", field,
              *field ? ": " : "", text);
    snprintf(err->field, sizeof(err->field), "%s", field);
    return error_reason(err, REASON_NEEDS_A_START);
}

/* Compares a field that holds one text or one number. */
static bool is_same(const launch_record *a, const launch_record *b, const char *name)
{
    const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field_by_name(
        &sluice__worker__v1__launch__descriptor, name);
    const char *member_a = (const char *)a + field->offset;
    const char *member_b = (const char *)b + field->offset, *text_a, *text_b;
    if (field->type != PROTOBUF_C_TYPE_STRING)
        return memcmp(member_a, member_b, sizeof(uint64_t)) == 0;
    memcpy(&text_a, member_a, sizeof(text_a));
    memcpy(&text_b, member_b, sizeof(text_b));
    return strcmp(text_a, text_b) == 0;
}

static bool has_same_descriptors(const launch_record *a, const launch_record *b)
{
    return a->n_packed_fds == b->n_packed_fds &&
           (!a->n_packed_fds ||
            memcmp(a->packed_fds, b->packed_fds, a->n_packed_fds * sizeof(a->packed_fds[0])) == 0);
}

/* A parked worker has no GPU open, so a wake may name another GPU. */
static bool is_gpu(const char *devices)
{
    return device_name_is_gpu(devices);
}

int unpark_check(const struct settings *now, const struct settings *then, struct error *err)
{
    static const char *const fixed[] = {"replica",     "model",   "digest", "socket",
                                        "exit_report", "metrics", "tp",     "pp"};
    if (then->epoch != now->epoch) {
        error_set(err, STATUS_FAILED_PRECONDITION,
                  "the wake is for epoch %llu, this process has epoch %llu",
                  (unsigned long long)then->epoch, (unsigned long long)now->epoch);
        return error_reason(err, REASON_STALE_EPOCH);
    }
    if (!now->launch)
        return needs_a_start(err, "", "this process was started without a launch record");
    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
        if (!is_same(now->launch, then->launch, fixed[i]))
            return needs_a_start(err, fixed[i], "differs from this process's own");
    if (!has_same_descriptors(now->launch, then->launch))
        return needs_a_start(err, "packed_fds", "differ from this process's own");
    if (strcmp(now->devices, then->devices) != 0 &&
        !(is_gpu(now->devices) && is_gpu(then->devices)))
        return needs_a_start(err, "devices", "differ from this process's own");
    if (now->config.n_threads != then->config.n_threads)
        return needs_a_start(err, "config.n_threads", "differs from this process's own");
    if (*now->config.cpus && strcmp(now->config.cpus, then->config.cpus) != 0)
        return needs_a_start(err, "config.cpus", "differ from this process's own");
    return then->parked ? needs_a_start(err, "parked", "is set, but a woken worker serves") : 0;
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

static int read_orders(const struct worker *worker, const Sluice__Worker__V1__WakeRequest *request,
                       struct unpark_orders **out_orders, struct error *err)
{
    const struct settings *now = worker->settings;
    if (!request->launch)
        return needs_a_start(err, "launch", "the call has no launch record");
    struct unpark_orders *orders = calloc(1, sizeof(*orders));
    int rc = orders
                 ? settings_parse_record(request->launch, &orders->settings, &orders->options, err)
                 : error_set(err, STATUS_RESOURCE_EXHAUSTED, "wake: out of memory");
    if (!rc)
        rc = unpark_check(now, &orders->settings, err);
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

/* Concurrent calls are read one after the other, under the lock: the settings use a shared table
 * of options. */
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
