/* test_group_book.c: which workers may join a group, and which rosters a follower accepts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "server/worker/group/group_book.h"
#include "tests/support/names.h"
#include "tests/unit/worker/group/support_group.h"

static struct group_book *book_of(const char *leader)
{
    struct group_book *book = NULL;
    struct error err;
    Sluice__Worker__V1__GroupMember m = group_test_member(leader, 2, 2, 0);
    assert_int_equal(group_book_create(&m, &book, &err), 0);
    return book;
}

static void test_book_when_ranks_come_in_any_order_then_roster_is_sorted(void **state)
{
    struct group_book *book = book_of("a");
    struct error err;
    uint32_t place, first;
    (void)state;
    assert_int_equal(group_book_n_missing(book, &first), 3);
    assert_int_equal(first, 1);
    Sluice__Worker__V1__GroupMember late = group_test_member("c", 2, 2, 2),
                                    early = group_test_member("b", 2, 2, 1);
    late.n_rank_addresses = 2;
    assert_int_equal(group_book_join(book, &late, &place, &err), 0);
    assert_int_equal(group_book_n_missing(book, &first), 1);
    assert_int_equal(group_book_join(book, &early, &place, &err), 0);
    assert_int_equal(group_book_n_missing(book, &first), 0);
    const Sluice__Worker__V1__GroupRoster *roster = group_book_roster(book);
    assert_int_equal(roster->n_members, 3);
    assert_string_equal(roster->members[1]->machine, "b");
    assert_int_equal(roster->members[2]->rank_addresses[1].len, 2);
    assert_int_equal(group_book_check_roster(roster, &late, &err), 0);
    group_book_destroy(book);
}

static void test_book_when_a_member_leaves_then_its_ranks_are_free(void **state)
{
    struct group_book *book = book_of("a");
    struct error err;
    uint32_t place, first, other;
    (void)state;
    Sluice__Worker__V1__GroupMember b = group_test_member("b", 2, 2, 1),
                                    c = group_test_member("c", 2, 2, 1);
    assert_int_equal(group_book_join(book, &b, &place, &err), 0);
    assert_int_equal(group_book_join(book, &c, &other, &err), STATUS_ALREADY_EXISTS);
    assert_string_equal(err.field, "first_rank");
    assert_true(names_all(err.message, "1|b|c"));
    group_book_leave(book, place);
    assert_int_equal(group_book_join(book, &c, &other, &err), 0);
    assert_int_equal(group_book_n_missing(book, &first), 2);
    group_book_leave(book, 0); /* the leader stays */
    group_book_leave(book, 99);
    assert_int_equal(group_book_n_missing(book, &first), 2);
    group_book_destroy(book);
}

static void set_machine(Sluice__Worker__V1__GroupMember *m)
{
    m->machine = group_text("b\n2");
}
static void set_no_machine(Sluice__Worker__V1__GroupMember *m)
{
    m->machine = group_text("");
}
static void set_protocol(Sluice__Worker__V1__GroupMember *m)
{
    m->protocol_min = m->protocol_max = GROUP_PROTOCOL_MAX + 1;
}
static void set_version(Sluice__Worker__V1__GroupMember *m)
{
    m->software_version = group_text("9.9");
}
static void set_transport(Sluice__Worker__V1__GroupMember *m)
{
    m->transport = group_text("ucx 1.15.0");
}
static void set_numerics(Sluice__Worker__V1__GroupMember *m)
{
    m->numerics_id = group_text("cpu/f32");
}
static void set_digest(Sluice__Worker__V1__GroupMember *m)
{
    m->weights_digest = group_text("sha256:9");
}
static void set_tp(Sluice__Worker__V1__GroupMember *m)
{
    m->tp = 4;
}
static void set_odd_tp(Sluice__Worker__V1__GroupMember *m)
{
    m->tp = 3;
}
static void set_big_tp(Sluice__Worker__V1__GroupMember *m)
{
    m->tp = 1u << 31;
}
static void set_pp(Sluice__Worker__V1__GroupMember *m)
{
    m->pp = 4;
}
static void set_no_pp(Sluice__Worker__V1__GroupMember *m)
{
    m->pp = 0;
}
static void set_big_pp(Sluice__Worker__V1__GroupMember *m)
{
    m->pp = UINT32_MAX;
}
static void set_rank_0(Sluice__Worker__V1__GroupMember *m)
{
    m->first_rank = 0;
}
static void set_rank_4(Sluice__Worker__V1__GroupMember *m)
{
    m->first_rank = 4;
}
static void set_rank_big(Sluice__Worker__V1__GroupMember *m)
{
    m->first_rank = UINT32_MAX;
}
static void set_no_ranks(Sluice__Worker__V1__GroupMember *m)
{
    m->n_rank_addresses = 0;
}
static void set_empty_address(Sluice__Worker__V1__GroupMember *m)
{
    static ProtobufCBinaryData empty = {0, NULL};
    m->rank_addresses = &empty;
}
static void set_long_address(Sluice__Worker__V1__GroupMember *m)
{
    static uint8_t bytes[GROUP_MAX_ADDRESS_BYTES + 1];
    static ProtobufCBinaryData address = {sizeof(bytes), bytes};
    m->rank_addresses = &address;
}

