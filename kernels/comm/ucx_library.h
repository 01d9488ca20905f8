/* ucx_library.h: the library libucp of UCX, opened at run time. So the programs also start on
 * machines without UCX. Private to kernels/comm. Any thread. */
#pragma once

#include <ucp/api/ucp.h>

struct error;

/* Functions of libucp, without the prefix "ucp_". */
#define UCX_FUNCTIONS(F)                                                                           \
    F(get_version)                                                                                 \
    F(config_read)                                                                                 \
    F(config_modify)                                                                               \
    F(config_release)                                                                              \
    F(init_version)                                                                                \
    F(cleanup)                                                                                     \
    F(worker_create)                                                                               \
    F(worker_destroy)                                                                              \
    F(worker_get_address)                                                                          \
    F(worker_release_address)                                                                      \
    F(worker_get_efd)                                                                              \
    F(worker_progress)                                                                             \
    F(worker_arm)                                                                                  \
    F(worker_signal)                                                                               \
    F(ep_create)                                                                                   \
    F(ep_close_nbx)                                                                                \
    F(tag_send_nbx)                                                                                \
    F(tag_recv_nbx)                                                                                \
    F(tag_recv_request_test)                                                                       \
    F(request_check_status)                                                                        \
    F(request_cancel)                                                                              \
    F(request_free)

struct ucx_library {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): the name of a member */
#define UCX_MEMBER(name) __typeof__(ucp_##name) *name;
    UCX_FUNCTIONS(UCX_MEMBER)
#undef UCX_MEMBER
    const char *(*status_string)(ucs_status_t status);
};

/* Opens the library at the first call; it stays open. The result is valid for ever. NULL, with
 * FAILED_PRECONDITION and the name of the package, if the machine has no UCX or one too old. */
const struct ucx_library *ucx_library_open(struct error *err);
