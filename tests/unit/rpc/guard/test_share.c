/* Ports and sockets that a process hands to its successor, both in this process here. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "proto/rpc/guard/share.h"

enum { N_CLIENTS = 40, WAIT_MS = 5000 };

static struct sockaddr_in local(in_port_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* Returns a socket that is bound to the port (0: any, and *port gets the number), or -1 where that
 * is refused. */
static int bound_to(in_port_t *port)
{
    struct sockaddr_in address = local(*port);
    socklen_t n_bytes = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (bind(fd, (struct sockaddr *)&address, n_bytes) != 0) {
        assert_int_equal(errno, EADDRINUSE);
        close(fd);
        return -1;
    }
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &n_bytes), 0);
    *port = address.sin_port;
    return fd;
}

/* Listens as a server does: binds between rpc_share_begin() and rpc_share_end(). */
static int serve(enum rpc_share share, in_port_t *port)
{
    rpc_share_begin(share);
    int fd = bound_to(port);
    if (fd >= 0)
        assert_int_equal(listen(fd, N_CLIENTS), 0);
    rpc_share_end();
    return fd;
}

static void connect_all(in_port_t port, int *clients)
{
    struct sockaddr_in address = local(port);
    for (int i = 0; i < N_CLIENTS; i++) {
        clients[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(clients[i], (struct sockaddr *)&address, sizeof(address)), 0);
    }
}

static void close_all(const int *clients)
{
    for (int i = 0; i < N_CLIENTS; i++)
        close(clients[i]);
}

/* Counts the connections that wait for `fd`. Accepts and closes them. */
static int n_waiting(int fd, int at_least)
{
    int n = 0;
    for (;;) {
        struct pollfd watch = {.fd = fd, .events = POLLIN};
        if (n < at_least)
            poll(&watch, 1, WAIT_MS);
        int accepted = accept(fd, NULL, NULL);
        if (accepted < 0)
            return n;
        close(accepted);
        n++;
    }
}

static void test_port_when_it_is_not_shared_then_nobody_else_has_it(void **state)
{
    (void)state;
    in_port_t port = 0;
    int first = serve(RPC_SHARE_NONE, &port);
    assert_int_equal(bound_to(&port), -1);
    assert_int_equal(serve(RPC_SHARE_FIRST, &port), -1);
    assert_int_equal(serve(RPC_SHARE_BESIDE, &port), -1);
    close(first);
}

static void test_port_when_it_is_shared_then_only_a_successor_has_it_too(void **state)
{
    (void)state;
    in_port_t port = 0;
    int first = serve(RPC_SHARE_FIRST, &port);
    assert_true(first >= 0);
    assert_int_equal(bound_to(&port), -1); /* refused without the flag of sharing */
    assert_int_equal(serve(RPC_SHARE_FIRST, &port), -1);
    int second = serve(RPC_SHARE_BESIDE, &port);
    assert_true(second >= 0);
    close(first);
    close(second);
}

/* A successor gets all new connections, while both listen and after the first has closed. No
 * connection stays in the first one's queue. */
static void test_connections_when_there_is_a_successor_then_it_has_all_that_are_new(void **state)
{
    (void)state;
    in_port_t port = 0;
    int clients[N_CLIENTS];
    int first = serve(RPC_SHARE_FIRST, &port);
    connect_all(port, clients);
    assert_int_equal(n_waiting(first, N_CLIENTS), N_CLIENTS);
    close_all(clients);
    int second = serve(RPC_SHARE_BESIDE, &port);
    connect_all(port, clients);
    assert_int_equal(n_waiting(second, N_CLIENTS), N_CLIENTS);
    assert_int_equal(n_waiting(first, 0), 0);
    close_all(clients);
    close(first);
    connect_all(port, clients);
    assert_int_equal(n_waiting(second, N_CLIENTS), N_CLIENTS);
    close_all(clients);
    /* The successor has a successor, too. */
    int third = serve(RPC_SHARE_BESIDE, &port);
    assert_true(third >= 0);
    connect_all(port, clients);
    assert_int_equal(n_waiting(third, N_CLIENTS), N_CLIENTS);
    assert_int_equal(n_waiting(second, 0), 0);
    close_all(clients);
    close(second);
    close(third);
}

