#include "server/worker/serve/device_end.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/log.h"
#include "kernels/device_fault.h"
#include "server/worker/base/message.h"
#include "server/worker/serve/exit_report.h"
#include "server/worker/serve/session.h"
#include "server/worker/state/worker.h"

/* NONE and CALL are not faults of a device: the engine failed, and no device did. */
static const Sluice__Worker__V1__DeviceFault wire_faults[N_DEVICE_FAULTS] = {
    [DEVICE_FAULT_MEMORY] = SLUICE__WORKER__V1__DEVICE_FAULT__DEVICE_FAULT_MEMORY,
    [DEVICE_FAULT_ILLEGAL_ACCESS] = SLUICE__WORKER__V1__DEVICE_FAULT__DEVICE_FAULT_ILLEGAL_ACCESS,
    [DEVICE_FAULT_TIMEOUT] = SLUICE__WORKER__V1__DEVICE_FAULT__DEVICE_FAULT_TIMEOUT,
    [DEVICE_FAULT_CONTAINED] = SLUICE__WORKER__V1__DEVICE_FAULT__DEVICE_FAULT_CONTAINED,
    [DEVICE_FAULT_ECC] = SLUICE__WORKER__V1__DEVICE_FAULT__DEVICE_FAULT_ECC,
    [DEVICE_FAULT_NVLINK] = SLUICE__WORKER__V1__DEVICE_FAULT__DEVICE_FAULT_NVLINK,
    [DEVICE_FAULT_DRIVER] = SLUICE__WORKER__V1__DEVICE_FAULT__DEVICE_FAULT_DRIVER,
    [DEVICE_FAULT_UNKNOWN] = SLUICE__WORKER__V1__DEVICE_FAULT__DEVICE_FAULT_UNKNOWN,
};

bool device_is_at_its_end(const struct error *why)
{
    return device_fault_is_final(device_fault_of_error(why));
}

static void write_report(struct worker *worker, const struct error *why, int exit_status)
{
    Sluice__Worker__V1__ExitReport report;
    struct arena arena;
    struct error err;
    char device[24] = "";
    uint32_t index;
    arena_init(&arena, 0, 0);
    exit_report_init(&report, worker->settings, worker->start_ticks);
    if (device_fault_of_error(why) && device_fault_device(why, &index))
        snprintf(device, sizeof(device), "cuda:%" PRIu32, index);
    report.cause = device_fault_of_error(why)
                       ? SLUICE__WORKER__V1__EXIT_CAUSE__EXIT_CAUSE_DEVICE_LOST
                       : SLUICE__WORKER__V1__EXIT_CAUSE__EXIT_CAUSE_ENGINE_FAILED;
    report.exit_status = exit_status;
    report.device_fault = wire_faults[device_fault_of_error(why)];
    report.device = device;
    report.error = message_error(&arena, why);
    report.n_finished = worker->n_finished;
    report.n_ended = worker->n_ended;
    if (exit_report_write(worker->settings, &report, &err) != 0)
        log_error(LOG_EVENT("exit report not written"), LOG_STR("message", err.message));
    arena_fini(&arena);
}

void device_end(struct worker *worker, const struct error *why)
{
    enum device_fault fault = device_fault_of_error(why);
    int exit_status = device_fault_exit_status(fault);
    struct error reported = *why;
    if (!reported.reason)
        error_reason(&reported, REASON_ENGINE_FAILED);
    write_report(worker, &reported, exit_status);
    log_error(fault ? LOG_EVENT("device failed") : LOG_EVENT("engine failed"),
              LOG_STR("reason", error_reason_name(&reported)), LOG_STR("message", reported.message),
              LOG_I64("status", exit_status));
    session_fail_all(worker, &reported);
    _exit(exit_status);
}
