/* ranked_logprobs.h: log-probabilities in vLLM's form, which OpenAI's API has for a prompt and
 * KServe has for an answer. Plain functions; any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "sluice/v1/inference.pb-c.h"

struct strbuf;

/* Appends a list with an object for each token: {"<id>": {"logprob", "rank", "decoded_token"}}. The
 * object has the token itself, then its alternatives, at most n_top. The rank of a token that is
 * not among these alternatives is null. A token whose log-probability is NaN, as the first token of
 * a prompt has, is null. */
void ranked_logprobs_write(Sluice__V1__TokenLogprob *const *list, size_t n, uint32_t n_top,
                           struct strbuf *out);
