#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/clock.h"
#include "proto/rpc/guard/connection.h"
#include "proto/rpc/guard/guard.h"

/* The overhead of a TLS record, and what the BIO needs for itself. */
enum { RECORD_BYTES = 256 };

/* The state of an SSL. gRPC uses an SSL in one thread at a time. The lock keeps our own threads
 * out meanwhile, and is taken before a connection's lock. */
struct watch {
    SSL *ssl;
    struct watch *next, **at;
    pthread_mutex_t lock;
    struct rpc_guard guard;
    struct rpc_goaway goaway;
    bool is_begun;
    int64_t begun_ns;
    bool came_late; /* came after the GOAWAYs were sent */
    /* set once the connection is known, with its serial number for the descriptor */
    struct rpc_connection *connection;
    uint32_t serial;
};

typedef int ssl_read_fn(SSL *ssl, void *bytes, int n);
typedef int ssl_write_fn(SSL *ssl, const void *bytes, int n);
typedef int ssl_error_fn(const SSL *ssl, int n);

static struct {
    pthread_once_t once;
    ssl_read_fn *read;
    ssl_write_fn *write;
    ssl_error_fn *error;
    int index;                  /* index of the watch in an SSL's ex_data */
    atomic_bool leaving, every; /* every: clients that came late get a GOAWAY too */
    pthread_mutex_t lock;       /* protects the list; taken before a watch's lock */
    struct watch *watches;
} tls = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

/* The result of SSL_get_error for the call that just failed on this thread. Another thread may
 * add a record to the SSL before gRPC asks for the error. */
static _Thread_local struct {
    const SSL *ssl;
    int n, error;
} failed;

/* The SSL is intact until this returns (SSL_free calls it first). */

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
    pthread_mutex_lock(&tls.lock);
    *watch->at = watch->next;
    if (watch->next != NULL)
        watch->next->at = watch->at;
    pthread_mutex_unlock(&tls.lock);
    rpc_guard_reset(&watch->guard);
    pthread_mutex_destroy(&watch->lock);
    free(watch);
}

/* A static libssl has no next symbol: there the linker redirects gRPC's calls (--wrap). */
#if SLUICE_STATIC
int ssl_read_of_libssl(SSL *ssl, void *bytes, int n) __asm__("__real_SSL_read");
int ssl_write_of_libssl(SSL *ssl, const void *bytes, int n) __asm__("__real_SSL_write");
int ssl_error_of_libssl(const SSL *ssl, int n) __asm__("__real_SSL_get_error");

static void find_calls(void)
{
    tls.read = ssl_read_of_libssl;
    tls.write = ssl_write_of_libssl;
    tls.error = ssl_error_of_libssl;
}
#else
static void find_calls(void)
{
    union {
        void *symbol;
        ssl_read_fn *read;
        ssl_write_fn *write;
        ssl_error_fn *error;
    } next = {dlsym(RTLD_NEXT, "SSL_read")};
    tls.read = next.read;
    next.symbol = dlsym(RTLD_NEXT, "SSL_write");
    tls.write = next.write;
    next.symbol = dlsym(RTLD_NEXT, "SSL_get_error");
    tls.error = next.error;
}
#endif

static void find_ssl(void)
{
    find_calls();
    tls.index = SSL_get_ex_new_index(0, NULL, NULL, NULL, free_watch);
}

/* An SSL is used by one thread at a time, so only one thread can create its watch. */
static struct watch *watch_of(SSL *ssl)
{
    struct watch *watch = SSL_get_ex_data(ssl, tls.index);
    if (watch != NULL)
        return watch;
    watch = calloc(1, sizeof(*watch));
    if (watch == NULL)
        return NULL;
    pthread_mutex_init(&watch->lock, NULL);
    watch->ssl = ssl;
    watch->begun_ns = clock_now_ns();
    watch->came_late = atomic_load(&tls.leaving);
    pthread_mutex_lock(&tls.lock);
    watch->next = tls.watches;
    watch->at = &tls.watches;
    if (watch->next != NULL)
        watch->next->at = &watch->next;
    tls.watches = watch;
    pthread_mutex_unlock(&tls.lock);
    if (SSL_set_ex_data(ssl, tls.index, watch) == 1)
        return watch;
    free_watch(NULL, watch, NULL, 0, 0, NULL);
    return NULL;
}

