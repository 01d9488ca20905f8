#include "server/worker/serve/text_rpc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "engine/engine.h"
#include "proto/rpc/server/call.h"
#include "server/worker/base/message.h"
#include "server/worker/base/prompt.h"
#include "server/worker/base/settings.h"
#include "server/worker/base/work_pool.h"
#include "server/worker/state/worker.h"

/* Largest number of pieces in an answer, because its reader allocates memory for each piece. */
enum { MAX_PIECES = 1 << 18 };

/* A unary call on its way through the work pool. */
struct text_call {
    struct worker *worker;
    struct rpc_call *call;           /* retained, which keeps the request alive */
    const ProtobufCMessage *request; /* borrowed from the call */
    int (*answer)(struct text_call *text, struct engine *engine, struct error *err);
};

static void run(void *arg)
{
    struct text_call *text = arg;
    struct error err;
    if (!rpc_call_cancelled(text->call)) { /* a cancelled call needs no answer */
        struct engine *engine = worker_engine(text->worker, &err);
        int rc = engine ? text->answer(text, engine, &err) : err.status;
        if (rc)
            rpc_call_finish(text->call, &err);
    }
    rpc_call_release(text->call);
    free(text);
}

static void start(void *context, struct rpc_call *call, const ProtobufCMessage *request,
                  int (*answer)(struct text_call *, struct engine *, struct error *))
{
    struct error err;
    struct text_call *text = malloc(sizeof(*text));
    if (!text) {
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "request: out of memory");
        rpc_call_finish(call, &err);
        return;
    }
    *text = (struct text_call){context, call, request, answer};
    rpc_call_retain(call);
    if (work_pool_push(text->worker->pool, run, text, &err) == 0)
        return;
    rpc_call_finish(call, &err);
    rpc_call_release(call);
    free(text);
}

static int render(struct text_call *text, struct engine *engine, const Sluice__V1__Chat *chat,
                  struct strbuf *out, struct token_list *ids, struct error *err)
{
    const struct worker *worker = text->worker;
    const struct tokenizer *tok = engine_tokenizer(engine);
    struct prompt_guard guard = {0};
    int rc = prompt_render_chat(worker->templates, &worker->template_limits, tok, chat, "chat",
                                clock_wall_ns() / NS_PER_S, out, &guard, err);
    if (!rc)
        rc = prompt_encode_rendered(tok, out, &guard, ids, err);
    prompt_guard_fini(&guard);
    return rc;
}

/* --- Tokenize --- */

static int add_pieces(const struct tokenizer *tok, const struct token_list *ids,
                      struct arena *arena, Sluice__V1__TokenizeResponse *reply, struct error *err)
{
    if (ids->n_ids > MAX_PIECES)
        return error_field(err, "with_pieces", "%zu tokens exceed the limit of %d", ids->n_ids,
                           MAX_PIECES);
    reply->pieces = arena_calloc(arena, ids->n_ids + 1, sizeof(*reply->pieces));
    if (!reply->pieces)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "pieces: out of memory");
    for (size_t i = 0; i < ids->n_ids; i++) {
        size_t n = 0;
        const char *bytes = tokenizer_token_bytes(tok, ids->ids[i], &n);
        reply->pieces[i].data = (uint8_t *)(uintptr_t)bytes;
        reply->pieces[i].len = n;
    }
    reply->n_pieces = ids->n_ids;
    return 0;
}

static int tokenize(struct text_call *text, struct engine *engine, struct error *err)
{
    const Sluice__V1__TokenizeRequest *request = (const Sluice__V1__TokenizeRequest *)text->request;
    const struct tokenizer *tok = engine_tokenizer(engine);
    Sluice__V1__TokenizeResponse reply = SLUICE__V1__TOKENIZE_RESPONSE__INIT;
    struct token_list ids = {0};
    struct strbuf rendered = {0};
    struct arena arena;
    int rc;
    arena_init(&arena, 0, 0);
    if (request->input_case == SLUICE__V1__TOKENIZE_REQUEST__INPUT_CHAT)
        rc = render(text, engine, request->chat, &rendered, &ids, err);
    else if (request->input_case == SLUICE__V1__TOKENIZE_REQUEST__INPUT_TEXT)
        rc =
            prompt_encode_text(tok, request->text,
                               request->has_add_special_tokens ? request->add_special_tokens : true,
                               request->parse_special_tokens, &ids, err);
    else
        rc = error_field(err, "input", "is missing; give text or chat");
    if (!rc && request->with_pieces)
        rc = add_pieces(tok, &ids, &arena, &reply, err);
    if (!rc) {
        reply.ids = ids.ids;
        reply.n_ids = ids.n_ids;
        reply.version = (char *)(uintptr_t)text->worker->settings->version_id;
        rpc_call_reply(text->call, &reply.base);
    }
    token_list_fini(&ids);
    strbuf_fini(&rendered);
    arena_fini(&arena);
    return rc;
}

