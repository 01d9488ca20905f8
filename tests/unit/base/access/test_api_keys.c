#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/access/api_keys.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "tests/support/names.h"
#include "tests/unit/base/support_cmocka.h"

/* SHA-256 of "abc" and of "abd". */
#define ABC "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
#define ABD "a52d159f262b2c6ddb724a61840befc36eb30c88877a4030b65cbe86298449c9"
#define T64 "tttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttt"

static void test_parse_table(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *error; /* NULL: good */
        size_t n;
    } cases[] = {
        {"acme " ABC, NULL, 1},
        {"acme " ABC "\n", NULL, 1},
        {"# x\n\n \t\nacme\t" ABC "   2027-01-31T00:00:00Z  # until then\nb.b_b-B " ABD "\n", NULL,
         2},
        {T64 " " ABC "\n", NULL, 1},
        {"acme BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD\n", NULL, 1},
        {"a " ABC " 2028-02-29T23:59:59Z\n", NULL, 1},
        {"", "f:1", 0},
        {"# only this\n", "f:1", 0},
        {"acme\n", "f:1|TENANT|HASH|ROLE|EXPIRY|1", 0},
        {"\nacme " ABC " 2027-01-31T00:00:00Z more\n", "f:2|role", 0},
        {"\nacme " ABC " viewer 2027-01-31T00:00:00Z more\n", "f:2|TENANT|HASH|ROLE|EXPIRY", 0},
        {"acme " ABC " operator\n", NULL, 1},
        {"acme " ABC " admin 2027-01-31T00:00:00Z\n", NULL, 1},
        {"acme " ABC " Admin\n", "f:1|role", 0},
        {"acme " ABC " none\n", "f:1|role", 0},
        {"acme " ABC " viewer soon\n", "f:1|expiry", 0},
        {"tls:spiffe://x/ops admin\nuid:0 viewer\nuid:4294967294 operator\n", NULL, 0},
        {"tls:a admin\ntls:a viewer\n", "f:2|name", 0},
        {"tls: admin\n", "f:1|name|0", 0},
        {"tls:a\xC3\xA9 admin\n", "f:1|name|byte 6", 0},
        {"tls:a inference\n", "f:1|role", 0},
        {"tls:a\n", "f:1|tls:NAME|ROLE|1", 0},
        {"uid:1 viewer 2027-01-31T00:00:00Z\n", "f:1|uid:NUMBER|ROLE|3", 0},
        {"uid:x viewer\n", "f:1|name|uid:", 0},
        {"uid:01 viewer\n", "f:1|name|uid:", 0},
        {"uid:-1 viewer\n", "f:1|name|uid:", 0},
        {"uid:4294967295 viewer\n", "f:1|name|uid:", 0},
        {"t" T64 " " ABC "\n", "f:1|tenant|65", 0},
        {"a/b " ABC "\n", "f:1|tenant|byte 2", 0},
        {"\xC3\xA9 " ABC "\n", "f:1|tenant|byte 1", 0},
        {"anonymous " ABC "\n", "f:1|tenant|anonymous", 0},
        {"a " ABC "0\n", "f:1|hash", 0},
        {"a xa7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n", "f:1|hash", 0},
        {"a " ABC "\nb " ABC "\n", "f:2|hash", 0},
        {"a " ABC " 2027-02-29T00:00:00Z\n", "f:1|expiry", 0},
        {"a " ABC " 2027-13-01T00:00:00Z\n", "f:1|expiry", 0},
        {"a " ABC " 2027-01-31T24:00:00Z\n", "f:1|expiry", 0},
        {"a " ABC " 2027-01-31T00:00:60Z\n", "f:1|expiry", 0},
        {"a " ABC " 2027-01-31T00:00:00+00:00\n", "f:1|expiry", 0},
        {"a " ABC " 2027-01-31t00:00:00z\n", "f:1|expiry", 0},
        {"a " ABC " 1969-12-31T23:59:59Z\n", "f:1|expiry", 0},
        {"a " ABC "\r\n", "f:1|byte 67", 0},
        {"a\x1b[1m " ABC "\n", "f:1|byte 2", 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct api_keys *keys = NULL;
        struct error err;
        int rc = api_keys_parse("f", cases[i].text, strlen(cases[i].text), &keys, &err);
        if (!cases[i].error) {
            assert_int_equal(rc, 0);
            assert_int_equal(api_keys_count(keys), cases[i].n);
            api_keys_destroy(keys);
            continue;
        }
        assert_int_equal(rc, STATUS_INVALID_ARGUMENT);
        if (!names_all(err.message, cases[i].error))
            fail_msg("%s, expected %s", err.message, cases[i].error);
        assert_null(keys);
        assert_null(strstr(err.message, "ba7816")); /* the error does not quote the line */
    }
}