static void test_bind_when_outside_of_the_two_then_nothing_is_shared(void **state)
{
    (void)state;
    in_port_t port = 0;
    rpc_share_begin(RPC_SHARE_FIRST);
    rpc_share_end();
    int fd = bound_to(&port);
    int on = 1;
    socklen_t n_bytes = sizeof(on);
    assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, &n_bytes), 0);
    assert_int_equal(on, 0);
    close(fd);
}

/* -- unix sockets --------------------------------------------------------------------------------
 */

static char folder[32], path[64], name[64];

static int begin(void **state)
{
    (void)state;
    struct error err;
    snprintf(folder, sizeof(folder), "/tmp/test_share_XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/s", folder);
    assert_int_equal(rpc_share_name(path, name, sizeof(name), &err), 0);
    return 0;
}

static int end(void **state)
{
    (void)state;
    unlink(path);
    unlink(name);
    assert_int_equal(rmdir(folder), 0);
    return 0;
}

static int listen_at(const char *at)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", at);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(fd, 8), 0);
    return fd;
}

static bool connects(int listener)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool connected = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
    int accepted = accept(listener, NULL, NULL);
    close(fd);
    if (accepted >= 0)
        close(accepted);
    return connected && accepted >= 0;
}

static void test_name_when_made_then_it_lies_beside_and_is_this_processes(void **state)
{
    (void)state;
    struct error err;
    char wanted[64], out[128], much[160];
    snprintf(wanted, sizeof(wanted), "%s/.%d", folder, (int)getpid());
    assert_string_equal(name, wanted);
    assert_int_equal(rpc_share_name("s", out, sizeof(out), &err), 0);
    snprintf(wanted, sizeof(wanted), ".%d", (int)getpid());
    assert_string_equal(out, wanted);
    snprintf(much, sizeof(much), "/%0*d/s", 102, 0);
    assert_int_equal(rpc_share_name(much, out, sizeof(out), &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(rpc_share_name(path, out, 8, &err), STATUS_INVALID_ARGUMENT);
}

static void test_socket_when_another_takes_its_place_then_the_first_leaves_it_there(void **state)
{
    (void)state;
    struct error err;
    static char own[64]; /* a copy: the string differs in address from the successor's */
    memcpy(own, path, sizeof(own));
    int first = listen_at(path);
    rpc_share_own(own);
    assert_true(connects(first));
    int second = listen_at(name);
    assert_int_equal(rpc_share_move(name, path, &err), 0);
    assert_int_equal(access(name, F_OK), -1);
    assert_true(connects(second));
    /* gRPC unlinks the path when a server ends; this removes nothing */
    assert_int_equal(unlink(path), 0);
    assert_true(connects(second));
    rpc_share_forget(own);
    assert_true(connects(second));
    assert_int_equal(unlink(path), 0); /* the socket has no owner any more: a plain unlink */
    assert_false(connects(second));
    close(first);
    close(second);
}

static void test_socket_when_nobody_took_its_place_then_it_goes_with_its_server(void **state)
{
    (void)state;
    int first = listen_at(path);
    rpc_share_own(path);
    rpc_share_forget(path);
    assert_int_equal(access(path, F_OK), -1);
    int again = listen_at(path); /* and what comes there later is not guarded */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(unlink(path), -1);
    assert_int_equal(errno, ENOENT);
    close(first);
    close(again);
}

/* Symptom: a server that ended removed the socket of the next server but one. That socket had got
 * the inode number of the ended server's deleted socket. */
static void
test_socket_when_its_file_is_gone_then_another_with_its_number_is_not_taken(void **state)
{
    (void)state;
    struct error err;
    static char own[64];
    struct stat ours, theirs = {0};
    int next[16], n = 0;
    memcpy(own, path, sizeof(own));
    int first = listen_at(path);
    rpc_share_own(own);
    assert_int_equal(lstat(path, &ours), 0);
    int second = listen_at(name);
    assert_int_equal(rpc_share_move(name, path, &err), 0);
    rpc_share_settle(true);
    close(first);
    /* until a new socket has the first one's inode number */
    while (n < 16 && theirs.st_ino != ours.st_ino) {
        if (n > 0)
            assert_int_equal(unlink(name), 0);
        next[n++] = listen_at(name);
        assert_int_equal(lstat(name, &theirs), 0);
    }
    assert_int_equal(rename(name, path), 0);
    assert_int_equal(unlink(path), 0);
    rpc_share_forget(own);
    assert_true(connects(next[n - 1]));
    while (n > 0)
        close(next[--n]);
    close(second);
    assert_int_equal(unlink(path), 0);
}

static void test_move_when_it_cannot_be_then_the_second_name_is_gone(void **state)
{
    (void)state;
    struct error err;
    int fd = listen_at(name);
    char nowhere[96];
    snprintf(nowhere, sizeof(nowhere), "%s/none/s", folder);
    assert_int_equal(rpc_share_move(name, nowhere, &err), STATUS_NOT_FOUND);
    assert_int_equal(access(name, F_OK), -1);
    close(fd);
}

/* Symptom: a successor that gave up removed the socket of the first server. */
static void test_settle_when_the_successor_gives_up_then_the_socket_is_the_first_ones(void **state)
{
    (void)state;
    struct error err;
    for (int round = 0; round < 3; round++) { /* stays, gives up, ends with nothing settled */
        int first = listen_at(path), second = listen_at(name);
        assert_int_equal(rpc_share_move(name, path, &err), 0);
        rpc_share_own(path);
        assert_true(connects(second));
        if (round < 2)
            rpc_share_settle(round == 0);
        assert_true(round != 0 || connects(second));
        assert_true(round != 1 || connects(first));
        rpc_share_forget(path);
        assert_int_equal(access(path, F_OK), round == 0 ? -1 : 0);
        if (round > 0) {
            assert_true(connects(first));
            assert_int_equal(unlink(path), 0);
        }
        close(first);
        close(second);
    } /* the teardown checks that the folder is empty */
}

/* Puts its socket at `path`, reports, and is killed on request. A successor may die so before the
 * servers have settled which one stays. */
static pid_t start_successor(int *out_told, int *out_tell)
{
    int told[2], tell[2];
    char byte = 0;
    assert_int_equal(pipe2(told, O_CLOEXEC), 0);
    assert_int_equal(pipe2(tell, O_CLOEXEC), 0);
    pid_t child = fork();
    if (child == 0) {
        struct error err;
        char beside[128];
        bool moved = rpc_share_name(path, beside, sizeof(beside), &err) == 0 &&
                     listen_at(beside) >= 0 && rpc_share_move(beside, path, &err) == 0;
        close(tell[1]);
        (void)!write(told[1], moved ? "y" : "n", 1);
        (void)!read(tell[0], &byte, 1);
        kill(getpid(), SIGKILL);
    }
    close(told[1]);
    close(tell[0]);
    assert_int_equal(read(told[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
    *out_told = told[0];
    *out_tell = tell[1];
    return child;
}

static void end_successor(pid_t child, int told, int tell)
{
    close(tell);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(told);
}

/* Symptom: after a successor was killed, no client reached the server that continued. */
static void
test_restore_when_the_successor_was_killed_then_the_socket_is_the_first_ones(void **state)
{
    (void)state;
    static char own[64];
    memcpy(own, path, sizeof(own));
    int told, tell, first = listen_at(path);
    rpc_share_own(own);
    assert_false(rpc_share_is_lost());
    pid_t child = start_successor(&told, &tell);
    assert_false(rpc_share_is_lost()); /* the successor listens at the path */
    rpc_share_restore();
    assert_false(connects(first));
    end_successor(child, told, tell);
    assert_true(rpc_share_is_lost());
    rpc_share_restore();
    assert_false(rpc_share_is_lost());
    assert_true(connects(first));
    /* another program unlinks the socket, so no name is left to restore */
    assert_int_equal(unlink(path), 0);
    assert_false(rpc_share_is_lost());
    rpc_share_forget(own);
    close(first);
}

/* Symptom: `.PID.was0` lay in the folder for ever. */
static void test_forget_when_the_successor_was_killed_then_no_name_is_left(void **state)
{
    (void)state;
    static char own[64];
    memcpy(own, path, sizeof(own));
    int told, tell, first = listen_at(path);
    rpc_share_own(own);
    pid_t child = start_successor(&told, &tell);
    end_successor(child, told, tell);
    rpc_share_forget(own);
    assert_int_equal(unlink(path), 0); /* the successor's; the folder is empty then */
    close(first);
}

/* Symptom: of three sockets on a port, the kernel gave new connections to the second. */
static void test_hand_over_when_done_then_a_third_one_has_all_that_are_new(void **state)
{
    (void)state;
    in_port_t port = 0;
    int clients[N_CLIENTS];
    int first = serve(RPC_SHARE_FIRST, &port);
    rpc_share_hand_over(); /* not closed: its streams continue */
    int second = serve(RPC_SHARE_BESIDE, &port);
    int third = serve(RPC_SHARE_BESIDE, &port);
    assert_true(first >= 0 && second >= 0 && third >= 0);
    connect_all(port, clients);
    assert_int_equal(n_waiting(third, N_CLIENTS), N_CLIENTS);
    close_all(clients);
    close(first);
    connect_all(port, clients);
    assert_int_equal(n_waiting(third, N_CLIENTS), N_CLIENTS);
    close_all(clients);
    close(second);
    close(third);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_port_when_it_is_not_shared_then_nobody_else_has_it),
        cmocka_unit_test(test_port_when_it_is_shared_then_only_a_successor_has_it_too),
        cmocka_unit_test(test_connections_when_there_is_a_successor_then_it_has_all_that_are_new),
        cmocka_unit_test(test_bind_when_outside_of_the_two_then_nothing_is_shared),
        cmocka_unit_test(test_hand_over_when_done_then_a_third_one_has_all_that_are_new),
        cmocka_unit_test_setup_teardown(
            test_settle_when_the_successor_gives_up_then_the_socket_is_the_first_ones, begin, end),
        cmocka_unit_test_setup_teardown(
            test_restore_when_the_successor_was_killed_then_the_socket_is_the_first_ones, begin,
            end),
        cmocka_unit_test_setup_teardown(
            test_forget_when_the_successor_was_killed_then_no_name_is_left, begin, end),
        cmocka_unit_test_setup_teardown(
            test_name_when_made_then_it_lies_beside_and_is_this_processes, begin, end),
        cmocka_unit_test_setup_teardown(
            test_socket_when_another_takes_its_place_then_the_first_leaves_it_there, begin, end),
        cmocka_unit_test_setup_teardown(
            test_socket_when_nobody_took_its_place_then_it_goes_with_its_server, begin, end),
        cmocka_unit_test_setup_teardown(
            test_socket_when_its_file_is_gone_then_another_with_its_number_is_not_taken, begin,
            end),
        cmocka_unit_test_setup_teardown(test_move_when_it_cannot_be_then_the_second_name_is_gone,
                                        begin, end),
    };
    return cmocka_run_group_tests_name("share", tests, NULL, NULL);
}
