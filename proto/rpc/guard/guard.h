/* guard.h: functions that gRPC calls in place of libc. The calls of gRPC 1.51 go through the
 * dynamic linker. So the definitions in this folder replace libc's and libssl's for the whole
 * program. Each does what the real function does, and more on the sockets that the folder watches.
 *
 * The names here differ from the symbols because glibc declares accept4, bind and getpeername
 * with a union that ISO C cannot repeat. No code of Sluice calls a function by the name given
 * here. Private to proto/rpc. Any thread. */
#pragma once

#include <pthread.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <openssl/ossl_typ.h>

/* accept.c: closes connections over the limit, and watches the others (accept.h). */
int rpc_guard_accept4(int listener, struct sockaddr *address, socklen_t *n_address,
                      int flags) __asm__("accept4");

/* connection.c: a client's bytes go through the frame reader (frames.h). gRPC's bytes are corked
 * (cork.h), and a GOAWAY is added (goaway.h). */
ssize_t rpc_guard_recvmsg(int fd, struct msghdr *message, int flags) __asm__("recvmsg");
ssize_t rpc_guard_sendmsg(int fd, const struct msghdr *message, int flags) __asm__("sendmsg");
int rpc_guard_shutdown(int fd, int how) __asm__("shutdown");
int rpc_guard_close(int fd) __asm__("close");

/* connection_tls.c: the same for connections with TLS. A static libssl has no next symbol, so
 * there the linker redirects gRPC's calls (--wrap). */
#if SLUICE_STATIC
#define RPC_GUARD_SSL(name) __asm__("__wrap_" name)
#else
#define RPC_GUARD_SSL(name) __asm__(name)
#endif
int rpc_guard_ssl_read(SSL *ssl, void *bytes, int n) RPC_GUARD_SSL("SSL_read");
int rpc_guard_ssl_write(SSL *ssl, const void *bytes, int n) RPC_GUARD_SSL("SSL_write");
int rpc_guard_ssl_get_error(const SSL *ssl, int n) RPC_GUARD_SSL("SSL_get_error");

/* peer.c: names a unix socket's peer by its credentials (peer.h). */
int rpc_guard_getpeername(int fd, struct sockaddr *address,
                          socklen_t *n_address) __asm__("getpeername");

/* share.c: shares TCP ports with a successor, and does not remove a successor's socket file
 * (share.h). */
int rpc_guard_bind(int fd, const struct sockaddr *address, socklen_t n_address) __asm__("bind");
int rpc_guard_unlink(const char *path) __asm__("unlink");

/* reserve.c: a waiting thread takes the place of a thread that the system refuses (reserve.h). */
int rpc_guard_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                             void *arg) __asm__("pthread_create");
