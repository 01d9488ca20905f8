#include "clients/cli/shell/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/format.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/output.h"
#include "clients/cli/term/printable.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "proto/rpc/message/message.h"

enum { BAR_WIDTH = 30, RECONNECT_TRIES = 50, RECONNECT_MS = 200 };

struct progress {
    bool quiet, terminal;
    char stage[32];
    int tenth;
    bool drawn;
};

static bool ended(const Sluice__Manager__V1__Operation *op)
{
    return op->state == SLUICE__MANAGER__V1__OPERATION_STATE__OPERATION_STATE_DONE ||
           op->state == SLUICE__MANAGER__V1__OPERATION_STATE__OPERATION_STATE_FAILED ||
           op->state == SLUICE__MANAGER__V1__OPERATION_STATE__OPERATION_STATE_CANCELLED;
}

const char *progress_state_text(const Sluice__Manager__V1__Operation *op, char out[32])
{
    if (op->cancelling && !ended(op))
        return "cancelling";
    return output_enum(&sluice__manager__v1__operation_state__descriptor, (int)op->state, out);
}

static bool is_shifting(const Sluice__Manager__V1__Operation *op)
{
    return op->update && op->update->step < op->update->n_steps && strcmp(op->stage, "shift") == 0;
}

/* Time since the step began. A step's begin is the operation's last update. */
static uint64_t step_ms(const Sluice__Manager__V1__Operation *op)
{
    int64_t ms = (clock_wall_ns() - op->updated_unix_ns) / NS_PER_MS;
    return ms > 0 ? (uint64_t)ms : 0;
}

void progress_print_shift(FILE *out, const Sluice__Manager__V1__Operation *op)
{
    const Sluice__Manager__V1__UpdateProgress *update = op->update;
    const Sluice__Manager__V1__UpdateFigures *figures = update->new_figures;
    char now[32], all[32], ttft[32];
    uint64_t ms = step_ms(op);
    fprintf(out, "%" PRIu32 " %% to version %s, ", update->steps[update->step], op->version);
    if (ms <= update->step_ms)
        fprintf(out, "%s of %s", format_ms(ms, now), format_ms(update->step_ms, all));
    else
        fprintf(out, "waited %s beyond the step time for more answers",
                format_ms(ms - update->step_ms, now));
    if (figures && figures->n_ok + figures->n_failed)
        fprintf(out, ": %" PRIu64 " answers, %" PRIu64 " failed, first token %s",
                figures->n_ok + figures->n_failed, figures->n_failed,
                format_latency(figures->ttft_ms, ttft));
}

static bool has_gate(const Sluice__Manager__V1__UpdateStepEnd *step, const char *gate)
{
    for (size_t i = 0; i < step->n_unmeasured_gates; i++)
        if (strcmp(step->unmeasured_gates[i], gate) == 0)
            return true;
    return false;
}

/* True if an earlier step compared both versions, so that the gate was measured once. */
static bool compared_before(const Sluice__Manager__V1__UpdateProgress *update, size_t i_step)
{
    bool measured = false;
    for (size_t i = 0; i < i_step; i++)
        measured |= !has_gate(update->ended_steps[i], "max_ttft_ratio");
    return measured && update->ended_steps[i_step]->percent == 100;
}

unsigned progress_print_unmeasured(FILE *out, const Sluice__Manager__V1__Operation *op,
                                   const char *lead)
{
    const Sluice__Manager__V1__UpdateProgress *update = op->update;
    unsigned n_lines = 0;
    for (size_t i = 0; update && i < update->n_ended_steps; i++) {
        const Sluice__Manager__V1__UpdateStepEnd *step = update->ended_steps[i];
        bool any = false;
        for (size_t j = 0; j < step->n_unmeasured_gates; j++) {
            const char *gate = step->unmeasured_gates[j];
            if (strcmp(gate, "max_ttft_ratio") == 0 && compared_before(update, i))
                continue;
            if (any)
                fputs(", --", out);
            else
                fprintf(out, "%snot enough answers at %" PRIu32 " %%: --", lead, step->percent);
            for (; *gate; gate++)
                fputc(*gate == '_' ? '-' : *gate, out);
            any = true;
        }
        if (any)
            fprintf(out,
                    " (%" PRIu64 " answers of the new version, %" PRIu64
                    " of the old version; need %" PRIu64 ")\n",
                    step->n_answers, step->n_old_answers, step->n_wanted_answers);
        n_lines += any;
    }
    return n_lines;
}

/* Changes with every step and every quarter of the step's time; each change prints a line. */
static int shift_line(const Sluice__Manager__V1__Operation *op)
{
    const Sluice__Manager__V1__UpdateProgress *update = op->update;
    uint64_t quarter = update->step_ms ? step_ms(op) * 4 / update->step_ms : 0;
    return 100 + (int)update->step * 1000 + (int)(quarter < 999 ? quarter : 999);
}

