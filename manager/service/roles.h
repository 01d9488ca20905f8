/* roles.h: which role each RPC of the manager needs: one table, held against the services' handler
 * tables at the start and looked at before any handler runs. Any thread. */
#pragma once

#include <stddef.h>

#include "base/access/role.h"

struct error;
struct rpc_call;
struct rpc_service;

/* FAILED_PRECONDITION naming the RPC where one of `services` has no row, or a row names none of
 * theirs. */
int roles_check(const struct rpc_service *services, size_t n_services, struct error *err);

/* The role that "/package.Service/Method" needs; ROLE_NONE: nobody may call it. Reflection needs a
 * viewer's. */
enum role roles_needed(const char *path);

/* 0 where the call's role (rpc_call_role) is enough; else PERMISSION_DENIED, reason ROLE_REQUIRED,
 * which names the role that is needed and the one that the caller has. */
int roles_allow(const struct rpc_call *call, struct error *err);
