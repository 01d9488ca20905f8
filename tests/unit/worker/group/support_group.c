#include "tests/unit/worker/group/support_group.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "proto/rpc/server/access.h"
#include "server/worker/group/group_book.h"

enum { LIFE_S = 3600 };

char *group_text(const char *literal)
{
    return (char *)(uintptr_t)literal;
}

Sluice__Worker__V1__GroupMember group_test_member(const char *machine, uint32_t tp, uint32_t pp,
                                                  uint32_t first_rank)
{
    static uint8_t bytes[] = {1, 2, 3};
    static ProtobufCBinaryData addresses[2] = {{3, bytes}, {2, bytes}};
    Sluice__Worker__V1__GroupMember m;
    group_member_init(&m);
    m.machine = group_text(machine);
    m.transport = group_text("ucx 1.13.1");
    m.numerics_id = group_text("cpu/int8");
    m.weights_digest = group_text("sha256:12");
    m.tp = tp;
    m.pp = pp;
    m.first_rank = first_rank;
    m.n_rank_addresses = 1;
    m.rank_addresses = addresses;
    return m;
}

static FILE *open_secret(const char *path)
{
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fchmod(fileno(file), 0600), 0);
    return file;
}

static void make_pair(const struct group_files *files)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    assert_non_null(key);
    assert_non_null(cert);
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -LIFE_S);
    X509_gmtime_adj(X509_getm_notAfter(cert), LIFE_S);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                               (const unsigned char *)"localhost", -1, -1, 0);
    X509_set_issuer_name(cert, X509_get_subject_name(cert));
    X509_set_pubkey(cert, key);
    X509_EXTENSION *extensions[] = {
        X509V3_EXT_conf_nid(NULL, NULL, NID_basic_constraints, "critical,CA:TRUE"),
        X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, "DNS:localhost"),
    };
    for (size_t i = 0; i < 2; i++) {
        assert_non_null(extensions[i]);
        X509_add_ext(cert, extensions[i], -1);
        X509_EXTENSION_free(extensions[i]);
    }
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    FILE *file = open_secret(files->cert);
    PEM_write_X509(file, cert);
    fclose(file);
    file = open_secret(files->key);
    PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL);
    fclose(file);
    X509_free(cert);
    EVP_PKEY_free(key);
}

void group_files_make(const char *folder, struct group_files *files)
{
    struct strbuf lines = {0};
    struct error err;
    snprintf(files->cert, sizeof(files->cert), "%s/cert.pem", folder);
    snprintf(files->key, sizeof(files->key), "%s/key.pem", folder);
    snprintf(files->keys, sizeof(files->keys), "%s/keys", folder);
    make_pair(files);
    assert_int_equal(api_key_create(files->viewer, &err), 0);
    assert_int_equal(api_key_create(files->operator_key, &err), 0);
    assert_int_equal(api_key_line("eye", files->viewer, "viewer", "", &lines, &err), 0);
    strbuf_add_str(&lines, "\n");
    assert_int_equal(api_key_line("ops", files->operator_key, "operator", "", &lines, &err), 0);
    strbuf_add_str(&lines, "\n");
    FILE *file = open_secret(files->keys);
    fputs(strbuf_str(&lines), file);
    fclose(file);
    strbuf_fini(&lines);
}

void group_files_remove(const struct group_files *files)
{
    unlink(files->cert);
    unlink(files->key);
    unlink(files->keys);
}

struct access *group_files_access(const struct group_files *files, const char *listen)
{
    struct access *access = NULL;
    struct error err;
    struct access_config config = {.tls_cert = files->cert,
                                   .tls_key = files->key,
                                   .keys_file = files->keys,
                                   .management = true};
    assert_int_equal(access_create(&config, listen, &access, &err), 0);
    return access;
}
