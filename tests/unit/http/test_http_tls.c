/* HTTP over TLS: certificates, client certificates, reload, and a client that speaks plain text. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ev.h>
#include <malloc.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "base/error.h"
#include "proto/http/http_server.h"
#include "proto/http/http_tls.h"
#include "proto/rpc/core/tls.h"
#include "tests/unit/base/support_cmocka.h"

enum { BIG = 300000, LIFE_S = 3600, WARNING_BYTES = 256, RECEIVE_S = 10, REQUEST_BYTES = 8192 };
enum { N_IDLE = 24, MAX_STREAM_BYTES = 20 << 10 };

static char folder[] = "/tmp/sluice-https-XXXXXX";
static char cert_path[128], key_path[128];

static void answer(void *arg, struct http_reply *reply)
{
    (void)arg;
    strbuf_add_str(&reply->body, "hello\n");
}

static void answer_big(void *arg, struct http_reply *reply)
{
    (void)arg;
    for (int i = 0; i < BIG / 10; i++)
        strbuf_add_str(&reply->body, "0123456789");
}

/* A stream sends one part, and then nothing more. */
static void next(void *arg, struct http_out *out)
{
    (void)arg;
    if (!http_out_has_begun(out)) {
        http_out_begin(out, 200, "text/event-stream", NULL);
        strbuf_add_str(http_out_text(out), "data: 1\n\n");
    }
}

static void on_done(void *arg, struct http_exchange *exchange)
{
    (void)arg;
    (void)exchange;
}

static void handle_stream(void *arg, struct http_exchange *exchange)
{
    static const struct http_exchange_events events = {.next = next, .on_done = on_done};
    (void)arg;
    http_exchange_set_events(exchange, &events, NULL);
    http_exchange_kick(exchange);
}

static const struct http_route routes[] = {
    {.path = "/stream", .handle = handle_stream, .methods = HTTP_GET},
    {.path = "/x", .page = answer},
    {.path = "/big", .page = answer_big}};

/* Writes a certificate that signs itself, and its key. */
static void make_pair(const char *name)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    assert_non_null(key);
    assert_non_null(cert);
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -LIFE_S);
    X509_gmtime_adj(X509_getm_notAfter(cert), LIFE_S);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                               (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(cert, X509_get_subject_name(cert));
    X509_set_pubkey(cert, key);
    X509_EXTENSION *ca = X509V3_EXT_conf_nid(NULL, NULL, NID_basic_constraints, "critical,CA:TRUE");
    X509_add_ext(cert, ca, -1);
    X509_EXTENSION_free(ca);
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    FILE *file = fopen(cert_path, "we");
    assert_non_null(file);
    PEM_write_X509(file, cert);
    fclose(file);
    file = fopen(key_path, "we");
    assert_non_null(file);
    fchmod(fileno(file), 0600);
    PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL);
    fclose(file);
    X509_free(cert);
    EVP_PKEY_free(key);
}

struct fixture {
    struct rpc_tls *tls;
    struct http_server *server;
};

static void configure(struct fixture *f, const char *client_ca, struct http_server_config *config)
{
    struct rpc_tls_config files = {cert_path, key_path, client_ca, true};
    struct error err;
    char warning[WARNING_BYTES];
    assert_int_equal(rpc_tls_create(&files, &f->tls, warning, &err), 0);
    http_server_config_init(config);
    config->listen = "127.0.0.1:0";
    config->routes = routes;
    config->n_routes = sizeof(routes) / sizeof(routes[0]);
    config->timeout_ms = config->handshake_ms = 500;
    config->tls = f->tls;
}

static void start(struct fixture *f, const char *client_ca)
{
    struct http_server_config config;
    struct error err;
    configure(f, client_ca, &config);
    assert_int_equal(http_server_create(&config, &f->server, &err), 0);
}

static void stop(struct fixture *f)
{
    http_server_destroy(f->server);
    rpc_tls_destroy(f->tls);
}

static int dial(const struct fixture *f)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(http_server_port(f->server)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = RECEIVE_S};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static SSL_SESSION *session; /* the last fetch's, for the next fetch; NULL: none */
static bool keeps_session, was_resumed;

/* Sends a request over TLS and reads the answer up to its end. Returns the bytes of the answer; -1
 * if the handshake or the first read fails. With out_name: the name in the server's certificate. */
