/* role.h: what a caller may do. The management roles hold one another: an operator may what a
 * viewer may, an admin may all of it. An inference key opens the data plane and nothing else.
 * Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum role {
    ROLE_NONE, /* nobody in particular */
    ROLE_INFERENCE,
    ROLE_VIEWER,   /* looks */
    ROLE_OPERATOR, /* loads, scales, drains, unloads what there is */
    ROLE_ADMIN,    /* says what there is: model files, device groups; feeds servers */
    N_ROLES
};

/* "viewer". */
const char *role_name(enum role role);
/* The role of n bytes of text; false where they name none. "none" is no role that can be given. */
bool role_parse(const char *text, size_t n_bytes, enum role *out_role);
/* Whether a caller of role `is` may what needs the management role `needed`. */
bool role_may(enum role is, enum role needed);
