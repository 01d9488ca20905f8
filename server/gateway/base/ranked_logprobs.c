#include "server/gateway/base/ranked_logprobs.h"

#include <inttypes.h>
#include <math.h>

#include "base/strbuf.h"
#include "base/text/json_write.h"

/* Rank 0: not known. */
static void write_ranked(struct strbuf *out, uint32_t id, const ProtobufCBinaryData *token,
                         float logprob, size_t rank)
{
    strbuf_printf(out, "\"%" PRIu32 "\":{\"logprob\":", id);
    json_write_float(out, (double)logprob);
    if (rank)
        strbuf_printf(out, ",\"rank\":%zu", rank);
    else
        strbuf_add_str(out, ",\"rank\":null");
    strbuf_add_str(out, ",\"decoded_token\":");
    json_write_text(out, (const char *)token->data, token->len);
    strbuf_add_char(out, '}');
}

static void write_entry(struct strbuf *out, const Sluice__V1__TokenLogprob *entry, size_t n_top)
{
    size_t rank = 0;
    for (size_t k = 0; k < n_top; k++)
        rank = entry->top[k]->id == entry->id ? k + 1 : rank;
    strbuf_add_char(out, '{');
    write_ranked(out, entry->id, &entry->token, entry->logprob, rank);
    for (size_t k = 0; k < n_top; k++) {
        const Sluice__V1__TopLogprob *top = entry->top[k];
        if (top->id == entry->id)
            continue;
        strbuf_add_char(out, ',');
        write_ranked(out, top->id, &top->token, top->logprob, k + 1);
    }
    strbuf_add_char(out, '}');
}

void ranked_logprobs_write(Sluice__V1__TokenLogprob *const *list, size_t n, uint32_t n_top,
                           struct strbuf *out)
{
    strbuf_add_char(out, '[');
    for (size_t i = 0; i < n; i++) {
        strbuf_add_str(out, i ? "," : "");
        if (isnan(list[i]->logprob))
            strbuf_add_str(out, "null");
        else
            write_entry(out, list[i], list[i]->n_top < n_top ? list[i]->n_top : n_top);
    }
    strbuf_add_char(out, ']');
}
