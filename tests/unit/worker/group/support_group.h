/* support_group.h: members of a test's group, and the files with which a leader identifies its
 * followers. Fails the test where anything cannot be had. */
#pragma once

#include "base/access/api_keys.h"
#include "sluice/worker/v1/group.pb-c.h"

struct access;

/* A literal as a field of a message, which does not write it. */
char *group_text(const char *literal);

/* A member with one rank of tp × pp, and an address of three bytes. Static memory. */
Sluice__Worker__V1__GroupMember group_test_member(const char *machine, uint32_t tp, uint32_t pp,
                                                  uint32_t first_rank);

/* A certificate for "localhost" that signs itself, its key, and keys of a viewer and an operator.
 */
struct group_files {
    char cert[128], key[128], keys[128];
    char viewer[API_KEY_BYTES], operator_key[API_KEY_BYTES];
};
void group_files_make(const char *folder, struct group_files *out_files);
void group_files_remove(const struct group_files *files);
/* The files as a leader on `listen` uses them; owned (access_destroy). */
struct access *group_files_access(const struct group_files *files, const char *listen);
