#include "server/gateway/base/limits.h"

#include <assert.h>

#include "base/error.h"

#define AT(field)   offsetof(struct gateway_limits, field)
#define DAY_MS      86400000u
#define COUNT_MAX   1000000u
#define CHOICES_MAX 8u   /* relay.h, engine.h: arrays of a fixed size */
#define STOPS_MAX   4u   /* engine.h */
#define STOP_MAX    256u /* engine.h */
#define TOP_MAX     20u  /* limit of the sampler */
/* Limits of a worker (engine/request/request.h, engine_config.h). The engine allows WORD_MAX tokens
 * in a bad word. A token has at least one byte, so WORD_MAX bytes never exceed that. */
#define STOP_IDS_MAX 128u
#define BIASES_MAX   1024u
#define WORDS_MAX    1024u
#define WORD_MAX     1024u

/* In the order of the enum; --help prints the texts. */
const struct gateway_limit_row gateway_limit_rows[N_GATEWAY_LIMITS] = {
    [LIMIT_MESSAGE_BYTES] = {"message_bytes",
                             {"max-message-bytes", 0, OPTION_U64, AT(max_message_bytes), "4M", "N",
                              "largest request", 1024, 1u << 30}},
    [LIMIT_METADATA_BYTES] = {"metadata_bytes",
                              {"max-metadata-bytes", 0, OPTION_U64, AT(max_metadata_bytes), "16K",
                               "N", "all metadata of a call", 1024, 1u << 20}},
    [LIMIT_CONNECTIONS] = {"connections",
                           {"max-connections", 0, OPTION_U64, AT(max_connections), "1024", "N",
                            "connections to the port; further connections are closed", 1,
                            COUNT_MAX}},
    [LIMIT_HANDSHAKE] = {"handshake_timeout",
                         {"handshake-timeout", 0, OPTION_MS, AT(handshake_timeout_ms), "10s",
                          "TIME", "time for a new connection to show its protocol", 100, DAY_MS}},
    [LIMIT_KEEPALIVE] = {"keepalive", {.name = NULL}},
    [LIMIT_DRAIN] = {"drain_grace", {.name = NULL}},
    [LIMIT_DRAINING] = {"draining", {.name = NULL}},
    [LIMIT_STREAMS] = {"streams",
                       {"max-streams", 0, OPTION_U64, AT(max_streams), "100", "N",
                        "streams per connection", 1, COUNT_MAX}},
    [LIMIT_RESETS] = {"resets",
                      {"max-resets", 0, OPTION_U64, AT(max_resets), "500", "N",
                       "streams that a client may reset per second; above, its connection closes",
                       1, COUNT_MAX}},
    [LIMIT_CALLS] = {"calls",
                     {"max-calls", 0, OPTION_U64, AT(max_calls), "4096", "N",
                      "live calls of all clients", 1, COUNT_MAX}},
    [LIMIT_REQUEST_TIMEOUT] = {"request_timeout",
                               {"request-timeout", 0, OPTION_MS, AT(request_timeout_ms), "30s",
                                "TIME", "time for a call to send its request", 100, DAY_MS}},
    [LIMIT_HTTP_IDLE] = {"http_idle",
                         {"http-idle-timeout", 0, OPTION_MS, AT(http_idle_ms), "75s", "TIME",
                          "close an HTTP connection that carries no request for this long", 100,
                          DAY_MS}},
    [LIMIT_CONNECTION_REQUESTS] = {"connection_requests",
                                   {"max-connection-requests", 0, OPTION_U64,
                                    AT(max_connection_requests), "10000", "N",
                                    "requests of an HTTP connection; the last answer closes it", 1,
                                    COUNT_MAX}},
    [LIMIT_HTTP_BODY_BUDGET] = {"http_body_budget",
                                {"http-body-budget", 0, OPTION_U64, AT(http_body_budget), "256M",
                                 "N", "bytes of unfinished bodies of all HTTP connections", 1024,
                                 1ull << 40}},
    [LIMIT_PENDING_BYTES] = {"pending_bytes",
                             {"max-pending-bytes", 0, OPTION_U64, AT(max_pending_bytes), "64K", "N",
                              "unsent bytes of a stream at which its sequence pauses", 1024,
                              64u << 20}},
    [LIMIT_PENDING_TOKENS] = {"pending_tokens",
                              {"max-pending-tokens", 0, OPTION_U64, AT(max_pending_tokens), "1024",
                               "N", "unsent tokens of a stream at which its sequence pauses", 16,
                               COUNT_MAX}},
    [LIMIT_ANSWER_BYTES] = {"answer_bytes",
                            {"max-answer-bytes", 0, OPTION_U64, AT(max_answer_bytes), "4M", "N",
                             "bytes of a Complete answer", 1024, 1u << 30}},
    [LIMIT_SLOW_READER] = {"slow_reader",
                           {"slow-reader-timeout", 0, OPTION_MS, AT(slow_reader_ms), "30s", "TIME",
                            "end a stream whose client takes no message for this long", 100,
                            DAY_MS}},
    [LIMIT_PAUSE] = {"pause",
                     {"max-pause", 0, OPTION_MS, AT(max_pause_ms), "300s", "TIME",
                      "how long a client may leave a request paused or without credit", 100,
                      DAY_MS}},
    [LIMIT_QUEUED] = {"queued",
                      {"max-queued", 0, OPTION_U64, AT(max_queued), "512", "N",
                       "queued requests of a model version", 0, COUNT_MAX}},
    [LIMIT_CONCURRENT] = {"concurrent",
                          {"max-concurrent", 0, OPTION_U64, AT(max_concurrent), "256", "N",
                           "requests at a replica; further requests wait", 1, COUNT_MAX}},
    [LIMIT_DEADLINE] = {"deadline_unreachable", {.name = NULL}},
    [LIMIT_INPUT_TOKENS] = {"input_tokens", {.name = NULL}},
    [LIMIT_TOTAL_TOKENS] = {"total_tokens", {.name = NULL}},
    [LIMIT_TEMPLATE] = {"template", {.name = NULL}},
    [LIMIT_REPLICA_WAIT] = {"replica_wait",
                            {"replica-wait", 0, OPTION_MS, AT(replica_wait_ms), "5s", "TIME",
                             "how long a new request waits for a replica that starts", 0, DAY_MS}},
    [LIMIT_RESUME] = {"resume",
                      {"resume-timeout", 0, OPTION_MS, AT(resume_ms), "30s", "TIME",
                       "how long a request whose replica was lost waits for another replica", 0,
                       DAY_MS}},
    [LIMIT_STALL] = {"stall",
                     {"stall-timeout", 0, OPTION_MS, AT(stall_ms), "10s", "TIME",
                      "a replica with work that finishes no layer for this long is lost", 500,
                      DAY_MS}},
    [LIMIT_STREAM_REQUESTS] = {"stream_requests",
                               {"max-stream-requests", 0, OPTION_U64, AT(max_stream_requests),
                                "256", "N", "live requests of a GenerateStream", 1, COUNT_MAX}},
    [LIMIT_STREAM_PENDING_BYTES] = {"stream_pending_bytes",
                                    {"max-stream-pending-bytes", 0, OPTION_U64,
                                     AT(max_stream_pending_bytes), "1M", "N",
                                     "unsent bytes of all requests of a GenerateStream at which "
                                     "their sequences pause",
                                     1024, 1u << 30}},
    [LIMIT_REPLAY_BYTES] = {"replay_bytes",
                            {"max-replay-bytes", 0, OPTION_U64, AT(max_replay_bytes), "256K", "N",
                             "bytes kept for a request that waits for a reattach", 1024,
                             64u << 20}},
    [LIMIT_REATTACH] = {"reattach_window",
                        {"max-reattach-window", 0, OPTION_MS, AT(max_reattach_ms), "30s", "TIME",
                         "longest reattach_window_ms of a request", 0, DAY_MS}},
    [LIMIT_CHOICES] = {"choices",
                       {"max-choices", 0, OPTION_U64, AT(max_choices), "8", "N",
                        "n and best_of of a request", 1, CHOICES_MAX}},
    [LIMIT_STOP_STRINGS] = {"stop_strings",
                            {"max-stop-strings", 0, OPTION_U64, AT(max_stop_strings), "4", "N",
                             "stop strings of a request", 0, STOPS_MAX}},
    [LIMIT_STOP_BYTES] = {"stop_bytes",
                          {"max-stop-bytes", 0, OPTION_U64, AT(max_stop_bytes), "256", "N",
                           "bytes of a stop string", 1, STOP_MAX}},
    [LIMIT_STOP_IDS] = {"stop_ids",
                        {"max-stop-ids", 0, OPTION_U64, AT(max_stop_ids), "64", "N",
                         "stop token ids of a request", 0, STOP_IDS_MAX}},
    [LIMIT_TOP_N] = {"top_n",
                     {"max-top-n", 0, OPTION_U64, AT(max_top_n), "20", "N",
                      "alternatives with logprobs per token", 0, TOP_MAX}},
    [LIMIT_LOGIT_BIAS] = {"logit_bias",
                          {"max-logit-bias", 0, OPTION_U64, AT(max_logit_bias), "1024", "N",
                           "logit_bias entries of a request", 0, BIASES_MAX}},
    [LIMIT_ALLOWED_IDS] = {"allowed_ids",
                           {"max-allowed-ids", 0, OPTION_U64, AT(max_allowed_ids), "4096", "N",
                            "allowed_token_ids of a request", 0, COUNT_MAX}},
    [LIMIT_BAD_WORDS] = {"bad_words",
                         {"max-bad-words", 0, OPTION_U64, AT(max_bad_words), "64", "N",
                          "bad_words of a request", 0, WORDS_MAX}},
    [LIMIT_BAD_WORD_BYTES] = {"bad_word_bytes",
                              {"max-bad-word-bytes", 0, OPTION_U64, AT(max_bad_word_bytes), "256",
                               "N", "bytes of a bad word", 1, WORD_MAX}},
    [LIMIT_MESSAGES] = {"messages",
                        {"max-messages", 0, OPTION_U64, AT(max_messages), "4096", "N",
                         "messages of a chat", 1, COUNT_MAX}},
    [LIMIT_TOOLS] = {"tools",
                     {"max-tools", 0, OPTION_U64, AT(max_tools), "128", "N", "tools of a chat", 0,
                      COUNT_MAX}},
};

size_t gateway_limits_options(struct option_spec *specs, size_t offset)
{
    size_t n = 0;
    for (size_t i = 0; i < N_GATEWAY_LIMITS; i++) {
        if (!gateway_limit_rows[i].option.name)
            continue;
        specs[n] = gateway_limit_rows[i].option;
        specs[n++].offset += offset;
    }
    return n;
}

void gateway_limits_init(struct gateway_limits *limits)
{
    struct option_spec specs[N_GATEWAY_LIMITS];
    struct error err;
    size_t n = gateway_limits_options(specs, 0);
    int rc = options_defaults(specs, n, limits, &err);
    assert(rc == 0); /* the table's own texts are valid */
    (void)rc;
}

/* A connection of HTTP/1.1 carries one request, and a connection of gRPC a hundred. */
uint64_t gateway_limits_grpc_room(uint64_t wanted, uint64_t room, uint32_t n_http)
{
    uint64_t n_wanted_http = wanted * n_http;
    uint64_t n = room > n_wanted_http ? room - n_wanted_http : 0;
    n = n > room / 4 ? n : room / 4;
    return n < wanted ? n : wanted;
}
