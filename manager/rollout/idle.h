/* idle.h: parks or unloads what has served nobody for as long as its deployment says
 * (ModelConfig.idle_after_ms). The time is of the supervisor's monotonic clock, and begins anew
 * with each manager: what was before is not known. Loop thread only. */
#pragma once

#include "manager/manager.h"

/* Looks at every deployment; at most one is acted on at a time. */
void idle_look(struct manager *manager);
