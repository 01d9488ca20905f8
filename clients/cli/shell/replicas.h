/* replicas.h: figures of replicas as tables show them. One thread. */
#pragma once

#include "sluice/manager/v1/types.pb-c.h"

/* Of its KV pool what requests and cached prefixes that somebody uses hold, 0 to 1; negative where
 * it has said nothing of a pool. */
double replica_kv_used(const Sluice__Manager__V1__Replica *replica);
/* "37 %", or "-". Returns out. */
const char *replica_kv_text(const Sluice__Manager__V1__Replica *replica, char out[16]);
/* "ready", "failed CRASH_LOOP". Returns out. */
const char *replica_state_text(const Sluice__Manager__V1__Replica *replica, char out[80]);
