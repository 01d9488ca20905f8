/* group_book.h: the book of a group: which workers have joined, with which ranks, and which may
 * join. No clock and no wire; the owner locks. Members come from other machines: every field is
 * checked. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "sluice/worker/v1/group.pb-c.h"

struct error;
struct group_book;

enum {
    GROUP_PROTOCOL_MIN = 1,
    GROUP_PROTOCOL_MAX = 1,
    GROUP_MAX_TP = 8,
    GROUP_MAX_RANKS = 32,
    GROUP_MAX_TEXT_BYTES = 200, /* each text of a member */
    GROUP_MAX_ADDRESS_BYTES = 8192,
};

/* Sets the protocol and the version of this program in a member. */
void group_member_init(Sluice__Worker__V1__GroupMember *member);

/* Checks the book's own facts: `leader` must be well formed and have rank 0, but not all ranks. The
 * book copies it. *out_book is owned. */
int group_book_create(const Sluice__Worker__V1__GroupMember *leader, struct group_book **out_book,
                      struct error *err);
void group_book_destroy(struct group_book *book); /* NULL is accepted */

/* Enters a copy of the member. err->field names the field at fault.
 * INVALID_ARGUMENT: malformed. FAILED_PRECONDITION: differs from the leader, with both values.
 * ALREADY_EXISTS: a rank is taken, with the machine that has it. *out_place is for leave. */
int group_book_join(struct group_book *book, const Sluice__Worker__V1__GroupMember *member,
                    uint32_t *out_place, struct error *err);
void group_book_leave(struct group_book *book, uint32_t place);

/* The number of ranks that nobody has joined with, and the first of them. */
uint32_t group_book_n_missing(const struct group_book *book, uint32_t *out_first);
/* The members in the order of their ranks; borrowed until the next join or leave. */
const Sluice__Worker__V1__GroupRoster *group_book_roster(struct group_book *book);

/* For a follower: every rank is there once, and every member is well formed and agrees with `self`.
 * The roster has `self`. INVALID_ARGUMENT or FAILED_PRECONDITION. */
int group_book_check_roster(const Sluice__Worker__V1__GroupRoster *roster,
                            const Sluice__Worker__V1__GroupMember *self, struct error *err);
