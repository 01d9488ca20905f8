#include "server/worker/group/group_book.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "proto/rpc/message/message.h"
#include "server/worker/base/message.h"

/* A place is the first rank of its member. */
struct group_book {
    Sluice__Worker__V1__GroupMember *at[GROUP_MAX_RANKS]; /* owned; NULL: no member begins here */
    uint32_t n_ranks;
    Sluice__Worker__V1__GroupRoster roster;
    Sluice__Worker__V1__GroupMember *in_order[GROUP_MAX_RANKS];
};

void group_member_init(Sluice__Worker__V1__GroupMember *member)
{
    static char version[] = SLUICE_VERSION;
    sluice__worker__v1__group_member__init(member);
    member->protocol_min = GROUP_PROTOCOL_MIN;
    member->protocol_max = GROUP_PROTOCOL_MAX;
    member->software_version = version;
}

/* --- a member alone --- */

static int check_text(const char *field, const char *text, struct error *err)
{
    size_t n_bytes = strlen(text);
    if (n_bytes == 0 || n_bytes > GROUP_MAX_TEXT_BYTES)
        return error_field(err, field, "has %zu bytes, limit: 1 to %d", n_bytes,
                           GROUP_MAX_TEXT_BYTES);
    for (size_t i = 0; i < n_bytes; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7F)
            return error_field(err, field, "has the control character %d at byte %zu", text[i], i);
    return 0;
}

static int check_split(const Sluice__Worker__V1__GroupMember *m, struct error *err)
{
    if (m->tp == 0 || m->tp > GROUP_MAX_TP || (m->tp & (m->tp - 1)) != 0)
        return error_field(err, "tp", "%u is not one of 1, 2, 4, 8", m->tp);
    if (m->pp == 0 || m->pp > GROUP_MAX_RANKS / m->tp)
        return error_field(err, "pp", "%u is not in 1 to %u (limit: %d ranks)", m->pp,
                           GROUP_MAX_RANKS / m->tp, GROUP_MAX_RANKS);
    return 0;
}

/* After check_split. */
static int check_ranks(const Sluice__Worker__V1__GroupMember *m, struct error *err)
{
    uint32_t n_ranks = m->tp * m->pp;
    if (m->n_rank_addresses == 0 || m->n_rank_addresses > n_ranks)
        return error_field(err, "rank_addresses", "has %zu entries, limit: 1 to %u",
                           m->n_rank_addresses, n_ranks);
    if (m->first_rank > n_ranks - (uint32_t)m->n_rank_addresses)
        return error_field(err, "first_rank", "%u, with %zu ranks from there; the group has %u",
                           m->first_rank, m->n_rank_addresses, n_ranks);
    for (size_t i = 0; i < m->n_rank_addresses; i++)
        if (m->rank_addresses[i].len == 0 || m->rank_addresses[i].len > GROUP_MAX_ADDRESS_BYTES)
            return error_field(err, "rank_addresses", "entry %zu has %zu bytes, limit: 1 to %d", i,
                               m->rank_addresses[i].len, GROUP_MAX_ADDRESS_BYTES);
    return 0;
}

/* All but the ranks: a member with another split has other ranks. */
static int check_member(const Sluice__Worker__V1__GroupMember *m, struct error *err)
{
    int rc = check_text("machine", m->machine, err);
    if (!rc)
        rc = check_text("software_version", m->software_version, err);
    if (!rc)
        rc = check_text("transport", m->transport, err);
    if (!rc)
        rc = check_text("numerics_id", m->numerics_id, err);
    if (!rc)
        rc = check_text("weights_digest", m->weights_digest, err);
    return rc ? rc : check_split(m, err);
}

/* --- two members --- */

/* Another protocol may have other fields, so it is compared before anything else is read. */
static int compare_protocol(const Sluice__Worker__V1__GroupMember *leader,
                            const Sluice__Worker__V1__GroupMember *m, struct error *err)
{
    if (m->protocol_min <= leader->protocol_max && m->protocol_max >= leader->protocol_min)
        return 0;
    error_set(err, STATUS_FAILED_PRECONDITION,
              "protocol: the follower knows versions %u to %u, the leader %u to %u",
              m->protocol_min, m->protocol_max, leader->protocol_min, leader->protocol_max);
    snprintf(err->field, sizeof(err->field), "protocol");
    return error_reason(err, REASON_PROTOCOL_MISMATCH);
}

static int compare_text(const char *field, const Sluice__Worker__V1__GroupMember *leader,
                        const char *leaders, const Sluice__Worker__V1__GroupMember *m,
                        const char *own, struct error *err)
{
    if (strcmp(leaders, own) == 0)
        return 0;
    error_set(err, STATUS_FAILED_PRECONDITION,
              "%s: \"%.90s\" on %.40s; \"%.90s\" on the leader, %.40s", field, own, m->machine,
              leaders, leader->machine);
    snprintf(err->field, sizeof(err->field), "%s", field);
    return err->status;
}

static int compare_number(const char *field, const Sluice__Worker__V1__GroupMember *leader,
                          uint32_t leaders, const Sluice__Worker__V1__GroupMember *m, uint32_t own,
                          struct error *err)
{
    char leaders_text[16], own_text[16];
    snprintf(leaders_text, sizeof(leaders_text), "%u", leaders);
    snprintf(own_text, sizeof(own_text), "%u", own);
    return compare_text(field, leader, leaders_text, m, own_text, err);
}

