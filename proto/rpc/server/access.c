#include "proto/rpc/server/access.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/access/api_keys.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "proto/rpc/core/tls.h"
#include "proto/rpc/server/call.h"
#include "proto/rpc/server/listen.h"

enum { LOOK_MS = 500, WARNING_BYTES = 256 };

static const char health_prefix[] = "/grpc.health.v1.Health/";
static const char certificate_prefix[] = "tls:";

static const enum reason reasons[N_ACCESS_REFUSALS] = {
    [ACCESS_KEY_MISSING] = REASON_API_KEY_MISSING,
    [ACCESS_KEY_INVALID] = REASON_API_KEY_INVALID,
    [ACCESS_KEY_EXPIRED] = REASON_API_KEY_EXPIRED,
    [ACCESS_CERTIFICATE_NAME] = REASON_CERTIFICATE_NAME,
    [ACCESS_ROLE_REQUIRED] = REASON_ROLE_REQUIRED,
    [ACCESS_NO_ROLE] = REASON_NO_ROLE,
    [ACCESS_PEER_UNKNOWN] = REASON_PEER_UNKNOWN,
};

struct access {
    struct rpc_tls *tls; /* NULL: plain text */
    char *keys_path;     /* NULL: no keys file */
    bool management;
    enum role client_role;
    const char *control_prefix; /* NULL: no RPC of control */
    atomic_ullong n_refused[N_ACCESS_REFUSALS];
    atomic_ullong n_reloads, n_failed_reloads;

    pthread_rwlock_t keys_lock;
    struct api_keys *keys;   /* keys of the file, in use */
    struct api_keys *stored; /* keys of the program; NULL: none */

    struct stat keys_seen; /* watcher thread only, after create */
    bool keys_unread;      /* the file as seen could not be read, but may be valid */
    pthread_t watcher;
    bool has_watcher;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stopping, asked;
};

/* --- configuration --- */

static bool given(const char *text)
{
    return text && text[0];
}

static const char *client_auth(const struct access_config *c)
{
    return given(c->tls_client_auth) ? c->tls_client_auth : "require";
}

/* The management options have names of their own. Otherwise the variables for the data plane,
 * which `sluice serve` passes to both programs, would open management, too. */
static const char *prefix(const struct access_config *c)
{
    return c->management ? "manage-" : "";
}

/* A caller on the port may do what his role allows. So the caller must be identified, and the
 * traffic encrypted, even on this machine, where others may have accounts. */
static int check_management(const struct access_config *c, const char *listen, struct error *err)
{
    enum role role;
    if (given(c->client_role) && !given(c->tls_client_ca))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--manage-tls-client-role %.40s: needs client certificates; "
                         "give --manage-tls-client-ca",
                         c->client_role);
    if (given(c->client_role) &&
        (!role_parse(c->client_role, strlen(c->client_role), &role) || role == ROLE_INFERENCE))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--manage-tls-client-role: \"%.40s\" is not viewer, operator or "
                         "admin",
                         c->client_role);
    bool known = given(c->tls_client_ca) || given(c->keys_file) || c->has_stored_keys;
    if (!given(listen) || (given(c->tls_cert) && known))
        return 0;
    if (!given(c->tls_cert))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--manage-listen %s: management over TCP needs TLS; give "
                         "--manage-tls-cert and --manage-tls-key, and --manage-tls-client-ca or "
                         "--manage-keys-file",
                         listen);
    return error_set(
        err, STATUS_INVALID_ARGUMENT,
        "--manage-listen %s: management over TCP needs identified callers; give "
        "--manage-tls-client-ca or --manage-keys-file, or create a key first on the unix "
        "socket: `sluice keys create NAME --role admin`",
        listen);
}

