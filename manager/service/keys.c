/* keys.c: CreateApiKey, ListApiKeys, RevokeApiKey. The manager generates a key and stores its
 * hash; access.c checks the keys of calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/access/api_keys.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/service/access.h"
#include "manager/service/service.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"
#include "proto/rpc/server/call.h"

enum { MAX_REVOKED = 1000, WHO_BYTES = API_KEYS_MAX_WHO + 1 };

typedef Sluice__Manager__V1__CreateApiKeyRequest create_request;
typedef Sluice__Manager__V1__CreateApiKeyResponse create_response;
typedef Sluice__Manager__V1__ListApiKeysRequest list_request;
typedef Sluice__Manager__V1__ListApiKeysResponse list_response;
typedef Sluice__Manager__V1__RevokeApiKeyRequest revoke_request;
typedef Sluice__Manager__V1__RevokeApiKeyResponse revoke_response;

/* --- CreateApiKey --- */

struct new_key {
    char secret[API_KEY_BYTES];
    char sha256[SHA256_HEX_BYTES];
    char created_by[WHO_BYTES];
};

static void free_new_key(void *arg)
{
    if (arg)
        explicit_bzero(arg, sizeof(struct new_key));
    free(arg);
}

static void clear_secret(ProtobufCMessage *copy)
{
    create_response *response = (create_response *)copy;
    explicit_bzero(response->secret, strlen(response->secret));
    message_clear(&response->secret);
}

/* Counts the keys that are not revoked. Revoked keys stay listed; the oldest of them are
 * deleted. */
