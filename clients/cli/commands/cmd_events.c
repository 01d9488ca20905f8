/* cmd_events.c: `events`: the event history in the order of the manager's store. Follows over
 * restarts of the manager. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/output.h"
#include "clients/cli/term/printable.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

enum { TAIL_EVENTS = 20, RECONNECT_MS = 200 };
/* The first search for matching events reads LOOK_BACK events. Each further search reads
 * LOOK_FARTHER times as many. */
enum { LOOK_BACK = 1024, LOOK_FARTHER = 8 };

static const char AUDIT[] = "audit.";

/* Ring of the last matching events. */
struct tail {
    uint64_t seqs[TAIL_EVENTS]; /* the Nth event's number is at N % TAIL_EVENTS */
    uint64_t n;                 /* matching events so far */
};

struct cursor {
    uint64_t next;     /* first event not yet read */
    uint64_t last;     /* last event to read; 0: no end */
    struct tail *tail; /* if set, events are recorded here instead of printed */
};

static bool matches(const struct cli *cli, const Sluice__Manager__V1__Event *event)
{
    const struct cli_settings *s = &cli->settings;
    const char *model = cli_word(cli, 0);
    return (!model || strcmp(model, event->model) == 0) &&
           (!s->replica[0] || strcmp(s->replica, event->replica_id) == 0) &&
           (!s->operation[0] || strcmp(s->operation, event->operation_id) == 0) &&
           (!s->type[0] || strncmp(s->type, event->type, strlen(s->type)) == 0);
}

static bool is_filtered(const struct cli *cli)
{
    const struct cli_settings *s = &cli->settings;
    return cli_word(cli, 0) || s->replica[0] || s->operation[0] || s->type[0];
}

static void print_fact(const char *value)
{
    if (value[0])
        printf(" %s", value);
}

static const char *attribute(const Sluice__Manager__V1__Event *event, const char *key)
{
    for (size_t i = 0; i < event->n_attributes; i++)
        if (strcmp(event->attributes[i]->key, key) == 0)
            return event->attributes[i]->value;
    return "";
}

/* Prints the rows before and after an audited change. */
static void print_sides(const Sluice__Manager__V1__Event *event)
{
    const char *before = attribute(event, "before"), *after = attribute(event, "after");
    if (before[0])
        printf(" [before: %s]", before);
    if (after[0])
        printf(" [after: %s]", after);
}

/* True for --verbose, and if the caller asked for audit events alone. */
static bool wants_sides(const struct cli_settings *s)
{
    return s->verbose || strncmp(s->type, AUDIT, sizeof(AUDIT) - 1) == 0;
}

/* Prints the order of an event's fields, for people. A script that reads lines gets none. */
static void print_header(const struct cli_settings *s)
{
    if (!s->json && isatty(STDOUT_FILENO) == 1)
        puts("SEQ TIME TYPE MODEL VERSION REPLICA GROUP: MESSAGE");
}

static void print_event(const struct cli_settings *s, const Sluice__Manager__V1__Event *event)
{
    char when[32];
    struct tm tm;
    time_t seconds = (time_t)(event->time_unix_ns / NS_PER_S);
    if (s->json) {
        output_json(&event->base);
        return;
    }
    strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%SZ", gmtime_r(&seconds, &tm));
    printf("%" PRIu64 " %s %s", event->seq, when, event->type);
    print_fact(event->model);
    print_fact(event->version);
    print_fact(event->replica_id);
    print_fact(event->device_group);
    if (event->stage[0] && strcmp(event->stage, "done") != 0)
        printf(" at %s", event->stage);
    if (event->message[0])
        printf(": %s", event->message);
    if (strncmp(event->type, AUDIT, sizeof(AUDIT) - 1) == 0 && wants_sides(s))
        print_sides(event);
    putchar('\n');
}

