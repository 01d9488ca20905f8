/* client_reason.c: why a connection failed. gRPC core says so in its text alone; only this file
 * reads that text. The words are those of gRPC 1.51 and of OpenSSL. */
#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "proto/rpc/client/client.h"

enum reason rpc_client_connection_reason(const struct error *err)
{
    static const struct {
        const char *words;
        enum reason reason;
    } rows[] = {
        {"http1.x server", REASON_HTTP1_PORT},
        {"Failed parsing HTTP/2", REASON_HTTP1_PORT},
        {"no application protocol", REASON_HTTP1_PORT}, /* TLS without HTTP/2 */
        {"WRONG_VERSION_NUMBER", REASON_PEER_WITHOUT_TLS},
        {"wrong version number", REASON_PEER_WITHOUT_TLS},
        {"certificate verify failed", REASON_CERTIFICATE_UNTRUSTED},
        {"is not in peer certificate", REASON_CERTIFICATE_OTHER_NAME},
        {"Permission denied", REASON_SOCKET_DENIED},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strstr(err->message, rows[i].words))
            return rows[i].reason;
    /* Unix sockets carry no TLS: a closed unix socket means that the server has just stopped. */
    bool never = strstr(err->message, "failed to connect") && !strstr(err->message, "unix:");
    bool closed = strstr(err->message, "Socket closed");
    if (never && closed)
        return REASON_HANDSHAKE_CLOSED;
    if (!never && (closed || strstr(err->message, "Connection reset")))
        return REASON_CONNECTION_LOST;
    return strstr(err->message, "failed to connect") ? REASON_NOT_CONNECTED : REASON_NONE;
}
