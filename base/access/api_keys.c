#include "base/access/api_keys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include "base/error.h"
#include "base/sha256.h"
#include "base/strbuf.h"

enum { MAX_FIELDS = 4, TIME_BYTES = 20 };

struct key_row {
    uint8_t hash[SHA256_BYTES];
    int64_t expires_unix_s; /* INT64_MAX: never */
    enum role role;
    char tenant[API_KEYS_MAX_WHO + 1];
};

/* A caller that has a role without a key: "tls:NAME" or "uid:NUMBER". */
struct principal_row {
    char who[API_KEYS_MAX_WHO + 1];
    enum role role;
};

struct api_keys {
    struct key_row *rows;
    size_t n, capacity;
    struct principal_row *principals;
    size_t n_principals, principal_capacity;
};

/* A field of a line; not terminated. */
struct field {
    const char *at;
    size_t n;
};

static int check_tenant(struct field tenant, struct error *err)
{
    static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    if (tenant.n == 0 || tenant.n > API_KEY_MAX_TENANT)
        return error_set(err, STATUS_INVALID_ARGUMENT, "tenant: %zu bytes; give 1 to %d", tenant.n,
                         API_KEY_MAX_TENANT);
    for (size_t i = 0; i < tenant.n; i++)
        if (tenant.at[i] == '\0' || !strchr(good, tenant.at[i]))
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "tenant: byte %zu is not a letter, a digit, '.', '_' or '-'", i + 1);
    if (tenant.n == strlen(API_KEY_ANONYMOUS) &&
        memcmp(tenant.at, API_KEY_ANONYMOUS, tenant.n) == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "tenant: \"" API_KEY_ANONYMOUS "\" is reserved for callers without a key");
    return 0;
}

int api_key_check_tenant(const char *tenant, struct error *err)
{
    return check_tenant((struct field){tenant, strlen(tenant)}, err);
}

/* Returns the n decimal digits at `at` as a number; -1 if a byte is not a digit. */
static int digits(const char *at, size_t n)
{
    int value = 0;
    for (size_t i = 0; i < n; i++) {
        if (at[i] < '0' || at[i] > '9')
            return -1;
        value = value * 10 + (at[i] - '0');
    }
    return value;
}

static int days_in_month(int year, int month)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return days[month - 1] + (month == 2 && leap ? 1 : 0);
}

static int parse_time(struct field text, int64_t *out_unix_s, struct error *err)
{
    static const char shape[] = "....-..-..T..:..:..Z";
    bool good = text.n == TIME_BYTES;
    for (size_t i = 0; good && i < TIME_BYTES; i++)
        good = shape[i] == '.' || text.at[i] == shape[i];
    int year = good ? digits(text.at, 4) : -1, month = good ? digits(text.at + 5, 2) : -1;
    int day = good ? digits(text.at + 8, 2) : -1, hour = good ? digits(text.at + 11, 2) : -1;
    int minute = good ? digits(text.at + 14, 2) : -1, second = good ? digits(text.at + 17, 2) : -1;
    good = good && year >= 1970 && month >= 1 && month <= 12 && day >= 1 &&
           day <= days_in_month(year, month) && hour >= 0 && hour <= 23 && minute >= 0 &&
           minute <= 59 && second >= 0 && second <= 59;
    if (!good)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "expiry: must be a time in UTC such as 2027-01-31T00:00:00Z");
    struct tm parts = {.tm_year = year - 1900,
                       .tm_mon = month - 1,
                       .tm_mday = day,
                       .tm_hour = hour,
                       .tm_min = minute,
                       .tm_sec = second};
    *out_unix_s = (int64_t)timegm(&parts);
    return 0;
}

int api_key_parse_time(const char *text, int64_t *out_unix_s, struct error *err)
{
    return parse_time((struct field){text, strlen(text)}, out_unix_s, err);
}

static int nibble(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static int parse_hash(struct field hex, uint8_t out_hash[SHA256_BYTES], struct error *err)
{
    bool good = hex.n == 2 * SHA256_BYTES;
    for (size_t i = 0; good && i < hex.n; i++)
        good = nibble(hex.at[i]) >= 0;
    if (!good)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "hash: must be the key's SHA-256 as %d hex digits", 2 * SHA256_BYTES);
    for (size_t i = 0; i < SHA256_BYTES; i++)
        out_hash[i] = (uint8_t)(nibble(hex.at[2 * i]) << 4 | nibble(hex.at[2 * i + 1]));
    return 0;
}

