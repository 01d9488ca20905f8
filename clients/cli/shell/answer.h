/* answer.h: one Generate call whose answer goes to stdout as it comes. One thread, save
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
    struct strbuf text; /* all of it */
    uint32_t n_prompt_tokens;
    uint64_t n_tokens;
    uint32_t n_drafted_tokens, n_accepted_tokens; /* as the receipt says */
    uint64_t decode_ns;                           /* from the first token to the last; too */
    uint32_t n_resumes;              /* so are these: what is above is then of its last replica */
    char replica_id[64];             /* cut; the one that ended it */
    Sluice__V1__FinishReason reason; /* UNSPECIFIED: it did not finish */
    int64_t start_ns, first_ns, last_ns;

    pthread_mutex_t lock; /* of what follows */
    struct rpc_reader *reader;
    bool cancelled, ended;
};

void answer_init(struct answer *answer);
void answer_fini(struct answer *answer);

/* Streams the answer; with --json each message as an object on a line. A cancelled answer is no
 * error. Errors: the server's; and where stdout takes no more, which the reason STDOUT_CLOSED
 * tells of a reader that has gone. */
int answer_run(struct cli *cli, struct rpc_client *client,
               const Sluice__V1__GenerateRequest *request, struct answer *answer,
               struct error *err);
/* Ends it from any thread, also before its call has begun; does nothing once it has ended. */
void answer_cancel(struct answer *answer);

/* Time to first token and tokens/s, whether it was resumed, and what was drafted, on stderr. */
void answer_print_figures(const struct answer *answer);
