/* Tests of message.h: hostile bytes for real message types. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/error.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/types.pb-c.h"
#include "sluice/v1/inference.pb-c.h"
#include "tests/support/names.h"

#define BYTES(...) (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__})

struct bad_case {
    const char *name;
    const uint8_t *bytes;
    size_t n_bytes;
    const char *text;  /* part of the message */
    const char *field; /* or NULL */
};

static void test_parse_when_bytes_are_bad_then_cause_is_told(void **state)
{
    const struct bad_case cases[] = {
        {"tag cut", BYTES(0x80), "byte 0", NULL},
        {"tag of 11 bytes", BYTES(0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01),
         "byte 0", NULL},
        {"field number 0", BYTES(0x02, 0x00), "byte 0", NULL},
        {"field number over 2^29", BYTES(0x80, 0x80, 0x80, 0x80, 0x10, 0x00), "byte 0", NULL},
        {"group start", BYTES(0x0B), "byte 1", NULL},
        {"group end", BYTES(0x0C), "byte 1", NULL},
        {"wire type 7", BYTES(0x0F), "byte 1", NULL},
        {"length beyond end", BYTES(0x0A, 0x05, 'a'), "byte 1", NULL},
        {"length 2^63", BYTES(0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F), "byte 1",
         NULL},
        {"varint cut", BYTES(0x58, 0xFF), "byte 1", NULL},
        {"fixed cut", BYTES(0x3A, 0x03, 0x0D, 0x00, 0x00), "byte 3", NULL},
        {"string as varint", BYTES(0x08, 0x01), "byte 0", "model"},
        {"message as varint", BYTES(0x38, 0x01), "byte 0", "sampling"},
        {"float as bytes", BYTES(0x3A, 0x02, 0x0A, 0x00), "byte 2", "sampling.temperature"},
        {"overlong UTF-8", BYTES(0x0A, 0x02, 0xC0, 0x80), "byte 0|UTF-8", "model"},
        {"surrogate", BYTES(0x0A, 0x03, 0xED, 0xA0, 0x80), "byte 0|UTF-8", "model"},
        {"cut UTF-8", BYTES(0x0A, 0x03, 'a', 0xE2, 0x98), "byte 1|UTF-8", "model"},
        {"NUL", BYTES(0x0A, 0x03, 'a', 0x00, 'b'), "byte 1|NUL", "model"},
        {"lone NUL", BYTES(0x0A, 0x01, 0x00), "byte 0|NUL", "model"},
        {"nested string", BYTES(0x42, 0x03, 0x12, 0x01, 0xFF), "UTF-8", "stopping.stop"},
        {"deeper string", BYTES(0x32, 0x05, 0x0A, 0x03, 0x12, 0x01, 0x00), "NUL",
         "chat.messages.content"},
        {"packed varint cut", BYTES(0x2A, 0x03, 0x0A, 0x01, 0x80), "byte 4", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ProtobufCMessage *message = NULL;
        struct error err;
        int status = rpc_message_parse(&sluice__v1__generate_request__descriptor, cases[i].bytes,
                                       cases[i].n_bytes, &message, &err);
        if (status != STATUS_INVALID_ARGUMENT || !names_all(err.message, cases[i].text))
            fail_msg("%s: %d \"%s\"", cases[i].name, status, err.message);
        assert_null(message);
        if (cases[i].field != NULL)
            assert_string_equal(err.field, cases[i].field);
        else
            assert_non_null(strstr(err.message, "sluice.v1.GenerateRequest"));
    }
}

static void test_parse_when_empty_then_default_message(void **state)
{
    ProtobufCMessage *message = NULL;
    struct error err;
    (void)state;
    assert_int_equal(
        rpc_message_parse(&sluice__v1__generate_request__descriptor, NULL, 0, &message, &err), 0);
    assert_string_equal(((Sluice__V1__GenerateRequest *)message)->model, "");
    rpc_message_free(message);
    rpc_message_free(NULL);
}

/* proto3 presence through protoc-c: zero that was given differs from absent. */
static void test_pack_when_optional_is_zero_then_it_survives(void **state)
{
    Sluice__V1__Sampling sampling = SLUICE__V1__SAMPLING__INIT;
    void *bytes = NULL;
    size_t n_bytes = 0;
    ProtobufCMessage *message = NULL;
    struct error err;
    (void)state;
    sampling.has_temperature = 1;
    sampling.has_seed = 1;
    assert_int_equal(rpc_message_pack(&sampling.base, &bytes, &n_bytes, &err), 0);
    assert_int_equal(n_bytes, 5 + 2);
    assert_int_equal(
        rpc_message_parse(&sluice__v1__sampling__descriptor, bytes, n_bytes, &message, &err), 0);
    const Sluice__V1__Sampling *back = (const Sluice__V1__Sampling *)message;
    assert_true(back->has_temperature && back->has_seed);
    assert_false(back->has_top_p || back->has_n || back->has_do_sample);
    rpc_message_free(message);
    free(bytes);
}

static void test_parse_when_fields_are_unknown_then_few_pass_and_many_do_not(void **state)
{
    static uint8_t bytes[1025 * 3];
    ProtobufCMessage *message = NULL;
    struct error err;
    (void)state;
    for (size_t i = 0; i < 1025; i++) {
        bytes[3 * i] = 0xF8; /* field 31, varint */
        bytes[3 * i + 1] = 0x01;
        bytes[3 * i + 2] = 0x07;
    }
    assert_int_equal(
        rpc_message_parse(&sluice__v1__cancel_request__descriptor, bytes, 1024 * 3, &message, &err),
        0);
    rpc_message_free(message);
    assert_int_equal(
        rpc_message_parse(&sluice__v1__cancel_request__descriptor, bytes, 1025 * 3, &message, &err),
        STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "1024"));
}

