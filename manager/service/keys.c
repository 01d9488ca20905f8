/* keys.c: CreateApiKey, ListApiKeys, RevokeApiKey. The manager generates a key and stores its
 * hash; access.c checks the keys of calls. */
#include <string.h>

#include "base/access/api_keys.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/service/access.h"
#include "manager/service/service.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"

enum { MAX_REVOKED = 1000 };

typedef Sluice__Manager__V1__CreateApiKeyRequest create_request;
typedef Sluice__Manager__V1__CreateApiKeyResponse create_response;
typedef Sluice__Manager__V1__RevokeApiKeyRequest revoke_request;
typedef Sluice__Manager__V1__RevokeApiKeyResponse revoke_response;

/* --- CreateApiKey --- */

struct new_key {
    char secret[API_KEY_BYTES];
    char sha256[SHA256_HEX_BYTES];
};

static void wipe(struct service_call *call)
{
    if (call->arg)
        explicit_bzero(call->arg, sizeof(struct new_key));
}

static void clear_secret(void *copy)
{
    create_response *response = copy;
    response->secret = (char *)(uintptr_t)protobuf_c_empty_string;
}

/* Counts the keys that are not revoked. Revoked keys stay listed; the oldest of them are
 * deleted. */
static int check_room(const struct catalog *catalog, const char *name, struct error *err)
{
    size_t n = 0;
    CATALOG_EACH(key, key, catalog)
        n += !key->revoked_unix_ns;
    if (catalog_key(catalog, name)) {
        error_set(err, STATUS_ALREADY_EXISTS,
                  "name: there is already a key %s; revoke that key, or choose another name", name);
        return error_reason(err, REASON_KEY_EXISTS);
    }
    if (n < API_KEYS_MAX_KEYS)
        return 0;
    error_set(err, STATUS_RESOURCE_EXHAUSTED, "%zu keys exist: that is the limit; revoke one first",
              n);
    return error_reason(err, REASON_TOO_MANY_KEYS);
}

static int apply_create(struct txn *txn, struct service_call *call, struct error *err)
{
    const create_request *request = call->request;
    create_response *response = call->response;
    const struct new_key *new_key = call->arg;
    struct access_caller caller;
    uint64_t number = 0;
    access_caller_of(call->rpc, &caller);
    /* Checked inside the transaction: a repeated request gets the same answer even after the key
     * has expired. */
    if (request->expires_unix_ns < 0)
        return error_field(err, "expires_unix_ns",
                           "is less than 0; give a time before 2262-04-11, or none for a key that "
                           "stays valid until it is revoked");
    if (request->expires_unix_ns && request->expires_unix_ns <= clock_wall_ns())
        return error_field(err, "expires_unix_ns", "is past");
    if (check_room(txn_catalog(txn), request->name, err) != 0 ||
        txn_next(txn, "api_key", &number, err) != 0)
        return err->status;
    pb_key *key = message_new_in(&call->arena, &sluice__manager__v1__api_key__descriptor);
    if (!key)
        return error_no_memory(err);
    key->id = message_printf_in(&call->arena, "k%llu", (unsigned long long)number);
    key->name = request->name;
    key->role = request->role;
    key->sha256 = message_text_in(&call->arena, new_key->sha256);
    key->created_by = message_text_in(&call->arena, caller.name);
    key->created_unix_ns = txn_now_unix_ns(txn);
    key->expires_unix_ns = request->expires_unix_ns;
    response->key = key;
    response->secret = message_text_in(&call->arena, new_key->secret);
    return txn_put_copy(txn, TABLE_API_KEY, key, err);
}

static int check_create(struct service_call *call, struct error *err)
{
    const create_request *request = call->request;
    struct new_key *new_key = call->arg;
    if (api_key_check_tenant(request->name, err) != 0)
        return error_field(err, "name", "1 to %d of letters, digits, '.', '_' and '-', and not %s",
                           API_KEY_MAX_TENANT, API_KEY_ANONYMOUS);
    if (name_check("name", request->name, err) != 0) /* a letter or digit first */
        return err->status;
    if ((int)request->role < SLUICE__MANAGER__V1__MANAGEMENT_ROLE__MANAGEMENT_ROLE_VIEWER ||
        (int)request->role > SLUICE__MANAGER__V1__MANAGEMENT_ROLE__MANAGEMENT_ROLE_ADMIN)
        return error_field(err, "role",
                           "want viewer, operator or admin; keys for inference are "
                           "in the server's --keys-file");
    if (api_key_create(new_key->secret, err) != 0)
        return err->status;
    return api_key_hash(new_key->secret, new_key->sha256, err);
}