static long fetch(const struct fixture *f, const char *path, bool with_cert, const char *protocols,
                  char *out_name)
{
    static char text[2 * BIG];
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    char request[REQUEST_BYTES];
    long n = -1;
    int fd = dial(f);
    if (with_cert) {
        assert_int_equal(SSL_CTX_use_certificate_file(context, cert_path, SSL_FILETYPE_PEM), 1);
        assert_int_equal(SSL_CTX_use_PrivateKey_file(context, key_path, SSL_FILETYPE_PEM), 1);
    }
    if (protocols)
        SSL_CTX_set_alpn_protos(context, (const unsigned char *)protocols,
                                (unsigned)strlen(protocols));
    SSL *ssl = SSL_new(context);
    SSL_set_fd(ssl, fd);
    if (session)
        SSL_set_session(ssl, session);
    snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
             path);
    size_t n_sent, n_now;
    if (SSL_connect(ssl) == 1 && SSL_write_ex(ssl, request, strlen(request), &n_sent) == 1) {
        long total = 0;
        while (SSL_read_ex(ssl, text + total, sizeof(text) - 1 - (size_t)total, &n_now) == 1)
            total += (long)n_now;
        text[total] = '\0';
        n = total && strncmp(text, "HTTP/1.1 200", 12) == 0 ? total : -1;
        was_resumed = SSL_session_reused(ssl) == 1;
        SSL_SESSION_free(session);
        session = keeps_session ? SSL_get1_session(ssl) : NULL;
        X509 *cert = SSL_get1_peer_certificate(ssl);
        if (cert && out_name)
            X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, out_name, 64);
        X509_free(cert);
    }
    SSL_shutdown(ssl); /* else the session cannot be resumed */
    ERR_clear_error();
    SSL_free(ssl);
    SSL_CTX_free(context);
    close(fd);
    return n;
}

static void test_answers_come_over_tls(void **state)
{
    struct fixture f;
    (void)state;
    make_pair("one");
    start(&f, NULL);
    assert_true(fetch(&f, "/x", false, NULL, NULL) > 0);
    assert_true(fetch(&f, "/big", false, NULL, NULL) > BIG);
    assert_true(fetch(&f, "/x", false, "\x08http/1.1", NULL) > 0);
    assert_true(fetch(&f, "/x", false, "\x02h2\x08http/1.1", NULL) > 0);
    assert_int_equal(fetch(&f, "/x", false, "\x02h2", NULL), -1);
    stop(&f);
}

/* A connection leaves its loop after some answers. TLS has read the other requests by then, so the
 * socket alone would not bring the loop back to them. */
static void test_requests_in_advance_are_all_answered(void **state)
{
    enum { N = 200, CLOSE_BYTES = sizeof("Connection: close\r\n") - 1 };
    struct fixture f;
    struct strbuf path = {0};
    (void)state;
    make_pair("one");
    start(&f, NULL);
    long one = fetch(&f, "/x", false, NULL, NULL);
    for (int i = 0; i + 1 < N; i++)
        strbuf_add_str(&path, "/x HTTP/1.1\r\nHost: x\r\n\r\nGET ");
    strbuf_add_str(&path, "/x");
    assert_true(path.n_bytes + 128 < REQUEST_BYTES);
    assert_true(one > CLOSE_BYTES);
    assert_true(fetch(&f, strbuf_str(&path), false, NULL, NULL) >= N * (one - CLOSE_BYTES));
    strbuf_fini(&path);
    stop(&f);
}

static void test_a_client_needs_its_certificate(void **state)
{
    struct fixture f;
    (void)state;
    make_pair("one");
    start(&f, cert_path);
    assert_int_equal(fetch(&f, "/x", false, NULL, NULL), -1);
    assert_true(fetch(&f, "/x", true, NULL, NULL) > 0);
    stop(&f);
}

/* The second connection of a client with a certificate failed, if it resumed the first one's
 * session. */
static void test_a_session_is_resumed(void **state)
{
    struct fixture f;
    (void)state;
    make_pair("one");
    start(&f, cert_path);
    keeps_session = true;
    assert_true(fetch(&f, "/x", true, NULL, NULL) > 0);
    assert_true(fetch(&f, "/x", true, NULL, NULL) > 0);
    assert_true(was_resumed);
    keeps_session = false;
    assert_true(fetch(&f, "/x", true, NULL, NULL) > 0);
    stop(&f);
}

static void test_new_files_serve_new_connections(void **state)
{
    struct fixture f;
    struct error err;
    char warning[WARNING_BYTES], name[64];
    (void)state;
    make_pair("one");
    start(&f, NULL);
    assert_true(fetch(&f, "/x", false, NULL, name) > 0);
    assert_string_equal(name, "one");
    make_pair("two");
    assert_int_equal(rpc_tls_reload(f.tls, true, warning, &err), 1);
    assert_true(fetch(&f, "/x", false, NULL, name) > 0);
    assert_string_equal(name, "two");
    stop(&f);
}

