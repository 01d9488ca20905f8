/* load_client.c: load on a server with an echoing worker (echo_serve.h): N connections, M streams.
 * The client checks each token's id, index and text. The client prints a JSON object. Exit status
 * 0: every stream was whole; otherwise 1.
 *
 *   load_client --server ADDR --model NAME [--connections N] [--streams M] [--tokens T]
 *               [--prompt P] [--choices C] [--seconds S] [--idle S] [--open-rate R]
 *               [--steady] [--http] [--pid NAME=PID]...
 *
 * Ended streams are followed by new ones until S seconds are over. With --idle the streams are
 * opened and held that long while no token comes. With --steady the client prints "running" on
 * stderr when all streams have begun, and streams follow each other until SIGTERM. With --http each
 * stream is an SSE stream of /v1/completions on a connection of its own; --connections is the
 * number of threads. CPU and memory of the processes named by --pid are read before, during and
 * after the load. */
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash_map.h"
#include "base/metrics/histogram.h"
#include "base/strbuf.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "sluice/v1/inference.pb-c.h"
#include "tests/support/load/echo_serve.h"
#include "tests/support/load/load_http.h"
#include "tests/support/load/load_stats.h"

enum { MAX_PIDS = 8, MAX_CHOICES = 8, N_CODES = 17, SETTLE_MS = 1500, VOCAB = 49152 };

struct settings {
    const char *server, *model;
    uint32_t n_connections, n_streams, n_tokens, n_prompt, n_choices, seconds, idle_seconds;
    bool steady, http;
    uint32_t open_rate;
    struct {
        const char *name;
        int pid;
    } pids[MAX_PIDS];
    int n_pids;
};

struct connection {
    struct rpc_client *client;
    struct load_http *http;
    /* Written by the client's thread alone. */
    struct histogram itl, ttft;
    uint64_t n_messages, n_started, n_ok, by_code[N_CODES];
    uint64_t n_lost, n_duplicated, n_reordered, n_wrong, n_tokens;
    uint64_t n_in_time; /* tokens before the end of the measured time */
    char first_error[200];
};

struct stream {
    struct load *load;
    struct connection *connection;
    struct rpc_stream *rpc;
    struct load_http_connection *http;
    uint32_t number, round;
    uint32_t *prompt;
    uint32_t n[MAX_CHOICES];
    uint8_t finished;
    bool told;
    int64_t opened_ns, last_ns[MAX_CHOICES];
};

struct load {
    struct settings settings;
    struct connection *connections;
    struct stream *streams;
    _Atomic int64_t end_ns; /* no stream starts after */
    atomic_bool closing;
    _Atomic uint32_t n_live, n_told;
};

static void open_stream(struct stream *stream);

/* --- streams --- */

static void complain(struct connection *connection, const char *what, const struct stream *stream)
{
    if (connection->first_error[0])
        return;
    snprintf(connection->first_error, sizeof(connection->first_error), "stream %u.%u: %.150s",
             stream->number, stream->round, what);
    for (char *c = connection->first_error; *c; c++) /* the text goes into JSON */
        if (*c == '"' || *c == '\\' || (unsigned char)*c < 0x20)
            *c = '\'';
}

static void check_place(struct stream *stream, const Sluice__V1__Tokens *tokens)
{
    struct connection *connection = stream->connection;
    uint32_t expected = stream->n[tokens->choice];
    if (tokens->first_index > expected) {
        connection->n_lost += tokens->first_index - expected;
        complain(connection, "tokens were left out", stream);
    } else if (tokens->first_index < expected) {
        connection->n_duplicated += expected - tokens->first_index;
        complain(connection, "tokens came again", stream);
    }
}

