/* fuzz_guard.c: a client's bytes before gRPC has them. The verdict must be the same however the
 * bytes are cut. The first two bytes choose the cuts. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/rpc/rpc_guard.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum rpc_guard_verdict feed(const uint8_t *data, size_t size, size_t step)
{
    static const struct rpc_guard_limits limits = {4096, 50};
    struct rpc_guard guard;
    enum rpc_guard_verdict verdict = RPC_GUARD_GOOD;
    memset(&guard, 0, sizeof(guard));
    for (size_t at = 0; at < size && verdict == RPC_GUARD_GOOD; at += step)
        verdict = rpc_guard_feed(&guard, &limits, data + at, size - at < step ? size - at : step,
                                 1000000000);
    return verdict;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    size_t a = 1 + data[0] % 64, b = 1 + 16 * (size_t)data[1];
    if (feed(data + 2, size - 2, a) != feed(data + 2, size - 2, b))
        abort();
    return 0;
}