/* Symptom: curl with http:// at a port with TLS said "connection reset", and nothing of TLS. */
static void test_a_client_without_tls_gets_an_answer(void **state)
{
    static const char request[] =
        "GET /x HTTP/1.1\r\nHost: x\r\n\r\nGET /x HTTP/1.1\r\nHost: x\r\n\r\n";
    struct fixture f;
    char text[1024] = "";
    size_t n_text = 0;
    ssize_t n;
    (void)state;
    make_pair("one");
    start(&f, NULL);
    int fd = dial(&f);
    assert_true(send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) == sizeof(request) - 1);
    while ((n = recv(fd, text + n_text, sizeof(text) - 1 - n_text, 0)) > 0)
        n_text += (size_t)n;
    assert_int_equal(n, 0); /* an orderly end */
    assert_int_equal(strncmp(text, "HTTP/1.1 400 ", 13), 0);
    assert_non_null(strstr(text, "https://"));
    assert_null(strstr(text, "hello"));
    assert_null(strstr(text + 1, "HTTP/1.1 "));
    close(fd);
    stop(&f);
}

/* Neither plain text nor silence holds a connection, and others are served meanwhile. */
static void test_a_handshake_that_never_comes_is_ended(void **state)
{
    struct fixture f;
    char byte;
    (void)state;
    make_pair("one");
    start(&f, NULL);
    int silent = dial(&f), plain = dial(&f);
    assert_true(send(plain, "SSH-2.0-OpenSSH_9.2\r\n", 21, MSG_NOSIGNAL) == 21);
    assert_true(fetch(&f, "/x", false, NULL, NULL) > 0);
    while (recv(plain, &byte, 1, 0) > 0)
        continue; /* an alert */
    assert_true(recv(silent, &byte, 1, 0) <= 0);
    close(silent);
    close(plain);
    stop(&f);
}

/* A client that sent new keys without end held its loop, and all other connections of the loop
 * waited. Every read must return after a record without data. */
