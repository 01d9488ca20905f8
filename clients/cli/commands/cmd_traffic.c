/* cmd_traffic.c: `traffic`: how requests without a version are spread over a model's versions. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/output.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

typedef Sluice__Manager__V1__TrafficWeight weight_message;

enum { MAX_WEIGHTS = 64, VERSION_BYTES = 33 };

struct weights {
    weight_message items[MAX_WEIGHTS];
    weight_message *list[MAX_WEIGHTS];
    char versions[MAX_WEIGHTS][VERSION_BYTES];
    size_t n;
};

/* Parses "2=10". */
static int parse_weight(const char *word, struct weights *out, struct error *err)
{
    const char *equals = strchr(word, '=');
    char *end;
    if (!equals || equals == word || equals - word >= VERSION_BYTES)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "\"%.60s\" is no VERSION=WEIGHT; write for example 2=10", word);
    errno = 0;
    unsigned long long weight = strtoull(equals + 1, &end, 10);
    if (equals[1] < '0' || equals[1] > '9' || *end || errno || weight > UINT32_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT, "\"%.60s\": give a whole number as weight",
                         word);
    snprintf(out->versions[out->n], VERSION_BYTES, "%.*s", (int)(equals - word), word);
    out->items[out->n] = (weight_message)SLUICE__MANAGER__V1__TRAFFIC_WEIGHT__INIT;
    out->items[out->n].version = out->versions[out->n];
    out->items[out->n].weight = (uint32_t)weight;
    out->list[out->n] = &out->items[out->n];
    out->n++;
    return 0;
}

static int parse_weights(const struct cli *cli, struct weights *out, struct error *err)
{
    int rc = 0;
    for (size_t i = 1; !rc && cli_word(cli, i); i++)
        rc = out->n == MAX_WEIGHTS
                 ? error_set(err, STATUS_INVALID_ARGUMENT, "give at most %d weights", MAX_WEIGHTS)
                 : parse_weight(cli_word(cli, i), out, err);
    return rc;
}

static int set(struct cli *cli, struct weights *weights, ProtobufCMessage **out_response,
               struct error *err)
{
    Sluice__Manager__V1__SetTrafficRequest request = SLUICE__MANAGER__V1__SET_TRAFFIC_REQUEST__INIT;
    char id[UUID_BYTES];
    request.model = (char *)(uintptr_t)cli_word(cli, 0);
    request.request_id = cli_request_id(cli, id);
    request.weights = weights->list;
    request.n_weights = weights->n;
    request.sticky = cli->settings.sticky;
    return cli_call(cli, "SetTraffic", &request.base, out_response, err);
}

static int get(struct cli *cli, ProtobufCMessage **out_response, struct error *err)
{
    Sluice__Manager__V1__GetTrafficRequest request = SLUICE__MANAGER__V1__GET_TRAFFIC_REQUEST__INIT;
    request.model = (char *)(uintptr_t)cli_word(cli, 0);
    return cli_call(cli, "GetTraffic", &request.base, out_response, err);
}

static void print_rule(const char *model, const Sluice__Manager__V1__Traffic *traffic)
{
    static const char *const headers[] = {"VERSION", "WEIGHT", "SHARE"};
    struct output_table table;
    uint64_t sum = 0;
    if (!traffic || !traffic->n_weights) {
        printf("%s: no weights; requests go to the ready version registered last\n", model);
        return;
    }
    for (size_t i = 0; i < traffic->n_weights; i++)
        sum += traffic->weights[i]->weight;
    output_table_init(&table, CLI_N(headers), headers);
    for (size_t i = 0; i < traffic->n_weights; i++) {
        char weight[16], share[16];
        snprintf(weight, sizeof(weight), "%" PRIu32, traffic->weights[i]->weight);
        snprintf(share, sizeof(share), "%.1f %%",
                 sum ? 100.0 * traffic->weights[i]->weight / (double)sum : 0.0);
        const char *cells[] = {traffic->weights[i]->version, weight, share};
        output_table_add(&table, cells);
    }
    output_table_print(&table);
    output_table_fini(&table);
    if (traffic->sticky)
        printf("sticky: requests with the same session_key stay with their version\n");
}

static int run_traffic(struct cli *cli)
{
    ProtobufCMessage *message = NULL;
    struct error err;
    bool sets = cli_word(cli, 1) || cli->settings.clear;
    struct weights *weights = calloc(1, sizeof(*weights));
    error_clear(&err);
    if (!weights)
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    else if (cli_word(cli, 1) && cli->settings.clear)
        error_set(&err, STATUS_INVALID_ARGUMENT, "--clear: leave out the weights");
    else
        (void)parse_weights(cli, weights, &err);
    if (err.status) {
        free(weights);
        cli_usage(&err);
        return cli_fail(cli, &err);
    }
    int rc = sets ? set(cli, weights, &message, &err) : get(cli, &message, &err);
    free(weights);
    if (rc)
        return cli_fail(cli, &err);
    const Sluice__Manager__V1__Traffic *traffic =
        sets ? ((const Sluice__Manager__V1__SetTrafficResponse *)message)->traffic
             : ((const Sluice__Manager__V1__GetTrafficResponse *)message)->traffic;
    if (cli->settings.json)
        output_json(message);
    else
        print_rule(cli_word(cli, 0), traffic);
    rpc_message_free(message);
    return 0;
}

static const struct option_spec specs[] = {
    {"sticky", 0, OPTION_BOOL, CLI_OPTION(sticky), "false", NULL,
     "requests with the same session_key stay with their version", 0, 0},
    {"clear", 0, OPTION_BOOL, CLI_OPTION(clear), "false", NULL,
     "remove the weights; requests go to the ready version registered last", 0, 0},
};
static const struct manual_example examples[] = {
    {"sluice traffic smol", "show the rule"},
    {"sluice traffic smol 1=90 2=10 --sticky", "send one request in ten to version 2"},
    {"sluice traffic smol --clear", NULL},
};

const struct cli_command cmd_traffic = {
    .name = "traffic",
    .arguments = "MODEL [VERSION=WEIGHT...]",
    .summary = "show or set how requests without a version are spread",
    .description = "Weights are shares of their sum. New weights replace the whole rule; a version "
                   "without a weight gets no requests. A version without a serving replica is left "
                   "out for that time. Requests that name a version are not affected.",
    .examples = examples,
    .n_examples = CLI_N(examples),
    .specs = specs,
    .n_specs = CLI_N(specs),
    .groups = CLI_REQUEST_ID | CLI_MANAGE,
    .run = run_traffic,
};
