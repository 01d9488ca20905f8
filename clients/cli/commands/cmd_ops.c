/* cmd_ops.c: `ops`: open and ended operations, for example loads, unloads and scalings. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/status.h"
#include "clients/cli/shell/actions.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/progress.h"
#include "clients/cli/term/output.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

/* Returns the reason, or the status code's name if there is no reason. */
static const char *reason_text(const Sluice__V1__Error *error)
{
    return error->reason[0] ? error->reason : status_name(status_from_grpc(error->code));
}

/* Formats the progress: the new version's share of traffic for an update that shifts traffic, else
 * bytes. */
static void format_done(const Sluice__Manager__V1__Operation *op, char *out, size_t n_bytes)
{
    const Sluice__Manager__V1__UpdateProgress *update = op->update;
    bool shifts = update && !op->ended_unix_ns && update->step < update->n_steps &&
                  update->phase == SLUICE__MANAGER__V1__UPDATE_PHASE__UPDATE_PHASE_SHIFT;
    if (shifts)
        snprintf(out, n_bytes, "%" PRIu32 " %%", update->steps[update->step]);
    else if (op->bytes_total)
        snprintf(out, n_bytes, "%.0f %%", 100 * (double)op->bytes_done / (double)op->bytes_total);
    else
        snprintf(out, n_bytes, "%s", "");
}

static void operation_row(const Sluice__Manager__V1__Operation *op, struct output_table *table)
{
    char kind[32], state[32], done[32], age[32], reason[96];
    format_done(op, done, sizeof(done));
    snprintf(reason, sizeof(reason), "%s", op->error ? reason_text(op->error) : "");
    const char *cells[] = {
        op->id,
        output_enum(&sluice__manager__v1__operation_kind__descriptor, (int)op->kind, kind),
        op->model,
        op->version,
        progress_state_text(op, state),
        op->stage,
        done,
        output_age(op->created_unix_ns, age),
        reason};
    output_table_add(table, cells);
}

static int list_page(struct cli *cli, char *token, ProtobufCMessage **out, struct error *err)
{
    Sluice__Manager__V1__ListOperationsRequest request =
        SLUICE__MANAGER__V1__LIST_OPERATIONS_REQUEST__INIT;
    request.page_size = 1000;
    request.page_token = token;
    request.open_only = cli->settings.open;
    if (cli_word(cli, 0))
        request.model = (char *)(uintptr_t)cli_word(cli, 0);
    return cli_call(cli, "ListOperations", &request.base, out, err);
}

/* With --json prints an object per line, so that pages need no joining. */
static int run_list(struct cli *cli)
{
    static const char *const headers[] = {"OPERATION", "KIND", "MODEL", "VERSION", "STATE",
                                          "STAGE",     "DONE", "AGE",   "ERROR"};
    struct output_table table;
    struct error err;
    ProtobufCMessage *message = NULL, *page;
    char *token = (char *)(uintptr_t) "";
    int rc;
    output_table_init(&table, CLI_N(headers), headers);
    do {
        rc = list_page(cli, token, &page, &err);
        rpc_message_free(message); /* frees the page with its token */
        message = rc ? NULL : page;
        const Sluice__Manager__V1__ListOperationsResponse *list =
            (const Sluice__Manager__V1__ListOperationsResponse *)message;
        for (size_t i = 0; !rc && i < list->n_operations; i++)
            if (cli->settings.json)
                output_json(&list->operations[i]->base);
            else
                operation_row(list->operations[i], &table);
        token = rc ? NULL : list->next_page_token;
    } while (!rc && token[0]);
    rpc_message_free(message);
    if (!rc && !cli->settings.json)
        output_table_print(&table);
    output_table_fini(&table);
    return rc ? cli_fail(cli, &err) : 0;
}

/* Prints the progress of each rank, if there are several. */
static void print_ranks(const Sluice__Manager__V1__Operation *op)
{
    char done[32], total[32];
    for (size_t i = 0; op->n_ranks > 1 && i < op->n_ranks; i++) {
        const Sluice__V1__RankProgress *rank = op->ranks[i]->progress;
        if (!rank)
            continue;
        printf("  rank     %s %" PRIu32 ": %s, %s of %s\n", op->ranks[i]->replica_id, rank->rank,
               rank->stage, format_bytes(rank->bytes_done, done),
               format_bytes(rank->bytes_total, total));
    }
}

static void print_update(const Sluice__Manager__V1__Operation *op)
{
    const Sluice__Manager__V1__UpdateProgress *update = op->update;
    printf("replaces   %s %s\n", op->model, update->from_version);
    if (update->phase == SLUICE__MANAGER__V1__UPDATE_PHASE__UPDATE_PHASE_SHIFT &&
        update->step < update->n_steps) {
        printf("step       %" PRIu32 " of %zu: ", update->step + 1, update->n_steps);
        progress_print_shift(stdout, op);
        putchar('\n');
    }
    progress_print_unmeasured(stdout, op, "gates      ");
    if (update->error)
        printf("rollback   %s (%s)\n", update->error->message, reason_text(update->error));
}

