/* role.h: the roles of callers and what each role allows. An admin may do all that an operator may,
 * and an operator all that a viewer may. An inference key opens the data plane and nothing else.
 * Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum role {
    ROLE_NONE, /* an unknown caller */
    ROLE_INFERENCE,
    ROLE_VIEWER,   /* may read state */
    ROLE_OPERATOR, /* may load, scale, drain and unload registered versions */
    ROLE_ADMIN,    /* may register and delete versions, device groups and keys; the server's role */
    N_ROLES
};

/* Returns the name, for example "viewer". */
const char *role_name(enum role role);
/* Parses the n bytes of text as a role; false if they name no role. "none" is not accepted. */
bool role_parse(const char *text, size_t n_bytes, enum role *out_role);
/* Returns true if the role `is` allows an action that needs the management role `needed`. */
bool role_may(enum role is, enum role needed);
