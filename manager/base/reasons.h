/* reasons.h: reasons that are recorded with replicas and operations, and that several rooms
 * compare. Words only. */
#pragma once

#define REASON_RESTART     "RESTART"
#define REASON_PARK        "PARK"
#define REASON_WAKE        "WAKE"
#define REASON_CRASH_LOOP  "CRASH_LOOP"
#define REASON_QUARANTINED "DEVICE_QUARANTINED"
/* Of an operation that was to park: it serves on; it does not, and is loaded anew when woken. */
#define REASON_NOT_KEPT     "WEIGHTS_NOT_KEPT"
#define REASON_NOTHING_KEPT "NOTHING_KEPT"