static void check_tokens(struct stream *stream, const Sluice__V1__Tokens *tokens)
{
    struct connection *connection = stream->connection;
    char text[ECHO_TEXT_BYTES];
    if (tokens->choice >= stream->load->settings.n_choices) {
        connection->n_wrong++;
        return;
    }
    check_place(stream, tokens);
    if (strlen(tokens->text) != tokens->n_ids * ECHO_TEXT_BYTES) {
        connection->n_wrong++;
        complain(connection, "text of another length than its tokens", stream);
        return;
    }
    for (uint32_t i = 0; i < tokens->n_ids; i++) {
        uint32_t index = tokens->first_index + i;
        uint32_t id =
            echo_token(stream->prompt, stream->load->settings.n_prompt, tokens->choice, index);
        echo_text(id, index, text);
        if (tokens->ids[i] != id) {
            connection->n_reordered++;
            complain(connection, "another id than the one of that place", stream);
        } else if (memcmp(tokens->text + (size_t)i * ECHO_TEXT_BYTES, text, sizeof(text)) != 0) {
            connection->n_wrong++;
            complain(connection, "another text than the one of that token", stream);
        }
    }
    stream->n[tokens->choice] = tokens->first_index + (uint32_t)tokens->n_ids;
}

static void take_tokens(struct stream *stream, const Sluice__V1__Tokens *tokens)
{
    struct connection *connection = stream->connection;
    uint32_t choice = tokens->choice < MAX_CHOICES ? tokens->choice : 0;
    int64_t now_ns = clock_now_ns();
    check_tokens(stream, tokens);
    connection->n_messages++;
    connection->n_tokens += tokens->n_ids;
    connection->n_in_time += now_ns < stream->load->end_ns ? tokens->n_ids : 0;
    if (!stream->last_ns[choice])
        histogram_add(&connection->ttft, now_ns - stream->opened_ns);
    else
        histogram_add(&connection->itl, now_ns - stream->last_ns[choice]);
    stream->last_ns[choice] = now_ns;
}

static void on_message(void *arg, struct rpc_stream *rpc, const ProtobufCMessage *message)
{
    struct stream *stream = arg;
    const Sluice__V1__GenerateResponse *response = (const Sluice__V1__GenerateResponse *)message;
    (void)rpc;
    switch (response->event_case) {
    case SLUICE__V1__GENERATE_RESPONSE__EVENT_PROMPT_INFO:
        if (stream->told ||
            response->prompt_info->n_prompt_tokens != stream->load->settings.n_prompt)
            complain(stream->connection, "prompt_info is wrong or came twice", stream);
        stream->told = true;
        stream->load->n_told++;
        break;
    case SLUICE__V1__GENERATE_RESPONSE__EVENT_TOKENS:
        if (!stream->told)
            complain(stream->connection, "tokens came before prompt_info", stream);
        take_tokens(stream, response->tokens);
        break;
    case SLUICE__V1__GENERATE_RESPONSE__EVENT_FINISHED:
        if (response->finished->choice < MAX_CHOICES &&
            response->finished->n_tokens == stream->n[response->finished->choice])
            stream->finished |= (uint8_t)(1u << response->finished->choice);
        else
            complain(stream->connection, "finished tells another number of tokens", stream);
        break;
    default:
        complain(stream->connection, "an empty message", stream);
        break;
    }
}

static bool is_whole(const struct stream *stream)
{
    const struct settings *s = &stream->load->settings;
    if (stream->finished != (1u << s->n_choices) - 1)
        return false;
    for (uint32_t i = 0; i < s->n_choices; i++)
        if (stream->n[i] != s->n_tokens)
            return false;
    return true;
}

/* Counts the end of a stream, and lets the next one follow. */
static void end_stream(struct stream *stream, const struct error *status)
{
    struct load *load = stream->load;
    struct connection *connection = stream->connection;
    int code = status_to_grpc(status->status);
    bool whole = is_whole(stream);
    if (load->closing && status->status == STATUS_CANCELLED) {
        /* the client asked for the cancel */
    } else if (status->status == 0 && whole) {
        connection->n_ok++;
    } else {
        connection->by_code[code >= 0 && code < N_CODES ? code : 2]++;
        complain(connection, status->status ? status->message : "the stream ended early", stream);
    }
    if (whole && !load->settings.idle_seconds && clock_now_ns() < load->end_ns) {
        stream->round++;
        open_stream(stream);
    } else {
        load->n_live--;
    }
}

static void on_status(void *arg, struct rpc_stream *rpc, const struct error *status)
{
    struct stream *stream = arg;
    (void)rpc;
    rpc_stream_release(stream->rpc);
    stream->rpc = NULL;
    end_stream(stream, status);
}

static const struct rpc_stream_events events = {.on_message = on_message, .on_status = on_status};