static const struct {
    void (*set)(Sluice__Worker__V1__GroupMember *m);
    int status;
    const char *field, *values; /* values that the message names */
} faults[] = {
    {set_machine, STATUS_INVALID_ARGUMENT, "machine", "10|byte 1"},
    {set_no_machine, STATUS_INVALID_ARGUMENT, "machine", "0 bytes"},
    {set_protocol, STATUS_FAILED_PRECONDITION, "protocol", "versions 2 to 2|1 to 1"},
    {set_version, STATUS_FAILED_PRECONDITION, "software_version",
     "9.9"
     "|" SLUICE_VERSION},
    {set_transport, STATUS_FAILED_PRECONDITION, "transport", "1.15.0|1.13.1"},
    {set_numerics, STATUS_FAILED_PRECONDITION, "numerics_id", "cpu/f32|cpu/int8"},
    {set_digest, STATUS_FAILED_PRECONDITION, "weights_digest", "sha256:9|sha256:12"},
    {set_tp, STATUS_FAILED_PRECONDITION, "tp", "\"4\" on b|\"2\" on the leader, a"},
    {set_odd_tp, STATUS_INVALID_ARGUMENT, "tp", "3|1, 2, 4, 8"},
    {set_big_tp, STATUS_INVALID_ARGUMENT, "tp", "2147483648|1, 2, 4, 8"},
    {set_pp, STATUS_FAILED_PRECONDITION, "pp", "\"4\" on b|\"2\" on the leader, a"},
    {set_no_pp, STATUS_INVALID_ARGUMENT, "pp", "0 is not|1 to 16"},
    {set_big_pp, STATUS_INVALID_ARGUMENT, "pp", "4294967295|1 to 16"},
    {set_rank_0, STATUS_ALREADY_EXISTS, "first_rank", "rank 0 of b|belongs to a"},
    {set_rank_4, STATUS_INVALID_ARGUMENT, "first_rank", "4, with 1|the group has 4"},
    {set_rank_big, STATUS_INVALID_ARGUMENT, "first_rank", "4294967295|the group has 4"},
    {set_no_ranks, STATUS_INVALID_ARGUMENT, "rank_addresses", "0 entries|1 to 4"},
    {set_empty_address, STATUS_INVALID_ARGUMENT, "rank_addresses", "entry 0 has 0|8192"},
    {set_long_address, STATUS_INVALID_ARGUMENT, "rank_addresses", "entry 0 has 8193|8192"},
};

static void test_join_when_a_member_differs_then_field_and_both_values_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        struct group_book *book = book_of("a");
        struct error err = {0};
        uint32_t place, first;
        Sluice__Worker__V1__GroupMember m = group_test_member("b", 2, 2, 1);
        faults[i].set(&m);
        assert_int_equal(group_book_join(book, &m, &place, &err), faults[i].status);
        assert_string_equal(err.field, faults[i].field);
        assert_true(names_all(err.message, faults[i].values));
        assert_int_equal(group_book_n_missing(book, &first), 3);
        group_book_destroy(book);
    }
}

static void test_leader_when_it_cannot_lead_then_refused(void **state)
{
    struct group_book *book = NULL;
    struct error err;
    (void)state;
    Sluice__Worker__V1__GroupMember m = group_test_member("a", 2, 2, 1);
    assert_int_equal(group_book_create(&m, &book, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "first_rank");
    m = group_test_member("a", 2, 2, 0);
    m.tp = 1;
    m.n_rank_addresses = 2;
    assert_int_equal(group_book_create(&m, &book, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "rank_addresses");
    assert_null(book);
}

static void test_roster_when_it_is_not_whole_then_refused(void **state)
{
    Sluice__Worker__V1__GroupMember m[4] = {
        group_test_member("a", 2, 2, 0), group_test_member("b", 2, 2, 1),
        group_test_member("c", 2, 2, 2), group_test_member("d", 2, 2, 3)};
    Sluice__Worker__V1__GroupMember *members[4] = {&m[0], &m[1], &m[2], &m[3]};
    Sluice__Worker__V1__GroupRoster roster = SLUICE__WORKER__V1__GROUP_ROSTER__INIT;
    struct error err;
    (void)state;
    roster.members = members;
    assert_int_equal(group_book_check_roster(&roster, &m[1], &err), STATUS_INVALID_ARGUMENT);
    for (roster.n_members = 1; roster.n_members < 4; roster.n_members++)
        assert_int_equal(group_book_check_roster(&roster, &m[1], &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(group_book_check_roster(&roster, &m[1], &err), 0);
    Sluice__Worker__V1__GroupMember other = group_test_member("b", 2, 2, 1);
    other.n_rank_addresses = 2; /* the roster has another division */
    assert_int_equal(group_book_check_roster(&roster, &other, &err), STATUS_INVALID_ARGUMENT);
    other = group_test_member("b", 2, 2, 1);
    other.weights_digest = group_text("sha256:9");
    assert_int_equal(group_book_check_roster(&roster, &other, &err), STATUS_FAILED_PRECONDITION);
    members[2] = &m[1]; /* a rank twice */
    assert_int_equal(group_book_check_roster(&roster, &m[1], &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "members");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_book_when_ranks_come_in_any_order_then_roster_is_sorted),
        cmocka_unit_test(test_book_when_a_member_leaves_then_its_ranks_are_free),
        cmocka_unit_test(test_join_when_a_member_differs_then_field_and_both_values_are_named),
        cmocka_unit_test(test_leader_when_it_cannot_lead_then_refused),
        cmocka_unit_test(test_roster_when_it_is_not_whole_then_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
