/* echo_serve.h: the Serve stream of a worker without an engine. Each request is answered with the
 * prompt's own ids, repeated from the start until max_tokens, at a fixed rate per stream. So a
 * reader knows the id, index and text of every token. The stream follows the protocol for tokens:
 * credit, pause, cancel, update of max_tokens, deadlines, drain and resumes, which continue at the
 * right index.
 *
 * A single thread serves `n_slots` slots in a cycle. Each stream belongs to a slot. Each pass over
 * a slot sends one Step frame with a token for each of its streams. Any thread; lock inside. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sluice/worker/v1/worker.pb-c.h"

struct echo;
struct error;
struct rpc_call;

struct echo_config {
    const char *replica_id, *model, *version, *numerics_id; /* borrowed until destroy */
    uint64_t epoch;
    uint32_t rate;    /* tokens per second and stream; 0: streams are accepted and stay silent */
    uint32_t n_slots; /* frames per token time; at least 1 */
    uint32_t (*protocol)(void); /* returns the current protocol version; NULL: version 1 */
    bool looks_not;             /* does not check the peer's protocol versions */
};

/* Checks a peer's versions as a worker with the only version `own` does. Fails with
 * FAILED_PRECONDITION and PROTOCOL_MISMATCH. */
int echo_check_protocol(uint32_t own, uint32_t peer_min, uint32_t peer_max, struct error *err);

/* Starts the wheel. *out_echo is owned. */
int echo_create(const struct echo_config *config, struct echo **out_echo, struct error *err);

/* A handler of Worker.Serve; `context` is the echo. */
void echo_serve(void *context, struct rpc_call *call, const ProtobufCMessage *message);

/* Sends draining to every stream, refuses new requests, and waits up to grace_ms for running ones.
 * Then returns the others with UNAVAILABLE, DRAINING. Returns how many finished; *out_n_ended: the
 * number of returned requests. */
uint32_t echo_drain(struct echo *echo, uint32_t grace_ms, uint32_t *out_n_ended);

/* Fills in the load, and the totals since the start. */
void echo_fill_load(struct echo *echo, Sluice__Worker__V1__Load *out_load);
void echo_fill_counters(struct echo *echo, Sluice__Worker__V1__WorkerCounters *out_counters);

/* A prompt of text or chat is one id per byte. *out_ids is owned (free). */
int echo_prompt(const Sluice__V1__GenerateRequest *request, uint32_t **out_ids, size_t *out_n,
                struct error *err);

/* Computes token `index` of a choice and its text: ECHO_TEXT_BYTES, no NUL. The text depends on the
 * index too. So a repeated or missing token shows even where ids repeat. */
enum { ECHO_TEXT_BYTES = 4 };
uint32_t echo_token(const uint32_t *prompt, size_t n_prompt, uint32_t choice, uint32_t index);
void echo_text(uint32_t id, uint32_t index, char out_text[ECHO_TEXT_BYTES]);
