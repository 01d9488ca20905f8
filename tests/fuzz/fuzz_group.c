/* fuzz_group.c: frames of a group's rendezvous from a peer that nobody trusts. The first byte
 * chooses the direction. 0: members, each after its length of two bytes, join the book of a leader.
 * 1: a frame for a follower, whose roster is checked. A book that is full must have a roster that
 * every member accepts. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/error.h"
#include "proto/rpc/message/message.h"
#include "server/worker/group/group_book.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *text(const char *literal)
{
    return (char *)(uintptr_t)literal;
}

/* The corpus has members that agree with it. */
static void init_leader(Sluice__Worker__V1__GroupMember *m)
{
    static uint8_t byte[] = {7};
    static ProtobufCBinaryData address = {1, byte};
    group_member_init(m);
    m->machine = text("a");
    m->software_version = text("1");
    m->transport = text("t");
    m->numerics_id = text("n");
    m->weights_digest = text("w");
    m->tp = m->pp = 2;
    m->n_rank_addresses = 1;
    m->rank_addresses = &address;
}

static void promise(int kept)
{
    if (!kept)
        abort();
}

static void join(struct group_book *book, const uint8_t *data, size_t size)
{
    ProtobufCMessage *message;
    struct error err = {0};
    uint32_t place, first;
    if (rpc_message_parse(&sluice__worker__v1__join_request__descriptor, data, size, &message,
                          &err) != 0)
        return;
    const Sluice__Worker__V1__JoinRequest *frame = (const Sluice__Worker__V1__JoinRequest *)message;
    if (frame->frame_case == SLUICE__WORKER__V1__JOIN_REQUEST__FRAME_MEMBER) {
        uint32_t before = group_book_n_missing(book, &first);
        int rc = group_book_join(book, frame->member, &place, &err);
        uint32_t after = group_book_n_missing(book, &first);
        promise(rc ? after == before && err.status == rc && err.message[0]
                   : before - after == frame->member->n_rank_addresses);
    }
    rpc_message_free(message);
}

static void check_full_book(struct group_book *book)
{
    uint32_t first;
    struct error err;
    if (group_book_n_missing(book, &first) > 0)
        return;
    const Sluice__Worker__V1__GroupRoster *roster = group_book_roster(book);
    for (size_t i = 0; i < roster->n_members; i++)
        promise(group_book_check_roster(roster, roster->members[i], &err) == 0);
}

static void fuzz_leader(const uint8_t *data, size_t size)
{
    Sluice__Worker__V1__GroupMember leader;
    struct group_book *book;
    struct error err;
    init_leader(&leader);
    promise(group_book_create(&leader, &book, &err) == 0);
    while (size >= 2) {
        size_t n = (size_t)data[0] << 8 | data[1];
        n = n < size - 2 ? n : size - 2;
        join(book, data + 2, n);
        data += 2 + n;
        size -= 2 + n;
    }
    check_full_book(book);
    group_book_destroy(book);
}

static void fuzz_follower(const uint8_t *data, size_t size)
{
    Sluice__Worker__V1__GroupMember self;
    ProtobufCMessage *message;
    struct error err = {0};
    init_leader(&self);
    self.first_rank = 1;
    if (rpc_message_parse(&sluice__worker__v1__join_response__descriptor, data, size, &message,
                          &err) != 0)
        return;
    const Sluice__Worker__V1__JoinResponse *frame =
        (const Sluice__Worker__V1__JoinResponse *)message;
    if (frame->frame_case == SLUICE__WORKER__V1__JOIN_RESPONSE__FRAME_ROSTER) {
        int rc = group_book_check_roster(frame->roster, &self, &err);
        promise(rc == 0 || (err.status == rc && err.message[0]));
    }
    rpc_message_free(message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && data[0] == 0)
        fuzz_leader(data + 1, size - 1);
    else if (size > 0)
        fuzz_follower(data + 1, size - 1);
    return 0;
}