int access_check_exposure(const struct access_config *c, const char *option, const char *listen,
                          struct error *err)
{
    bool exposed = given(listen) && !given(c->tls_cert) && !rpc_listen_is_loopback(listen);
    if (exposed && given(c->keys_file) && !c->allow_plaintext_keys)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s %s: API keys would cross the network in plain text; give "
                         "--tls-cert and --tls-key, or --allow-plaintext-keys if another layer "
                         "encrypts",
                         option, listen);
    if (exposed && !given(c->keys_file))
        log_warn(LOG_EVENT("no authentication"), LOG_STR("listen", listen),
                 LOG_STR("message",
                         "neither TLS nor API keys: every client that reaches the port may use "
                         "the models"));
    return 0;
}

static int check_config(const struct access_config *c, const char *listen, struct error *err)
{
    const char *pre = prefix(c);
    if (given(c->tls_cert) != given(c->tls_key))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--%stls-cert and --%stls-key need each other: "
                         "--%stls-%s is missing",
                         pre, pre, pre, given(c->tls_cert) ? "key" : "cert");
    if (given(c->tls_client_ca) && !given(c->tls_cert))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--%stls-client-ca: client certificates need --%stls-cert and --%stls-key",
                         pre, pre, pre);
    if (strcmp(client_auth(c), "require") != 0 && strcmp(client_auth(c), "optional") != 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--%stls-client-auth: \"%s\" is neither require nor optional", pre,
                         c->tls_client_auth);
    if (given(c->tls_client_auth) && !given(c->tls_client_ca))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--%stls-client-auth %s: needs client certificates; give "
                         "--%stls-client-ca",
                         pre, c->tls_client_auth, pre);
    return c->management ? check_management(c, listen, err)
                         : access_check_exposure(c, "--listen", listen, err);
}

static int open_tls(struct access *access, const struct access_config *c, struct error *err)
{
    const struct rpc_tls_config config = {.cert = c->tls_cert,
                                          .key = c->tls_key,
                                          .client_ca = c->tls_client_ca,
                                          .require_client_cert =
                                              strcmp(client_auth(c), "require") == 0};
    char warning[WARNING_BYTES];
    if (!given(c->tls_cert))
        return 0;
    int rc = rpc_tls_create(&config, &access->tls, warning, err);
    if (rc)
        return error_prefix(err, "TLS");
    if (warning[0])
        log_warn(LOG_EVENT("certificate"), LOG_STR("message", warning));
    return 0;
}

/* On the data plane, a file without any key would refuse every caller. */
static int check_keys(const struct access *access, const struct api_keys *keys, struct error *err)
{
    if (access->management || api_keys_count(keys) > 0)
        return 0;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "%s: the file has no key, only lines of names, which are for the manager",
                     access->keys_path);
}

static int open_keys(struct access *access, const struct access_config *c, struct error *err)
{
    if (!given(c->keys_file))
        return 0;
    access->keys_path = strdup(c->keys_file);
    if (!access->keys_path)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "API keys: out of memory");
    if (stat(c->keys_file, &access->keys_seen) != 0)
        memset(&access->keys_seen, 0, sizeof(access->keys_seen)); /* load reports the error */
    int rc = api_keys_load(c->keys_file, &access->keys, err);
    if (!rc)
        rc = check_keys(access, access->keys, err);
    if (rc) {
        error_prefix(err, "--%skeys-file", prefix(c));
        return err->status = rc == STATUS_RESOURCE_EXHAUSTED ? rc : STATUS_INVALID_ARGUMENT;
    }
    log_info(LOG_EVENT("API keys"), LOG_STR("file", c->keys_file),
             LOG_U64("keys", api_keys_count(access->keys)));
    return 0;
}

/* --- watching the files --- */

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mode == b->st_mode && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec && a->st_ctim.tv_sec == b->st_ctim.tv_sec &&
           a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static void reload_failed(struct access *access, const char *what, const struct error *err)
{
    atomic_fetch_add(&access->n_failed_reloads, 1);
    log_error(LOG_EVENT(what), LOG_STR("message", err->message),
              LOG_STR("in_force", "the files that were read before"));
}

/* True if reading the same file again would give the same error. A shortage of memory or
 * descriptors may pass. */
