#include <dlfcn.h>
#include <stdlib.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "proto/rpc/rpc_connection.h"

/* A record around what is said, and what the buffer keeps for itself. */
enum { RECORD_BYTES = 256 };

/* In an SSL. */
struct watch {
    struct rpc_guard guard;
    struct rpc_goaway goaway;
    bool is_counted; /* among those that were told and have not answered */
};

typedef int ssl_read_fn(SSL *ssl, void *bytes, int n);
typedef int ssl_write_fn(SSL *ssl, const void *bytes, int n);

static struct {
    pthread_once_t once;
    ssl_read_fn *read;
    ssl_write_fn *write;
    int index; /* of the watch in an SSL */
    atomic_bool leaving;
    atomic_uint n_leaving;
} tls = {.once = PTHREAD_ONCE_INIT};

static void free_watch(void *parent, void *at, CRYPTO_EX_DATA *data, int index, long n, void *arg)
{
    struct watch *watch = at;
    (void)parent;
    (void)data;
    (void)index;
    (void)n;
    (void)arg;
    if (watch == NULL)
        return;
    if (watch->is_counted)
        atomic_fetch_sub(&tls.n_leaving, 1);
    rpc_guard_reset(&watch->guard);
    free(watch);
}

/* A linked-in libssl has no next one: there the linker turns gRPC's calls here (--wrap). */
#if SLUICE_STATIC
#define SSL_OURS "__wrap_"
int ssl_read_of_libssl(SSL *ssl, void *bytes, int n) __asm__("__real_SSL_read");
int ssl_write_of_libssl(SSL *ssl, const void *bytes, int n) __asm__("__real_SSL_write");

static void find_calls(void)
{
    tls.read = ssl_read_of_libssl;
    tls.write = ssl_write_of_libssl;
}
#else
#define SSL_OURS ""

static void find_calls(void)
{
    union {
        void *symbol;
        ssl_read_fn *read;
        ssl_write_fn *write;
    } next = {dlsym(RTLD_NEXT, "SSL_read")};
    tls.read = next.read;
    next.symbol = dlsym(RTLD_NEXT, "SSL_write");
    tls.write = next.write;
}
#endif

static void find_ssl(void)
{
    find_calls();
    tls.index = SSL_get_ex_new_index(0, NULL, NULL, NULL, free_watch);
}

/* No lock: an SSL is used by one thread at a time. */
static struct watch *watch_of(SSL *ssl)
{
    struct watch *watch = SSL_get_ex_data(ssl, tls.index);
    if (watch != NULL)
        return watch;
    watch = calloc(1, sizeof(*watch));
    if (watch != NULL && SSL_set_ex_data(ssl, tls.index, watch) == 1)
        return watch;
    free(watch);
    return NULL;
}

/* --- leaving --- */

void rpc_connection_tls_leave(bool leaving)
{
    atomic_store(&tls.leaving, leaving);
}

uint32_t rpc_connection_tls_n_leaving(void)
{
    return atomic_load(&tls.n_leaving);
}

static void count(struct watch *watch)
{
    bool counts = rpc_goaway_is_unheard(&watch->goaway);
    if (counts && !watch->is_counted)
        atomic_fetch_add(&tls.n_leaving, 1);
    else if (!counts && watch->is_counted)
        atomic_fetch_sub(&tls.n_leaving, 1);
    watch->is_counted = counts;
}

/* After gRPC's own bytes and in the same buffer, which gRPC empties next. */
static void say_over_tls(struct watch *watch, SSL *ssl)
{
    uint8_t *bytes;
    if (!atomic_load(&tls.leaving) || watch->goaway.stage >= RPC_GOAWAY_SAID)
        return;
    rpc_goaway_begin(&watch->goaway);
    if (BIO_get_write_guarantee(SSL_get_wbio(ssl)) < RPC_GOAWAY_BYTES + RECORD_BYTES)
        return;
    size_t n = rpc_goaway_next(&watch->goaway, &bytes);
    if (n == 0)
        return;
    if (tls.write(ssl, bytes, (int)n) <= 0)
        ERR_clear_error(); /* gRPC's next one says what is wrong */
    rpc_goaway_said(&watch->goaway, n);
    count(watch);
}

static void hear_over_tls(struct watch *watch, const void *bytes, size_t n_bytes)
{
    if (!watch->is_counted)
        return;
    rpc_goaway_heard(&watch->goaway, bytes, n_bytes);
    count(watch);
}

/* --- SSL_read, SSL_write --- */

int ssl_read_instead(SSL *ssl, void *bytes, int n) __asm__(SSL_OURS "SSL_read");

int ssl_read_instead(SSL *ssl, void *bytes, int n)
{
    pthread_once(&tls.once, find_ssl);
    int n_read = tls.read(ssl, bytes, n);
    if (n_read <= 0 || !SSL_is_server(ssl))
        return n_read;
    struct rpc_accept *accept = rpc_connection_tls_accept();
    struct watch *watch = accept != NULL ? watch_of(ssl) : NULL;
    if (watch != NULL)
        hear_over_tls(watch, bytes, (size_t)n_read);
    if (accept == NULL ||
        (watch != NULL && rpc_accept_is_good(accept, &watch->guard, bytes, (size_t)n_read)))
        return n_read;
    ERR_raise(ERR_LIB_USER, ERR_R_OPERATION_FAIL); /* so SSL_get_error says that it is broken */
    return -1;
}

int ssl_write_instead(SSL *ssl, const void *bytes, int n) __asm__(SSL_OURS "SSL_write");

/* Without memory for a watch the next read ends the connection. */
int ssl_write_instead(SSL *ssl, const void *bytes, int n)
{
    pthread_once(&tls.once, find_ssl);
    int n_written = tls.write(ssl, bytes, n);
    if (n_written <= 0 || !SSL_is_server(ssl))
        return n_written;
    struct watch *watch = SSL_get_ex_data(ssl, tls.index);
    if (watch == NULL && rpc_connection_tls_accept() != NULL)
        watch = watch_of(ssl);
    if (watch == NULL)
        return n_written;
    rpc_guard_sent(&watch->guard, bytes, (size_t)n_written);
    rpc_goaway_sent(&watch->goaway, bytes, (size_t)n_written);
    say_over_tls(watch, ssl);
    return n_written;
}