static void draw_bar(struct progress *p, const Sluice__Manager__V1__Operation *op)
{
    char done[32], total[32], eta[32], bar[BAR_WIDTH + 1];
    double part = op->bytes_total ? (double)op->bytes_done / (double)op->bytes_total : 0;
    int filled = (int)(part * BAR_WIDTH);
    for (int i = 0; i < BAR_WIDTH; i++)
        bar[i] = i < filled ? '#' : '.';
    bar[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r\033[K%-8s [%s] %3.0f %%  %s / %s", op->stage, bar, part * 100,
            format_bytes(op->bytes_done, done), format_bytes(op->bytes_total, total));
    if (op->eta_ms)
        fprintf(stderr, "  %s left", format_ms(op->eta_ms, eta));
    p->drawn = true;
}

static void show(struct progress *p, const Sluice__Manager__V1__Operation *op)
{
    int tenth = op->bytes_total ? (int)(op->bytes_done * 10 / op->bytes_total) : 0;
    bool done = op->state == SLUICE__MANAGER__V1__OPERATION_STATE__OPERATION_STATE_DONE;
    /* A replica that cannot start has no stage; its error is reported at the end. */
    if (p->quiet || (!done && (ended(op) || strcmp(op->stage, "done") == 0)))
        return;
    bool shifts = is_shifting(op);
    if (p->terminal && shifts) {
        fputs("\r\033[Kshift ", stderr);
        progress_print_shift(stderr, op);
        p->drawn = true;
        return;
    }
    if (p->terminal) {
        draw_bar(p, op);
        return;
    }
    if (shifts)
        tenth = shift_line(op);
    if (strcmp(p->stage, op->stage) == 0 && tenth == p->tenth)
        return;
    snprintf(p->stage, sizeof(p->stage), "%s", op->stage);
    p->tenth = tenth;
    if (shifts) {
        fputs("shift ", stderr);
        progress_print_shift(stderr, op);
        fputc('\n', stderr);
    } else if (op->bytes_total &&
               !(op->update &&
                 op->update->phase > SLUICE__MANAGER__V1__UPDATE_PHASE__UPDATE_PHASE_SHIFT))
        fprintf(stderr, "%s %d %%\n", op->stage, (int)(op->bytes_done * 100 / op->bytes_total));
    else
        fprintf(stderr, "%s\n", op->stage);
}

/* Reads a WatchOperation stream to its end. *last is the last message. */
static int watch_once(struct cli *cli, const char *id, struct progress *p,
                      Sluice__Manager__V1__WatchOperationResponse **last, struct error *err)
{
    Sluice__Manager__V1__WatchOperationRequest request =
        SLUICE__MANAGER__V1__WATCH_OPERATION_REQUEST__INIT;
    struct rpc_client *client;
    struct rpc_reader *reader;
    ProtobufCMessage *message = NULL;
    request.id = (char *)(uintptr_t)id;
    int rc = cli_manager(cli, &client, err);
    if (!rc)
        rc = rpc_reader_open(client, &sluice__manager__v1__model_manager__descriptor,
                             "WatchOperation", &request.base, NULL, &reader, err);
    if (rc)
        return rc;
    while ((rc = rpc_reader_next(reader, &message, err)) == 0 && message) {
        if (*last)
            rpc_message_free(&(*last)->base);
        *last = (Sluice__Manager__V1__WatchOperationResponse *)message;
        if (!cli->settings.json)
            printable_message(message);
        if ((*last)->operation)
            show(p, (*last)->operation);
    }
    rpc_reader_close(reader);
    return rc;
}

static int outcome(const Sluice__Manager__V1__Operation *op, struct error *err)
{
    if (op->state == SLUICE__MANAGER__V1__OPERATION_STATE__OPERATION_STATE_DONE)
        return 0;
    if (!op->error)
        return error_set(err, STATUS_INTERNAL, "operation %s ended without an error text", op->id);
    error_set(err, status_from_grpc(op->error->code), "%s", op->error->message);
    return error_reason_parse(err, op->error->reason);
}

int progress_follow(struct cli *cli, const char *id,
                    Sluice__Manager__V1__WatchOperationResponse **out_last, struct error *err)
{
    struct progress p = {
        .quiet = cli->settings.json, .terminal = isatty(STDERR_FILENO) == 1, .tenth = -1};
    Sluice__Manager__V1__WatchOperationResponse *last = NULL;
    int rc = STATUS_UNAVAILABLE;
    for (int i = 0; i < RECONNECT_TRIES; i++) {
        rc = watch_once(cli, id, &p, &last, err);
        if ((rc != STATUS_UNAVAILABLE && rc != STATUS_CANCELLED) || cli->ending)
            break;
        struct timespec pause = {.tv_nsec = RECONNECT_MS * NS_PER_MS};
        nanosleep(&pause, NULL); /* a manager that restarts is back within seconds */
    }
    if (p.drawn)
        fputs("\r\033[K", stderr);
    if (!rc && (!last || !last->operation || !ended(last->operation)))
        rc = error_set(err, STATUS_INTERNAL,
                       "operation %s: the watch ended before the operation; see sluice ops", id);
    if (!rc)
        rc = outcome(last->operation, err);
    *out_last = last;
    return rc;
}