static int check_room(const struct catalog *catalog, const char *name, struct error *err)
{
    const pb_key *key;
    size_t n = 0;
    for (size_t i = 0; (key = catalog_key_at(catalog, i)); i++)
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

static bool fill_key(pb_key *key, uint64_t number, const create_request *request,
                     const struct new_key *new_key)
{
    char id[24];
    snprintf(id, sizeof(id), "k%llu", (unsigned long long)number);
    key->role = request->role;
    key->expires_unix_ns = request->expires_unix_ns;
    return message_set(&key->id, id) && message_set(&key->name, request->name) &&
           message_set(&key->sha256, new_key->sha256) &&
           message_set(&key->created_by, new_key->created_by);
}

static int apply_create(struct txn *txn, const ProtobufCMessage *message, void *arg,
                        ProtobufCMessage *message_out, struct error *err)
{
    create_response *response = (create_response *)message_out;
    const create_request *request = (const create_request *)message;
    uint64_t number = 0;
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
    pb_key *key = MESSAGE_NEW(pb_key, sluice__manager__v1__api_key__descriptor);
    const struct new_key *new_key = arg;
    if (key)
        key->created_unix_ns = txn_now_unix_ns(txn);
    if (key && fill_key(key, number, request, new_key) && message_set_copy(&response->key, key) &&
        message_set(&response->secret, new_key->secret))
        return txn_put(txn, TABLE_API_KEY, &key->base, err);
    if (key)
        message_free(&key->base);
    return error_no_memory(err);
}

static int check_create(struct service *service, struct rpc_call *call,
                        const ProtobufCMessage *message, void *arg, struct error *err)
{
    const create_request *request = (const create_request *)message;
    struct new_key *new_key = arg;
    struct access_caller caller;
    (void)service;
    access_caller_of(call, &caller);
    snprintf(new_key->created_by, sizeof(new_key->created_by), "%s", caller.name);
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
    .free_arg = free_new_key,
    .redact = clear_secret,
};

/* --- ListApiKeys --- */

int service_list_keys(struct service *service, const ProtobufCMessage *message,
                      ProtobufCMessage *message_out, struct error *err)
{
    const list_request *request = (const list_request *)message;
    list_response *response = (list_response *)message_out;
    const pb_key *key;
    for (size_t i = 0; (key = catalog_key_at(service->fleet->context->catalog, i)); i++)
        if ((!key->revoked_unix_ns || request->include_revoked) &&
            !message_append_copy(&response->n_keys, &response->keys, key))
            return error_no_memory(err);
    return 0;
}

/* --- RevokeApiKey --- */

/* Deletes the oldest revoked key beyond the limit. Rows are in order of creation, which is
 * roughly the order of revocation. */
static int delete_oldest_revoked(struct txn *txn, struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    const pb_key *key, *oldest = NULL;
    char id[24];
    size_t n = 0;
    for (size_t i = 0; (key = catalog_key_at(catalog, i)); i++) {
        if (!key->revoked_unix_ns)
            continue;
        n++;
        if (!oldest || key->revoked_unix_ns < oldest->revoked_unix_ns)
            oldest = key;
    }
    if (n <= MAX_REVOKED)
        return 0;
    snprintf(id, sizeof(id), "%s", oldest->id);
    return txn_delete(txn, TABLE_API_KEY, id, err);
}

struct revoking {
    char by[WHO_BYTES];
};

/* Finds the key that this request already revoked without a recorded answer, else the active key
 * with the name. */
static const pb_key *find_to_revoke(const struct catalog *catalog, const revoke_request *request,
                                    struct error *err)
{
    const pb_key *key;
    for (size_t i = 0; *request->request_id && (key = catalog_key_at(catalog, i)); i++)
        if (key->revoked_unix_ns && strcmp(key->revoke_request_id, request->request_id) == 0 &&
            strcmp(key->name, request->name) == 0)
            return key;
    key = catalog_key(catalog, request->name);
    if (key)
        return key;
    error_set(err, STATUS_NOT_FOUND,
              "name: there is no active key \"%.64s\"; ListApiKeys lists all keys", request->name);
    error_reason(err, REASON_KEY_NOT_FOUND);
    return NULL;
}

/* Revocation also works while the disk is full, as a stolen key must not stay valid. */
static int apply_revoke(struct txn *txn, const ProtobufCMessage *message, void *arg,
                        ProtobufCMessage *message_out, struct error *err)
{
    revoke_response *response = (revoke_response *)message_out;
    const revoke_request *request = (const revoke_request *)message;
    const struct revoking *revoking = arg;
    const pb_key *row = find_to_revoke(txn_catalog(txn), request, err);
    if (!row)
        return err->status;
    pb_key *key = MESSAGE_COPY(pb_key, row);
    bool complete = key != NULL, again = row->revoked_unix_ns != 0;
    if (complete && !again) {
        key->revoked_unix_ns = txn_now_unix_ns(txn);
        complete = message_set(&key->revoked_by, revoking->by) &&
                   message_set(&key->revoke_request_id, request->request_id);
    }
    response->in_memory_only = txn_is_in_memory(txn);
    int rc = complete && message_set_copy(&response->key, key) ? 0 : error_no_memory(err);
    if (rc == 0 && !again)
        rc = txn_put(txn, TABLE_API_KEY, &key->base, err);
    else if (key)
        message_free(&key->base);
    return rc == 0 ? delete_oldest_revoked(txn, err) : rc;
}

static void log_in_memory_only(const ProtobufCMessage *message)
{
    const revoke_response *response = (const revoke_response *)message;
    if (response->in_memory_only)
        log_warn(LOG_EVENT("key revoked in memory only"), LOG_STR("key", response->key->name),
                 LOG_STR("caller", response->key->revoked_by),
                 LOG_STR("meanwhile", "the disk takes no writes: a manager that starts before "
                                      "there is room accepts the key again"));
}

static int check_revoke(struct service *service, struct rpc_call *call,
                        const ProtobufCMessage *message, void *arg, struct error *err)
{
    struct revoking *revoking = arg;
    struct access_caller caller;
    (void)service;
    if (api_key_check_tenant(((const revoke_request *)message)->name, err) != 0)
        return error_field(err, "name", "1 to %d of letters, digits, '.', '_' and '-'",
                           API_KEY_MAX_TENANT);
    access_caller_of(call, &caller);
    snprintf(revoking->by, sizeof(revoking->by), "%s", caller.name);
    return 0;
}

const struct service_change service_revoke_key = {
    .arg_bytes = sizeof(struct revoking),
    .check = check_revoke,
    .apply = apply_revoke,
    .free_arg = free,
    .urgent = true,
    .done = log_in_memory_only,
};
