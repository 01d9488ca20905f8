/* support_stream.h: the client of one GenerateStream. The client stores the frames of each request.
 * The client reports errors: gaps, repeats, text of other ids, frames after the end. Any thread;
 * lock inside. Functions assert. */
#pragma once

#include "tests/unit/gateway/support/support_gateway.h"

enum { CLIENT_MAX_REQUESTS = 300, CLIENT_MAX_ERRORS = 16, CLIENT_MAX_ORDER = 1 << 16 };

/* A request as the client sees it. */
struct client_answer {
    char id[132];
    uint32_t *ids[STREAM_MAX_CHOICES];
    unsigned n_ids[STREAM_MAX_CHOICES], n_tokens, max_ids;
    bool finished[STREAM_MAX_CHOICES];
    double cumulative[STREAM_MAX_CHOICES];
    unsigned n_infos, n_finished, n_errors;
    struct error errors[CLIENT_MAX_ERRORS];
    bool goes_on[CLIENT_MAX_ERRORS];
    uint32_t n_resumes, n_usage_tokens;
    bool has_receipt, over;
};

struct client_bidi {
    struct rpc_stream *stream;
    uint32_t text_bytes; /* same as in the workers */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct client_answer answers[CLIENT_MAX_REQUESTS];
    unsigned n_answers;
    /* the request of each message with tokens, in order of arrival */
    uint16_t order[CLIENT_MAX_ORDER];
    unsigned n_order;
    const char *complaint;
    bool over;
    struct error status;
};

void bidi_open(struct fixture *f, struct rpc_client *client, uint64_t timeout_ms,
               struct client_bidi *bidi);
/* Cancels the remaining requests and frees everything. */
void bidi_close(struct client_bidi *bidi);

/* Send a frame; `id` is the request id in the frame. */
void bidi_start(struct client_bidi *bidi, const char *id, const struct client_request *request);
struct bidi_extra {
    uint32_t window_ms, credit, best_of;
    bool has_credit;
};
void bidi_start_with(struct client_bidi *bidi, const char *id, const struct client_request *request,
                     const struct bidi_extra *extra);
void bidi_send(struct client_bidi *bidi, Sluice__V1__GenerateStreamRequest *frame);
void bidi_cancel(struct client_bidi *bidi, const char *id);
void bidi_pause(struct client_bidi *bidi, const char *id, bool paused);
void bidi_credit(struct client_bidi *bidi, const char *id, uint32_t n_tokens);
void bidi_update(struct client_bidi *bidi, const char *id, uint32_t max_tokens);
/* Reattaches as a client with n tokens of choice 0. The stored answer continues after these. */
void bidi_reattach(struct client_bidi *bidi, const char *id, uint32_t n_received,
                   const uint32_t *received);
void bidi_half_close(struct client_bidi *bidi);

/* Returns the stored answer of an id; makes an empty one for a new id. */
struct client_answer *bidi_answer(struct client_bidi *bidi, const char *id);
/* Wait up to 20 s. Fail the test if a message broke a rule. */
struct client_answer *bidi_wait_tokens(struct client_bidi *bidi, const char *id, unsigned n);
struct client_answer *bidi_wait_over(struct client_bidi *bidi, const char *id);
/* Waits for the request's n-th error, counted from 0. */
struct error bidi_wait_error(struct client_bidi *bidi, const char *id, unsigned n);
int bidi_wait_end(struct client_bidi *bidi);
/* Waits for the request's n-th error, and checks its fields. */
void bidi_expect_error(struct client_bidi *bidi, const char *id, unsigned n, int status,
                       const char *reason, const char *field, bool goes_on);
/* Waits until no token has come for 150 ms, and returns the number of tokens so far. */
unsigned bidi_quiet(struct client_bidi *bidi, const char *id);

/* Checks all tokens against those of prompt, seed, choice and index. With `whole` none may be
 * missing, and there is one end. */
void bidi_expect_tokens(struct client_bidi *bidi, const char *id,
                        const struct client_request *request, bool whole);