/* Splits a line without its comment into fields. Returns their number, at most MAX_FIELDS + 1. */
static size_t split(struct field line, struct field out[MAX_FIELDS + 1])
{
    size_t n = 0;
    for (size_t i = 0; i < line.n && n <= MAX_FIELDS;) {
        while (i < line.n && (line.at[i] == ' ' || line.at[i] == '\t'))
            i++;
        size_t start = i;
        while (i < line.n && line.at[i] != ' ' && line.at[i] != '\t')
            i++;
        if (i > start)
            out[n++] = (struct field){line.at + start, i - start};
    }
    return n;
}

/* Makes room for an element of `size` bytes after the first n. */
static int grow_rows(void **rows, size_t n, size_t *capacity, size_t size, struct error *err)
{
    if (n == API_KEYS_MAX_KEYS)
        return error_set(err, STATUS_INVALID_ARGUMENT, "more than %d keys", API_KEYS_MAX_KEYS);
    if (n < *capacity)
        return 0;
    size_t wanted = *capacity ? 2 * *capacity : 16;
    void *grown = realloc(*rows, wanted * size);
    if (!grown)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %zu keys", wanted);
    *rows = grown;
    *capacity = wanted;
    return 0;
}

static int check_new(const struct api_keys *keys, const struct key_row *row, struct error *err)
{
    for (size_t i = 0; i < keys->n; i++)
        if (memcmp(keys->rows[i].hash, row->hash, SHA256_BYTES) == 0)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "hash: an earlier line has the same key");
    return 0;
}

static int add_row(struct api_keys *keys, const struct key_row *row, struct error *err)
{
    void *rows = keys->rows;
    int rc = grow_rows(&rows, keys->n, &keys->capacity, sizeof(*keys->rows), err);
    keys->rows = rows;
    if (!rc)
        keys->rows[keys->n++] = *row;
    return rc;
}

static int add_principal(struct api_keys *keys, const struct principal_row *row, struct error *err)
{
    void *rows = keys->principals;
    for (size_t i = 0; i < keys->n_principals; i++)
        if (strcmp(keys->principals[i].who, row->who) == 0)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "name: an earlier line has the same name");
    int rc = grow_rows(&rows, keys->n_principals, &keys->principal_capacity,
                       sizeof(*keys->principals), err);
    keys->principals = rows;
    if (!rc)
        keys->principals[keys->n_principals++] = *row;
    return rc;
}

static bool begins(struct field field, const char *prefix)
{
    size_t n = strlen(prefix);
    return field.n >= n && memcmp(field.at, prefix, n) == 0;
}

/* Accepts "tls:" and a name, or "uid:" and a number in plain decimal form. */
static int parse_principal(struct field who, char out[API_KEYS_MAX_WHO + 1], struct error *err)
{
    size_t n_prefix = sizeof("tls:") - 1; /* "uid:" has the same length */
    if (who.n == n_prefix || who.n > API_KEYS_MAX_WHO)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "name: %zu bytes after the colon; give 1 to %zu", who.n - n_prefix,
                         API_KEYS_MAX_WHO - n_prefix);
    for (size_t i = n_prefix; i < who.n; i++)
        if (who.at[i] <= ' ' || who.at[i] > '~')
            return error_set(err, STATUS_INVALID_ARGUMENT, "name: byte %zu is not printable ASCII",
                             i + 1);
    memcpy(out, who.at, who.n);
    out[who.n] = '\0';
    if (begins(who, "tls:"))
        return 0;
    const char *number = out + n_prefix;
    bool good = number[strspn(number, "0123456789")] == '\0' && strlen(number) <= 10 &&
                (number[0] != '0' || number[1] == '\0') &&
                strtoull(number, NULL, 10) < UINT32_MAX; /* UINT32_MAX is no user's number */
    return good ? 0
                : error_set(err, STATUS_INVALID_ARGUMENT,
                            "name: uid: must be followed by a user's number");
}

static int parse_role(struct field text, enum role *out_role, struct error *err)
{
    if (role_parse(text.at, text.n, out_role))
        return 0;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "role: want inference, viewer, operator or admin");
}

static int parse_principal_line(struct api_keys *keys, const struct field *fields, size_t n,
                                struct error *err)
{
    struct principal_row row;
    if (n != 2)
        return error_set(err, STATUS_INVALID_ARGUMENT, "want %s ROLE, found %s%zu %s",
                         begins(fields[0], "tls:") ? "tls:NAME" : "uid:NUMBER",
                         n > MAX_FIELDS ? "more than " : "", n > MAX_FIELDS ? n - 1 : n,
                         n == 1 ? "field" : "fields");
    int rc = parse_principal(fields[0], row.who, err);
    if (!rc)
        rc = parse_role(fields[1], &row.role, err);
    if (!rc && row.role == ROLE_INFERENCE)
        rc = error_set(err, STATUS_INVALID_ARGUMENT,
                       "role: only keys have the role inference; give viewer, operator or admin");
    return rc ? rc : add_principal(keys, &row, err);
}

