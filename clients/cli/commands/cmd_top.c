/* cmd_top.c: `top`: a table of replicas that refreshes itself. */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "base/clock.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/output.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

typedef Sluice__Manager__V1__Replica replica_row;
typedef Sluice__Manager__V1__ListReplicasResponse list_response;

/* A replica's report from the last computation of its rate. */
struct sample {
    char id[64];
    uint64_t epoch, n_tokens;
    int64_t figures_ns;
    double rate; /* tokens/s; negative: unknown yet */
};

struct top {
    struct cli *cli;
    struct sample *samples; /* owned; of the last refresh */
    size_t n_samples;
};

static const struct sample *find_sample(const struct top *top, const replica_row *replica)
{
    for (size_t i = 0; i < top->n_samples; i++)
        if (strcmp(top->samples[i].id, replica->id) == 0)
            return top->samples[i].epoch == replica->epoch ? &top->samples[i] : NULL;
    return NULL;
}

/* Computes a replica's rate. Replicas report once a second; between two reports the last rate
 * stays. */
static struct sample make_sample(const struct top *top, const replica_row *replica)
{
    const struct sample *last = find_sample(top, replica);
    struct sample now = {
        .epoch = replica->epoch,
        .n_tokens = replica->n_generated_tokens,
        .figures_ns = replica->figures_ns,
        .rate = last ? last->rate : -1,
    };
    if (last && now.figures_ns > last->figures_ns && now.n_tokens >= last->n_tokens)
        now.rate = (double)(now.n_tokens - last->n_tokens) * (double)NS_PER_S /
                   (double)(now.figures_ns - last->figures_ns);
    snprintf(now.id, sizeof(now.id), "%s", replica->id);
    return now;
}

static int take_samples(struct top *top, const list_response *response, struct error *err)
{
    struct sample *samples = calloc(response->n_replicas + 1, sizeof(*samples));
    if (!samples)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t i = 0; i < response->n_replicas; i++)
        samples[i] = make_sample(top, response->replicas[i]);
    free(top->samples);
    top->samples = samples;
    top->n_samples = response->n_replicas;
    return 0;
}

static void print_sums(const struct top *top, const list_response *response)
{
    uint32_t n_ready = 0, n_running = 0, n_queued = 0;
    double rate = 0;
    for (size_t i = 0; i < response->n_replicas; i++) {
        const replica_row *r = response->replicas[i];
        n_ready += (int)r->state == SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_READY;
        n_running += r->n_running;
        n_queued += r->n_queued;
        rate += top->samples[i].rate > 0 ? top->samples[i].rate : 0;
    }
    printf("%zu replicas, %" PRIu32 " ready: %.1f tok/s, %" PRIu32 " running, %" PRIu32 " queued\n",
           response->n_replicas, n_ready, rate, n_running, n_queued);
}

static void print_rows(const struct top *top, const list_response *response)
{
    static const char *const headers[] = {"REPLICA", "MODEL",  "VERSION", "STATE",
                                          "TOK/S",   "KV",     "STATES",  "SNAPSHOTS",
                                          "RUNNING", "QUEUED", "MEMORY",  "GPU"};
    enum { STATES = 6, SNAPSHOTS };
    struct output_table table;
    print_sums(top, response);
    output_table_init(&table, CLI_N(headers), headers);
    table.optional = 1u << STATES | 1u << SNAPSHOTS;
    for (size_t i = 0; i < response->n_replicas; i++) {
        const replica_row *r = response->replicas[i];
        char state[80], rate[32] = "-", kv[16], states[24], snapshots[48], running[16], queued[16],
                        memory[32], gpu[32];
        if (top->samples[i].rate >= 0)
            snprintf(rate, sizeof(rate), "%.1f", top->samples[i].rate);
        snprintf(running, sizeof(running), "%" PRIu32, r->n_running);
        snprintf(queued, sizeof(queued), "%" PRIu32, r->n_queued);
        const char *cells[] = {r->id,
                               r->model,
                               r->version,
                               output_replica_state(r, state),
                               rate,
                               output_kv_text(r, kv),
                               output_states_text(r, states),
                               output_snapshots_text(r, snapshots),
                               running,
                               queued,
                               format_bytes(r->resident_bytes, memory),
                               r->gpu_bytes ? format_bytes(r->gpu_bytes, gpu) : ""};
        output_table_add(&table, cells);
    }
    output_table_print(&table);
    output_table_fini(&table);
}