static bool is_file_error(int status)
{
    return status == STATUS_INVALID_ARGUMENT || status == STATUS_PERMISSION_DENIED ||
           status == STATUS_NOT_FOUND;
}

static void check_keys_file(struct access *access, bool always)
{
    struct stat info;
    struct api_keys *keys;
    struct error err;
    if (!access->keys_path)
        return;
    if (stat(access->keys_path, &info) != 0)
        memset(&info, 0, sizeof(info));
    bool news = always || !same_file(&info, &access->keys_seen);
    if (!news && !access->keys_unread)
        return;
    access->keys_seen = info;
    int rc = api_keys_load(access->keys_path, &keys, &err);
    if (!rc && check_keys(access, keys, &err) != 0) {
        api_keys_destroy(keys);
        rc = err.status;
    }
    access->keys_unread = rc && !is_file_error(rc);
    if (rc) {
        if (news)
            reload_failed(access, "API keys not reloaded", &err);
        return;
    }
    size_t n = api_keys_count(keys);
    pthread_rwlock_wrlock(&access->keys_lock);
    struct api_keys *old = access->keys;
    access->keys = keys;
    pthread_rwlock_unlock(&access->keys_lock);
    api_keys_destroy(old);
    atomic_fetch_add(&access->n_reloads, 1);
    log_info(LOG_EVENT("API keys reloaded"), LOG_U64("keys", n));
}

static void check_tls_files(struct access *access, bool always)
{
    char warning[WARNING_BYTES];
    struct error err;
    int rc = access->tls ? rpc_tls_reload(access->tls, always, warning, &err) : 0;
    if (rc < 0) {
        reload_failed(access, "TLS files not reloaded", &err);
    } else if (rc > 0) {
        atomic_fetch_add(&access->n_reloads, 1);
        log_info(LOG_EVENT("TLS files reloaded"), LOG_STR("warning", warning));
    }
}

static void *watch_files(void *arg)
{
    struct access *access = arg;
    pthread_mutex_lock(&access->lock);
    while (!access->stopping) {
        int64_t until_ns = clock_now_ns() + LOOK_MS * NS_PER_MS;
        struct timespec until = {until_ns / NS_PER_S, until_ns % NS_PER_S};
        if (!access->asked)
            pthread_cond_timedwait(&access->wake, &access->lock, &until);
        bool always = access->asked;
        access->asked = false;
        if (access->stopping)
            break;
        pthread_mutex_unlock(&access->lock);
        check_keys_file(access, always);
        check_tls_files(access, always);
        pthread_mutex_lock(&access->lock);
    }
    pthread_mutex_unlock(&access->lock);
    return NULL;
}

int access_create(const struct access_config *config, const char *listen,
                  struct access **out_access, struct error *err)
{
    pthread_condattr_t monotonic;
    struct access *access = calloc(1, sizeof(*access));
    if (!access)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "server: out of memory");
    pthread_rwlock_init(&access->keys_lock, NULL);
    pthread_mutex_init(&access->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&access->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc = check_config(config, listen, err);
    access->management = config->management;
    access->control_prefix = config->control_prefix;
    if (!rc && given(config->client_role))
        (void)role_parse(config->client_role, strlen(config->client_role), &access->client_role);
    if (!rc)
        rc = open_tls(access, config, err);
    if (!rc)
        rc = open_keys(access, config, err);
    if (!rc && (access->tls || access->keys_path)) {
        access->has_watcher = pthread_create(&access->watcher, NULL, watch_files, access) == 0;
        if (!access->has_watcher)
            rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "server: cannot start a thread");
    }
    if (rc) {
        access_destroy(access);
        return rc;
    }
    *out_access = access;
    return 0;
}