static int parse_key_line(struct api_keys *keys, const struct field *fields, size_t n,
                          struct error *err)
{
    struct key_row row = {.expires_unix_s = INT64_MAX, .role = ROLE_INFERENCE};
    if (n < 2 || n > MAX_FIELDS)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "want TENANT HASH [ROLE] [EXPIRY], found %s%zu %s",
                         n > MAX_FIELDS ? "more than " : "", n > MAX_FIELDS ? n - 1 : n,
                         n == 1 ? "field" : "fields");
    /* An expiry begins with a digit, a role does not. */
    bool role = n == 4 || (n == 3 && !(fields[2].at[0] >= '0' && fields[2].at[0] <= '9'));
    int rc = check_tenant(fields[0], err);
    if (!rc)
        rc = parse_hash(fields[1], row.hash, err);
    if (!rc && role)
        rc = parse_role(fields[2], &row.role, err);
    if (!rc && n > (role ? 3u : 2u))
        rc = parse_time(fields[n - 1], &row.expires_unix_s, err);
    if (rc)
        return rc;
    memcpy(row.tenant, fields[0].at, fields[0].n);
    rc = check_new(keys, &row, err);
    return rc ? rc : add_row(keys, &row, err);
}

static int parse_line(struct api_keys *keys, struct field line, struct error *err)
{
    struct field fields[MAX_FIELDS + 1];
    if (line.n > API_KEYS_MAX_LINE_BYTES)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%zu bytes: a line has at most %d", line.n,
                         API_KEYS_MAX_LINE_BYTES);
    for (size_t i = 0; i < line.n; i++)
        if (((unsigned char)line.at[i] < 0x20 && line.at[i] != '\t') || line.at[i] == 0x7f)
            return error_set(err, STATUS_INVALID_ARGUMENT, "byte %zu is a control character",
                             i + 1);
    const char *comment = line.n ? memchr(line.at, '#', line.n) : NULL;
    if (comment)
        line.n = (size_t)(comment - line.at);
    size_t n = split(line, fields);
    if (n == 0)
        return 0;
    if (begins(fields[0], "tls:") || begins(fields[0], "uid:"))
        return parse_principal_line(keys, fields, n, err);
    return parse_key_line(keys, fields, n, err);
}

int api_keys_create(struct api_keys **out_keys, struct error *err)
{
    struct api_keys *keys = calloc(1, sizeof(*keys));
    if (!keys)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "API keys: out of memory");
    *out_keys = keys;
    return 0;
}

int api_keys_add(struct api_keys *keys, const char *who, const char *hash, enum role role,
                 int64_t expires_unix_s, struct error *err)
{
    struct key_row row = {.expires_unix_s = expires_unix_s, .role = role};
    if ((size_t)snprintf(row.tenant, sizeof(row.tenant), "%s", who) >= sizeof(row.tenant))
        return error_set(err, STATUS_INVALID_ARGUMENT, "name: more than %d bytes",
                         API_KEYS_MAX_WHO);
    int rc = parse_hash((struct field){hash, strlen(hash)}, row.hash, err);
    return rc ? rc : add_row(keys, &row, err);
}

int api_keys_parse(const char *name, const char *text, size_t n_bytes, struct api_keys **out_keys,
                   struct error *err)
{
    struct api_keys *keys = calloc(1, sizeof(*keys));
    int rc = keys ? 0 : error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", name);
    size_t i_line = 0;
    for (size_t at = 0; !rc && at < n_bytes;) {
        const char *end = memchr(text + at, '\n', n_bytes - at);
        size_t n = end ? (size_t)(end - text) - at : n_bytes - at;
        i_line++;
        if (parse_line(keys, (struct field){text + at, n}, err) != 0)
            rc = error_prefix(err, "%s:%zu", name, i_line);
        at += n + 1;
    }
    if (!rc && keys->n + keys->n_principals == 0)
        rc = error_set(err, STATUS_INVALID_ARGUMENT, "%s:%zu: the file has no key", name,
                       i_line ? i_line : 1);
    if (rc) {
        api_keys_destroy(keys);
        return rc;
    }
    *out_keys = keys;
    return 0;
}

static int check_file(const char *path, const struct stat *info, struct error *err)
{
    if (!S_ISREG(info->st_mode))
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: not a regular file", path);
    if (info->st_mode & (S_IROTH | S_IWOTH | S_IWGRP))
        return error_set(err, STATUS_PERMISSION_DENIED,
                         "%s: mode %04o lets others read or write it; want 0640 or less", path,
                         (unsigned)(info->st_mode & 07777));
    if (info->st_size > API_KEYS_MAX_FILE_BYTES)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: %lld bytes; the limit is %d", path,
                         (long long)info->st_size, API_KEYS_MAX_FILE_BYTES);
    return 0;
}

