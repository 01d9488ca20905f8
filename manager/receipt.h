/* receipt.h: what an operation did, in bytes and requests: the result it is recorded with. Loop
 * thread only. */
#pragma once

#include "manager/manager.h"
#include "manager/pb.h"

/* Load: what the workers say they took, per device. Unload: per device of the group, the bytes that
 * Sluice's workers held before the drain, hold now, and should hold now. On a CPU these are pages
 * only the workers have (anonymous and shared memory), read from the kernel. NULL where memory is
 * exhausted. */
pb_operation_result *receipt_build(struct manager *manager, const pb_operation *operation);
