#include "base/access/role.h"

#include <string.h>

static const char *const names[N_ROLES] = {
    [ROLE_NONE] = "none",         [ROLE_INFERENCE] = "inference", [ROLE_VIEWER] = "viewer",
    [ROLE_OPERATOR] = "operator", [ROLE_ADMIN] = "admin",
};

const char *role_name(enum role role)
{
    return role < N_ROLES ? names[role] : names[ROLE_NONE];
}

bool role_parse(const char *text, size_t n_bytes, enum role *out_role)
{
    for (int i = ROLE_INFERENCE; i < N_ROLES; i++)
        if (strlen(names[i]) == n_bytes && memcmp(names[i], text, n_bytes) == 0) {
            *out_role = (enum role)i;
            return true;
        }
    return false;
}

bool role_may(enum role is, enum role needed)
{
    return needed >= ROLE_VIEWER && needed < N_ROLES && is >= needed && is < N_ROLES;
}
