/* reasons.h: reasons recorded with replicas and operations, for comparisons in several rooms.
 * Words only. */
#pragma once

#define REASON_RESTART     "RESTART"
#define REASON_PARK        "PARK"
#define REASON_WAKE        "WAKE"
#define REASON_CRASH_LOOP  "CRASH_LOOP"
#define REASON_QUARANTINED "DEVICE_QUARANTINED"
/* Reasons of a failed park. NOT_KEPT: the replica serves on without a park copy. NOTHING_KEPT:
 * the replica has no process and no kept weights, and a wake loads the file. */
#define REASON_NOT_KEPT     "WEIGHTS_NOT_KEPT"
#define REASON_NOTHING_KEPT "NOTHING_KEPT"