static void test_parse_nul_in_a_line_then_refused(void **state)
{
    (void)state;
    static const char text[] = "ac\0me " ABC "\n";
    struct api_keys *keys;
    struct error err;
    assert_int_equal(api_keys_parse("f", text, sizeof(text) - 1, &keys, &err),
                     STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "f:1|byte 3"));
}

static void test_parse_too_many_keys_then_refused_with_the_line(void **state)
{
    (void)state;
    struct strbuf text;
    struct api_keys *keys;
    struct error err;
    strbuf_init(&text, 0);
    for (int i = 0; i <= API_KEYS_MAX_KEYS; i++) {
        if (i == API_KEYS_MAX_KEYS) {
            assert_int_equal(api_keys_parse("f", text.data, text.n_bytes, &keys, &err), 0);
            assert_int_equal(api_keys_count(keys), API_KEYS_MAX_KEYS);
            api_keys_destroy(keys);
        }
        strbuf_printf(&text, "t %064x\n", (unsigned)i);
    }
    assert_int_equal(api_keys_parse("f", text.data, text.n_bytes, &keys, &err),
                     STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "f:4097|4096"));
    strbuf_fini(&text);
}

static void test_check_verdicts(void **state)
{
    (void)state;
    static const char text[] = "acme " ABC " 2027-01-31T00:00:00Z\nglobex " ABD " operator\n"
                               "tls:deploy admin\nuid:12 viewer\n";
    struct api_keys *keys;
    struct error err;
    int64_t end;
    struct api_key_owner owner = {"untouched", ROLE_NONE};
    char longest[API_KEY_MAX_BYTES + 1];
    memset(longest, 'x', sizeof(longest));
    assert_int_equal(api_key_parse_time("2027-01-31T00:00:00Z", &end, &err), 0);
    assert_int_equal(end, 1801353600);
    assert_int_equal(api_keys_parse("f", text, sizeof(text) - 1, &keys, &err), 0);
    assert_int_equal(api_keys_check(keys, "abx", 3, 0, &owner), API_KEY_UNKNOWN);
    assert_int_equal(api_keys_check(keys, "abc", 2, 0, &owner), API_KEY_UNKNOWN);
    assert_int_equal(api_keys_check(keys, "", 0, 0, &owner), API_KEY_UNKNOWN);
    assert_int_equal(api_keys_check(keys, longest, sizeof(longest), 0, &owner), API_KEY_UNKNOWN);
    assert_int_equal(api_keys_check(keys, "abc", 3, end, &owner), API_KEY_EXPIRED);
    assert_string_equal(owner.tenant, "untouched");
    assert_int_equal(api_keys_check(keys, "abc", 3, end - 1, &owner), API_KEY_GOOD);
    assert_string_equal(owner.tenant, "acme");
    assert_int_equal(owner.role, ROLE_INFERENCE);
    assert_int_equal(api_keys_check(keys, "abd", 3, INT64_MAX - 1, &owner), API_KEY_GOOD);
    assert_string_equal(owner.tenant, "globex");
    assert_int_equal(owner.role, ROLE_OPERATOR);
    assert_int_equal(api_keys_count(keys), 2);
    assert_int_equal(api_keys_role(keys, "tls:deploy"), ROLE_ADMIN);
    assert_int_equal(api_keys_role(keys, "uid:12"), ROLE_VIEWER);
    assert_int_equal(api_keys_role(keys, "tls:deplo"), ROLE_NONE);
    assert_int_equal(api_keys_role(keys, "uid:1"), ROLE_NONE);
    api_keys_destroy(keys);
}

