/* access.h: authenticates callers and gives them a tenant and a role. TLS files and API keys are
 * reloaded at run time: within a second of a change, and at once on access_reload. An own thread
 * watches the files. Any thread.
 *
 * Data plane: a call's tenant is the tenant of its key. Without a key it is "tls:" and the name
 * in the client certificate. Without either the caller is "anonymous". That is allowed if no keys
 * are configured, or on the unix socket, whose file mode limits the callers. A key that is shown
 * must always be valid.
 *
 * RPCs of control (access_config.control_prefix) need an operator or admin. The role comes from the
 * caller's key in the keys file, or from the line of its certificate or user. The program's own
 * user is an admin on the unix socket. A management key opens these RPCs alone, and no other call
 * of the data plane.
 *
 * Management: every caller is identified and has a role. A key's role comes from its line. A
 * certificate's role comes from its line ("tls:NAME"), else client_role. On the unix socket,
 * root and the program's user are admin; other users need a line ("uid:NUMBER"). The program
 * decides what a role may do. A program may have keys of its own beside those of the file
 * (access_set_stored_keys). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/access/role.h"
#include "base/reason.h"

struct access;
struct error;
struct rpc_call;
struct rpc_tls;

/* Empty strings: not configured. Borrowed until access_create returns. */
struct access_config {
    const char *tls_cert, *tls_key, *tls_client_ca;
    const char *tls_client_auth; /* "require" or "optional"; with tls_client_ca */
    const char *keys_file;
    bool allow_plaintext_keys; /* accept keys over TCP from other machines without TLS */
    bool management;
    bool has_stored_keys; /* management: access_set_stored_keys provides keys, possibly none
                           * that is valid */
    /* management: role of certificates without a line in keys_file; empty: none */
    const char *client_role;
    /* Data plane: the paths of RPCs that need an operator begin so. Outlives the object. NULL: no
     * RPC of the program does. */
    const char *control_prefix;
};

/* `listen` is the TCP address of the server, or empty. Management over TCP needs TLS, and client
 * certificates or keys. INVALID_ARGUMENT or PERMISSION_DENIED with option, file and line.
 * *out_access is owned. */
int access_create(const struct access_config *config, const char *listen,
                  struct access **out_access, struct error *err);
/* Checks a further TCP address of the program: keys need TLS there, or must be allowed in plain
 * text. Warns of an address that every client may use. `option`: for the error. */
int access_check_exposure(const struct access_config *config, const char *option,
                          const char *listen, struct error *err);
/* Call it after the server that uses the object is destroyed. NULL is accepted. */
void access_destroy(struct access *access);

/* Sets the program's own keys, in place of earlier ones. Takes them. */
struct api_keys;
void access_set_stored_keys(struct access *access, struct api_keys *keys);

/* True if callers over TCP without a certificate need an API key. */
bool access_has_keys(const struct access *access);

/* NULL without TLS; borrowed until destroy. */
struct rpc_tls *access_tls(const struct access *access);

/* A caller, whichever protocol it speaks. Texts are borrowed. */
struct access_peer {
    const char *authorization; /* "Bearer KEY"; NULL: not sent */
    size_t n_authorization;    /* bytes */
    const char *api_key;       /* HTTP's x-api-key, NUL-terminated; NULL: not sent */
    bool sends_many;           /* a header of these was sent more than once, or both were */
    bool is_local;             /* over a unix socket */
    bool controls;             /* the call is an RPC of control */
    /* Copies the name in the verified certificate, as rpc_call_peer_name. NULL: no certificate. */
    int (*certificate_name)(const void *peer, char *out_name, size_t n_out);
    /* The user behind a unix socket, from the kernel; false if unknown. */
    bool (*user)(const void *peer, uint32_t *out_uid);
    const void *peer;
};

enum { ACCESS_MAX_TENANT = 128 };

struct access_identity {
    char tenant[ACCESS_MAX_TENANT + 1]; /* empty: anonymous */
    enum role role;
};

/* Identifies a caller, or refuses. Does not check the role of a caller that controls.
 * UNAUTHENTICATED: API_KEY_MISSING, API_KEY_INVALID, API_KEY_EXPIRED or CERTIFICATE_NAME.
 * PERMISSION_DENIED: ROLE_REQUIRED (a key for the other side), NO_ROLE (a certificate or user
 * without a line) or PEER_UNKNOWN. */
int access_identify(struct access *access, const struct access_peer *caller,
                    struct access_identity *out_identity, struct error *err);
/* rpc_server_config.authorize: sets the call's tenant and role, or refuses as access_identify. An
 * RPC of control is refused with ROLE_REQUIRED if the caller is no operator. The health service is
 * open to all callers. */
int access_authorize(void *access, struct rpc_call *call, struct error *err);

/* True for a call of the health service, which is open to all callers. */
bool access_is_open(const struct rpc_call *call);

/* Reads all files again, even unchanged ones; returns at once. */
void access_reload(struct access *access);

enum access_refusal {
    ACCESS_KEY_MISSING,
    ACCESS_KEY_INVALID,
    ACCESS_KEY_EXPIRED,
    ACCESS_CERTIFICATE_NAME,
    ACCESS_ROLE_REQUIRED,
    ACCESS_NO_ROLE,
    ACCESS_PEER_UNKNOWN,
    N_ACCESS_REFUSALS
};
/* The reason on the wire and in metrics: REASON_API_KEY_MISSING. */
enum reason access_refusal_reason(enum access_refusal why);

/* Counts a refusal that the program has decided. */
void access_count(struct access *access, enum access_refusal why);

struct access_stats {
    uint64_t n_refused[N_ACCESS_REFUSALS];
    uint64_t n_reloads, n_failed_reloads; /* reloads of changed files, or by access_reload */
};
void access_get_stats(struct access *access, struct access_stats *out_stats);
