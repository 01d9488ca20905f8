/* limits.h: every limit of the data plane in one table (limits.c). A row has the value, the
 * option (flag, environment, config key) and the name in metrics. counters_refusal() counts
 * refusals. Plain data, constant once the server has started. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/settings/options.h"

struct gateway_limits {
    /* connections and calls */
    uint64_t max_message_bytes, max_metadata_bytes;
    uint64_t max_connections;
    uint64_t max_streams; /* per connection */
    uint64_t max_resets;  /* reset streams per connection and second */
    uint64_t max_calls;
    uint64_t handshake_timeout_ms; /* a connection that has not shown its protocol by then is
                                    * closed */
    uint64_t request_timeout_ms;   /* a call whose request is incomplete after this time is ended */
    uint64_t http_idle_ms;         /* an HTTP connection without a request is closed after this
                                    * time */
    uint64_t max_connection_requests; /* the last answer closes an HTTP connection */
    uint64_t http_body_budget;        /* bytes of unfinished bodies of all HTTP connections */
    /* clients that read slowly */
    uint64_t max_pending_bytes;  /* unsent bytes of a client's stream; above this its sequence
                                  * pauses */
    uint64_t max_pending_tokens; /* unsent tokens of the stream; whichever is reached first */
    uint64_t max_answer_bytes;   /* bytes of a Complete answer, which is one message */
    uint64_t slow_reader_ms;     /* a stream whose reader takes no message for this long is ended */
    uint64_t max_pause_ms;       /* longest time that a client may leave a request paused or without
                                  * credit */
    /* admission */
    uint64_t max_queued;      /* queued requests of a model version */
    uint64_t max_concurrent;  /* requests at a replica; further requests wait */
    uint64_t replica_wait_ms; /* how long a new request waits for a replica that starts */
    /* replicas */
    uint64_t resume_ms; /* how long a request whose replica was lost waits for another replica */
    uint64_t stall_ms;  /* a replica with work that finishes no layer for this long is stalled */
    /* GenerateStream */
    uint64_t max_stream_requests;      /* live requests on one stream */
    uint64_t max_stream_pending_bytes; /* unsent bytes of all its requests; above this they pause */
    uint64_t max_replay_bytes;         /* bytes kept for a request that may be reattached */
    uint64_t max_reattach_ms;          /* longest reattach_window_ms */
    /* parameters of a request */
    uint64_t max_choices; /* n and best_of */
    uint64_t max_stop_strings, max_stop_bytes, max_stop_ids;
    uint64_t max_top_n;
    uint64_t max_logit_bias, max_allowed_ids;
    uint64_t max_bad_words, max_bad_word_bytes;
    uint64_t max_messages, max_tools; /* messages and tools of a chat */
};

enum gateway_limit {
    LIMIT_NONE,
    LIMIT_MESSAGE_BYTES,
    LIMIT_METADATA_BYTES,
    LIMIT_CONNECTIONS,
    LIMIT_HANDSHAKE,
    LIMIT_KEEPALIVE, /* keepalive and drain have options of the program (main.c), not of the
                      * table */
    LIMIT_DRAIN,
    LIMIT_DRAINING, /* no option: requests that arrive during a drain */
    LIMIT_STREAMS,
    LIMIT_RESETS,
    LIMIT_CALLS,
    LIMIT_REQUEST_TIMEOUT,
    LIMIT_HTTP_IDLE, /* these two refuse nothing: the connection is closed */
    LIMIT_CONNECTION_REQUESTS,
    LIMIT_HTTP_BODY_BUDGET,
    LIMIT_PENDING_BYTES,
    LIMIT_PENDING_TOKENS,
    LIMIT_ANSWER_BYTES,
    LIMIT_SLOW_READER,
    LIMIT_PAUSE,
    LIMIT_QUEUED,
    LIMIT_CONCURRENT,
    LIMIT_DEADLINE, /* no option: the predicted wait is longer than the request's deadline allows */
    LIMIT_INPUT_TOKENS, /* the next three are options of the worker, which refuses the requests */
    LIMIT_TOTAL_TOKENS,
    LIMIT_TEMPLATE,
    LIMIT_REPLICA_WAIT,
    LIMIT_RESUME,
    LIMIT_STALL,
    LIMIT_STREAM_REQUESTS,
    LIMIT_STREAM_PENDING_BYTES,
    LIMIT_REPLAY_BYTES,
    LIMIT_REATTACH,
    LIMIT_CHOICES,
    LIMIT_STOP_STRINGS,
    LIMIT_STOP_BYTES,
    LIMIT_STOP_IDS,
    LIMIT_TOP_N,
    LIMIT_LOGIT_BIAS,
    LIMIT_ALLOWED_IDS,
    LIMIT_BAD_WORDS,
    LIMIT_BAD_WORD_BYTES,
    LIMIT_MESSAGES,
    LIMIT_TOOLS,
    N_GATEWAY_LIMITS
};

struct gateway_limit_row {
    const char *name;          /* name in metrics: "queued" */
    struct option_spec option; /* name NULL: no option; offset within struct gateway_limits */
};

/* [N_GATEWAY_LIMITS], row LIMIT_NONE is empty. */
extern const struct gateway_limit_row gateway_limit_rows[N_GATEWAY_LIMITS];

/* Sets the defaults of the table. */
void gateway_limits_init(struct gateway_limits *limits);
/* Appends the table's options to specs, which has room for N_GATEWAY_LIMITS more. The caller's
 * settings have their gateway_limits at `offset`. Returns the number of added options. */
size_t gateway_limits_options(struct option_spec *specs, size_t offset);

/* Returns how many connections gRPC may have. The open files allow `room` for all ports, and each
 * port wants `wanted`. The n_http ports of HTTP come first, and leave a quarter at least. */
uint64_t gateway_limits_grpc_room(uint64_t wanted, uint64_t room, uint32_t n_http);

/* The limits for a check, and the limit that the check found exceeded. */
struct limit_check {
    const struct gateway_limits *limits;
    enum gateway_limit over; /* LIMIT_NONE: no limit was exceeded */
};
