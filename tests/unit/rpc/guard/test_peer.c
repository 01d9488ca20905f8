/* Tests of the peer name that gRPC gets for a connected Unix socket: the kernel's credentials of
 * the peer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "proto/rpc/guard/peer.h"

struct pair {
    int listener, client, accepted;
    char folder[32], server_path[64], client_path[64];
};

static struct sockaddr_un address_of(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    return address;
}

/* The client binds its own socket to a path of its choice, "0", as if it claimed to be root. */
static void connect_pair(struct pair *p)
{
    snprintf(p->folder, sizeof(p->folder), "/tmp/test_peer_XXXXXX");
    assert_non_null(mkdtemp(p->folder));
    snprintf(p->server_path, sizeof(p->server_path), "%s/s", p->folder);
    snprintf(p->client_path, sizeof(p->client_path), "%s/0", p->folder);
    struct sockaddr_un server = address_of(p->server_path), client = address_of(p->client_path);
    p->listener = socket(AF_UNIX, SOCK_STREAM, 0);
    p->client = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(p->listener, (struct sockaddr *)&server, sizeof(server)), 0);
    assert_int_equal(listen(p->listener, 1), 0);
    assert_int_equal(bind(p->client, (struct sockaddr *)&client, sizeof(client)), 0);
    assert_int_equal(connect(p->client, (struct sockaddr *)&server, sizeof(server)), 0);
    p->accepted = accept4(p->listener, NULL, NULL, 0);
    assert_true(p->accepted >= 0);
}

static void close_pair(struct pair *p)
{
    close(p->accepted);
    close(p->client);
    close(p->listener);
    unlink(p->client_path);
    unlink(p->server_path);
    rmdir(p->folder);
}

static void test_a_peer_is_who_the_kernel_says(void **state)
{
    struct pair p;
    struct sockaddr_un name;
    socklen_t n_name = sizeof(name);
    struct rpc_peer_ids ids = {0};
    char text[160];
    (void)state;
    connect_pair(&p);
    assert_int_equal(getpeername(p.accepted, (struct sockaddr *)&name, &n_name), 0);
    assert_int_equal(name.sun_family, AF_UNIX);
    assert_null(strstr(name.sun_path, p.client_path));
    snprintf(text, sizeof(text), "unix:%s", name.sun_path);
    assert_true(rpc_peer_parse(text, &ids));
    assert_int_equal(ids.uid, getuid());
    assert_int_equal(ids.gid, getgid());
    assert_int_equal(ids.pid, getpid());
    close_pair(&p);
}

static void test_little_room_is_not_written_beyond(void **state)
{
    struct pair p;
    char room[16];
    socklen_t n_room = 8;
    (void)state;
    connect_pair(&p);
    memset(room, 'x', sizeof(room));
    assert_int_equal(getpeername(p.accepted, (struct sockaddr *)(void *)room, &n_room), 0);
    assert_true(n_room > 8); /* bytes of an untruncated result */
    assert_memory_equal(room + 8, "xxxxxxxx", 8);
    close_pair(&p);
}

static void test_other_names_are_nobodys(void **state)
{
    static const char *const names[] = {
        "unix:",
        "unix:/sluice-peer/0/0/1",
        "unix:/sluice-peer/00000000000000000000000000000000/0/0/1",
        "ipv4:127.0.0.1:80",
        "",
    };
    struct rpc_peer_ids ids = {7, 7, 7};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        assert_false(rpc_peer_parse(names[i], &ids));
    assert_int_equal(ids.uid, 7);
}

static void test_ours_with_other_numbers_are_nobodys(void **state)
{
    static const char *const ends[] = {
        "", "1", "1/2", "1/2/", "1/2/3x", "-1/2/3", "4294967296/2/3", "/2/3", "1//3", " 1/2/3"};
    struct pair p;
    struct sockaddr_un name;
    socklen_t n_name = sizeof(name);
    struct rpc_peer_ids ids;
    char text[200];
    (void)state;
    connect_pair(&p);
    assert_int_equal(getpeername(p.accepted, (struct sockaddr *)&name, &n_name), 0);
    char *end = name.sun_path;
    for (int i = 0; i < 3; i++) /* "/sluice-peer/HEX/" */
        end = strchr(end, '/') + 1;
    *end = '\0';
    snprintf(text, sizeof(text), "unix:%s1/2/3", name.sun_path);
    assert_true(rpc_peer_parse(text, &ids));
    assert_int_equal(ids.pid, 3);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        snprintf(text, sizeof(text), "unix:%s%s", name.sun_path, ends[i]);
        assert_false(rpc_peer_parse(text, &ids));
    }
    close_pair(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_peer_is_who_the_kernel_says),
        cmocka_unit_test(test_little_room_is_not_written_beyond),
        cmocka_unit_test(test_other_names_are_nobodys),
        cmocka_unit_test(test_ours_with_other_numbers_are_nobodys),
    };
    return cmocka_run_group_tests_name("peer", tests, NULL, NULL);
}