/* Reads a stream to its end, or to cursor->last. */
static int read_stream(struct cli *cli, struct rpc_reader *reader, struct cursor *cursor,
                       struct error *err)
{
    ProtobufCMessage *message;
    int rc = 0;
    while (!(cursor->last && cursor->next > cursor->last) &&
           (rc = rpc_reader_next(reader, &message, err)) == 0 && message) {
        const Sluice__Manager__V1__WatchEventsResponse *batch =
            (const Sluice__Manager__V1__WatchEventsResponse *)message;
        if (!cli->settings.json)
            printable_message(message);
        for (size_t i = 0; i < batch->n_events; i++) {
            const Sluice__Manager__V1__Event *event = batch->events[i];
            if (event->seq < cursor->next || (cursor->last && event->seq > cursor->last))
                continue;
            cursor->next = event->seq + 1;
            if (!matches(cli, event))
                continue;
            if (cursor->tail)
                cursor->tail->seqs[cursor->tail->n++ % TAIL_EVENTS] = event->seq;
            else
                print_event(&cli->settings, event);
        }
        rpc_message_free(message);
        rc = output_flush("the events", err);
        if (rc)
            break;
    }
    return rc;
}

static int watch(struct cli *cli, struct cursor *cursor, struct error *err)
{
    Sluice__Manager__V1__WatchEventsRequest request =
        SLUICE__MANAGER__V1__WATCH_EVENTS_REQUEST__INIT;
    struct rpc_client *client;
    struct rpc_reader *reader;
    request.from_seq = cursor->next;
    int rc = cli_manager(cli, &client, err);
    if (!rc)
        rc = rpc_reader_open(client, &sluice__manager__v1__model_manager__descriptor, "WatchEvents",
                             &request.base, NULL, &reader, err);
    if (rc)
        return rc;
    rc = read_stream(cli, reader, cursor, err);
    rpc_reader_close(reader);
    return rc;
}

/* Returns the oldest and the newest event that the store keeps. */
static int bounds(struct cli *cli, uint64_t *out_first, uint64_t *out_last, struct error *err)
{
    Sluice__Manager__V1__GetStatusRequest request = SLUICE__MANAGER__V1__GET_STATUS_REQUEST__INIT;
    ProtobufCMessage *message;
    int rc = cli_call(cli, "GetStatus", &request.base, &message, err);
    if (rc)
        return rc;
    const Sluice__Manager__V1__GetStatusResponse *status =
        (const Sluice__Manager__V1__GetStatusResponse *)message;
    *out_last = status->last_event_seq;
    *out_first = status->first_event_seq ? status->first_event_seq : 1;
    rpc_message_free(message);
    return 0;
}

static uint64_t back_from(uint64_t last, uint64_t n, uint64_t first)
{
    return last - first >= n ? last - n + 1 : first;
}

static bool are_gone(int rc, const struct error *err)
{
    return rc && err->reason == REASON_EVENTS_GONE;
}

/* Moves the cursor to the oldest kept event if earlier events were pruned since `bounds`. */
static int skip_gone(struct cli *cli, struct cursor *cursor, struct error *err)
{
    uint64_t first, last;
    struct error why = *err;
    int rc = bounds(cli, &first, &last, err);
    if (rc)
        return rc;
    if (first <= cursor->next) { /* the error has another cause */
        *err = why;
        return why.status;
    }
    cursor->next = first;
    return 0;
}

static int watch_kept(struct cli *cli, struct cursor *cursor, struct error *err)
{
    int rc = watch(cli, cursor, err);
    while (are_gone(rc, err)) {
        rc = skip_gone(cli, cursor, err);
        if (rc)
            return rc;
        rc = watch(cli, cursor, err);
    }
    return rc;
}

/* Finds where the last TAIL_EVENTS matching events begin, among all kept events. */
static int find_tail(struct cli *cli, uint64_t first, uint64_t last, uint64_t *out_next,
                     struct error *err)
{
    struct tail tail;
    uint64_t from, n = LOOK_BACK;
    do {
        tail.n = 0;
        from = back_from(last, n, first);
        struct cursor cursor = {.next = from, .last = last, .tail = &tail};
        int rc = watch_kept(cli, &cursor, err);
        if (rc)
            return rc;
        n *= LOOK_FARTHER;
    } while (tail.n < TAIL_EVENTS && from > first);
    *out_next = !tail.n                 ? last + 1
                : tail.n >= TAIL_EVENTS ? tail.seqs[tail.n % TAIL_EVENTS]
                                        : tail.seqs[0];
    return 0;
}

