/* bench_load.h: puts load on a server over gRPC and counts what comes back. One thread runs it;
 * answers come on the connections' threads, under a lock inside.
 *
 * Closed loop: so many requests are in flight, each end starts the next. Open loop: requests arrive
 * as a Poisson process, however the server does; their times count from when they were due.
 *
 * What is measured, of a request: TTFT, to its first tokens; ITL, a sample per token: the time
 * since the message before, divided by the tokens that came together (those of the first message
 * have none); TPOT, the mean of these over the request; E2E, to its end. TTFT, TPOT and E2E are of
 * requests that ended well. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/metrics/histogram.h"

struct bench_prompts;
struct rpc_client;

enum {
    BENCH_CODES = 17,
    BENCH_MAX_CLIENTS = 4096,
    BENCH_WARMUP_CLIENTS = 32,
    BENCH_SALT_BYTES = 32
};

struct bench_load_config {
    const char *model, *version;
    const struct bench_prompts *prompts;
    uint32_t max_prompt_ids; /* of a drawn prompt */
    uint32_t n_clients;      /* in flight at most; closed loop: always */
    double rate;             /* arrivals per second; 0: closed loop */
    uint64_t n_requests;     /* 0: as many as the time allows */
    int64_t duration_ns;     /* none starts after; 0: n_requests alone count */
    uint64_t n_warmup;       /* requests before, in a closed loop (of at most BENCH_WARMUP_CLIENTS
                                where the load is open), that do not count */
    uint64_t timeout_ms;     /* of a request; 0: none */
    bool ignore_eos, chat;
    double temperature; /* 0: greedy */
    int32_t n_drafts;   /* drafted in a step; 0: none, -1: as the model was loaded */
    uint64_t seed;
    int32_t priority;
    bool has_priority;
    char cache_salt[BENCH_SALT_BYTES];          /* of all requests, the warm-up's too; "": none */
    double slo_ttft_ms, slo_itl_ms, slo_e2e_ms; /* 0: whatever it is */
    const volatile sig_atomic_t *stop;          /* not 0: end with what there is */
    /* Another connection; *out_client is owned by the load. */
    int (*connect)(void *ctx, struct rpc_client **out_client, struct error *err);
    /* About ten times a second, on the thread that runs the load; may be NULL. */
    void (*progress)(void *ctx, uint64_t n_ended, uint64_t n_in_flight, uint64_t n_tokens);
    void *ctx;
};

struct bench_results {
    int64_t start_ns, end_ns; /* of what counts: its first request, its last end */
    uint64_t n_started, n_ok, n_failed, n_cancelled;
    uint64_t n_short;  /* of the good ones: ended before max_tokens */
    uint64_t n_good;   /* of them: within every SLO */
    uint64_t n_late;   /* arrivals that waited for one of n_clients to end */
    uint64_t n_missed; /* arrivals that still did when the time was over: never started */
    uint64_t by_code[BENCH_CODES];
    uint64_t n_input_tokens, n_cached_tokens, n_output_tokens, n_messages;
    uint64_t n_drafted_tokens, n_accepted_tokens; /* of those that ended well */
    uint32_t max_in_flight, n_connections;
    struct histogram ttft, itl, tpot, e2e;
    struct error first_error; /* of those that failed; status 0: none did */
    char numerics_id[96];     /* of the last receipt */
    bool interrupted;
};

/* Runs the load. A request that fails is counted, one for which no further connection could be made
 * too; an error is returned where there can be none at all (no connection, no memory, a failed
 * warm-up). *out_results (large: not for the stack) is
 * valid on success. */
int bench_load_run(const struct bench_load_config *config, struct bench_results *out_results,
                   struct error *err);
