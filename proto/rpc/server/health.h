/* health.h: grpc.health.v1 Check, List and Watch. Names: "" (the whole process, NOT_SERVING
 * until set), service names, "model/<name>/<version>", and HEALTH_LIVENESS. Any thread; lock
 * inside. */
#pragma once

#include <stdbool.h>

struct rpc_health;

/* This name is SERVING from the start of the server to its end, even while it drains. */
#define HEALTH_LIVENESS "liveness"

/* Sets a name's status; every Watch of the name gets it at once. Names over 256 bytes are
 * ignored. */
void rpc_health_set(struct rpc_health *health, const char *name, bool serving);
/* True if Check answers SERVING for the name. */
bool rpc_health_is_serving(struct rpc_health *health, const char *name);
/* Removes a name: Check answers NOT_FOUND, Watch SERVICE_UNKNOWN. */
void rpc_health_forget(struct rpc_health *health, const char *name);
/* Sets every name except HEALTH_LIVENESS to NOT_SERVING for good. */
void rpc_health_shutdown(struct rpc_health *health);
