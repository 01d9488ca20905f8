/* health.h: grpc.health.v1 Check, List and Watch. Names: "" (the whole process, NOT_SERVING
 * until set), service names, "model/<name>/<version>", and HEALTH_LIVENESS. Any thread; lock
 * inside. */
#pragma once

#include <stdbool.h>

struct rpc_health;

/* This name is SERVING from the start of the server to its end, also while it drains. */
#define HEALTH_LIVENESS "liveness"

/* Sets a name's status; every Watch of it hears at once. Names over 256 bytes are ignored. */
void rpc_health_set(struct rpc_health *health, const char *name, bool serving);
/* What Check answers for a name. */
bool rpc_health_is_serving(struct rpc_health *health, const char *name);
/* The name is known no longer: Check answers NOT_FOUND, Watch SERVICE_UNKNOWN. */
void rpc_health_forget(struct rpc_health *health, const char *name);
/* Every name but HEALTH_LIVENESS is NOT_SERVING, whatever is set from now on. */
void rpc_health_shutdown(struct rpc_health *health);
