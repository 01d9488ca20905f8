/* api_keys.h: the file that says which API keys are good, for whom, and what their holders may do.
 * A key is 256 random bits shown once to the person it is for; the file keeps its SHA-256. One key
 * per line:
 *
 *     # TENANT  SHA-256 of the key, in hex  [ROLE]    [EXPIRES, RFC 3339 in UTC]
 *     acme      9f86d0…b0f00a08                       2027-01-31T00:00:00Z
 *     ops       60303a…a5f3d8c1             operator
 *
 * Without a role a key is for inference. Who shows no key may have a management role by what is
 * known of him otherwise, the name in his client certificate or his user on this machine:
 *
 *     tls:spiffe://example.org/deploy  admin
 *     uid:1001                         viewer
 *
 * Fields are separated by spaces or tabs; '#' starts a comment; a tenant may have several keys (to
 * replace one by another). The table is immutable once it is made: any thread. */
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
    API_KEY_MAX_BYTES = 256, /* a key that a caller may present */
    API_KEY_BYTES = 69,      /* of a new key, with its terminator: "slk_" and 64 hex digits */
};

/* The tenant of callers without a key: no key may be theirs. */
#define API_KEY_ANONYMOUS "anonymous"

/* `name` stands before ":LINE: " in errors. INVALID_ARGUMENT, naming line and rule, for anything
 * that is not as above, for a key or a name that stands there twice, and for a text with no line
 * of either kind (what a half-written file most often is). Errors never repeat what stands in the
 * line. *out_keys is owned. */
int api_keys_parse(const char *name, const char *text, size_t n_bytes, struct api_keys **out_keys,
                   struct error *err);

/* Reads and parses a file. PERMISSION_DENIED where others than its owner and group may read it, or
 * others than its owner may write it; INVALID_ARGUMENT where it is no regular file or too large. */
int api_keys_load(const char *path, struct api_keys **out_keys, struct error *err);
/* A table without a line, and one that was read elsewhere, for it. `hash` is hex, `who` at most
 * API_KEYS_MAX_WHO bytes; expires INT64_MAX: never. Until the table is handed to other threads. */
int api_keys_create(struct api_keys **out_keys, struct error *err);
int api_keys_add(struct api_keys *keys, const char *who, const char *hash, enum role role,
                 int64_t expires_unix_s, struct error *err);
void api_keys_destroy(struct api_keys *keys); /* NULL is accepted */

/* Keys; without the lines of certificates and users. */
size_t api_keys_count(const struct api_keys *keys);

struct api_key_owner {
    const char *tenant; /* borrowed from the table */
    enum role role;
};

enum api_key_verdict { API_KEY_GOOD, API_KEY_UNKNOWN, API_KEY_EXPIRED };

/* Compares a presented key with every key of the table in time that does not depend on either.
 * *out_owner is set for GOOD. */
enum api_key_verdict api_keys_check(const struct api_keys *keys, const char *key, size_t n_bytes,
                                    int64_t now_unix_s, struct api_key_owner *out_owner);

/* The role of "tls:NAME" or "uid:NUMBER"; ROLE_NONE where no line names it. */
enum role api_keys_role(const struct api_keys *keys, const char *who);

/* INVALID_ARGUMENT where it cannot be a tenant's name. */
int api_key_check_tenant(const char *tenant, struct error *err);
/* "2027-01-31T00:00:00Z" to seconds since the epoch. INVALID_ARGUMENT for anything else. */
int api_key_parse_time(const char *text, int64_t *out_unix_s, struct error *err);

/* Draws a new key. */
int api_key_create(char out_key[API_KEY_BYTES], struct error *err);
/* Its SHA-256 in hex; out_hex has SHA256_HEX_BYTES. */
int api_key_hash(const char *key, char *out_hex, struct error *err);
/* Appends the file's line for a key (without a newline). `role` and `expires` as in the file, or
 * empty. */
int api_key_line(const char *tenant, const char *key, const char *role, const char *expires,
                 struct strbuf *out, struct error *err);