/* --- streams over HTTP --- */

static void on_http_begin(void *arg)
{
    struct stream *stream = arg;
    stream->told = true;
    stream->load->n_told++;
}

/* A chunk does not name the index of its first token. A lost or repeated token shows as another
 * id or text. */
static void on_http_part(void *arg, const struct load_http_part *part)
{
    struct stream *stream = arg;
    Sluice__V1__Tokens tokens = SLUICE__V1__TOKENS__INIT;
    if (part->choice >= MAX_CHOICES) {
        complain(stream->connection, "a choice that was not asked for", stream);
        return;
    }
    tokens.choice = part->choice;
    tokens.first_index = stream->n[part->choice];
    tokens.ids = (uint32_t *)(uintptr_t)part->ids;
    tokens.n_ids = part->n_ids;
    tokens.text = (char *)(uintptr_t)part->text;
    if (tokens.n_ids || *part->text)
        take_tokens(stream, &tokens);
    if (part->is_finished)
        stream->finished |= (uint8_t)(1u << part->choice);
}

static void on_http_end(void *arg, unsigned status, const char *why)
{
    struct error err;
    error_clear(&err);
    if (status == 429)
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "%s", why);
    else if (status != 200)
        error_set(&err, STATUS_UNAVAILABLE, "%s", why);
    end_stream(arg, &err);
}

static const struct load_http_events http_events = {
    .on_begin = on_http_begin, .on_part = on_http_part, .on_end = on_http_end};

static int open_http(struct stream *stream, struct error *err)
{
    const struct settings *s = &stream->load->settings;
    struct strbuf body;
    strbuf_init(&body, 0);
    strbuf_printf(&body,
                  "{\"model\":\"%s\",\"max_tokens\":%u,\"n\":%u,\"stream\":true,"
                  "\"return_token_ids\":true,\"prompt\":[",
                  s->model, s->n_tokens, s->n_choices);
    for (uint32_t i = 0; i < s->n_prompt; i++)
        strbuf_printf(&body, "%s%u", i ? "," : "", stream->prompt[i]);
    strbuf_add_str(&body, "]}");
    int rc = load_http_open(stream->connection->http, &stream->http, stream, strbuf_str(&body),
                            body.n_bytes, err);
    strbuf_fini(&body);
    return rc;
}

static int open_grpc(struct stream *stream, struct error *err)
{
    const struct settings *s = &stream->load->settings;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    Sluice__V1__TokenIds ids = SLUICE__V1__TOKEN_IDS__INIT;
    Sluice__V1__Stopping stopping = SLUICE__V1__STOPPING__INIT;
    Sluice__V1__Sampling sampling = SLUICE__V1__SAMPLING__INIT;
    ids.ids = stream->prompt;
    ids.n_ids = s->n_prompt;
    stopping.has_max_tokens = true;
    stopping.max_tokens = s->n_tokens;
    sampling.has_n = s->n_choices > 1;
    sampling.n = s->n_choices;
    request.model = (char *)(uintptr_t)s->model;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS;
    request.token_ids = &ids;
    request.stopping = &stopping;
    request.sampling = &sampling;
    return rpc_stream_open(stream->connection->client, &sluice__v1__inference__descriptor,
                           "Generate", &request.base, NULL, &events, stream, &stream->rpc, err);
}

static void open_stream(struct stream *stream)
{
    const struct settings *s = &stream->load->settings;
    struct error err;
    for (uint32_t i = 0; i < s->n_prompt; i++) {
        uint32_t place[3] = {stream->number, stream->round, i};
        stream->prompt[i] = (uint32_t)(hash_bytes(place, sizeof(place), 7) % VOCAB);
    }
    memset(stream->n, 0, sizeof(stream->n));
    memset(stream->last_ns, 0, sizeof(stream->last_ns));
    stream->finished = 0;
    stream->told = false;
    stream->opened_ns = clock_now_ns();
    if ((s->http ? open_http(stream, &err) : open_grpc(stream, &err)) != 0) {
        complain(stream->connection, err.message, stream);
        stream->connection->by_code[2]++;
        stream->load->n_live--;
    }
}

/* --- the whole --- */

static void sleep_ms(int64_t ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * NS_PER_MS};
    nanosleep(&time, NULL);
}

