#include "clients/cli/shell/replicas.h"

#include <stdio.h>

#include "clients/cli/term/output.h"

double replica_kv_used(const Sluice__Manager__V1__Replica *replica)
{
    if (!replica->total_kv_tokens || replica->free_kv_tokens > replica->total_kv_tokens)
        return -1;
    return (double)(replica->total_kv_tokens - replica->free_kv_tokens) /
           (double)replica->total_kv_tokens;
}

const char *replica_kv_text(const Sluice__Manager__V1__Replica *replica, char out[16])
{
    double used = replica_kv_used(replica);
    if (used < 0)
        snprintf(out, 16, "-");
    else /* a pool that somebody uses is not empty */
        snprintf(out, 16, used > 0 && used < 0.01 ? "<1 %%" : "%.0f %%", used * 100);
    return out;
}

const char *replica_state_text(const Sluice__Manager__V1__Replica *replica, char out[80])
{
    char state[32];
    enum_short(&sluice__manager__v1__replica_state__descriptor, (int)replica->state, state);
    snprintf(out, 80, "%s%s%s%s", state, replica->stalled ? " (stalled)" : "",
             replica->reason[0] ? " " : "", replica->reason);
    return out;
}
