/* bench_load.h: puts load on a server and measures the answers. A single thread runs the load;
 * answers arrive on threads of the transport (gRPC or HTTP), under an internal lock.
 *
 * Closed loop: a fixed number of requests is in flight, and each end starts the next request. Open
 * loop: requests arrive as a Poisson process, however slow the server is; their times count from
 * the due time.
 *
 * Measured times of a request: TTFT to its first tokens; E2E to its end. ITL is a sample per token:
 * the time since the last message, divided by the number of tokens in this message. Tokens of the
 * first message have no ITL. TPOT is the mean ITL of a request. TTFT, TPOT and E2E cover successful
 * requests only. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/metrics/histogram.h"

struct bench_prompts;
struct bench_transport;

enum {
    BENCH_CODES = 17,
    BENCH_MAX_CLIENTS = 4096,
    BENCH_WARMUP_CLIENTS = 32,
    BENCH_SALT_BYTES = 32
};

struct bench_load_config {
    const char *model, *version;
    const struct bench_prompts *prompts;
    uint32_t max_prompt_ids; /* longest generated prompt */
    uint32_t n_clients;      /* limit of requests in flight; closed loop: always this many */
    double rate;             /* arrivals per second; 0: closed loop */
    uint64_t n_requests;     /* 0: no limit, duration_ns ends the load */
    int64_t duration_ns;     /* no request starts later; 0: only n_requests counts */
    /* unmeasured requests before the load, in a closed loop; for an open loop with at most
     * BENCH_WARMUP_CLIENTS in flight */
    uint64_t n_warmup;
    uint64_t timeout_ms; /* deadline of a request; 0: none */
    bool ignore_eos, chat;
    double temperature; /* 0: greedy */
    int32_t n_drafts;   /* tokens to draft per step; 0: none, -1: as the model was loaded */
    uint64_t seed;
    int32_t priority;
    bool has_priority;
    char cache_salt[BENCH_SALT_BYTES]; /* salt of all requests, warm-up included; "": none */
    double slo_ttft_ms, slo_itl_ms, slo_e2e_ms; /* 0: no limit */
    const volatile sig_atomic_t *stop;          /* set to end early with partial results */
    struct bench_transport *transport;          /* borrowed */
    /* Called about ten times a second on the load's thread; may be NULL. */
    void (*progress)(void *ctx, uint64_t n_ended, uint64_t n_in_flight, uint64_t n_tokens);
    void *ctx;
};

struct bench_results {
    int64_t start_ns, end_ns; /* first measured start, last measured end */
    uint64_t n_started, n_ok, n_failed, n_cancelled;
    uint64_t n_short;  /* successful requests with fewer than max_tokens */
    uint64_t n_good;   /* successful requests within every SLO */
    uint64_t n_late;   /* arrivals that waited because n_clients were in flight */
    uint64_t n_missed; /* arrivals that still waited at the end of the time and never started */
    uint64_t by_code[BENCH_CODES];
    uint64_t n_input_tokens, n_cached_tokens, n_output_tokens, n_messages;
    uint64_t n_drafted_tokens, n_accepted_tokens; /* successful requests only */
    uint32_t max_in_flight, n_connections;
    struct histogram ttft, itl, tpot, e2e;
    struct error first_error; /* first error of a failed request; status 0: none */
    char numerics_id[96];     /* from the last receipt */
    bool interrupted;
};

/* Runs the load. Failed requests are counted, also those without a connection. Returns an error if
 * no request is possible: no connection at all, no memory, a failed warm-up. *out_results (too
 * large for the stack) is valid on success. */
int bench_load_run(const struct bench_load_config *config, struct bench_results *out_results,
                   struct error *err);