/* Prints a refresh as JSON on one line. */
static void print_json_line(const struct top *top, const list_response *response)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < response->n_replicas; i++) {
        const replica_row *r = response->replicas[i];
        double rate = top->samples[i].rate, kv = output_kv_used(r);
        char state[32];
        output_enum(&sluice__manager__v1__replica_state__descriptor, (int)r->state, state);
        json_array_append_new(
            rows,
            json_pack("{s:s,s:s,s:s,s:s,s:s,s:b,s:o,s:o,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "id",
                      r->id, "model", r->model, "version", r->version, "state", state, "reason",
                      r->reason, "stalled", r->stalled, "tokens_per_second",
                      rate < 0 ? json_null() : json_real(rate), "kv_used_ratio",
                      kv < 0 ? json_null() : json_real(kv), "n_running", (json_int_t)r->n_running,
                      "n_queued", (json_int_t)r->n_queued, "resident_bytes",
                      (json_int_t)r->resident_bytes, "gpu_bytes", (json_int_t)r->gpu_bytes,
                      "n_state_slots", (json_int_t)r->n_state_slots, "n_states_used",
                      (json_int_t)r->n_states_used, "n_snapshots", (json_int_t)r->n_snapshots,
                      "n_snapshot_evictions", (json_int_t)r->n_snapshot_evictions));
    }
    json_t *refresh =
        json_pack("{s:I,s:o}", "at_unix_ns", (json_int_t)clock_wall_ns(), "replicas", rows);
    char *text = refresh ? json_dumps(refresh, JSON_COMPACT) : NULL;
    if (text)
        puts(text);
    free(text);
    json_decref(refresh);
}

/* Requests the replicas and, if `shown`, prints them. */
static int refresh(struct top *top, bool shown, struct error *err)
{
    Sluice__Manager__V1__ListReplicasRequest request =
        SLUICE__MANAGER__V1__LIST_REPLICAS_REQUEST__INIT;
    ProtobufCMessage *message;
    if (cli_call(top->cli, "ListReplicas", &request.base, &message, err) != 0)
        return err->status;
    const list_response *response = (const list_response *)message;
    int rc = take_samples(top, response, err);
    if (!rc && shown) {
        bool live = isatty(STDOUT_FILENO) && !top->cli->settings.once;
        if (top->cli->settings.json) {
            print_json_line(top, response);
        } else {
            if (live)
                fputs("\033[H\033[2J", stdout);
            print_rows(top, response);
            if (!live && !top->cli->settings.once)
                putchar('\n');
        }
        rc = output_flush("the replicas", err);
    }
    rpc_message_free(message);
    return rc;
}

static int run_top(struct cli *cli)
{
    struct top top = {.cli = cli};
    struct error err;
    bool once = cli->settings.once;
    int rc = refresh(&top, !once, &err);
    while (rc == 0) {
        poll(NULL, 0, (int)cli->settings.interval_ms);
        rc = refresh(&top, true, &err);
        if (once)
            break;
    }
    free(top.samples);
    if (rc && err.reason == REASON_STDOUT_CLOSED)
        return 0; /* the reader of the pipe has closed it */
    return rc ? cli_fail(cli, &err) : 0;
}

static const struct option_spec top_specs[] = {
    {"once", 0, OPTION_BOOL, CLI_OPTION(once), "false", NULL,
     "print the table once, after one interval, and end", 0, 0},
    {"interval", 'i', OPTION_MS, CLI_OPTION(interval_ms), "2s", "TIME",
     "time between two refreshes: 100ms to 1h", 100, 3600000},
};
static const struct manual_example top_examples[] = {
    {"sluice top", NULL}, {"sluice top --once --interval 5s --json", NULL}};

const struct cli_command cmd_top = {
    .name = "top",
    .arguments = "",
    .summary = "show a live table of replicas",
    .description =
        "TOK/S is the rate of generated tokens between the replica's last two reports; replicas "
        "report about once a second. KV is the used part of the KV cache's pool. On a terminal the "
        "table refreshes in place until Ctrl-C. In a pipe each refresh is a table of plain lines, "
        "followed by an empty line. With --json each refresh is one line.",
    .examples = top_examples,
    .n_examples = CLI_N(top_examples),
    .specs = top_specs,
    .n_specs = CLI_N(top_specs),
    .groups = CLI_MANAGE,
    .see_also = "sluice-ps(1)",
    .run = run_top,
};
