/* http_io.c: a connection's bytes, over TLS or without. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "proto/http/http_private.h"

/* UNSENT_BYTES: unsent bytes that the kernel takes for a connection. The rest waits in this
 * process, so that a slow reader is noticed. */
enum { UNSENT_BYTES = 16 << 10, KEEPALIVE_PINGS = 2, MS_PER_S = 1000 };

static enum http_io ssl_result(struct http_connection *connection, int rc)
{
    int error = SSL_get_error(connection->ssl, rc);
    ERR_clear_error();
    if (error == SSL_ERROR_WANT_WRITE)
        ev_io_start(connection->loop->ev, &connection->writer);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
        return HTTP_IO_LATER;
    return error == SSL_ERROR_ZERO_RETURN ? HTTP_IO_ENDED : HTTP_IO_FAILED;
}

static enum http_io errno_result(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? HTTP_IO_LATER
                                                                     : HTTP_IO_FAILED;
}

/* The _ex functions of OpenSSL are used, because proto/rpc/guard stands before the others. */
enum http_io http_io_receive(struct http_connection *connection, size_t *out_n)
{
    char *bytes = connection->loop->scratch;
    if (connection->ssl) {
        int rc = SSL_read_ex(connection->ssl, bytes, HTTP_SCRATCH_BYTES, out_n);
        return rc == 1 ? HTTP_IO_DONE : ssl_result(connection, rc);
    }
    ssize_t n = recv(connection->fd, bytes, HTTP_SCRATCH_BYTES, 0);
    if (n < 0)
        return errno_result();
    *out_n = (size_t)n;
    return n ? HTTP_IO_DONE : HTTP_IO_ENDED;
}

enum http_io http_io_transmit(struct http_connection *connection, size_t *out_n)
{
    const char *bytes = connection->out.data + connection->n_sent;
    size_t n_bytes = connection->out.n_bytes - connection->n_sent;
    if (connection->ssl) {
        int rc = SSL_write_ex(connection->ssl, bytes, n_bytes, out_n);
        if (rc == 1)
            return HTTP_IO_DONE;
        bool needs_bytes = SSL_get_error(connection->ssl, rc) == SSL_ERROR_WANT_READ;
        enum http_io result = ssl_result(connection, rc);
        return needs_bytes ? HTTP_IO_READ_FIRST : result;
    }
    ssize_t n = send(connection->fd, bytes, n_bytes, MSG_NOSIGNAL);
    if (n < 0)
        return errno_result();
    *out_n = (size_t)n;
    return HTTP_IO_DONE;
}

enum http_io http_io_shake(struct http_connection *connection)
{
    int rc = SSL_accept(connection->ssl);
    if (rc == 1)
        return HTTP_IO_DONE;
    bool is_plain = ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST;
    enum http_io result = ssl_result(connection, rc);
    return is_plain ? HTTP_IO_PLAIN : result;
}

static int seconds(uint32_t ms)
{
    return ms < MS_PER_S ? 1 : (int)(ms / MS_PER_S);
}

void http_io_set_options(int fd, const struct http_server_config *config)
{
    int one = 1, unsent = UNSENT_BYTES, n = KEEPALIVE_PINGS;
    int idle = seconds(config->keepalive_time_ms);
    int every = seconds(config->keepalive_timeout_ms / KEEPALIVE_PINGS);
    unsigned user_ms = config->user_timeout_ms;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &n, sizeof(n));
    if (user_ms)
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof(user_ms));
}