static int compare(const Sluice__Worker__V1__GroupMember *leader,
                   const Sluice__Worker__V1__GroupMember *m, struct error *err)
{
    int rc = compare_text("software_version", leader, leader->software_version, m,
                          m->software_version, err);
    if (!rc)
        rc = compare_text("transport", leader, leader->transport, m, m->transport, err);
    if (!rc)
        rc = compare_text("numerics_id", leader, leader->numerics_id, m, m->numerics_id, err);
    if (!rc)
        rc = compare_text("weights_digest", leader, leader->weights_digest, m, m->weights_digest,
                          err);
    if (!rc)
        rc = compare_number("tp", leader, leader->tp, m, m->tp, err);
    return rc ? rc : compare_number("pp", leader, leader->pp, m, m->pp, err);
}

/* --- the book --- */

/* The member that has the rank, or NULL. */
static const Sluice__Worker__V1__GroupMember *member_of(const struct group_book *book,
                                                        uint32_t rank)
{
    for (uint32_t first = rank + 1; first-- > 0;)
        if (book->at[first])
            return rank - first < book->at[first]->n_rank_addresses ? book->at[first] : NULL;
    return NULL;
}

static int enter(struct group_book *book, const Sluice__Worker__V1__GroupMember *member,
                 uint32_t *out_place, struct error *err)
{
    Sluice__Worker__V1__GroupMember *copy =
        (Sluice__Worker__V1__GroupMember *)message_copy(&member->base);
    if (!copy)
        return error_no_memory(err);
    book->at[member->first_rank] = copy;
    *out_place = member->first_rank;
    return 0;
}

int group_book_create(const Sluice__Worker__V1__GroupMember *leader, struct group_book **out_book,
                      struct error *err)
{
    uint32_t place;
    int rc = check_member(leader, err);
    if (!rc)
        rc = check_ranks(leader, err);
    if (rc)
        return rc;
    if (leader->first_rank != 0)
        return error_field(err, "first_rank", "%u: the leader has rank 0", leader->first_rank);
    if (leader->n_rank_addresses == leader->tp * leader->pp)
        return error_field(err, "rank_addresses",
                           "the leader has all %u ranks; a group has "
                           "several machines",
                           leader->tp * leader->pp);
    struct group_book *book = calloc(1, sizeof(*book));
    if (!book)
        return error_no_memory(err);
    sluice__worker__v1__group_roster__init(&book->roster);
    book->n_ranks = leader->tp * leader->pp;
    rc = enter(book, leader, &place, err);
    if (rc) {
        group_book_destroy(book);
        return rc;
    }
    *out_book = book;
    return 0;
}

void group_book_destroy(struct group_book *book)
{
    if (!book)
        return;
    for (uint32_t i = 0; i < GROUP_MAX_RANKS; i++)
        if (book->at[i])
            rpc_message_free(&book->at[i]->base);
    free(book);
}

int group_book_join(struct group_book *book, const Sluice__Worker__V1__GroupMember *member,
                    uint32_t *out_place, struct error *err)
{
    int rc = compare_protocol(book->at[0], member, err);
    if (!rc)
        rc = check_member(member, err);
    if (!rc)
        rc = compare(book->at[0], member, err);
    if (!rc)
        rc = check_ranks(member, err);
    for (uint32_t i = 0; !rc && i < member->n_rank_addresses; i++) {
        const Sluice__Worker__V1__GroupMember *other = member_of(book, member->first_rank + i);
        if (!other)
            continue;
        rc = error_set(err, STATUS_ALREADY_EXISTS, "first_rank: rank %u of %.60s belongs to %.60s",
                       member->first_rank + i, member->machine, other->machine);
        snprintf(err->field, sizeof(err->field), "first_rank");
    }
    return rc ? rc : enter(book, member, out_place, err);
}

void group_book_leave(struct group_book *book, uint32_t place)
{
    if (place == 0 || place >= GROUP_MAX_RANKS || !book->at[place])
        return;
    rpc_message_free(&book->at[place]->base);
    book->at[place] = NULL;
}

uint32_t group_book_n_missing(const struct group_book *book, uint32_t *out_first)
{
    uint32_t n_missing = 0;
    for (uint32_t rank = book->n_ranks; rank-- > 0;)
        if (!member_of(book, rank)) {
            n_missing++;
            *out_first = rank;
        }
    return n_missing;
}

const Sluice__Worker__V1__GroupRoster *group_book_roster(struct group_book *book)
{
    book->roster.n_members = 0;
    book->roster.members = book->in_order;
    for (uint32_t i = 0; i < GROUP_MAX_RANKS; i++)
        if (book->at[i])
            book->in_order[book->roster.n_members++] = book->at[i];
    return &book->roster;
}

int group_book_check_roster(const Sluice__Worker__V1__GroupRoster *roster,
                            const Sluice__Worker__V1__GroupMember *self, struct error *err)
{
    uint32_t rank = 0;
    bool has_self = false;
    int rc = 0;
    for (size_t i = 0; !rc && i < roster->n_members; i++) {
        const Sluice__Worker__V1__GroupMember *m = roster->members[i];
        rc = check_member(m, err);
        if (!rc)
            rc = compare(roster->members[0], m, err);
        if (!rc)
            rc = check_ranks(m, err);
        if (!rc && m->first_rank != rank)
            rc = error_field(err, "members", "entry %zu begins at rank %u, not %u", i,
                             m->first_rank, rank);
        rank += (uint32_t)m->n_rank_addresses;
        has_self |=
            m->first_rank == self->first_rank && m->n_rank_addresses == self->n_rank_addresses;
    }
    if (!rc && roster->n_members == 0)
        rc = error_field(err, "members", "is empty");
    if (!rc)
        rc = compare(roster->members[0], self, err);
    if (!rc && rank != self->tp * self->pp)
        rc = error_field(err, "members", "have %u ranks, not %u", rank, self->tp * self->pp);
    if (!rc && !has_self)
        rc = error_field(err, "members", "do not have this worker's ranks");
    return rc;
}