static bool connect_all(struct load *load)
{
    struct error err;
    struct rpc_client_config config;
    rpc_client_config_init(&config);
    config.target = load->settings.server;
    for (uint32_t i = 0; load->settings.http && i < load->settings.n_connections; i++)
        if (load_http_create(load->settings.server, &http_events, &load->connections[i].http,
                             &err) != 0) {
            fprintf(stderr, "load_client: %s\n", err.message);
            return false;
        }
    for (uint32_t i = 0; !load->settings.http && i < load->settings.n_connections; i++)
        if (rpc_client_create(&config, &load->connections[i].client, &err) != 0 ||
            rpc_client_wait_connected(load->connections[i].client, 10000, &err) != 0) {
            fprintf(stderr, "load_client: %s\n", err.message);
            return false;
        }
    return true;
}

static void open_all(struct load *load)
{
    const struct settings *s = &load->settings;
    int64_t started_ns = clock_now_ns();
    for (uint32_t i = 0; i < s->n_streams; i++) {
        struct stream *stream = &load->streams[i];
        stream->load = load;
        stream->number = i;
        stream->connection = &load->connections[i % s->n_connections];
        load->n_live++;
        open_stream(stream);
        int64_t due_ns = started_ns + (int64_t)(i + 1) * NS_PER_S / s->open_rate;
        if (due_ns > clock_now_ns() + NS_PER_MS)
            sleep_ms((due_ns - clock_now_ns()) / NS_PER_MS);
    }
}

static volatile sig_atomic_t terminated;

static void on_sigterm(int number)
{
    (void)number;
    terminated = 1;
}

static bool wait_told(struct load *load)
{
    int64_t end_ns = clock_now_ns() + 60 * NS_PER_S;
    while (load->n_told < load->settings.n_streams && clock_now_ns() < end_ns)
        sleep_ms(20);
    return load->n_told >= load->settings.n_streams;
}

static void read_usage(const struct load *load, struct process_usage *out)
{
    for (int i = 0; i < load->settings.n_pids; i++)
        process_usage_read(load->settings.pids[i].pid, &out[i]);
}

static void add_usage(const struct load *load, const struct process_usage *before,
                      const struct process_usage *during, const struct process_usage *after,
                      uint64_t n_tokens, struct strbuf *out)
{
    double sum_us = 0;
    strbuf_add_str(out, ", \"processes\": {");
    for (int i = 0; i < load->settings.n_pids; i++) {
        double us = (double)(during[i].cpu_ns - before[i].cpu_ns) / 1e3;
        double per_stream =
            ((double)during[i].rss_bytes - (double)before[i].rss_bytes) / load->settings.n_streams;
        sum_us += us;
        strbuf_printf(
            out,
            "%s\"%s\": {\"cpu_s\": %.2f, \"cpu_us_per_token\": %.2f, \"rss_before\": "
            "%llu, \"rss_during\": %llu, \"rss_after\": %llu, \"bytes_per_stream\": "
            "%.0f, \"fds_before\": %llu, \"fds_after\": %llu, \"threads_before\": %llu, "
            "\"threads_after\": %llu}",
            i ? ", " : "", load->settings.pids[i].name, us / 1e6,
            n_tokens ? us / (double)n_tokens : 0.0, (unsigned long long)before[i].rss_bytes,
            (unsigned long long)during[i].rss_bytes, (unsigned long long)after[i].rss_bytes,
            per_stream, (unsigned long long)before[i].n_fds, (unsigned long long)after[i].n_fds,
            (unsigned long long)before[i].n_threads, (unsigned long long)after[i].n_threads);
    }
    strbuf_printf(out, "}, \"cpu_us_per_token\": %.2f", n_tokens ? sum_us / (double)n_tokens : 0.0);
}

struct total {
    struct connection sum;
    bool well;
};

