/* kserve_models.h: readiness of the server and of its models, for every encoding. Any thread. */
#pragma once

#include <stdbool.h>

struct dispatch;

/* A server without models is ready where the manager can load some. A server that drains is
 * not ready. */
bool kserve_models_server_is_ready(struct dispatch *dispatch);
/* True if a version of the model takes requests, or wakes for one. Empty version: any. */
bool kserve_models_is_ready(struct dispatch *dispatch, const char *name, const char *version);