/* True if the manager restarts or closes the stream. The store has the further events under the
 * same numbers. */
static bool is_temporary(int rc)
{
    return rc == 0 || rc == STATUS_UNAVAILABLE || rc == STATUS_CANCELLED;
}

static int follow(struct cli *cli, struct cursor *cursor, struct error *err)
{
    /* --from wants the first event also if it was pruned */
    bool announced = false, begun = cli_given(cli, "from");
    for (;;) {
        uint64_t before = cursor->next;
        int rc = watch(cli, cursor, err);
        begun |= cursor->next != before;
        if (!begun && are_gone(rc, err)) {
            rc = skip_gone(cli, cursor, err);
            if (rc)
                return rc;
            continue;
        }
        if (!is_temporary(rc))
            return rc;
        if (err->reason == REASON_STDOUT_CLOSED)
            return rc;
        announced = announced && cursor->next == before;
        if (!announced && !cli->settings.json)
            fprintf(stderr,
                    "the manager is away; continuing with event %" PRIu64 " when it is back\n",
                    cursor->next);
        announced = true;
        struct timespec pause = {.tv_nsec = RECONNECT_MS * NS_PER_MS};
        nanosleep(&pause, NULL);
    }
}

static int run_events(struct cli *cli)
{
    struct error err = {0};
    struct cursor cursor = {0};
    uint64_t first, last;
    int rc = bounds(cli, &first, &last, &err);
    if (rc)
        return cli_fail(cli, &err);
    if (cli_given(cli, "from"))
        cursor.next = cli->settings.from ? cli->settings.from : last + 1;
    else if (last < first) /* no events are kept */
        cursor.next = last + 1;
    else if (is_filtered(cli))
        rc = find_tail(cli, first, last, &cursor.next, &err);
    else
        cursor.next = back_from(last, TAIL_EVENTS, first);
    if (rc)
        return cli_fail(cli, &err);
    print_header(&cli->settings);
    if (cli->settings.follow)
        rc = follow(cli, &cursor, &err);
    else if (cursor.next <= last) {
        cursor.last = last;
        rc = cli_given(cli, "from") ? watch(cli, &cursor, &err) : watch_kept(cli, &cursor, &err);
    }
    return rc ? cli_fail(cli, &err) : 0;
}

static const struct option_spec events_specs[] = {
    {"follow", 'f', OPTION_BOOL, CLI_OPTION(follow), "false", NULL,
     "wait for more events, also over a restart of the manager", 0, 0},
    {"from", 0, OPTION_U64, CLI_OPTION(from), NULL, "SEQ",
     "first event; 0: the next new event; default: the last 20 matching events", 0, 0},
    {"type", 0, OPTION_STRING, CLI_OPTION(type), "", "PREFIX",
     "only types with this prefix: replica., operation.failed", 0, 0},
    {"replica", 0, OPTION_STRING, CLI_OPTION(replica), "", "REPLICA", "only events of this replica",
     0, 0},
    {"operation", 0, OPTION_STRING, CLI_OPTION(operation), "", "OPERATION",
     "only events of this operation", 0, 0},
    {"verbose", 0, OPTION_BOOL, CLI_OPTION(verbose), "false", NULL,
     "print what each audited change replaced, as --type audit. does", 0, 0},
};
static const struct manual_example events_examples[] = {
    {"sluice events", "the last 20 events"},
    {"sluice events smol --type operation.", "the last 20 matching events, however old"},
    {"sluice events smol --follow --type replica.", NULL},
    {"sluice events --type audit. --from 1", "all kept changes by callers"},
    {"sluice events --from 1 --json | jq -r .type", "all kept events"},
};

const struct cli_command cmd_events = {
    .name = "events",
    .arguments = "[MODEL]",
    .summary = "print past and new events",
    .description = "Prints events of all models, or of one. Events are numbered from 1 without "
                   "gaps. Times are UTC. With --json each event is an object on a line. End "
                   "--follow with Ctrl-C.",
    .examples = events_examples,
    .n_examples = CLI_N(events_examples),
    .specs = events_specs,
    .n_specs = CLI_N(events_specs),
    .groups = CLI_MANAGE,
    .run = run_events,
};
