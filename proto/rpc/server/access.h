/* access.h: who may use a server, as whom, and what he may do: its TLS files and its file of API
 * keys, both taken up while the server runs (within a second of a change, and at once on
 * access_reload). One thread of its own looks at the files; everything here may be called from any
 * thread.
 *
 * On the data plane a call's tenant is that of its key; without a key, "tls:" and the name in its
 * client certificate; else, where no keys are configured, or on the unix socket (its file mode says
 * who may connect), nobody in particular ("anonymous"). A key that is shown must be good, wherever
 * it is shown.
 *
 * On the management side nobody is nobody in particular, and every caller has a role: by the line
 * of his key; without a key, by the line of his certificate ("tls:NAME"), else client_role; on the
 * unix socket admin where he is root or the user that runs the program, else by the line of his
 * user ("uid:NUMBER"). What a role may do is for the program to say. A program may have keys of its
 * own beside those of the file (access_set_stored_keys). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct access;
struct error;
struct rpc_call;
struct rpc_tls;

/* Empty strings: not configured. Borrowed for the call of access_create. */
struct access_config {
    const char *tls_cert, *tls_key, *tls_client_ca;
    const char *tls_client_auth; /* "require" or "optional"; with tls_client_ca */
    const char *keys_file;
    bool allow_plaintext_keys; /* keys over TCP beyond this machine without TLS */
    bool management;
    bool has_stored_keys;    /* management: keys come by access_set_stored_keys, good ones or not */
    const char *client_role; /* management: of certificates without a line; empty: none */
};

/* `listen` is the TCP address of the server, or empty; management there needs TLS and client
 * certificates or keys. INVALID_ARGUMENT or PERMISSION_DENIED naming the option, the file and the
 * line. *out_access is owned. */
int access_create(const struct access_config *config, const char *listen,
                  struct access **out_access, struct error *err);
/* After the server that asks it. NULL is accepted. */
void access_destroy(struct access *access);

/* Keys that the program keeps itself, in place of those it gave before. Takes them. */
struct api_keys;
void access_set_stored_keys(struct access *access, struct api_keys *keys);

/* NULL without TLS; borrowed until destroy. */
struct rpc_tls *access_tls(const struct access *access);

/* rpc_server_config.authorize: sets the call's tenant and role, or refuses: UNAUTHENTICATED with
 * reason API_KEY_MISSING, API_KEY_INVALID, API_KEY_EXPIRED or CERTIFICATE_NAME, or
 * PERMISSION_DENIED with ROLE_REQUIRED (a key of another side), NO_ROLE (a certificate or user
 * without a line) or PEER_UNKNOWN. Health is open. */
int access_authorize(void *access, struct rpc_call *call, struct error *err);

/* Whether a call is the health service's, which is open to everybody. */
bool access_is_open(const struct rpc_call *call);

/* Reads all files again, changed or not; returns at once. */
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
/* In metrics and on the wire: "API_KEY_MISSING". */
extern const char *const access_refusal_names[N_ACCESS_REFUSALS];

/* Counts a refusal that the program itself decides on. */
void access_count(struct access *access, enum access_refusal why);

struct access_stats {
    uint64_t n_refused[N_ACCESS_REFUSALS];
    uint64_t n_reloads, n_failed_reloads; /* of files that had changed, or on access_reload */
};
void access_get_stats(struct access *access, struct access_stats *out_stats);
