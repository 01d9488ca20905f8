#include "base/reason.h"

#include <string.h>

#include "base/status.h"

static const struct reason_facts table[N_REASONS] = {
    [REASON_NONE] = {"", STATUS_OK, STATUS_OK, RETRY_NEVER, REASON_OF_CALL, NULL, ""},
    [REASON_UNKNOWN] = {"", STATUS_UNKNOWN, STATUS_OK, RETRY_NEVER, REASON_OF_CALL, NULL, ""},
#define REASON(name, status, other_status, retry, area, limit, next)                               \
    [REASON_##name] = {#name,         STATUS_##status,  STATUS_##other_status,                     \
                       RETRY_##retry, REASON_OF_##area, limit,                                     \
                       next},
    REASON_LIST(REASON)
#undef REASON
};

const struct reason_facts *reason_facts(enum reason reason)
{
    return &table[(unsigned)reason < N_REASONS ? reason : REASON_UNKNOWN];
}

const char *reason_name(enum reason reason)
{
    return reason_facts(reason)->name;
}

/* Reads all names: a reason is parsed once per error, and seldom. */
enum reason reason_parse(const char *name)
{
    if (!name || !name[0])
        return REASON_NONE;
    for (int i = REASON_UNKNOWN + 1; i < N_REASONS; i++)
        if (strcmp(name, table[i].name) == 0)
            return (enum reason)i;
    return REASON_UNKNOWN;
}
