/* executor_keep.c: copies a GPU's weights into host memory, as a park copy (executor.h). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/error.h"
#include "base/format.h"
#include "base/system/cpu.h"
#include "engine/forward/executor_private.h"
#include "engine/load/loader.h"
#include "engine/load/loader_image.h"
#include "kernels/backend.h"

/* Host memory that stays free for others: the kernel, page tables, growing processes. */
#define SPARE_BYTES (64ULL << 20)
/* Few threads suffice for the bus. More would disturb the steps that run meanwhile, because a
 * thread that waits for a copy may spin. */
enum { MAX_THREADS = 4 };

/* Checks that the park copy fits. A memfd takes its pages as they are written; without free memory
 * the kernel would kill a process then. */
static int check_room(uint64_t n_bytes, const struct executor_keep *terms, struct error *err)
{
    struct device_memory memory;
    int rc = backend_cpu_memory(&memory, err);
    if (rc)
        return rc;
    uint64_t free_bytes = memory.free_bytes > SPARE_BYTES ? memory.free_bytes - SPARE_BYTES : 0;
    uint64_t room = free_bytes > terms->promised_bytes ? free_bytes - terms->promised_bytes : 0;
    if (terms->limit_bytes && terms->limit_bytes < room)
        room = terms->limit_bytes;
    if (n_bytes <= room)
        return 0;
    char needed[32], left[32], free_text[32], promised[32], budget[64] = "", limit[32];
    if (terms->limit_bytes)
        snprintf(budget, sizeof(budget), ", a memory budget leaves %s",
                 format_bytes(terms->limit_bytes > 1 ? terms->limit_bytes : 0, limit));
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "a park copy of the weights takes %s of host memory, %s are available (%s free, %s "
              "promised to other replicas%s)",
              format_bytes(n_bytes, needed), format_bytes(room > 1 ? room : 0, left),
              format_bytes(memory.free_bytes, free_text),
              format_bytes(terms->promised_bytes, promised), budget);
    return error_reason(err, REASON_HOST_MEMORY);
}

static int save_weights(const struct executor *ex, const struct executor_keep *terms,
                        struct packed_weights *out_image, struct error *err)
{
    uint32_t r = ex->n_ranks - 1;
    uint32_t n_threads = terms->n_threads ? terms->n_threads : (uint32_t)cpu_count();
    const struct loader_device_job job = {
        .plan = &ex->plans[r],
        .device = ex->gpu,
        .memory = ex->device_memory,
        .n_threads = n_threads < MAX_THREADS ? n_threads : MAX_THREADS,
        .i_rank = r,
        .cancel = terms->cancel,
    };
    return loader_image_save(&job, out_image, err);
}

int executor_keep(const struct executor *ex, const struct executor_keep *terms,
                  struct executor_packed *out_kept, struct error *err)
{
    struct packed_weights image = {.fd = -1};
    *out_kept = (struct executor_packed){.why = ""};
    if (!ex->gpu || ex->is_guest || ex->n_cpu_ranks >= N_SEGMENTS) {
        error_set(err, STATUS_FAILED_PRECONDITION, "no weights on a GPU to copy");
        return error_reason(err, REASON_NO_DEVICE_WEIGHTS);
    }
    int rc = check_room(loader_image_bytes(&ex->plans[ex->n_ranks - 1]), terms, err);
    if (!rc)
        rc = save_weights(ex, terms, &image, err);
    for (uint32_t r = 0; !rc && r < ex->n_cpu_ranks; r++) {
        int fd = fcntl(ex->weights[r].fd, F_DUPFD_CLOEXEC, 0);
        if (fd < 0) {
            rc = error_errno(err, errno, "packed weights");
            break;
        }
        out_kept->fds[r] = fd;
        out_kept->n_bytes[r] = ex->weights[r].n_bytes;
        out_kept->n_ranks++;
    }
    if (!rc) {
        out_kept->fds[out_kept->n_ranks] = image.fd;
        out_kept->n_bytes[out_kept->n_ranks++] = image.n_bytes;
        return 0;
    }
    loader_image_close(&image);
    while (out_kept->n_ranks)
        close(out_kept->fds[--out_kept->n_ranks]);
    return rc;
}