/* Under the lock. gRPC gives an SSL no descriptor. But gRPC decrypts what this thread has just
 * read, and both the read and the SSL have the client's random. */
static void find_connection(struct watch *watch)
{
    uint8_t random[RPC_RANDOM_BYTES];
    struct rpc_connection *connection = rpc_connection_last_read();
    if (watch->connection != NULL || connection == NULL ||
        SSL_get_client_random(watch->ssl, random, sizeof(random)) != sizeof(random))
        return;
    if (rpc_connection_is_of(connection, random, &watch->serial))
        watch->connection = connection;
}

/* --- leaving --- */

void rpc_connection_tls_leave(bool leaving)
{
    atomic_store(&tls.every, false);
    atomic_store(&tls.leaving, leaving);
}

static bool may_send_goaway(const struct watch *watch)
{
    int64_t age_ns = clock_now_ns() - watch->begun_ns;
    return atomic_load(&tls.leaving) && (!watch->came_late || atomic_load(&tls.every)) &&
           age_ns >= RPC_GOAWAY_AGE_MS * NS_PER_MS;
}

/* Writes the GOAWAY after gRPC's bytes, into the same buffer, which gRPC sends next. */
static void put_goaway_after(struct watch *watch)
{
    SSL *ssl = watch->ssl;
    uint8_t *bytes;
    if (!may_send_goaway(watch))
        return;
    rpc_goaway_begin(&watch->goaway);
    if (BIO_get_write_guarantee(SSL_get_wbio(ssl)) < RPC_GOAWAY_BYTES + RECORD_BYTES)
        return;
    size_t n = rpc_goaway_next(&watch->goaway, &bytes);
    if (n == 0)
        return;
    if (tls.write(ssl, bytes, (int)n) <= 0)
        ERR_clear_error(); /* gRPC's next call reports the error */
    rpc_goaway_said(&watch->goaway, n);
    watch->is_begun = true;
}

/* Encrypts bytes with the SSL into a buffer of our own, beside the buffer that gRPC sends.
 * Returns the size of the record; 0: none. */
static size_t seal(SSL *ssl, const uint8_t *bytes, size_t n, uint8_t out_record[RPC_RECORD_BYTES])
{
    BIO *theirs = SSL_get_wbio(ssl), *ours = BIO_new(BIO_s_mem());
    char *at = NULL;
    if (ours == NULL)
        return 0;
    BIO_up_ref(theirs);
    SSL_set0_wbio(ssl, ours);
    if (tls.write(ssl, bytes, (int)n) <= 0)
        ERR_clear_error();
    long n_record = BIO_get_mem_data(ours, &at);
    bool fits = n_record > 0 && n_record <= RPC_RECORD_BYTES;
    if (fits)
        memcpy(out_record, at, (size_t)n_record);
    SSL_set0_wbio(ssl, theirs);
    return fits ? (size_t)n_record : 0;
}

/* Sends the GOAWAY in a record of its own while gRPC has nothing to send. All bytes that gRPC
 * has encrypted must be sent before. */
static void send_goaway_alone(struct watch *watch)
{
    uint8_t *bytes, record[RPC_RECORD_BYTES];
    if (watch->connection == NULL || !may_send_goaway(watch))
        return;
    rpc_goaway_begin(&watch->goaway);
    watch->is_begun = true;
    if (!rpc_connection_has_sent(watch->connection, watch->serial,
                                 BIO_number_written(SSL_get_wbio(watch->ssl))))
        return;
    size_t n = rpc_goaway_next(&watch->goaway, &bytes);
    size_t n_record = n > 0 ? seal(watch->ssl, bytes, n, record) : 0;
    if (n_record == 0)
        return;
    rpc_goaway_said(&watch->goaway, n);
    rpc_connection_send_record(watch->connection, watch->serial, record, n_record);
}