static void add_up(const struct load *load, struct total *total)
{
    struct connection *sum = &total->sum;
    for (uint32_t i = 0; i < load->settings.n_connections; i++) {
        const struct connection *c = &load->connections[i];
        histogram_merge(&sum->itl, &c->itl);
        histogram_merge(&sum->ttft, &c->ttft);
        sum->n_messages += c->n_messages;
        sum->n_tokens += c->n_tokens;
        sum->n_in_time += c->n_in_time;
        sum->n_ok += c->n_ok;
        sum->n_lost += c->n_lost;
        sum->n_duplicated += c->n_duplicated;
        sum->n_reordered += c->n_reordered;
        sum->n_wrong += c->n_wrong;
        for (int code = 0; code < N_CODES; code++)
            sum->by_code[code] += c->by_code[code];
        if (c->first_error[0] && !sum->first_error[0])
            snprintf(sum->first_error, sizeof(sum->first_error), "%s", c->first_error);
    }
    total->well = !sum->n_lost && !sum->n_duplicated && !sum->n_reordered && !sum->n_wrong &&
                  !sum->first_error[0];
}

static void print(const struct load *load, const struct total *total, double seconds,
                  const char *usage)
{
    const struct connection *sum = &total->sum;
    struct strbuf out;
    /* After the end of the measured time, fewer and fewer streams run, so that time does not count.
     */
    double rate = (double)sum->n_tokens / seconds;
    if (!load->settings.steady && load->settings.seconds > 0 && load->settings.seconds < seconds)
        rate = (double)sum->n_in_time / load->settings.seconds;
    strbuf_init(&out, 0);
    strbuf_printf(&out,
                  "{\"connections\": %u, \"streams\": %u, \"seconds\": %.2f, \"ok\": %llu, "
                  "\"tokens\": %llu, \"messages\": %llu, \"tokens_per_second\": %.0f, \"lost\": "
                  "%llu, \"duplicated\": %llu, \"reordered\": %llu, \"wrong\": %llu, "
                  "\"errors\": {",
                  load->settings.n_connections, load->settings.n_streams, seconds,
                  (unsigned long long)sum->n_ok, (unsigned long long)sum->n_tokens,
                  (unsigned long long)sum->n_messages, rate, (unsigned long long)sum->n_lost,
                  (unsigned long long)sum->n_duplicated, (unsigned long long)sum->n_reordered,
                  (unsigned long long)sum->n_wrong);
    const char *comma = "";
    for (int code = 0; code < N_CODES; code++)
        if (sum->by_code[code]) {
            strbuf_printf(&out, "%s\"%s\": %llu", comma, status_name(status_from_grpc(code)),
                          (unsigned long long)sum->by_code[code]);
            comma = ", ";
        }
    strbuf_add_str(&out, "}, \"itl_ms\": ");
    histogram_json(&sum->itl, &out);
    strbuf_add_str(&out, ", \"ttft_ms\": ");
    histogram_json(&sum->ttft, &out);
    strbuf_add_str(&out, usage);
    strbuf_printf(&out, ", \"first_error\": \"%s\"}", sum->first_error);
    puts(strbuf_str(&out));
    strbuf_fini(&out);
}

static void close_all(struct load *load)
{
    load->closing = true;
    for (uint32_t i = 0; i < load->settings.n_connections; i++) {
        rpc_client_destroy(load->connections[i].client);
        load_http_destroy(load->connections[i].http);
        load->connections[i].client = NULL;
        load->connections[i].http = NULL;
    }
}

static int run(struct load *load)
{
    const struct settings *s = &load->settings;
    struct process_usage before[MAX_PIDS], during[MAX_PIDS], after[MAX_PIDS];
    struct total total;
    struct strbuf usage;
    memset(&total, 0, sizeof(total));
    memset(before, 0, sizeof(before));
    memset(during, 0, sizeof(during));
    memset(after, 0, sizeof(after));
    strbuf_init(&usage, 0);
    if (!connect_all(load))
        return 1;
    sleep_ms(s->steady ? 0 : SETTLE_MS);
    read_usage(load, before);
    int64_t started_ns = clock_now_ns();
    load->end_ns = s->steady ? INT64_MAX : started_ns + s->seconds * NS_PER_S;
    open_all(load);
    bool all_told = true;
    if (s->idle_seconds) {
        all_told = wait_told(load);
        sleep_ms((int64_t)s->idle_seconds * 1000);
        all_told = all_told && load->n_live == s->n_streams;
    }
    if (s->steady) {
        all_told = wait_told(load);
        fputs(all_told ? "running\n" : "not all streams have begun\n", stderr);
    }
    while (!s->idle_seconds && all_told && load->n_live) {
        sleep_ms(20);
        if (terminated)
            load->end_ns = 0;
    }
    double seconds = (double)(clock_now_ns() - started_ns) / 1e9;
    read_usage(load, during);
    close_all(load);
    sleep_ms(s->steady ? 0 : SETTLE_MS);
    read_usage(load, after);
    add_up(load, &total);
    add_usage(load, before, during, after, total.sum.n_tokens, &usage);
    if (!all_told) {
        snprintf(total.sum.first_error, sizeof(total.sum.first_error),
                 "%u of %u streams were told of and still live", load->n_told, s->n_streams);
        total.well = false;
    }
    print(load, &total, seconds, strbuf_str(&usage));
    strbuf_fini(&usage);
    return total.well ? 0 : 1;
}

