#include "proto/rpc/server/listeners.h"

#include <limits.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <netdb.h>

#include "base/error.h"
#include "proto/rpc/server/listen.h"

static const char *unix_path(const char *address)
{
    return strncmp(address, "unix:", 5) == 0 ? address + 5 : NULL;
}

static int check_one(const struct rpc_listener *listener, struct error *err)
{
    const char *path = unix_path(listener->address);
    int rc = path ? rpc_listen_check_unix(path, err) : rpc_listen_check_tcp(listener->address, err);
    return rc ? error_prefix(err, "%s", listener->setting) : 0;
}

/* Resolves the links of the path's folder; the path stays unchanged if there is no such folder. */
static void real_path(const char *path, char out[2 * PATH_MAX])
{
    char folder[PATH_MAX], real[PATH_MAX];
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path + 1) : 1,
             slash ? path : ".");
    snprintf(out, 2 * PATH_MAX, "%s", path);
    if (realpath(folder, real))
        snprintf(out, 2 * PATH_MAX, "%s/%s", strcmp(real, "/") == 0 ? "" : real, name);
}

static bool same_path(const char *a, const char *b)
{
    char real_a[2 * PATH_MAX], real_b[2 * PATH_MAX];
    real_path(a, real_a);
    real_path(b, real_b);
    return strcmp(real_a, real_b) == 0;
}

struct end {
    struct in6_addr host; /* IPv4 addresses are mapped */
    in_port_t port;
    bool is_v4, is_any;
};

static struct end end_of(const struct addrinfo *info)
{
    struct end end = {.is_v4 = info->ai_family == AF_INET};
    if (end.is_v4) {
        struct sockaddr_in in;
        memcpy(&in, info->ai_addr, sizeof(in));
        end.host.s6_addr[10] = end.host.s6_addr[11] = 0xff;
        memcpy(end.host.s6_addr + 12, &in.sin_addr, sizeof(in.sin_addr));
        end.port = in.sin_port;
        end.is_any = in.sin_addr.s_addr == htonl(INADDR_ANY);
    } else {
        struct sockaddr_in6 in6;
        memcpy(&in6, info->ai_addr, sizeof(in6));
        end.host = in6.sin6_addr;
        end.port = in6.sin6_port;
        end.is_v4 = IN6_IS_ADDR_V4MAPPED(&end.host);
        end.is_any = IN6_IS_ADDR_UNSPECIFIED(&end.host);
    }
    return end;
}

/* "[::]" includes IPv4. */
static bool includes(const struct end *a, const struct end *b)
{
    return a->is_any && (!a->is_v4 || b->is_v4);
}

static bool ends_meet(const struct end *a, const struct end *b)
{
    return a->port != 0 && a->port == b->port &&
           (includes(a, b) || includes(b, a) || memcmp(&a->host, &b->host, sizeof(a->host)) == 0);
}

static bool tcp_meet(const char *a, const char *b)
{
    struct addrinfo *infos_a = NULL, *infos_b = NULL;
    bool meet = false;
    if (rpc_listen_resolve(a, &infos_a) && rpc_listen_resolve(b, &infos_b))
        for (const struct addrinfo *i = infos_a; i && !meet; i = i->ai_next)
            for (const struct addrinfo *k = infos_b; k && !meet; k = k->ai_next) {
                struct end end_a = end_of(i), end_b = end_of(k);
                meet = ends_meet(&end_a, &end_b);
            }
    if (infos_a)
        freeaddrinfo(infos_a);
    if (infos_b)
        freeaddrinfo(infos_b);
    return meet;
}

static bool meet(const char *a, const char *b)
{
    const char *path_a = unix_path(a), *path_b = unix_path(b);
    if (path_a && path_b)
        return same_path(path_a, path_b);
    return !path_a && !path_b && tcp_meet(a, b);
}

static bool listens(const struct rpc_listener *listener)
{
    return listener->address && *listener->address;
}

int rpc_listeners_split(const char *setting, const char *text, struct rpc_addresses *out_addresses,
                        struct error *err)
{
    static const char separators[] = ", ";
    const char *at = text ? text : "";
    out_addresses->n = 0;
    for (at += strspn(at, separators); *at; at += strspn(at, separators)) {
        size_t n = strcspn(at, separators);
        if (n >= RPC_ADDRESS_BYTES || out_addresses->n == RPC_MAX_ADDRESSES)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "%s: give at most %d addresses, each shorter than %d bytes", setting,
                             RPC_MAX_ADDRESSES, RPC_ADDRESS_BYTES);
        char *address = out_addresses->list[out_addresses->n++];
        memcpy(address, at, n);
        address[n] = '\0';
        at += n;
    }
    return 0;
}

int rpc_listeners_check(const struct rpc_listener *listeners, size_t n_listeners, struct error *err)
{
    for (size_t i = 0; i < n_listeners; i++)
        if (listens(&listeners[i]) && check_one(&listeners[i], err) != 0)
            return err->status;
    for (size_t i = 0; i < n_listeners; i++)
        for (size_t k = 0; k < i; k++)
            if (listens(&listeners[i]) && listens(&listeners[k]) &&
                meet(listeners[i].address, listeners[k].address))
                return error_set(err, STATUS_INVALID_ARGUMENT,
                                 "%s: %.120s conflicts with %s, %.120s: choose another "
                                 "port or path",
                                 listeners[i].setting, listeners[i].address, listeners[k].setting,
                                 listeners[k].address);
    return 0;
}