/* True if the client has not acknowledged the GOAWAY, or will receive one. */
static bool is_leaving(const struct watch *watch)
{
    bool known = watch->connection != NULL;
    if (!watch->is_begun)
        return atomic_load(&tls.leaving) && known;
    return known ? rpc_goaway_is_open(&watch->goaway) : rpc_goaway_is_unheard(&watch->goaway);
}

uint32_t rpc_connection_tls_n_leaving(bool every)
{
    uint32_t n = 0;
    if (every && atomic_load(&tls.leaving))
        atomic_store(&tls.every, true);
    pthread_mutex_lock(&tls.lock);
    for (struct watch *watch = tls.watches; watch != NULL; watch = watch->next) {
        pthread_mutex_lock(&watch->lock);
        send_goaway_alone(watch);
        n += (every || !watch->came_late) && is_leaving(watch);
        pthread_mutex_unlock(&watch->lock);
    }
    pthread_mutex_unlock(&tls.lock);
    return n;
}

/* --- SSL_read, SSL_write, SSL_get_error --- */

static int note_failure(const SSL *ssl, int n)
{
    failed.ssl = n <= 0 ? ssl : NULL;
    failed.n = n;
    failed.error = n <= 0 ? tls.error(ssl, n) : 0;
    return n;
}

int rpc_guard_ssl_get_error(const SSL *ssl, int n)
{
    pthread_once(&tls.once, find_ssl);
    bool known = failed.ssl == ssl && failed.n == n;
    failed.ssl = NULL;
    return known ? failed.error : tls.error(ssl, n);
}

/* Under the lock. */
static int read_along(struct watch *watch, struct rpc_accept *accept, void *bytes, int n)
{
    int n_read = note_failure(watch->ssl, tls.read(watch->ssl, bytes, n));
    if (n_read <= 0)
        return n_read;
    find_connection(watch);
    rpc_goaway_heard(&watch->goaway, bytes, (size_t)n_read);
    send_goaway_alone(watch);
    if (rpc_accept_is_good(accept, &watch->guard, bytes, (size_t)n_read))
        return n_read;
    ERR_raise(ERR_LIB_USER, ERR_R_OPERATION_FAIL); /* SSL_get_error then reports a broken
                                                    * connection */
    return -1;
}

/* If memory for a watch is exhausted, the connection ends. */
int rpc_guard_ssl_read(SSL *ssl, void *bytes, int n)
{
    pthread_once(&tls.once, find_ssl);
    struct rpc_accept *accept = SSL_is_server(ssl) ? rpc_connection_tls_accept() : NULL;
    if (accept == NULL)
        return tls.read(ssl, bytes, n);
    struct watch *watch = watch_of(ssl);
    if (watch == NULL) {
        ERR_raise(ERR_LIB_USER, ERR_R_MALLOC_FAILURE);
        return -1;
    }
    pthread_mutex_lock(&watch->lock);
    int n_read = read_along(watch, accept, bytes, n);
    pthread_mutex_unlock(&watch->lock);
    return n_read;
}

/* If memory for a watch is exhausted, the next read ends the connection. */
int rpc_guard_ssl_write(SSL *ssl, const void *bytes, int n)
{
    pthread_once(&tls.once, find_ssl);
    bool watched = SSL_is_server(ssl) && rpc_connection_tls_accept() != NULL;
    struct watch *watch = watched ? watch_of(ssl) : NULL;
    if (watch == NULL)
        return tls.write(ssl, bytes, n);
    pthread_mutex_lock(&watch->lock);
    int n_written = note_failure(ssl, tls.write(ssl, bytes, n));
    if (n_written > 0) {
        rpc_guard_sent(&watch->guard, bytes, (size_t)n_written);
        rpc_goaway_sent(&watch->goaway, bytes, (size_t)n_written);
        put_goaway_after(watch);
    }
    pthread_mutex_unlock(&watch->lock);
    return n_written;
}