static void test_a_new_key_is_found_by_its_line(void **state)
{
    (void)state;
    char key[API_KEY_BYTES], other[API_KEY_BYTES];
    struct api_key_owner owner;
    struct api_keys *keys;
    struct strbuf line;
    struct error err;
    strbuf_init(&line, 0);
    assert_int_equal(api_key_create(key, &err), 0);
    assert_int_equal(api_key_create(other, &err), 0);
    assert_string_not_equal(key, other);
    assert_int_equal(strlen(key), API_KEY_BYTES - 1);
    assert_int_equal(api_key_line("acme", key, "admin", "2027-01-31T00:00:00Z", &line, &err), 0);
    assert_null(strstr(strbuf_str(&line), key));
    assert_int_equal(api_keys_parse("f", line.data, line.n_bytes, &keys, &err), 0);
    assert_int_equal(api_keys_check(keys, key, strlen(key), 0, &owner), API_KEY_GOOD);
    assert_int_equal(owner.role, ROLE_ADMIN);
    assert_int_equal(api_keys_check(keys, other, strlen(other), 0, &owner), API_KEY_UNKNOWN);
    api_keys_destroy(keys);
    assert_int_equal(api_key_line("a b", key, "", "", &line, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(api_key_line("acme", key, "", "soon", &line, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(api_key_line("acme", key, "root", "", &line, &err), STATUS_INVALID_ARGUMENT);
    strbuf_fini(&line);
}

static void test_load_looks_at_the_file_itself(void **state)
{
    (void)state;
    char path[] = "/tmp/test_api_keys_XXXXXX";
    static const char text[] = "acme " ABC "\n";
    struct api_keys *keys;
    struct error err;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
    static const mode_t good[] = {0600, 0400, 0640}, bad[] = {0644, 0604, 0602, 0660};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(fchmod(fd, good[i]), 0);
        assert_int_equal(api_keys_load(path, &keys, &err), 0);
        api_keys_destroy(keys);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(fchmod(fd, bad[i]), 0);
        assert_int_equal(api_keys_load(path, &keys, &err), STATUS_PERMISSION_DENIED);
    }
    assert_int_equal(fchmod(fd, 0600), 0);
    assert_int_equal(ftruncate(fd, API_KEYS_MAX_FILE_BYTES + 1), 0);
    assert_int_equal(api_keys_load(path, &keys, &err), STATUS_INVALID_ARGUMENT);
    close(fd);
    unlink(path);
    assert_int_equal(api_keys_load(path, &keys, &err), STATUS_NOT_FOUND);
    assert_int_equal(mkfifo(path, 0600), 0); /* reading a FIFO must not wait for a writer */
    assert_int_equal(api_keys_load(path, &keys, &err), STATUS_INVALID_ARGUMENT);
    unlink(path);
    assert_int_equal(api_keys_load("/", &keys, &err), STATUS_INVALID_ARGUMENT);
}

static void test_a_table_of_keys_from_elsewhere(void **state)
{
    char key[API_KEY_BYTES], hex[65], who[API_KEYS_MAX_WHO + 2];
    struct api_key_owner owner;
    struct api_keys *keys = NULL;
    struct error err;
    (void)state;
    assert_int_equal(api_keys_create(&keys, &err), 0);
    assert_int_equal(api_keys_check(keys, "abc", 3, 0, &owner), API_KEY_UNKNOWN);
    for (int i = 0; i < 100; i++) { /* the set grows */
        assert_int_equal(api_key_create(key, &err), 0);
        assert_int_equal(api_key_hash(key, hex, &err), 0);
        assert_int_equal(api_keys_add(keys, "key:ops", hex, ROLE_OPERATOR, 1000, &err), 0);
    }
    assert_int_equal(api_keys_count(keys), 100);
    assert_int_equal(api_keys_check(keys, key, strlen(key), 999, &owner), API_KEY_GOOD);
    assert_string_equal(owner.tenant, "key:ops");
    assert_int_equal(owner.role, ROLE_OPERATOR);
    assert_int_equal(api_keys_check(keys, key, strlen(key), 1000, &owner), API_KEY_EXPIRED);
    assert_int_equal(api_keys_add(keys, "x", "12ab", ROLE_ADMIN, 0, &err), STATUS_INVALID_ARGUMENT);
    memset(who, 'w', sizeof(who) - 1);
    who[sizeof(who) - 1] = '\0';
    assert_int_equal(api_keys_add(keys, who, hex, ROLE_ADMIN, 0, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(api_keys_count(keys), 100);
    api_keys_destroy(keys);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_table),
        cmocka_unit_test(test_parse_nul_in_a_line_then_refused),
        cmocka_unit_test(test_parse_too_many_keys_then_refused_with_the_line),
        cmocka_unit_test(test_check_verdicts),
        cmocka_unit_test(test_a_new_key_is_found_by_its_line),
        cmocka_unit_test(test_load_looks_at_the_file_itself),
        cmocka_unit_test(test_a_table_of_keys_from_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
