#include "base/system/memory_policy.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"

enum { MASK_BITS = 64 };

/* The kernel uses one bit less than this number. */
static const unsigned long max_node = MASK_BITS + 1;

int memory_policy_set(const uint16_t *nodes, uint32_t n, struct error *err)
{
    uint64_t mask = 0;
    for (uint32_t i = 0; i < n; i++)
        if (nodes[i] < MASK_BITS)
            mask |= 1ULL << nodes[i];
    int mode = n == 0 ? MPOL_DEFAULT : n == 1 ? MPOL_PREFERRED : MPOL_INTERLEAVE;
    if (syscall(SYS_set_mempolicy, mode, n > 0 ? &mask : NULL, n > 0 ? max_node : 0) != 0)
        return error_errno(err, errno, "cannot prefer memory of %u nodes", n);
    return 0;
}

int memory_policy_bind(void *at, size_t n_bytes, uint16_t node, struct error *err)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t)at / page * page;
    size_t length = ((uintptr_t)at + n_bytes - begin + page - 1) / page * page;
    uint64_t mask = node < MASK_BITS ? 1ULL << node : 0;
    if (syscall(SYS_mbind, begin, length, MPOL_PREFERRED, &mask, max_node, 0) != 0)
        return error_errno(err, errno, "cannot place %zu bytes on node %u", n_bytes, node);
    return 0;
}

int memory_policy_node(const void *at)
{
    int node = -1;
    if (syscall(SYS_get_mempolicy, &node, NULL, 0, at, MPOL_F_NODE | MPOL_F_ADDR) != 0)
        return -1;
    return node;
}