void access_destroy(struct access *access)
{
    if (!access)
        return;
    if (access->has_watcher) {
        pthread_mutex_lock(&access->lock);
        access->stopping = true;
        pthread_cond_signal(&access->wake);
        pthread_mutex_unlock(&access->lock);
        pthread_join(access->watcher, NULL);
    }
    rpc_tls_destroy(access->tls);
    api_keys_destroy(access->keys);
    api_keys_destroy(access->stored);
    free(access->keys_path);
    pthread_cond_destroy(&access->wake);
    pthread_mutex_destroy(&access->lock);
    pthread_rwlock_destroy(&access->keys_lock);
    free(access);
}

void access_set_stored_keys(struct access *access, struct api_keys *keys)
{
    pthread_rwlock_wrlock(&access->keys_lock);
    struct api_keys *old = access->stored;
    access->stored = keys;
    pthread_rwlock_unlock(&access->keys_lock);
    api_keys_destroy(old);
}

bool access_has_keys(const struct access *access)
{
    return access->keys_path != NULL;
}

struct rpc_tls *access_tls(const struct access *access)
{
    return access->tls;
}

void access_reload(struct access *access)
{
    pthread_mutex_lock(&access->lock);
    access->asked = true;
    pthread_cond_signal(&access->wake);
    pthread_mutex_unlock(&access->lock);
}

/* --- a call --- */

enum reason access_refusal_reason(enum access_refusal why)
{
    return reasons[why];
}

void access_count(struct access *access, enum access_refusal why)
{
    atomic_fetch_add_explicit(&access->n_refused[why], 1, memory_order_relaxed);
}

static int refuse_as(struct access *access, int status, enum access_refusal why, struct error *err)
{
    access_count(access, why);
    err->status = status;
    return error_reason(err, reasons[why]);
}

static int refuse(struct access *access, enum access_refusal why, const char *text,
                  struct error *err)
{
    error_set(err, STATUS_UNAUTHENTICATED, "%s", text);
    return refuse_as(access, STATUS_UNAUTHENTICATED, why, err);
}

static int deny(struct access *access, enum access_refusal why, const char *text, struct error *err)
{
    error_set(err, STATUS_PERMISSION_DENIED, "%s", text);
    return refuse_as(access, STATUS_PERMISSION_DENIED, why, err);
}

/* Returns the key after "Bearer ", or NULL. */
static const char *bearer(const char *value)
{
    if (strncasecmp(value, "Bearer ", 7) != 0)
        return NULL;
    return value + 7 + strspn(value + 7, " ");
}

/* Each side has its own keys: a leaked key of a client does not open management, and vice versa. */
static int check_side(struct access *access, const struct access_peer *caller, enum role role,
                      struct error *err)
{
    if (caller->controls || access->management != (role == ROLE_INFERENCE))
        return 0;
    if (access->management)
        return deny(access, ACCESS_ROLE_REQUIRED,
                    "authorization: this API key is for inference; management needs the role "
                    "viewer, operator or admin",
                    err);
    return deny(access, ACCESS_ROLE_REQUIRED,
                "authorization: this API key is for management; the data plane needs the role "
                "inference",
                err);
}

/* Looks a key up in the file and among the program's own keys. The lock is held. */
static enum api_key_verdict look_up(const struct access *access, const char *key, size_t n_bytes,
                                    struct api_key_owner *out_owner)
{
    int64_t now_s = clock_wall_ns() / NS_PER_S;
    enum api_key_verdict verdict = API_KEY_UNKNOWN;
    if (access->keys)
        verdict = api_keys_check(access->keys, key, n_bytes, now_s, out_owner);
    if (verdict == API_KEY_UNKNOWN && access->stored)
        verdict = api_keys_check(access->stored, key, n_bytes, now_s, out_owner);
    return verdict;
}

static bool has_keys(struct access *access)
{
    pthread_rwlock_rdlock(&access->keys_lock);
    bool has = access->keys || access->stored;
    pthread_rwlock_unlock(&access->keys_lock);
    return has;
}