const struct service_change service_create_key = {
    .arg_bytes = sizeof(struct new_key),
    .check = check_create,
    .apply = apply_create,
    .redact = clear_secret,
    .leave = wipe,
};

/* --- ListApiKeys --- */

int service_list_keys(struct service_call *call, struct error *err)
{
    const Sluice__Manager__V1__ListApiKeysRequest *request = call->request;
    Sluice__Manager__V1__ListApiKeysResponse *response = call->response;
    (void)err;
    CATALOG_EACH(key, key, call->catalog) {
        if (!key->revoked_unix_ns || request->include_revoked)
            message_append_in(&call->arena, &response->n_keys, &response->keys,
                              message_copy_in(&call->arena, key));
    }
    return 0;
}

/* --- RevokeApiKey --- */

/* Deletes the oldest revoked key beyond the limit. Rows are in order of creation, which is
 * roughly the order of revocation. */
static int delete_oldest_revoked(struct txn *txn, struct error *err)
{
    const pb_key *oldest = NULL;
    size_t n = 0;
    CATALOG_EACH(key, key, txn_catalog(txn)) {
        n += key->revoked_unix_ns != 0;
        if (key->revoked_unix_ns && (!oldest || key->revoked_unix_ns < oldest->revoked_unix_ns))
            oldest = key;
    }
    return n > MAX_REVOKED ? txn_delete(txn, TABLE_API_KEY, oldest->id, err) : 0;
}

/* Finds the key that this request already revoked without a recorded answer, else the active key
 * with the name. */
static const pb_key *find_to_revoke(const struct catalog *catalog, const revoke_request *request,
                                    struct error *err)
{
    CATALOG_EACH(key, key, catalog) {
        if (*request->request_id && key->revoked_unix_ns &&
            strcmp(key->revoke_request_id, request->request_id) == 0 &&
            strcmp(key->name, request->name) == 0)
            return key;
    }
    const pb_key *active = catalog_key(catalog, request->name);
    if (active)
        return active;
    error_set(err, STATUS_NOT_FOUND,
              "name: there is no active key \"%.64s\"; ListApiKeys lists all keys", request->name);
    error_reason(err, REASON_KEY_NOT_FOUND);
    return NULL;
}

/* Revocation also works while the disk is full, as a stolen key must not stay valid. */
static int apply_revoke(struct txn *txn, struct service_call *call, struct error *err)
{
    const revoke_request *request = call->request;
    revoke_response *response = call->response;
    const pb_key *row = find_to_revoke(txn_catalog(txn), request, err);
    if (!row)
        return err->status;
    pb_key *key = message_copy_in(&call->arena, row);
    if (!key)
        return error_no_memory(err);
    response->key = key;
    response->in_memory_only = txn_is_in_memory(txn);
    if (!key->revoked_unix_ns) {
        struct access_caller caller;
        access_caller_of(call->rpc, &caller);
        key->revoked_unix_ns = txn_now_unix_ns(txn);
        key->revoked_by = message_text_in(&call->arena, caller.name);
        key->revoke_request_id = request->request_id;
        if (txn_put_copy(txn, TABLE_API_KEY, key, err) != 0)
            return err->status;
    }
    return delete_oldest_revoked(txn, err);
}

static void log_in_memory_only(const void *message)
{
    const revoke_response *response = message;
    if (response->in_memory_only)
        log_warn(LOG_EVENT("key revoked in memory only"), LOG_STR("key", response->key->name),
                 LOG_STR("caller", response->key->revoked_by),
                 LOG_STR("meanwhile", "the disk takes no writes: a manager that starts before "
                                      "there is room accepts the key again"));
}

static int check_revoke(struct service_call *call, struct error *err)
{
    const revoke_request *request = call->request;
    if (api_key_check_tenant(request->name, err) != 0)
        return error_field(err, "name", "1 to %d of letters, digits, '.', '_' and '-'",
                           API_KEY_MAX_TENANT);
    return 0;
}

const struct service_change service_revoke_key = {
    .check = check_revoke,
    .apply = apply_revoke,
    .urgent = true,
    .done = log_in_memory_only,
};