void text_rpc_tokenize(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    start(context, call, request, tokenize);
}

/* --- Detokenize --- */

static int decode(const struct tokenizer *tok, const Sluice__V1__DetokenizeRequest *request,
                  struct strbuf *out, struct error *err)
{
    struct detokenizer *detok = NULL;
    struct detokenizer_delta delta;
    bool skip = request->has_skip_special_tokens ? request->skip_special_tokens : true;
    uint32_t vocab_size = tokenizer_info(tok)->vocab_size;
    int rc = 0;
    for (size_t i = 0; i < request->n_ids && !rc; i++) {
        char name[ERROR_FIELD_BYTES];
        snprintf(name, sizeof(name), "ids[%zu]", i);
        if (request->ids[i] >= vocab_size)
            rc = error_field(err, name, "%u is not below the vocabulary size %u", request->ids[i],
                             vocab_size);
    }
    if (!rc)
        rc = detokenizer_create(tok, skip, &detok, err);
    if (!rc)
        detokenizer_begin_text(detok);
    for (size_t i = 0; i < request->n_ids && !rc; i++) {
        rc = detokenizer_push(detok, request->ids[i], &delta, err);
        if (!rc)
            strbuf_add(out, delta.text, delta.n_bytes);
    }
    if (!rc)
        rc = detokenizer_flush(detok, &delta, err);
    if (!rc)
        strbuf_add(out, delta.text, delta.n_bytes);
    detokenizer_destroy(detok);
    if (!rc && strbuf_failed(out))
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "text: out of memory");
    return rc;
}

static int detokenize(struct text_call *text, struct engine *engine, struct error *err)
{
    const Sluice__V1__DetokenizeRequest *request =
        (const Sluice__V1__DetokenizeRequest *)text->request;
    Sluice__V1__DetokenizeResponse reply = SLUICE__V1__DETOKENIZE_RESPONSE__INIT;
    struct strbuf out = {0};
    struct arena arena;
    arena_init(&arena, 0, 0);
    int rc = decode(engine_tokenizer(engine), request, &out, err);
    if (!rc) {
        reply.text = message_model_text(&arena, strbuf_str(&out), out.n_bytes);
        if (out.n_bytes && !reply.text[0])
            rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "text: out of memory");
    }
    if (!rc) {
        reply.version = (char *)(uintptr_t)text->worker->settings->version_id;
        rpc_call_reply(text->call, &reply.base);
    }
    strbuf_fini(&out);
    arena_fini(&arena);
    return rc;
}

void text_rpc_detokenize(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    start(context, call, request, detokenize);
}

/* --- ApplyChatTemplate --- */

static int apply(struct text_call *text, struct engine *engine, struct error *err)
{
    const Sluice__V1__ApplyChatTemplateRequest *request =
        (const Sluice__V1__ApplyChatTemplateRequest *)text->request;
    Sluice__V1__ApplyChatTemplateResponse reply = SLUICE__V1__APPLY_CHAT_TEMPLATE_RESPONSE__INIT;
    struct token_list ids = {0};
    struct strbuf rendered = {0};
    struct arena arena;
    arena_init(&arena, 0, 0);
    int rc = request->chat ? render(text, engine, request->chat, &rendered, &ids, err)
                           : error_field(err, "chat", "is missing");
    if (!rc) {
        reply.text = message_model_text(&arena, strbuf_str(&rendered), rendered.n_bytes);
        if (rendered.n_bytes && !reply.text[0])
            rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "text: out of memory");
    }
    if (!rc) {
        reply.ids = ids.ids;
        reply.n_ids = ids.n_ids;
        reply.version = (char *)(uintptr_t)text->worker->settings->version_id;
        rpc_call_reply(text->call, &reply.base);
    }
    token_list_fini(&ids);
    strbuf_fini(&rendered);
    arena_fini(&arena);
    return rc;
}

void text_rpc_apply_chat_template(void *context, struct rpc_call *call,
                                  const ProtobufCMessage *request)
{
    start(context, call, request, apply);
}
