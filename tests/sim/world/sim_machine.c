/* sim_machine.c: the host memory of the simulated machine. The linker redirects memory_limit_read
 * (base/system/memory_limit.h) here (--wrap). The real machine's memory would change a history, and
 * reading its files takes a third of a history's time. */
#include "base/system/memory_limit.h"
#include "tests/sim/sim.h"

bool __wrap_memory_limit_read(const char *root, pid_t pid, struct memory_limit *out);
bool __wrap_memory_limit_read_node(const char *root, uint32_t node, struct memory_limit *out);

/* Little memory is free in every eighth history. */
bool __wrap_memory_limit_read(const char *root, pid_t pid, struct memory_limit *out)
{
    const uint64_t total = 1ULL << 35, free_bytes = sim.history_seed % 8 == 5 ? 1 << 24 : total / 2;
    (void)root;
    (void)pid;
    *out = (struct memory_limit){.total_bytes = total,
                                 .free_bytes = free_bytes,
                                 .machine_total_bytes = total,
                                 .machine_free_bytes = free_bytes};
    return true;
}

bool __wrap_memory_limit_read_node(const char *root, uint32_t node, struct memory_limit *out)
{
    (void)node;
    return __wrap_memory_limit_read(root, 0, out);
}