/* Refuses a key, and names the header that brought the key. */
static int refuse_key(struct access *access, enum access_refusal why,
                      const struct access_peer *caller, const char *rule, struct error *err)
{
    char text[128];
    snprintf(text, sizeof(text), "%s: %s", caller->authorization ? "authorization" : "x-api-key",
             rule);
    return refuse(access, why, text, err);
}

static int identify_by_key(struct access *access, const struct access_peer *caller,
                           struct access_identity *out, struct error *err)
{
    const char *key = caller->authorization ? bearer(caller->authorization) : caller->api_key;
    struct api_key_owner owner = {NULL, ROLE_NONE};
    if (caller->sends_many)
        return refuse_key(access, ACCESS_KEY_INVALID, caller, "send one key, once", err);
    if (!key)
        return refuse_key(access, ACCESS_KEY_INVALID, caller, "must be `Bearer KEY`", err);
    size_t n_key = caller->authorization
                       ? caller->n_authorization - (size_t)(key - caller->authorization)
                       : strlen(key);
    pthread_rwlock_rdlock(&access->keys_lock);
    enum api_key_verdict verdict = look_up(access, key, n_key, &owner);
    if (verdict == API_KEY_GOOD) {
        snprintf(out->tenant, sizeof(out->tenant), "%s", owner.tenant);
        out->role = owner.role;
    }
    pthread_rwlock_unlock(&access->keys_lock);
    if (verdict == API_KEY_UNKNOWN)
        return refuse_key(access, ACCESS_KEY_INVALID, caller, "this API key is unknown", err);
    if (verdict == API_KEY_EXPIRED)
        return refuse_key(access, ACCESS_KEY_EXPIRED, caller, "this API key has expired", err);
    return check_side(access, caller, owner.role, err);
}

static enum role role_by_line(struct access *access, const char *who)
{
    pthread_rwlock_rdlock(&access->keys_lock);
    enum role role = access->keys ? api_keys_role(access->keys, who) : ROLE_NONE;
    pthread_rwlock_unlock(&access->keys_lock);
    return role;
}

/* Denies a caller who is identified as `who` ("tls:NAME", "uid:NUMBER") but has no role. */
static int deny_without_role(struct access *access, const char *who, struct error *err)
{
    error_set(err, STATUS_PERMISSION_DENIED,
              "%s has no role; add a line `%s viewer` to the file of --manage-keys-file", who, who);
    return refuse_as(access, STATUS_PERMISSION_DENIED, ACCESS_NO_ROLE, err);
}

/* Returns 0 and sets a tenant, or NOT_FOUND (no certificate), or refuses. */
static int identify_by_certificate(struct access *access, const struct access_peer *caller,
                                   struct access_identity *out, struct error *err)
{
    size_t n_prefix = sizeof(certificate_prefix) - 1;
    if (!caller->certificate_name)
        return STATUS_NOT_FOUND;
    memcpy(out->tenant, certificate_prefix, n_prefix);
    int rc = caller->certificate_name(caller->peer, out->tenant + n_prefix,
                                      sizeof(out->tenant) - n_prefix);
    if (rc == STATUS_NOT_FOUND)
        out->tenant[0] = '\0';
    if (rc == STATUS_NOT_FOUND)
        return rc;
    if (rc)
        return refuse(access, ACCESS_CERTIFICATE_NAME,
                      "client certificate: the name must have 1 to 124 printable ASCII characters "
                      "without spaces",
                      err);
    bool by_line = access->management || caller->controls;
    out->role = by_line ? role_by_line(access, out->tenant) : ROLE_INFERENCE;
    if (out->role == ROLE_NONE)
        out->role = access->management ? access->client_role : ROLE_INFERENCE;
    return out->role == ROLE_NONE ? deny_without_role(access, out->tenant, err) : 0;
}