static bool add_pid(struct settings *s, char *text)
{
    char *equals = strchr(text, '=');
    if (!equals || s->n_pids == MAX_PIDS)
        return false;
    *equals = '\0';
    s->pids[s->n_pids].name = text;
    s->pids[s->n_pids++].pid = (int)strtol(equals + 1, NULL, 10);
    return true;
}

static bool parse(int argc, char *argv[], struct settings *s)
{
    static const struct option names[] = {
        {"server", 1, NULL, 's'},    {"model", 1, NULL, 'm'},   {"connections", 1, NULL, 'c'},
        {"streams", 1, NULL, 'n'},   {"tokens", 1, NULL, 't'},  {"prompt", 1, NULL, 'p'},
        {"choices", 1, NULL, 'C'},   {"seconds", 1, NULL, 'S'}, {"idle", 1, NULL, 'i'},
        {"open-rate", 1, NULL, 'r'}, {"pid", 1, NULL, 'P'},     {"steady", 0, NULL, 'y'},
        {"http", 0, NULL, 'H'},      {NULL, 0, NULL, 0}};
    int got;
    while ((got = getopt_long(argc, argv, "", names, NULL)) != -1) {
        uint32_t number = optarg ? (uint32_t)strtoul(optarg, NULL, 10) : 0;
        uint32_t *to = got == 'c'   ? &s->n_connections
                       : got == 'n' ? &s->n_streams
                       : got == 't' ? &s->n_tokens
                       : got == 'p' ? &s->n_prompt
                       : got == 'C' ? &s->n_choices
                       : got == 'S' ? &s->seconds
                       : got == 'i' ? &s->idle_seconds
                       : got == 'r' ? &s->open_rate
                                    : NULL;
        if (to)
            *to = number;
        else if (got == 'y')
            s->steady = true;
        else if (got == 'H')
            s->http = true;
        else if (got == 's')
            s->server = optarg;
        else if (got == 'm')
            s->model = optarg;
        else if (got != 'P' || !optarg || !add_pid(s, optarg))
            return false;
    }
    return s->server && s->model && s->n_connections && s->n_streams && s->n_tokens &&
           s->n_prompt && s->open_rate && s->n_choices && s->n_choices <= MAX_CHOICES;
}

int main(int argc, char *argv[])
{
    static struct load load;
    load.settings = (struct settings){.n_connections = 1,
                                      .n_streams = 1,
                                      .n_tokens = 400,
                                      .n_prompt = 64,
                                      .n_choices = 1,
                                      .open_rate = 2000};
    signal(SIGTERM, on_sigterm);
    if (!parse(argc, argv, &load.settings)) {
        fprintf(stderr, "load_client: see the head of load_client.c for its options\n");
        return 2;
    }
    uint32_t n = load.settings.n_streams, n_prompt = load.settings.n_prompt;
    load.connections = calloc(load.settings.n_connections, sizeof(*load.connections));
    load.streams = calloc(n, sizeof(*load.streams));
    uint32_t *prompts = calloc((size_t)n * n_prompt, sizeof(*prompts));
    int rc = 1;
    if (load.connections && load.streams && prompts) {
        for (uint32_t i = 0; i < n; i++)
            load.streams[i].prompt = prompts + (size_t)i * n_prompt;
        rc = run(&load);
    } else {
        fprintf(stderr, "load_client: out of memory\n");
    }
    free(prompts);
    free(load.streams);
    free(load.connections);
    return rc;
}
