/* limits.h: every limit of the data plane in one table (limits.c): its value, its option (flag,
 * environment, config key), its name in metrics. A refusal is counted with
 * counters_refusal(). Plain data, fixed once the server has started. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/settings/options.h"

struct gateway_limits {
    /* the wire */
    uint64_t max_message_bytes, max_metadata_bytes;
    uint64_t max_connections;
    uint64_t max_streams; /* per connection */
    uint64_t max_resets;  /* of streams, per connection and second */
    uint64_t max_calls;
    uint64_t handshake_timeout_ms; /* a connection that has not said what it is by then is closed */
    uint64_t request_timeout_ms;   /* a call whose request is not whole after this is ended */
    /* readers */
    uint64_t max_pending_bytes;  /* per stream towards a client; beyond, its sequence pauses */
    uint64_t max_pending_tokens; /* the same; whichever is reached first */
    uint64_t max_answer_bytes;   /* of a Complete, in one message */
    uint64_t slow_reader_ms;     /* a stream whose reader takes no message for this long is ended */
    uint64_t max_pause_ms; /* a request its client leaves paused or without credit for longer */
    /* admission */
    uint64_t max_queued;      /* requests of one model version that wait */
    uint64_t max_concurrent;  /* requests at one replica; more of them wait */
    uint64_t replica_wait_ms; /* how long a new request waits for a replica that is coming up */
    /* replicas */
    uint64_t resume_ms; /* how long a request whose replica was lost waits for another */
    uint64_t stall_ms;  /* a replica that has work and finishes no layer for this long is lost */
    /* GenerateStream */
    uint64_t max_stream_requests;      /* live on one stream */
    uint64_t max_stream_pending_bytes; /* of all its requests; beyond, they pause */
    uint64_t max_replay_bytes;         /* kept for a request that may be reattached */
    uint64_t max_reattach_ms;          /* longest reattach_window_ms */
    /* what a request may ask for */
    uint64_t max_choices; /* n and best_of */
    uint64_t max_stop_strings, max_stop_bytes, max_stop_ids;
    uint64_t max_top_n;
    uint64_t max_logit_bias, max_allowed_ids;
    uint64_t max_bad_words, max_bad_word_bytes;
    uint64_t max_messages, max_tools; /* of a chat */
};

enum gateway_limit {
    LIMIT_NONE,
    LIMIT_MESSAGE_BYTES,
    LIMIT_METADATA_BYTES,
    LIMIT_CONNECTIONS,
    LIMIT_HANDSHAKE,
    LIMIT_KEEPALIVE, /* its two times are options of the program, as the next one's */
    LIMIT_DRAIN,
    LIMIT_DRAINING, /* none: what comes meanwhile */
    LIMIT_STREAMS,
    LIMIT_RESETS,
    LIMIT_CALLS,
    LIMIT_REQUEST_TIMEOUT,
    LIMIT_PENDING_BYTES,
    LIMIT_PENDING_TOKENS,
    LIMIT_ANSWER_BYTES,
    LIMIT_SLOW_READER,
    LIMIT_PAUSE,
    LIMIT_QUEUED,
    LIMIT_CONCURRENT,
    LIMIT_DEADLINE, /* no option: the wait predicted at admission is over the request's deadline */
    LIMIT_INPUT_TOKENS, /* these three are options of the worker, which refuses */
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
    const char *name;          /* in metrics: "queued" */
    struct option_spec option; /* name NULL: none; offset within struct gateway_limits */
};

/* [N_GATEWAY_LIMITS], row LIMIT_NONE is empty. */
extern const struct gateway_limit_row gateway_limit_rows[N_GATEWAY_LIMITS];

/* The defaults of the table. */
void gateway_limits_init(struct gateway_limits *limits);
/* Appends the table's options to specs (room for N_GATEWAY_LIMITS more), for a settings struct that
 * has its gateway_limits at `offset`. Returns how many it added. */
size_t gateway_limits_options(struct option_spec *specs, size_t offset);

/* A check against the limits that says which one was passed. */
struct limit_check {
    const struct gateway_limits *limits;
    enum gateway_limit over; /* LIMIT_NONE: none was */
};