/* The unix socket of management: the kernel identifies the user. */
static int identify_by_user(struct access *access, const struct access_peer *caller,
                            struct access_identity *out, struct error *err)
{
    uint32_t uid;
    if (!caller->user || !caller->user(caller->peer, &uid))
        return deny(access, ACCESS_PEER_UNKNOWN,
                    "the system does not identify the user at the other end of the socket", err);
    snprintf(out->tenant, sizeof(out->tenant), "uid:%u", uid);
    out->role =
        uid == 0 || uid == (uint32_t)geteuid() ? ROLE_ADMIN : role_by_line(access, out->tenant);
    return out->role == ROLE_NONE ? deny_without_role(access, out->tenant, err) : 0;
}

int access_identify(struct access *access, const struct access_peer *caller,
                    struct access_identity *out_identity, struct error *err)
{
    *out_identity = (struct access_identity){.role = ROLE_NONE};
    if ((caller->authorization || caller->api_key) && has_keys(access))
        return identify_by_key(access, caller, out_identity, err);
    if (access->tls) {
        int rc = identify_by_certificate(access, caller, out_identity, err);
        if (rc != STATUS_NOT_FOUND)
            return rc;
    }
    if ((access->management || caller->controls) && caller->is_local)
        return identify_by_user(access, caller, out_identity, err);
    if (!access->management && (!access->keys_path || caller->is_local))
        return 0;
    return refuse(access, ACCESS_KEY_MISSING,
                  access->management && !has_keys(access)
                      ? "management over TCP needs a client certificate"
                      : "authorization: send an API key as `Bearer KEY`",
                  err);
}

/* --- a call of gRPC --- */

static bool is_control(const struct access *access, const struct rpc_call *call)
{
    const char *prefix = access->control_prefix;
    return prefix && strncmp(rpc_call_method(call), prefix, strlen(prefix)) == 0;
}

static int check_control(struct access *access, const struct rpc_call *call,
                         const struct access_identity *identity, struct error *err)
{
    if (role_may(identity->role, ROLE_OPERATOR))
        return 0;
    error_set(err, STATUS_PERMISSION_DENIED,
              "%s needs the role operator; %s has %s; give an API key of that role, or call on the "
              "server's unix socket as the server's user",
              rpc_call_method(call) + 1, identity->tenant[0] ? identity->tenant : API_KEY_ANONYMOUS,
              role_name(identity->role));
    return refuse_as(access, STATUS_PERMISSION_DENIED, ACCESS_ROLE_REQUIRED, err);
}

static int certificate_of_call(const void *peer, char *out_name, size_t n_out)
{
    return rpc_call_peer_name(peer, out_name, n_out);
}

static bool user_of_call(const void *peer, uint32_t *out_uid)
{
    return rpc_call_peer_uid(peer, out_uid);
}

bool access_is_open(const struct rpc_call *call)
{
    return strncmp(rpc_call_method(call), health_prefix, sizeof(health_prefix) - 1) == 0;
}

int access_authorize(void *context, struct rpc_call *call, struct error *err)
{
    struct access_peer caller = {.sends_many = rpc_call_n_metadata(call, "authorization") > 1,
                                 .is_local = strncmp(rpc_call_peer(call), "unix:", 5) == 0,
                                 .certificate_name = certificate_of_call,
                                 .user = user_of_call,
                                 .peer = call};
    struct access_identity identity;
    if (access_is_open(call))
        return 0;
    caller.controls = is_control(context, call);
    caller.authorization = rpc_call_metadata(call, "authorization", &caller.n_authorization);
    int rc = access_identify(context, &caller, &identity, err);
    if (rc == 0 && caller.controls)
        rc = check_control(context, call, &identity, err);
    if (rc == 0 && identity.tenant[0])
        rc = rpc_call_set_tenant(call, identity.tenant);
    if (rc == 0)
        rpc_call_set_role(call, identity.role);
    return rc;
}

void access_get_stats(struct access *access, struct access_stats *out_stats)
{
    for (int i = 0; i < N_ACCESS_REFUSALS; i++)
        out_stats->n_refused[i] = atomic_load(&access->n_refused[i]);
    out_stats->n_reloads = atomic_load(&access->n_reloads);
    out_stats->n_failed_reloads = atomic_load(&access->n_failed_reloads);
}