static void test_a_read_returns_after_a_record_without_data(void **state)
{
    enum { N_KEYS = 20 };
    struct rpc_tls_config files = {cert_path, key_path, NULL, true};
    struct rpc_tls *pair;
    struct http_tls *tls;
    struct error err;
    char warning[WARNING_BYTES], byte = 'x';
    int fds[2], n_reads = 0;
    size_t n;
    (void)state;
    make_pair("one");
    assert_int_equal(rpc_tls_create(&files, &pair, warning, &err), 0);
    assert_int_equal(http_tls_create(pair, &tls, &err), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    SSL *server = http_tls_accept(tls, fds[0]);
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL *client = SSL_new(context);
    SSL_set_fd(client, fds[1]);
    while (SSL_connect(client) != 1)
        (void)SSL_accept(server);
    assert_int_equal(SSL_accept(server), 1);
    for (int i = 0; i < N_KEYS; i++) {
        assert_int_equal(SSL_key_update(client, SSL_KEY_UPDATE_NOT_REQUESTED), 1);
        assert_int_equal(SSL_do_handshake(client), 1);
    }
    assert_int_equal(SSL_write_ex(client, &byte, 1, &n), 1);
    while (n_reads <= N_KEYS && SSL_read_ex(server, &byte, 1, &n) != 1) {
        assert_int_equal(SSL_get_error(server, 0), SSL_ERROR_WANT_READ);
        n_reads++;
    }
    assert_int_equal(n_reads, N_KEYS);
    SSL_free(server);
    SSL_free(client);
    SSL_CTX_free(context);
    close(fds[0]);
    close(fds[1]);
    http_tls_destroy(tls);
    rpc_tls_destroy(pair);
}

/* A client without a certificate saw a reset in place of the alert that names the cause. The server
 * closed while it had not read all bytes of the client. */
static void test_a_refused_client_can_read_the_alert(void **state)
{
    enum { NO_RESET_MS = 200 };
    struct fixture f;
    static const char request[] = "GET /x HTTP/1.1\r\nHost: x\r\n\r\n";
    char byte;
    size_t n;
    (void)state;
    make_pair("one");
    start(&f, cert_path);
    struct pollfd readable = {.fd = dial(&f), .events = POLLIN};
    struct pollfd reset = {.fd = readable.fd};
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(context);
    SSL_set_min_proto_version(ssl, TLS1_3_VERSION); /* the client's part comes last */
    SSL_set_fd(ssl, readable.fd);
    assert_int_equal(SSL_connect(ssl), 1);
    assert_int_equal(poll(&readable, 1, RECEIVE_S * 1000), 1);
    assert_int_equal(poll(&reset, 1, NO_RESET_MS), 0);
    assert_int_equal(SSL_write_ex(ssl, request, sizeof(request) - 1, &n), 1);
    assert_int_equal(SSL_read_ex(ssl, &byte, 1, &n), 0);
    assert_int_equal(ERR_GET_REASON(ERR_get_error()), SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED);
    ERR_clear_error();
    SSL_free(ssl);
    SSL_CTX_free(context);
    close(readable.fd);
    stop(&f);
}

static unsigned char secret[32]; /* protects the client's records */

static void keep_secret(const SSL *ssl, const char *line)
{
    static const char name[] = "CLIENT_TRAFFIC_SECRET_0 ";
    size_t n;
    (void)ssl;
    if (strncmp(line, name, sizeof(name) - 1) == 0)
        assert_int_equal(
            OPENSSL_hexstr2buf_ex(secret, sizeof(secret), &n, strrchr(line, ' ') + 1, '\0'), 1);
}

/* RFC 8446, 7.1: HKDF-Expand-Label without a context. */
static void expand(const char *label, unsigned char *out, size_t n_out)
{
    unsigned char text[64], mac[EVP_MAX_MD_SIZE];
    int n = snprintf((char *)text + 3, sizeof(text) - 3, "tls13 %s", label);
    text[0] = 0;
    text[1] = (unsigned char)n_out;
    text[2] = (unsigned char)n;
    text[3 + n] = 0; /* length of the context */
    text[4 + n] = 1;
    assert_non_null(HMAC(EVP_sha256(), secret, sizeof(secret), text, (size_t)n + 5, mac, NULL));
    memcpy(out, mac, n_out);
}

/* Sends the head of a message of the handshake as the client's second record, and not the rest.
 * OpenSSL's clients send whole messages only. */
static void send_part_of_a_message(int fd)
{
    enum { N_TAG = 16, N_HEAD = 5 };
    static const unsigned char part[] = {24, 0, 0, 1, SSL3_RT_HANDSHAKE}; /* new keys; type */
    unsigned char key[16], nonce[12];
    unsigned char record[N_HEAD + sizeof(part) + N_TAG] = {SSL3_RT_APPLICATION_DATA, 3, 3, 0,
                                                           sizeof(part) + N_TAG};
    EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new();
    int n;
    expand("key", key, sizeof(key));
    expand("iv", nonce, sizeof(nonce));
    nonce[sizeof(nonce) - 1] ^= 1; /* number of the record */
    EVP_EncryptInit_ex(cipher, EVP_aes_128_gcm(), NULL, key, nonce);
    EVP_EncryptUpdate(cipher, NULL, &n, record, N_HEAD);
    EVP_EncryptUpdate(cipher, record + N_HEAD, &n, part, sizeof(part));
    EVP_EncryptFinal_ex(cipher, record + N_HEAD + n, &n);
    EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_GET_TAG, N_TAG, record + N_HEAD + sizeof(part));
    EVP_CIPHER_CTX_free(cipher);
    assert_int_equal(send(fd, record, sizeof(record), MSG_NOSIGNAL), sizeof(record));
}

static void run_for(struct ev_loop *loop, int ms)
{
    for (int i = 0; i < ms; i++) {
        ev_run(loop, EVRUN_NOWAIT);
        poll(NULL, 0, 1); /* a turn of the loop each millisecond */
    }
}

static void on_time(struct ev_loop *loop, ev_timer *timer, int events)
{
    (void)timer;
    (void)events;
    ev_break(loop, EVBREAK_ALL);
}

/* A client sent a part of a message of the handshake while its answer was written. OpenSSL wrote no
 * more before the rest came. The socket was writable all the time, and the loop spun. */
