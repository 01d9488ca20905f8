#include "clients/cli/shell/sampling.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "clients/cli/shell/cli.h"

/* Copies an option to a field and marks the field present, if the option was given. */
#define COPY_IF_GIVEN(part, field, option, type)                                                   \
    do {                                                                                           \
        (part).has_##field = cli_given(cli, option);                                               \
        (part).field = (type)s->field;                                                             \
    } while (0)

enum { MAX_PRIORITY = 100 };

bool sampling_priority(const struct cli *cli, int32_t *out_priority)
{
    char *end;
    const char *text = cli->settings.priority;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (!text[0] || end == text || *end || errno || value < -MAX_PRIORITY || value > MAX_PRIORITY)
        return false;
    *out_priority = (int32_t)value;
    return true;
}

int sampling_check(const struct cli *cli, struct error *err)
{
    int32_t priority;
    if (cli_given(cli, "priority") && !sampling_priority(cli, &priority))
        return error_set(err, STATUS_INVALID_ARGUMENT, "--priority: %s must be from %d to %d",
                         cli->settings.priority, -MAX_PRIORITY, MAX_PRIORITY);
    if (cli_given(cli, "stop") && !cli->settings.stop[0])
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--stop: the text is empty; leave out --stop for no stop text");
    return 0;
}

void sampling_fill(const struct cli *cli, struct sampling_parts *parts,
                   Sluice__V1__GenerateRequest *request)
{
    const struct cli_settings *s = &cli->settings;
    parts->sampling = (Sluice__V1__Sampling)SLUICE__V1__SAMPLING__INIT;
    parts->stopping = (Sluice__V1__Stopping)SLUICE__V1__STOPPING__INIT;
    COPY_IF_GIVEN(parts->sampling, temperature, "temperature", float);
    COPY_IF_GIVEN(parts->sampling, top_p, "top-p", float);
    COPY_IF_GIVEN(parts->sampling, top_k, "top-k", uint32_t);
    COPY_IF_GIVEN(parts->sampling, min_p, "min-p", float);
    COPY_IF_GIVEN(parts->sampling, typical_p, "typical-p", float);
    COPY_IF_GIVEN(parts->sampling, repetition_penalty, "repetition-penalty", float);
    COPY_IF_GIVEN(parts->sampling, presence_penalty, "presence-penalty", float);
    COPY_IF_GIVEN(parts->sampling, frequency_penalty, "frequency-penalty", float);
    COPY_IF_GIVEN(parts->sampling, seed, "seed", uint64_t);
    COPY_IF_GIVEN(parts->stopping, min_tokens, "min-tokens", uint32_t);
    COPY_IF_GIVEN(parts->stopping, ignore_eos, "ignore-eos", protobuf_c_boolean);
    parts->stopping.has_max_tokens = true;
    parts->stopping.max_tokens = (uint32_t)s->max_tokens;
    if (s->stop[0]) { /* a chat can clear the stop text */
        parts->stop[0] = (char *)(uintptr_t)s->stop;
        parts->stopping.stop = parts->stop;
        parts->stopping.n_stop = 1;
    }
    if (cli_given(cli, "speculate")) {
        parts->speculate = (Sluice__V1__Speculate)SLUICE__V1__SPECULATE__INIT;
        parts->speculate.drafter =
            s->speculate ? SLUICE__V1__DRAFTER__DRAFTER_UNSPECIFIED /* the drafter of the load */
                         : SLUICE__V1__DRAFTER__DRAFTER_NONE;
        parts->speculate.has_max_draft_tokens = s->speculate > 0;
        parts->speculate.max_draft_tokens = (uint32_t)s->speculate;
        request->speculate = &parts->speculate;
    }
    request->has_priority = sampling_priority(cli, &request->priority);
    request->sampling = &parts->sampling;
    request->stopping = &parts->stopping;
}

bool sampling_drop_default(const struct cli *cli, struct sampling_parts *parts,
                           const struct error *refused)
{
    if (cli_given(cli, "max-tokens") || refused->reason != REASON_TOTAL_TOO_LONG ||
        !parts->stopping.has_max_tokens)
        return false;
    parts->stopping.has_max_tokens = false;
    return true;
}
