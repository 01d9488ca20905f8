#include "server/worker/park/parked.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/log.h"
#include "server/worker/base/settings.h"
#include "server/worker/state/worker.h"

static int refuse(int rank, const char *why, struct error *err)
{
    error_set(err, STATUS_FAILED_PRECONDITION, "packed weights of rank %d: %s", rank, why);
    return error_reason(err, REASON_NOTHING_TO_KEEP);
}

static int keep(struct kept_weights *kept, int fd, int rank, struct error *err)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || fstat(fd, &st) != 0)
        return refuse(rank, "the descriptor is not a memfd", err);
    if (!(seals & F_SEAL_WRITE) || !(seals & F_SEAL_SHRINK) || st.st_size <= 0)
        return refuse(rank, "the memfd is empty or not sealed", err);
    size_t n_bytes = (size_t)st.st_size;
    /* Kernels before 6.7 refuse a shared mapping of a write-sealed file even for reading. */
    void *base = mmap(NULL, n_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        base = mmap(NULL, n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (base == MAP_FAILED)
        return error_errno(err, errno, "mapping %zu bytes of packed weights", n_bytes);
    madvise(base, n_bytes, MADV_HUGEPAGE); /* advice; the mapping works without huge pages */
#ifdef MADV_POPULATE_READ
    madvise(base, n_bytes, MADV_POPULATE_READ);
#endif
    kept->bases[kept->n_ranks] = base;
    kept->n_bytes[kept->n_ranks++] = n_bytes;
    return 0;
}

int parked_keep(struct worker *worker, struct error *err)
{
    struct executor_plan plan = {0};
    uint32_t n_ranks = (uint32_t)worker->settings->packed_fds;
    if (!n_ranks)
        return refuse(0, "no descriptors were inherited (--packed-fds)", err);
    for (uint32_t r = 0; r < n_ranks; r++) {
        int rc = keep(&worker->kept, worker->packed_fds[r], (int)r, err);
        if (rc)
            return rc;
        plan.weights_bytes += worker->kept.n_bytes[r];
    }
    /* A parked process uses host memory only, even for the weights of a GPU. */
    plan.n_devices = 1;
    snprintf(plan.devices[0].name, sizeof(plan.devices[0].name), "cpu");
    plan.devices[0].weights_bytes = plan.weights_bytes;
    worker_set_planned(worker, &plan);
    log_info(LOG_EVENT("parked"), LOG_STR("replica", worker->settings->replica),
             LOG_U64("epoch", worker->settings->epoch), LOG_U64("bytes", plan.weights_bytes));
    return 0;
}

void parked_let_go(struct kept_weights *kept)
{
    for (uint32_t r = 0; r < kept->n_ranks; r++)
        munmap(kept->bases[r], (size_t)kept->n_bytes[r]);
    *kept = (struct kept_weights){.n_ranks = 0};
}
