/* The functions of comm_ucx.h in a build without UCX (SLUICE_UCX in CMakeLists.txt). */
#include "base/error.h"
#include "kernels/comm/comm_ucx.h"

static int refuse(struct error *err)
{
    return error_set(err, STATUS_FAILED_PRECONDITION,
                     "ranks on several machines need UCX, and this program was built without it; "
                     "install the package libucx-dev and build again");
}

int comm_ucx_version(char *out_version, size_t n_bytes, struct error *err)
{
    (void)out_version;
    (void)n_bytes;
    return refuse(err);
}

int comm_ucx_create(const struct comm_ucx_config *config, struct comm **out_comm, struct error *err)
{
    (void)config;
    (void)out_comm;
    return refuse(err);
}

/* No communicator exists, so nobody calls these. */

void comm_ucx_address(const struct comm *comm, const void **out_address, size_t *out_n_bytes)
{
    (void)comm;
    *out_address = NULL;
    *out_n_bytes = 0;
}

int comm_ucx_connect(struct comm *comm, const struct comm_ucx_peer *peers, struct error *err)
{
    (void)comm;
    (void)peers;
    return refuse(err);
}

void comm_ucx_cancel(struct comm *comm, const struct error *why)
{
    (void)comm;
    (void)why;
}

void comm_ucx_failure(struct comm *comm, struct error *out_failure)
{
    (void)comm;
    (void)refuse(out_failure);
}
