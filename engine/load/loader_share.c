#include "engine/load/loader_share.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "engine/load/loader_memory.h"

static bool is_empty(int fd)
{
    struct stat st;
    return fcntl(fd, F_GET_SEALS) == 0 && fstat(fd, &st) == 0 && st.st_size == 0;
}

enum loader_share loader_share_check(const int *fds, const struct rank_plan *plans,
                                     uint32_t n_ranks, struct error *why)
{
    uint32_t n_empty = 0;
    error_clear(why);
    for (uint32_t r = 0; r < n_ranks; r++)
        n_empty += is_empty(fds[r]);
    if (n_empty == n_ranks)
        return LOADER_SHARE_FILL;
    for (uint32_t r = 0; r < n_ranks; r++)
        if (loader_memory_check(fds[r], &plans[r], why) != 0)
            return LOADER_SHARE_NONE;
    return LOADER_SHARE_MAP;
}

int loader_share_map(const int *fds, const struct rank_plan *plans, uint32_t n_ranks,
                     struct packed_weights *out_weights, struct error *err)
{
    struct packed_weights mapped[N_SEGMENTS] = {{0}};
    int rc = 0;
    for (uint32_t r = 0; !rc && r < n_ranks; r++) {
        int fd = fcntl(fds[r], F_DUPFD_CLOEXEC, 0);
        rc = fd < 0 ? error_errno(err, errno, "packed weights")
                    : loader_map_sealed(fd, &plans[r], &mapped[r], err);
        if (rc && fd >= 0)
            close(fd);
        mapped[r].origin = LOADER_MAPPED;
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        if (rc)
            loader_unmap(&mapped[r]);
        else
            out_weights[r] = mapped[r];
    }
    return rc;
}
