/* Tests that a copy of a message equals the message, has all its fields, and shares no memory with
 * it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/error.h"
#include "manager/base/message.h"
#include "manager/base/pb.h"

enum { DEEPEST = 4, N_REPEATED = 3 };

static uint64_t n_values;

static ProtobufCMessage *filled(const ProtobufCMessageDescriptor *descriptor, int depth,
                                uint32_t which_of_oneof);

static size_t fill_value(const ProtobufCFieldDescriptor *field, void *at, int depth)
{
    uint64_t number = 1 + ++n_values % 200;
    uint32_t small = (uint32_t)number;
    double real = (double)number / 3;
    float single = (float)real;
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING: {
        char text[24];
        snprintf(text, sizeof(text), "text %u", small);
        /* an element of a repeated field always has its own string */
        bool own = small % 5 || field->label == PROTOBUF_C_LABEL_REPEATED;
        char *copy = own ? strdup(text) : (char *)(uintptr_t)protobuf_c_empty_string;
        memcpy(at, &copy, sizeof(copy));
        return sizeof(copy);
    }
    case PROTOBUF_C_TYPE_BYTES: {
        ProtobufCBinaryData data = {.len = small % 40, .data = calloc(40, 1)};
        memcpy(at, &data, sizeof(data));
        return sizeof(data);
    }
    case PROTOBUF_C_TYPE_MESSAGE: {
        ProtobufCMessage *part = filled(field->descriptor, depth + 1, small);
        memcpy(at, &part, sizeof(part));
        return sizeof(part);
    }
    case PROTOBUF_C_TYPE_DOUBLE:
        memcpy(at, &real, sizeof(real));
        return sizeof(real);
    case PROTOBUF_C_TYPE_FLOAT:
        memcpy(at, &single, sizeof(single));
        return sizeof(single);
    case PROTOBUF_C_TYPE_BOOL:
    case PROTOBUF_C_TYPE_ENUM:
        small = 1;
        memcpy(at, &small, sizeof(small));
        return sizeof(small);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_SFIXED32:
        memcpy(at, &small, sizeof(small));
        return sizeof(small);
    default:
        memcpy(at, &number, sizeof(number));
        return sizeof(number);
    }
}

static void fill_field(const ProtobufCFieldDescriptor *field, ProtobufCMessage *message, int depth)
{
    char *at = (char *)message + field->offset,
         *quantifier = (char *)message + field->quantifier_offset;
    const protobuf_c_boolean yes = 1;
    const size_t n = N_REPEATED;
    if (field->type == PROTOBUF_C_TYPE_MESSAGE && depth == DEEPEST)
        return;
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        char *values = calloc(N_REPEATED, sizeof(ProtobufCBinaryData));
        size_t at_byte = 0;
        for (size_t i = 0; i < n; i++)
            at_byte += fill_value(field, values + at_byte, depth);
        memcpy(at, &values, sizeof(values));
        memcpy(quantifier, &n, sizeof(n));
        return;
    }
    fill_value(field, at, depth);
    if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
        memcpy(quantifier, &field->id, sizeof(field->id));
    else if (field->quantifier_offset)
        memcpy(quantifier, &yes, sizeof(yes));
}

/* Returns a message with a value in every field, and in one field of each oneof. */
static ProtobufCMessage *filled(const ProtobufCMessageDescriptor *descriptor, int depth,
                                uint32_t which_of_oneof)
{
    ProtobufCMessage *message = message_new(descriptor);
    unsigned n_of_oneof = 0, i_of_oneof = 0;
    assert_non_null(message);
    for (unsigned i = 0; i < descriptor->n_fields; i++)
        n_of_oneof += (descriptor->fields[i].flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) &&
            i_of_oneof++ != which_of_oneof % n_of_oneof)
            continue;
        fill_field(field, message, depth);
    }
    return message;
}

static uint8_t *packed(const ProtobufCMessage *message, size_t *out_n)
{
    *out_n = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(*out_n + 1);
    assert_non_null(bytes);
    protobuf_c_message_pack(message, bytes);
    return bytes;
}

static void check_equal(const ProtobufCMessage *copy, const uint8_t *bytes, size_t n)
{
    size_t n_copy;
    assert_non_null(copy);
    uint8_t *bytes_copy = packed(copy, &n_copy);
    assert_int_equal(n, n_copy);
    assert_memory_equal(bytes, bytes_copy, n);
    free(bytes_copy);
}

/* Frees the message and then checks its copies, on the heap and in an arena. */
static void check_copy(ProtobufCMessage *message)
{
    size_t n;
    struct arena arena;
    arena_init(&arena, 0, 0);
    uint8_t *bytes = packed(message, &n);
    ProtobufCMessage *copy = message_copy(message), *copy_in = message_copy_in(&arena, message);
    message_free(message);
    check_equal(copy, bytes, n);
    check_equal(copy_in, bytes, n);
    message_free(copy);
    arena_fini(&arena);
    free(bytes);
}

