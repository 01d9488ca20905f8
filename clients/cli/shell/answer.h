/* answer.h: one Generate call that streams its answer to stdout. Single-threaded, except
 * answer_cancel. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/strbuf.h"
#include "sluice/v1/inference.pb-c.h"

struct cli;
struct error;
struct rpc_client;
struct rpc_reader;

struct answer {
    struct strbuf text; /* the whole answer so far */
    uint32_t n_prompt_tokens;
    uint64_t n_tokens;
    uint32_t n_drafted_tokens, n_accepted_tokens; /* from the receipt */
    uint64_t decode_ns;                           /* from the receipt: first token to last token */
    uint32_t
        n_resumes; /* from the receipt; if not 0, the counts above cover the last replica only */
    char replica_id[64];             /* replica that finished the answer; truncated */
    Sluice__V1__FinishReason reason; /* UNSPECIFIED: the answer did not finish */
    int64_t start_ns, first_ns, last_ns;

    pthread_mutex_t lock; /* guards the fields below */
    struct rpc_reader *reader;
    bool cancelled, ended;
};

void answer_init(struct answer *answer);
void answer_fini(struct answer *answer);

/* Streams the answer to stdout. With --json each message is one object on one line. A cancelled
 * answer is no error. Errors: those of the server, and failed writes to stdout (reason
 * STDOUT_CLOSED if the reader of the pipe is gone). */
int answer_run(struct cli *cli, struct rpc_client *client,
               const Sluice__V1__GenerateRequest *request, struct answer *answer,
               struct error *err);
/* Cancels the answer, also before its call has begun. Any thread. No effect after the end. */
void answer_cancel(struct answer *answer);

/* Prints time to first token, tokens/s (of ten tokens or more), resumes and drafted tokens to
 * stderr. */
void answer_print_figures(const struct answer *answer);
