/* api_keys.h: the file of API keys, with each key's tenant and role. A key is 256 random bits,
 * shown once to its user; the file keeps its SHA-256. Each line holds a key:
 *
 *     # TENANT  SHA-256 of the key, in hex  [ROLE]    [EXPIRES, RFC 3339 in UTC]
 *     acme      9f86d0…b0f00a08                       2027-01-31T00:00:00Z
 *     ops       60303a…a5f3d8c1             operator
 *
 * A key without a role has the role inference. A line can also give a management role to a caller
 * without a key. The line then names the client certificate or the local user of the caller:
 *
 *     tls:spiffe://example.org/deploy  admin
 *     uid:1001                         viewer
 *
 * Spaces or tabs separate fields; '#' starts a comment. A tenant may have several keys, so that a
 * new key can replace an old one. A finished table is immutable: any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/access/role.h"

struct api_keys;
struct error;
struct strbuf;

enum {
    API_KEYS_MAX_FILE_BYTES = 1 << 20,
    API_KEYS_MAX_LINE_BYTES = 512,
    API_KEYS_MAX_KEYS = 4096,
    API_KEYS_MAX_WHO = 128,  /* bytes of "tls:NAME", printable ASCII */
    API_KEY_MAX_TENANT = 64, /* letters, digits, '.', '_', '-' */
    API_KEY_MAX_BYTES = 256, /* bytes of a presented key; a longer key is unknown */
    API_KEY_BYTES = 69,      /* buffer of a new key: "slk_", 64 hex digits and the terminator */
};

/* The tenant of callers without a key. No key can have this tenant. */
#define API_KEY_ANONYMOUS "anonymous"

/* Parses a table. `name` stands before ":LINE: " in errors. INVALID_ARGUMENT names the line and the
 * broken rule. A repeated key or name is an error, and so is a text without any entry, which is
 * often a half-written file. Errors never quote the line. *out_keys is owned. */
int api_keys_parse(const char *name, const char *text, size_t n_bytes, struct api_keys **out_keys,
                   struct error *err);

/* Reads and parses a file. PERMISSION_DENIED if users beyond owner and group may read the file, or
 * users other than the owner may write it. INVALID_ARGUMENT if it is no regular file or too
 * large. */
int api_keys_load(const char *path, struct api_keys **out_keys, struct error *err);
/* api_keys_create makes an empty table; api_keys_add adds a key that was read elsewhere. `hash` is
 * hex, `who` (the tenant) has at most API_KEYS_MAX_WHO bytes; expires_unix_s INT64_MAX: never. Call
 * before the table is shared with other threads. */
int api_keys_create(struct api_keys **out_keys, struct error *err);
int api_keys_add(struct api_keys *keys, const char *who, const char *hash, enum role role,
                 int64_t expires_unix_s, struct error *err);
void api_keys_destroy(struct api_keys *keys); /* NULL is accepted */

/* Returns the number of keys. Lines of certificates and users do not count. */
size_t api_keys_count(const struct api_keys *keys);

struct api_key_owner {
    const char *tenant; /* borrowed from the table */
    enum role role;
};

enum api_key_verdict { API_KEY_GOOD, API_KEY_UNKNOWN, API_KEY_EXPIRED };

/* Compares a presented key with every key of the table, in time that depends on neither. Sets
 * *out_owner for GOOD. */
enum api_key_verdict api_keys_check(const struct api_keys *keys, const char *key, size_t n_bytes,
                                    int64_t now_unix_s, struct api_key_owner *out_owner);

/* Returns the role of the caller "tls:NAME" or "uid:NUMBER"; ROLE_NONE if no line names the
 * caller. */
enum role api_keys_role(const struct api_keys *keys, const char *who);

/* INVALID_ARGUMENT if `tenant` is not a valid tenant name. */
int api_key_check_tenant(const char *tenant, struct error *err);
/* Converts "2027-01-31T00:00:00Z" to seconds since the epoch. INVALID_ARGUMENT for any other
 * form. */
int api_key_parse_time(const char *text, int64_t *out_unix_s, struct error *err);

/* Makes a new random key. */
int api_key_create(char out_key[API_KEY_BYTES], struct error *err);
/* Writes the key's SHA-256 in hex; out_hex has SHA256_HEX_BYTES. */
int api_key_hash(const char *key, char *out_hex, struct error *err);
/* Appends the line for a key as it stands in the file, without a newline. `role` and `expires` are
 * texts of the file's columns; an empty text leaves the column out. */
int api_key_line(const char *tenant, const char *key, const char *role, const char *expires,
                 struct strbuf *out, struct error *err);
