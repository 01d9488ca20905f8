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
    bool thinks; /* the last printed text was reasoning */

    pthread_mutex_t lock;    /* guards the fields below */
    void (*stop)(void *arg); /* ends the running call; NULL: none runs */
    void *stop_arg;
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
/* For a call that does not go over gRPC (chat/remote.h). Sets the function that ends the running
 * call; NULL: the call has ended. Calls `stop` at once if the answer is cancelled already. */
void answer_set_stop(struct answer *answer, void (*stop)(void *arg), void *arg);
/* Takes a part of the text: keeps it, and prints it unless --json. */
void answer_add_text(const struct cli *cli, struct answer *answer, const char *text);
/* Takes a part of the reasoning: prints it to stderr, dimmed on a terminal, unless --json. So
 * stdout has the answer alone. */
void answer_add_thought(const struct cli *cli, struct answer *answer, const char *text);
/* Ends the printed answer after a call that returned `rc`. Returns the result of the answer. */
int answer_finish(const struct cli *cli, struct answer *answer, int rc, struct error *err);
/* Cancels the answer, also before its call has begun. Any thread. No effect after the end. */
void answer_cancel(struct answer *answer);

/* Prints time to first token, tokens/s (of ten tokens or more), resumes and drafted tokens to
 * stderr. */
void answer_print_figures(const struct answer *answer);