static void print_details(const Sluice__Manager__V1__Operation *op)
{
    char kind[32], state[32], done[32], total[32], age[32];
    printf("operation  %s\nkind       %s\nmodel      %s %s\nstate      %s\nstage      %s\n", op->id,
           output_enum(&sluice__manager__v1__operation_kind__descriptor, (int)op->kind, kind),
           op->model, op->version, progress_state_text(op, state), op->stage);
    if (op->bytes_total)
        printf("done       %s of %s%s%s\n", format_bytes(op->bytes_done, done),
               format_bytes(op->bytes_total, total), op->eta_ms ? ", left " : "",
               op->eta_ms ? format_ms(op->eta_ms, age) : "");
    print_ranks(op);
    if (op->update)
        print_update(op);
    for (size_t i = 0; i < op->n_replica_ids; i++)
        printf("replica    %s\n", op->replica_ids[i]);
    printf("started    %s ago\n", output_age(op->created_unix_ns, age));
    if (op->ended_unix_ns)
        printf("ended      %s ago\n", output_age(op->ended_unix_ns, age));
    if (op->result && (op->result->n_finished || op->result->n_ended))
        printf("requests   %" PRIu32 " finished, %" PRIu32 " ended by the drain\n",
               op->result->n_finished, op->result->n_ended);
    for (size_t i = 0; op->result && i < op->result->n_memory; i++) {
        const Sluice__V1__DeviceMemory *m = op->result->memory[i];
        printf("memory     %s: before %s, after %s, expected %s\n", m->device,
               format_bytes(m->before_bytes, done), format_bytes(m->after_bytes, total),
               format_bytes(m->expected_bytes, age));
    }
    if (op->result && op->result->unreleased)
        printf("memory     %s (%s)\n", op->result->unreleased->message,
               op->result->unreleased->reason);
    if (op->error)
        printf("error      %s (%s)\n", op->error->message, reason_text(op->error));
}

static int run_show(struct cli *cli)
{
    Sluice__Manager__V1__GetOperationRequest request =
        SLUICE__MANAGER__V1__GET_OPERATION_REQUEST__INIT;
    ProtobufCMessage *message;
    struct error err;
    request.id = (char *)(uintptr_t)cli_word(cli, 0);
    if (cli_call(cli, "GetOperation", &request.base, &message, &err) != 0)
        return cli_fail(cli, &err);
    const Sluice__Manager__V1__Operation *op =
        ((const Sluice__Manager__V1__GetOperationResponse *)message)->operation;
    if (cli->settings.json)
        output_json(message);
    else if (op)
        print_details(op);
    rpc_message_free(message);
    return 0;
}

static int run_watch(struct cli *cli)
{
    Sluice__Manager__V1__WatchOperationResponse *last = NULL;
    struct error err;
    int rc = progress_follow(cli, cli_word(cli, 0), &last, &err);
    if (!rc)
        action_print(cli, &last->base);
    rpc_message_free(last ? &last->base : NULL);
    return rc ? cli_fail(cli, &err) : 0;
}

static int run_cancel(struct cli *cli)
{
    Sluice__Manager__V1__CancelOperationRequest request =
        SLUICE__MANAGER__V1__CANCEL_OPERATION_REQUEST__INIT;
    ProtobufCMessage *message;
    struct error err;
    char id[UUID_BYTES], state[32];
    rng_uuid(id);
    request.id = (char *)(uintptr_t)cli_word(cli, 0);
    request.request_id =
        cli->settings.request_id[0] ? (char *)(uintptr_t)cli->settings.request_id : id;
    if (cli_call(cli, "CancelOperation", &request.base, &message, &err) != 0)
        return cli_fail(cli, &err);
    const Sluice__Manager__V1__Operation *op =
        ((const Sluice__Manager__V1__CancelOperationResponse *)message)->operation;
    if (cli->settings.json)
        output_json(message);
    else if (op)
        printf("%s: %s\n", op->id, progress_state_text(op, state));
    rpc_message_free(message);
    return 0;
}

static const struct option_spec list_specs[] = {
    {"open", 0, OPTION_BOOL, CLI_OPTION(open), "false", NULL, "only operations that have not ended",
     0, 0},
};
static const struct manual_example list_examples[] = {
    {"sluice ops", NULL},
    {"sluice ops list smol --open", NULL},
    {"sluice ops list --json | jq -r .id", "each operation is an object on a line"},
};
static const struct manual_example show_examples[] = {{"sluice ops show o1", NULL}};
static const struct manual_example watch_examples[] = {{"sluice ops watch o1", NULL}};
static const struct manual_example cancel_examples[] = {{"sluice ops cancel o1", NULL}};

const struct cli_command cmd_ops_list = {
    .name = "ops list",
    .arguments = "[MODEL]",
    .summary = "list operations, newest first (also: sluice ops)",
    .examples = list_examples,
    .n_examples = CLI_N(list_examples),
    .specs = list_specs,
    .n_specs = CLI_N(list_specs),
    .groups = CLI_MANAGE,
    .run = run_list,
};
const struct cli_command cmd_ops_show = {
    .name = "ops show",
    .arguments = "OPERATION",
    .summary = "show the details of an operation",
    .examples = show_examples,
    .n_examples = CLI_N(show_examples),
    .groups = CLI_MANAGE,
    .run = run_show,
};
const struct cli_command cmd_ops_watch = {
    .name = "ops watch",
    .arguments = "OPERATION",
    .summary = "follow an operation to its end",
    .description = "Exit status 1 if the operation fails or is cancelled.",
    .examples = watch_examples,
    .n_examples = CLI_N(watch_examples),
    .groups = CLI_MANAGE,
    .run = run_watch,
};
const struct cli_command cmd_ops_cancel = {
    .name = "ops cancel",
    .arguments = "OPERATION",
    .summary = "cancel a running operation",
    .description = "Undoes what the operation has started. The operation ends as CANCELLED.",
    .examples = cancel_examples,
    .n_examples = CLI_N(cancel_examples),
    .groups = CLI_REQUEST_ID | CLI_MANAGE,
    .run = run_cancel,
};
