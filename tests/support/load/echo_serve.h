/* echo_serve.h: the Serve stream of a worker without an engine. It answers each request with the
 * prompt's own ids, again and again from the start until max_tokens, at a fixed rate per stream, so
 * that whoever reads knows every token that must come: its id, its index and its text. It keeps all
 * of the protocol that concerns tokens: credit, pause, cancel, update of max_tokens, deadlines,
 * drain, and resumes, which go on at the right index.
 *
 * One thread turns a wheel of `n_slots` slots; a stream has its place in one of them, and each turn
 * of a slot is one Step frame with a token of every stream in it. Any thread; lock inside. */
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
    uint32_t rate;    /* tokens per second and stream; 0: streams are told of and stay silent */
    uint32_t n_slots; /* frames per token time; at least 1 */
    uint32_t (*protocol)(void); /* the version it speaks now; NULL: 1 */
    bool looks_not;             /* at the versions that its peer speaks */
};

/* What a worker that speaks `own` alone answers to a peer of other versions: FAILED_PRECONDITION,
 * PROTOCOL_MISMATCH. */
int echo_check_protocol(uint32_t own, uint32_t peer_min, uint32_t peer_max, struct error *err);

/* Starts the wheel. *out_echo is owned. */
int echo_create(const struct echo_config *config, struct echo **out_echo, struct error *err);

/* A handler of Worker.Serve; `context` is the echo. */
void echo_serve(void *context, struct rpc_call *call, const ProtobufCMessage *message);

/* Tells every stream, refuses what is new, and waits up to grace_ms for what runs; then gives the
 * rest back (UNAVAILABLE, DRAINING). Returns how many finished; *out_n_ended: given back. */
uint32_t echo_drain(struct echo *echo, uint32_t grace_ms, uint32_t *out_n_ended);

/* How busy it is, and totals since its start. */
void echo_fill_load(struct echo *echo, Sluice__Worker__V1__Load *out_load);
void echo_fill_counters(struct echo *echo, Sluice__Worker__V1__WorkerCounters *out_counters);

/* A prompt of text or chat is one id per byte. *out_ids is owned (free). */
int echo_prompt(const Sluice__V1__GenerateRequest *request, uint32_t **out_ids, size_t *out_n,
                struct error *err);

/* What token `index` of a choice is, and its text: ECHO_TEXT_BYTES, no NUL. The text depends on the
 * index too, so that a token that is repeated or left out shows even where ids repeat. */
enum { ECHO_TEXT_BYTES = 4 };
uint32_t echo_token(const uint32_t *prompt, size_t n_prompt, uint32_t choice, uint32_t index);
void echo_text(uint32_t id, uint32_t index, char out_text[ECHO_TEXT_BYTES]);