static const ProtobufCMessageDescriptor *const descriptors[] = {
    &sluice__worker__v1__worker_status__descriptor,
    &sluice__worker__v1__tool_report__descriptor,
    &sluice__manager__v1__replica__descriptor,
    &sluice__manager__v1__operation__descriptor,
    &sluice__manager__v1__event__descriptor,
    &sluice__manager__v1__route_table__descriptor,
    &sluice__manager__v1__model_version__descriptor,
    &sluice__manager__v1__set_version_policy_request__descriptor,
};

static void test_a_copy_has_every_field(void **state)
{
    (void)state;
    assert_null(message_copy(NULL));
    for (size_t i = 0; i < sizeof(descriptors) / sizeof(descriptors[0]); i++)
        for (uint32_t which = 0; which < 4; which++)
            check_copy(filled(descriptors[i], 0, which));
}

static void test_a_copy_of_nothing_is_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(descriptors) / sizeof(descriptors[0]); i++)
        check_copy(message_new(descriptors[i]));
}

/* Messages of a newer program, with fields that this program does not know. */
static void test_a_copy_keeps_what_is_not_known(void **state)
{
    static const uint8_t newer[] = {0x0a, 0x02, 'r', '7', 0xfa, 0x7f, 0x03, 'n', 'e', 'w'};
    (void)state;
    ProtobufCMessage *message = protobuf_c_message_unpack(&sluice__manager__v1__replica__descriptor,
                                                          NULL, sizeof(newer), newer);
    assert_non_null(message);
    assert_int_equal(message->n_unknown_fields, 1);
    check_copy(message);
}

/* Elements are appended to a copy too, beyond the number of its elements. */
static void test_a_repeated_field_grows_in_an_arena(void **state)
{
    struct arena arena;
    (void)state;
    arena_init(&arena, 0, 0);
    pb_group *group = message_new_in(&arena, &sluice__manager__v1__device_group__descriptor);
    assert_non_null(group);
    for (unsigned i = 0; i < 100; i++) {
        char name[24];
        snprintf(name, sizeof(name), "cpu:%u", i);
        message_append_text_in(&arena, &group->n_devices, &group->devices, name);
        if (i % 7 == 3)
            group = message_copy_in(&arena, group);
        assert_non_null(group);
    }
    message_append_in(&arena, &group->n_devices, &group->devices, NULL);
    assert_int_equal(group->n_devices, 100);
    for (unsigned i = 0; i < 100; i++) {
        char name[24];
        snprintf(name, sizeof(name), "cpu:%u", i);
        assert_string_equal(group->devices[i], name);
    }
    assert_false(arena.exhausted);
    arena_fini(&arena);
}

static void test_an_exhausted_arena_is_noted(void **state)
{
    struct arena arena;
    struct error err;
    (void)state;
    arena_init(&arena, 0, 32);
    error_set(&err, STATUS_INTERNAL, "a text that is longer than the limit of the arena, 32 bytes");
    assert_string_equal(message_text_in(&arena, ""), "");
    assert_string_equal(message_text_in(&arena, NULL), "");
    assert_false(arena.exhausted);
    assert_null(message_from_error_in(&arena, &err));
    assert_true(arena.exhausted);
    arena.exhausted = false;
    assert_string_equal(message_text_in(&arena, err.message), "");
    assert_true(arena.exhausted);
    arena_fini(&arena);
}

static void test_an_image_notices_changes(void **state)
{
    struct message_image image = {NULL, 0};
    pb_group group = SLUICE__MANAGER__V1__DEVICE_GROUP__INIT;
    (void)state;
    assert_int_equal(message_image_update(&image, &group.base), MESSAGE_CHANGED);
    assert_int_equal(message_image_update(&image, &group.base), MESSAGE_SAME);
    group.generation = 1;
    assert_int_equal(message_image_update(&image, &group.base), MESSAGE_CHANGED);
    assert_int_equal(message_image_update(&image, &group.base), MESSAGE_SAME);
    message_image_fini(&image);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_copy_has_every_field),
        cmocka_unit_test(test_a_copy_of_nothing_is_nothing),
        cmocka_unit_test(test_a_copy_keeps_what_is_not_known),
        cmocka_unit_test(test_a_repeated_field_grows_in_an_arena),
        cmocka_unit_test(test_an_exhausted_arena_is_noted),
        cmocka_unit_test(test_an_image_notices_changes),
    };
    return cmocka_run_group_tests_name("message", tests, NULL, NULL);
}
