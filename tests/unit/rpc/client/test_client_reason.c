#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/error.h"
#include "proto/rpc/client/client.h"

/* gRPC's own words about a connection. */
static void test_reason_when_a_server_is_missed_then_as_grpc_says(void **state)
{
    (void)state;
    static const char never[] = "failed to connect to all addresses; last error: ";
    static const struct {
        const char *words;
        enum reason reason;
    } cases[] = {
        {"UNKNOWN: ipv4:127.0.0.1:1: Trying to connect an http1.x server", REASON_HTTP1_PORT},
        /* A web server of Python was taken for a missing server. */
        {"UNAVAILABLE: ipv4:127.0.0.1:1: Failed parsing HTTP/2", REASON_HTTP1_PORT},
        /* The HTTP port of a server with TLS was taken for a missing server. */
        {"Ssl handshake failed: error:0A000460:SSL routines::tlsv1 alert no application protocol",
         REASON_HTTP1_PORT},
        {"Ssl handshake failed: error:0A00010B:SSL routines::wrong version number",
         REASON_PEER_WITHOUT_TLS},
        {"Ssl handshake failed: SSL routines::certificate verify failed",
         REASON_CERTIFICATE_UNTRUSTED},
        {"Peer name foo.bar is not in peer certificate", REASON_CERTIFICATE_OTHER_NAME},
        {"UNAVAILABLE: ipv4:127.0.0.1:1: Socket closed", REASON_HANDSHAKE_CLOSED},
        {"UNAVAILABLE: unix:/run/sluice/server.sock: Socket closed", REASON_CONNECTION_LOST},
        {"UNKNOWN: unix:/run/sluice/server.sock: connect: Permission denied", REASON_SOCKET_DENIED},
        {"Failed to connect to remote host: Connection refused", REASON_NOT_CONNECTED},
    };
    struct error err;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        error_set(&err, STATUS_UNAVAILABLE, "%s%s", never, cases[i].words);
        enum reason reason = rpc_client_connection_reason(&err);
        if (reason != cases[i].reason)
            fail_msg("\"%s\": %s", err.message, reason_name(reason));
    }
    error_set(&err, STATUS_UNAVAILABLE, "Socket closed");
    assert_int_equal(rpc_client_connection_reason(&err), REASON_CONNECTION_LOST);
    error_set(&err, STATUS_UNAVAILABLE, "recvmsg: Connection reset by peer");
    assert_int_equal(rpc_client_connection_reason(&err), REASON_CONNECTION_LOST);
    error_set(&err, STATUS_UNAVAILABLE, "the model is being loaded");
    assert_int_equal(rpc_client_connection_reason(&err), REASON_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reason_when_a_server_is_missed_then_as_grpc_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
