/* estimate.h: the memory that a replica will take, before its worker has planned. The worker names
 * its plan once it has started; then the plan counts (ledger.h). Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/base/pb.h"
#include "manager/slots/fleet.h"
#include "manager/slots/slot.h"

/* Bytes of the KV cache that a configuration asks for; 0: it sets no size, or the model has
 * recurrent layers alone. A cache of type int8 also has scales, which are not counted. */
uint64_t estimate_kv_bytes(const pb_info *info, const pb_config *config);
/* True if a configuration sets the size of the KV cache, or of the states of a model without a
 * cache.
 */
bool estimate_has_size(const pb_info *info, const pb_config *config);
/* Bytes of the recurrent states that a configuration asks for: all slots, or one if it sets no
 * number. 0: the model has no recurrent layers. */
uint64_t estimate_state_bytes(const pb_info *info, const pb_config *config);

/* Host memory of a replica of the version. The plan of a live replica of the same deployment
 * counts, else weights plus KV cache plus states. `config`: merged from version and deployment. */
uint64_t estimate_host_bytes(const struct fleet *fleet, const pb_version *version,
                             const char *group, const pb_config *config);
/* Host memory that a replica will take once it serves: that of its last serving process, else the
 * estimate. 0: unknown, as the configuration sets no size of the KV cache, or the weights are on
 * GPUs. */
uint64_t estimate_serving_bytes(const struct slot *slot);

/* Limit of the replica's GPU memory by its configuration; 0: no limit. */
uint64_t estimate_gpu_budget(const struct fleet *fleet, const pb_replica *row);
/* GPU memory that a replica will take after a wake: the plan of its last serving process, else
 * its budget or weights. */
uint64_t estimate_gpu_bytes(const struct fleet *fleet, const char *replica_id);
