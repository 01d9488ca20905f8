#include "clients/cli/serve/open_requests.h"

#include "base/error.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/message/message.h"
#include "sluice/v1/inference.pb-c.h"

enum { ANSWER_MS = 1000 };

static uint64_t count_page(const Sluice__V1__ListModelsResponse *page)
{
    uint64_t n = 0;
    for (size_t i = 0; i < page->n_models; i++)
        for (size_t k = 0; k < page->models[i]->n_versions; k++)
            n += (uint64_t)page->models[i]->versions[k]->n_running +
                 page->models[i]->versions[k]->n_queued;
    return n;
}

uint64_t open_requests_count(struct rpc_client *server)
{
    Sluice__V1__ListModelsRequest request = SLUICE__V1__LIST_MODELS_REQUEST__INIT;
    struct rpc_call_options options = {.timeout_ms = ANSWER_MS};
    ProtobufCMessage *message = NULL, *page;
    struct error err;
    uint64_t n = 0;
    do {
        page = NULL;
        int rc = rpc_client_unary(server, &sluice__v1__inference__descriptor, "ListModels",
                                  &request.base, &options, &page, &err);
        rpc_message_free(message); /* frees the page with its token */
        message = rc ? NULL : page;
        if (!message)
            return 0;
        const Sluice__V1__ListModelsResponse *list =
            (const Sluice__V1__ListModelsResponse *)message;
        n += count_page(list);
        request.page_token = list->next_page_token;
    } while (request.page_token[0]);
    rpc_message_free(message);
    return n;
}