static void test_a_write_that_needs_bytes_of_the_client_waits_quietly(void **state)
{
    enum { MAX_TURNS = 20, RUN_MS = 300 };
    struct fixture f;
    struct http_server_config config;
    static const char request[] = "GET /big HTTP/1.1\r\nHost: x\r\n\r\n";
    static char bytes[BIG];
    struct error err;
    ev_timer timer;
    size_t n;
    (void)state;
    make_pair("one");
    configure(&f, NULL, &config);
    config.loop = ev_loop_new(0);
    assert_int_equal(http_server_create(&config, &f.server, &err), 0);
    int fd = dial(&f);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_keylog_callback(context, keep_secret);
    SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256");
    SSL *ssl = SSL_new(context);
    SSL_set_fd(ssl, fd);
    while (SSL_connect(ssl) != 1)
        run_for(config.loop, 1);
    assert_int_equal(SSL_write_ex(ssl, request, sizeof(request) - 1, &n), 1);
    run_for(config.loop, 10); /* the answer fills the buffers of the kernel */
    send_part_of_a_message(fd);
    for (int i = 0; i < 50; i++) { /* the socket of the server becomes writable */
        run_for(config.loop, 2);
        while (recv(fd, bytes, sizeof(bytes), 0) > 0)
            continue;
    }
    assert_int_equal(http_server_n_connections(f.server), 1);
    ev_timer_init(&timer, on_time, RUN_MS / 1e3, 0.);
    ev_timer_start(config.loop, &timer);
    unsigned before = ev_iteration(config.loop);
    ev_run(config.loop, 0);
    print_message("%u turns of the loop\n", ev_iteration(config.loop) - before);
    assert_true(ev_iteration(config.loop) - before <= MAX_TURNS);
    SSL_free(ssl);
    SSL_CTX_free(context);
    close(fd);
    stop(&f);
    ev_loop_destroy(config.loop);
}

/* The clients of the test below, in a process of their own: their memory must not count. Reads the
 * port, opens idle streams and reports each by a byte, as soon as its first part came. */
static void hold_streams(int in, int out)
{
    uint16_t port;
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static const char request[] = "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n";
    char byte, text[1024];
    size_t n;
    if (read(in, &port, sizeof(port)) != sizeof(port))
        _exit(1);
    address.sin_port = htons(port);
    for (int i = 0; i < N_IDLE + 1 && read(in, &byte, 1) == 1; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        SSL *ssl = SSL_new(context);
        SSL_set_fd(ssl, fd);
        bool good = connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0 &&
                    SSL_connect(ssl) == 1 &&
                    SSL_write_ex(ssl, request, sizeof(request) - 1, &n) == 1 &&
                    SSL_read_ex(ssl, text, sizeof(text), &n) == 1;
        if (!good || write(out, &byte, 1) != 1)
            _exit(1);
    }
    (void)!read(in, &byte, 1); /* until the test ends */
    _exit(0);
}

static size_t heap_bytes(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static void open_stream(int out, int in)
{
    char byte = 0;
    assert_int_equal(write(out, &byte, 1), 1);
    assert_int_equal(read(in, &byte, 1), 1);
}

static void test_an_idle_stream_holds_little(void **state)
{
    struct fixture f;
    int there[2], back[2];
    (void)state;
    make_pair("one");
    assert_int_equal(pipe(there), 0);
    assert_int_equal(pipe(back), 0);
    pid_t child = fork();
    if (child == 0) {
        close(there[1]);
        hold_streams(there[0], back[1]);
    }
    start(&f, NULL);
    uint16_t port = http_server_port(f.server);
    assert_int_equal(write(there[1], &port, sizeof(port)), sizeof(port));
    open_stream(there[1], back[0]); /* the first one also costs what all share */
    size_t before = heap_bytes();
    for (int i = 0; i < N_IDLE; i++)
        open_stream(there[1], back[0]);
    size_t each = (heap_bytes() - before) / N_IDLE;
    print_message("%zu bytes for an idle stream\n", each);
    assert_true(each <= MAX_STREAM_BYTES); /* a sanitizer's allocator reports none */
    close(there[1]);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(there[0]);
    close(back[0]);
    close(back[1]);
    stop(&f);
}

static int make_folder(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(cert_path, sizeof(cert_path), "%s/cert", folder);
    snprintf(key_path, sizeof(key_path), "%s/key", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(cert_path);
    unlink(key_path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_come_over_tls),
        cmocka_unit_test(test_requests_in_advance_are_all_answered),
        cmocka_unit_test(test_a_client_needs_its_certificate),
        cmocka_unit_test(test_a_refused_client_can_read_the_alert),
        cmocka_unit_test(test_a_session_is_resumed),
        cmocka_unit_test(test_new_files_serve_new_connections),
        cmocka_unit_test(test_a_client_without_tls_gets_an_answer),
        cmocka_unit_test(test_a_handshake_that_never_comes_is_ended),
        cmocka_unit_test(test_a_read_returns_after_a_record_without_data),
        cmocka_unit_test(test_a_write_that_needs_bytes_of_the_client_waits_quietly),
        cmocka_unit_test(test_an_idle_stream_holds_little),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