/* Two bytes on the wire that become a struct of hundreds: 4 MiB must not become a gigabyte. */
static void test_parse_when_decoded_form_explodes_then_refused(void **state)
{
    const size_t n_bytes = 4u << 20;
    uint8_t *bytes = malloc(n_bytes);
    ProtobufCMessage *message = NULL;
    struct error err;
    (void)state;
    assert_non_null(bytes);
    for (size_t i = 0; i < n_bytes; i += 2) {
        bytes[i] = 0x12; /* Model.versions */
        bytes[i + 1] = 0x00;
    }
    assert_int_equal(
        rpc_message_parse(&sluice__manager__v1__model__descriptor, bytes, n_bytes, &message, &err),
        STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, REASON_MESSAGE_TOO_LARGE);
    free(bytes);
}

/* protobuf-c merges each message into the one before and copies all lists. The cost is quadratic in
 * the number of messages. */
static void test_parse_when_one_message_stands_often_then_refused(void **state)
{
    enum { N_FEW = 100, N_MANY = 5000 };
    static uint8_t bytes[4 * N_MANY];
    ProtobufCMessage *message = NULL;
    struct arena arena;
    struct error err;
    (void)state;
    arena_init(&arena, 0, 0);
    for (size_t i = 0; i < sizeof(bytes); i += 4)
        memcpy(bytes + i, "\x42\x02\x12", 4); /* stopping, with an empty stop text */
    const ProtobufCMessageDescriptor *type = &sluice__v1__generate_request__descriptor;
    assert_int_equal(rpc_message_parse(type, bytes, 4 * (size_t)N_FEW, &message, &err), 0);
    assert_int_equal(((Sluice__V1__GenerateRequest *)message)->stopping->n_stop, N_FEW);
    rpc_message_free(message);
    assert_int_equal(rpc_message_parse(type, bytes, sizeof(bytes), &message, &err),
                     STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, REASON_MESSAGE_TOO_LARGE);
    assert_int_equal(rpc_message_parse_in(&arena, type, bytes, sizeof(bytes), &message, &err),
                     STATUS_RESOURCE_EXHAUSTED);
    assert_true(arena.used_bytes < RPC_MESSAGE_MAX_EXPANSION);
    arena_fini(&arena);
}

static void test_parse_when_truncated_anywhere_then_never_accepted_as_other_text(void **state)
{
    static char model[] = "smollm", text[] = "Once upon ☃", stop[] = "\n";
    char *stops[] = {stop};
    uint32_t allowed[] = {1, 300, 70000};
    Sluice__V1__Stopping stopping = SLUICE__V1__STOPPING__INIT;
    Sluice__V1__Sampling sampling = SLUICE__V1__SAMPLING__INIT;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    void *packed = NULL;
    size_t n_bytes = 0;
    struct error err;
    (void)state;
    request.model = model;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    request.text = text;
    request.stopping = &stopping;
    request.sampling = &sampling;
    stopping.n_stop = 1;
    stopping.stop = stops;
    sampling.n_allowed_token_ids = 3;
    sampling.allowed_token_ids = allowed;
    assert_int_equal(rpc_message_pack(&request.base, &packed, &n_bytes, &err), 0);
    for (size_t n = 0; n <= n_bytes; n++) {
        ProtobufCMessage *message = NULL;
        uint8_t *copy = malloc(n + 1); /* exactly n readable bytes for the sanitizer's sake */
        memcpy(copy, packed, n);
        if (rpc_message_parse(&sluice__v1__generate_request__descriptor, copy, n, &message, &err) ==
            0) {
            const Sluice__V1__GenerateRequest *back = (const Sluice__V1__GenerateRequest *)message;
            assert_true(back->model[0] == '\0' || strcmp(back->model, model) == 0);
            rpc_message_free(message);
        } else {
            assert_true(err.message[0] != '\0');
        }
        free(copy);
    }
    free(packed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_when_bytes_are_bad_then_cause_is_told),
        cmocka_unit_test(test_parse_when_empty_then_default_message),
        cmocka_unit_test(test_pack_when_optional_is_zero_then_it_survives),
        cmocka_unit_test(test_parse_when_fields_are_unknown_then_few_pass_and_many_do_not),
        cmocka_unit_test(test_parse_when_decoded_form_explodes_then_refused),
        cmocka_unit_test(test_parse_when_one_message_stands_often_then_refused),
        cmocka_unit_test(test_parse_when_truncated_anywhere_then_never_accepted_as_other_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