/* Reads a whole open file. A file over the limit is an error. */
static int read_all(int fd, const char *path, char *bytes, size_t *out_n, struct error *err)
{
    size_t n = 0;
    while (n <= API_KEYS_MAX_FILE_BYTES) {
        ssize_t got = read(fd, bytes + n, API_KEYS_MAX_FILE_BYTES + 1 - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_errno(err, errno, "cannot read %s", path);
        if (got == 0)
            break;
        n += (size_t)got;
    }
    if (n > API_KEYS_MAX_FILE_BYTES)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: more than the limit of %d bytes", path,
                         API_KEYS_MAX_FILE_BYTES);
    *out_n = n;
    return 0;
}

int api_keys_load(const char *path, struct api_keys **out_keys, struct error *err)
{
    struct stat info;
    size_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_errno(err, errno, "cannot open %s", path);
    char *bytes = malloc(API_KEYS_MAX_FILE_BYTES + 1);
    int rc = bytes ? 0 : error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    if (!rc && fstat(fd, &info) != 0)
        rc = error_errno(err, errno, "cannot read %s", path);
    if (!rc)
        rc = check_file(path, &info, err);
    if (!rc)
        rc = read_all(fd, path, bytes, &n, err);
    if (!rc)
        rc = api_keys_parse(path, bytes, n, out_keys, err);
    free(bytes);
    close(fd);
    return rc;
}

void api_keys_destroy(struct api_keys *keys)
{
    if (!keys)
        return;
    free(keys->rows);
    free(keys->principals);
    free(keys);
}

size_t api_keys_count(const struct api_keys *keys)
{
    return keys->n;
}

static int hash_key(const char *key, size_t n_bytes, uint8_t out_hash[SHA256_BYTES],
                    struct error *err)
{
    struct sha256 *sha;
    int rc = sha256_create(&sha, err);
    if (rc)
        return rc;
    sha256_update(sha, key, n_bytes);
    sha256_final(sha, out_hash);
    return 0;
}

enum api_key_verdict api_keys_check(const struct api_keys *keys, const char *key, size_t n_bytes,
                                    int64_t now_unix_s, struct api_key_owner *out_owner)
{
    uint8_t hash[SHA256_BYTES];
    struct error err;
    const struct key_row *found = NULL;
    if (n_bytes == 0 || n_bytes > API_KEY_MAX_BYTES || hash_key(key, n_bytes, hash, &err) != 0)
        return API_KEY_UNKNOWN;
    for (size_t i = 0; i < keys->n; i++)
        if (CRYPTO_memcmp(keys->rows[i].hash, hash, SHA256_BYTES) == 0)
            found = &keys->rows[i];
    if (!found)
        return API_KEY_UNKNOWN;
    if (now_unix_s >= found->expires_unix_s)
        return API_KEY_EXPIRED;
    *out_owner = (struct api_key_owner){found->tenant, found->role};
    return API_KEY_GOOD;
}

enum role api_keys_role(const struct api_keys *keys, const char *who)
{
    for (size_t i = 0; i < keys->n_principals; i++)
        if (strcmp(keys->principals[i].who, who) == 0)
            return keys->principals[i].role;
    return ROLE_NONE;
}

int api_key_create(char out_key[API_KEY_BYTES], struct error *err)
{
    uint8_t random[SHA256_BYTES];
    char hex[SHA256_HEX_BYTES];
    if (RAND_bytes(random, sizeof(random)) != 1)
        return error_set(err, STATUS_UNAVAILABLE, "cannot get random bytes from the system");
    sha256_hex(random, hex);
    snprintf(out_key, API_KEY_BYTES, "slk_%s", hex);
    return 0;
}

int api_key_hash(const char *key, char *out_hex, struct error *err)
{
    uint8_t hash[SHA256_BYTES];
    int rc = hash_key(key, strlen(key), hash, err);
    if (!rc)
        sha256_hex(hash, out_hex);
    return rc;
}

int api_key_line(const char *tenant, const char *key, const char *role, const char *expires,
                 struct strbuf *out, struct error *err)
{
    char hex[SHA256_HEX_BYTES];
    int64_t unix_s;
    enum role parsed;
    int rc = api_key_check_tenant(tenant, err);
    if (!rc && role[0])
        rc = parse_role((struct field){role, strlen(role)}, &parsed, err);
    if (!rc && expires[0])
        rc = api_key_parse_time(expires, &unix_s, err);
    if (!rc)
        rc = api_key_hash(key, hex, err);
    if (rc)
        return rc;
    strbuf_printf(out, "%s %s%s%s%s%s", tenant, hex, role[0] ? " " : "", role,
                  expires[0] ? " " : "", expires);
    return 0;
}
