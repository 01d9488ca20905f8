/* remote.h: answers of a server that speaks OpenAI's API over HTTP (--url), for run and chat.
 * Single-threaded; answer_cancel() works as for an answer over gRPC. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "sluice/v1/inference.pb-c.h"

struct answer;
struct cli;
struct error;
struct remote;

/* Checks --url and the options beside it, and connects. `model` NULL: the model that the server
 * lists, which must be the only one; else INVALID_ARGUMENT with the names. *out_remote is owned. */
int remote_open(struct cli *cli, const char *model, struct remote **out_remote, struct error *err);
void remote_close(struct remote *remote); /* NULL is accepted */

const char *remote_model(const struct remote *remote);
/* Asks for the model's context length, in tokens; *out_n is 0 if the server does not tell. Fails
 * only if the server does not answer, or refuses the key. */
int remote_context_length(struct remote *remote, uint32_t *out_n, struct error *err);

/* Stream the answer to stdout, as answer_run() does: to a conversation, and to a text that the
 * model continues. INVALID_ARGUMENT, before the request, for a sampling option that OpenAI's API
 * does not have. */
int remote_chat(struct remote *remote, const Sluice__V1__Chat *chat, struct answer *answer,
                struct error *err);
int remote_complete(struct remote *remote, const char *prompt, struct answer *answer,
                    struct error *err);
