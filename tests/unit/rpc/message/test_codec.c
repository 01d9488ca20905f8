/* Compares fill.c and encode.c with protobuf-c, on random messages by their descriptors. Some
 * messages are usual, and no client of ours sends the others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/rpc/message/fill.h"
#include "sluice/manager/v1/routing.pb-c.h"
#include "sluice/v1/inference.pb-c.h"
#include "sluice/worker/v1/worker.pb-c.h"
#include "tests/support/message_twice.h"

enum { MAX_BYTES = 1 << 16, MAX_DEPTH = 5, N_ROUNDS = 4000 };

static uint64_t random_state;

static uint32_t draw(uint32_t n)
{
    random_state = random_state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)((random_state >> 33) % n);
}

struct wire_out {
    uint8_t bytes[MAX_BYTES];
    size_t n;
};

static void add_byte(struct wire_out *out, uint8_t byte)
{
    if (out->n < sizeof(out->bytes))
        out->bytes[out->n++] = byte;
}

static void add_varint(struct wire_out *out, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        add_byte(out, (uint8_t)(value | 0x80));
    add_byte(out, (uint8_t)value);
}

/* Unusual features of a message, one kind at a time, since each must be noticed alone. */
enum oddity {
    ODD_NOTHING,
    ODD_REPEATED, /* fields in any order, and repeated */
    ODD_UNKNOWN,  /* unknown fields */
    ODD_VARINT,   /* varints with more than 64 bits */
    ODD_UNPACKED, /* numbers of a list one by one */
    N_ODDITIES
};

/* Small, large, negative. */
static void add_any_varint(struct wire_out *out, enum oddity odd)
{
    static const uint64_t values[] = {
        0, 1, 127, 128, 300, UINT32_MAX, UINT64_MAX, 1ULL << 31, 1ULL << 35, 1ULL << 63, 7, 2};
    if (odd == ODD_VARINT && draw(8) == 0) {
        for (int i = 0; i < 9; i++)
            add_byte(out, 0x80);
        add_byte(out, 0x02);
        return;
    }
    add_varint(out, values[draw(sizeof(values) / sizeof(values[0]))]);
}

static bool is_fixed64(ProtobufCType type)
{
    return type == PROTOBUF_C_TYPE_FIXED64 || type == PROTOBUF_C_TYPE_SFIXED64 ||
           type == PROTOBUF_C_TYPE_DOUBLE;
}

static bool is_fixed32(ProtobufCType type)
{
    return type == PROTOBUF_C_TYPE_FIXED32 || type == PROTOBUF_C_TYPE_SFIXED32 ||
           type == PROTOBUF_C_TYPE_FLOAT;
}

static void add_number(struct wire_out *out, ProtobufCType type, enum oddity odd)
{
    size_t n = is_fixed64(type) ? 8 : is_fixed32(type) ? 4 : 0;
    if (n == 0)
        add_any_varint(out, odd);
    uint8_t zero = draw(3) == 0 ? 0 : 0xFF;
    for (size_t i = 0; i < n; i++) /* may write -0, which protobuf-c treats as the default value */
        add_byte(out, zero ? (uint8_t)draw(256) : i + 1 == n ? (uint8_t)(draw(2) * 0x80) : 0);
}

static void add_message(struct wire_out *out, const ProtobufCMessageDescriptor *descriptor,
                        unsigned depth, enum oddity odd);

static void add_payload(struct wire_out *out, const struct wire_out *payload)
{
    add_varint(out, payload->n);
    for (size_t i = 0; i < payload->n; i++)
        add_byte(out, payload->bytes[i]);
}

static void add_field(struct wire_out *out, const ProtobufCFieldDescriptor *field, unsigned depth,
                      enum oddity odd)
{
    struct wire_out *payload = calloc(1, sizeof(*payload));
    bool text = field->type == PROTOBUF_C_TYPE_STRING || field->type == PROTOBUF_C_TYPE_BYTES;
    bool list = field->label == PROTOBUF_C_LABEL_REPEATED;
    assert_non_null(payload);
    if (text) {
        for (uint32_t n = draw(4) * draw(9); n > 0; n--)
            add_byte(payload, (uint8_t)('a' + draw(26)));
    } else if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
        add_message(payload, field->descriptor, depth + 1, odd);
    } else if (list && !(odd == ODD_UNPACKED && draw(2) == 0)) {
        for (uint32_t n = draw(7); n > 0; n--)
            add_number(payload, field->type, odd);
    } else {
        unsigned wire = is_fixed64(field->type) ? 1 : is_fixed32(field->type) ? 5 : 0;
        add_varint(out, (uint64_t)field->id << 3 | wire);
        add_number(out, field->type, odd);
        free(payload);
        return;
    }
    add_varint(out, (uint64_t)field->id << 3 | 2);
    add_payload(out, payload);
    free(payload);
}

/* Fields in their order, each once or as often as a list has elements. */
static void add_message(struct wire_out *out, const ProtobufCMessageDescriptor *descriptor,
                        unsigned depth, enum oddity odd)
{
    if (depth > MAX_DEPTH)
        return;
    unsigned oneof_at = 0;
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field =
            &descriptor->fields[odd == ODD_REPEATED ? draw(descriptor->n_fields) : i];
        bool oneof = (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
        if (draw(3) == 0 || (oneof && odd != ODD_REPEATED && oneof_at == field->quantifier_offset))
            continue;
        if (oneof)
            oneof_at = field->quantifier_offset;
        bool many =
            field->label == PROTOBUF_C_LABEL_REPEATED &&
            (field->type == PROTOBUF_C_TYPE_STRING || field->type == PROTOBUF_C_TYPE_BYTES ||
             field->type == PROTOBUF_C_TYPE_MESSAGE);
        for (uint32_t n = many ? draw(depth < 2 ? 12 : 3) : 1; n > 0; n--)
            add_field(out, field, depth, odd);
        if (odd == ODD_UNKNOWN && draw(12) == 0) {
            add_varint(out, 900U << 3);
            add_any_varint(out, ODD_NOTHING);
        }
    }
}

static const ProtobufCMessageDescriptor *const messages[] = {
    &sluice__worker__v1__serve_response__descriptor, &sluice__worker__v1__serve_request__descriptor,
    &sluice__v1__generate_response__descriptor,      &sluice__v1__generate_request__descriptor,
    &sluice__v1__complete_response__descriptor,      &sluice__manager__v1__route_table__descriptor,
};

enum { N_MESSAGES = sizeof(messages) / sizeof(messages[0]) };

static unsigned compare_all(enum oddity odd)
{
    struct wire_out *out = malloc(sizeof(*out));
    unsigned n_ok = 0;
    assert_non_null(out);
    for (uint64_t round = 0; round < N_ROUNDS; round++) {
        bool ok = false;
        random_state = round * N_ODDITIES + odd;
        out->n = 0;
        add_message(out, messages[round % N_MESSAGES], 0, odd);
        if (!decodes_as_protobuf_c(messages[round % N_MESSAGES], out->bytes, out->n, &ok))
            fail_msg("oddity %d, round %u: not as protobuf-c has it", (int)odd, (unsigned)round);
        n_ok += ok;
    }
    free(out);
    return n_ok;
}

static void test_codec_when_messages_are_usual_then_as_protobuf_c(void **state)
{
    (void)state;
    assert_true(compare_all(ODD_NOTHING) > N_ROUNDS * 9 / 10);
}

static void test_codec_when_messages_are_odd_then_as_protobuf_c(void **state)
{
    (void)state;
    for (enum oddity odd = ODD_NOTHING + 1; odd < N_ODDITIES; odd++)
        assert_true(compare_all(odd) > N_ROUNDS * 9 / 10);
}

/* Tags and lengths of which protobuf-c reads five bytes. */
static void test_codec_when_tag_or_length_is_long_then_as_protobuf_c(void **state)
{
    static const uint8_t tag[] = {0x8A, 0x80, 0x80, 0x80, 0x80, 0x00, 0x01, 'a'};
    static const uint8_t length[] = {0x0A, 0x81, 0x80, 0x80, 0x80, 0x80, 0x00, 'a'};
    const ProtobufCMessageDescriptor *type = &sluice__v1__generate_request__descriptor;
    bool ok;
    (void)state;
    assert_true(decodes_as_protobuf_c(type, tag, sizeof(tag), &ok));
    assert_true(decodes_as_protobuf_c(type, length, sizeof(length), &ok));
}

/* Kinds of numbers that no message of ours has. */
static void test_fill_when_numbers_are_zigzag_then_signed(void **state)
{
    struct {
        ProtobufCMessage base;
        int32_t i32;
        int64_t i64;
    } message = {.i32 = 0};
    ProtobufCFieldDescriptor narrow = {.label = PROTOBUF_C_LABEL_NONE,
                                       .type = PROTOBUF_C_TYPE_SINT32,
                                       .offset = offsetof(__typeof__(message), i32)};
    ProtobufCFieldDescriptor wide = {.label = PROTOBUF_C_LABEL_NONE,
                                     .type = PROTOBUF_C_TYPE_SINT64,
                                     .offset = offsetof(__typeof__(message), i64)};
    struct arena arena;
    (void)state;
    arena_init(&arena, 0, 0);
    struct rpc_fill fill = {.arena = &arena};
    rpc_fill_number(&fill, &message.base, &narrow, 3);
    rpc_fill_number(&fill, &message.base, &wide, UINT64_MAX);
    assert_int_equal(message.i32, -2);
    assert_true(message.i64 == INT64_MIN);
    rpc_fill_number(&fill, &message.base, &narrow, 4);
    assert_int_equal(message.i32, 2);
    arena_fini(&arena);
}

/* Checks that the quick path is used. Otherwise the tests above would compare protobuf-c with
 * itself. */
static void test_fill_when_message_is_usual_then_all_of_it_is_one_piece(void **state)
{
    (void)state;
    Sluice__Worker__V1__ServeResponse response = SLUICE__WORKER__V1__SERVE_RESPONSE__INIT;
    Sluice__Worker__V1__Step step = SLUICE__WORKER__V1__STEP__INIT;
    Sluice__Worker__V1__StepItem item = SLUICE__WORKER__V1__STEP_ITEM__INIT;
    Sluice__Worker__V1__StepItem *items[9] = {&item, &item, &item, &item, &item,
                                              &item, &item, &item, &item};
    uint32_t ids[] = {1, 70000};
    char text[] = "some text";
    struct error err;
    struct arena arena;
    ProtobufCMessage *message = NULL;
    void *bytes;
    size_t n_bytes;
    item.token_ids = ids;
    item.n_token_ids = 2;
    item.text = text;
    step.items = items;
    step.n_items = 9;
    response.frame_case = SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_STEP;
    response.step = &step;
    assert_int_equal(rpc_message_pack(&response.base, &bytes, &n_bytes, &err), 0);
    arena_init(&arena, 0, 0);
    assert_int_equal(
        rpc_message_parse_in(&arena, response.base.descriptor, bytes, n_bytes, &message, &err), 0);
    Sluice__Worker__V1__ServeResponse *got = (Sluice__Worker__V1__ServeResponse *)message;
    assert_int_equal(got->step->n_items, 9);
    assert_int_equal(got->step->items[8]->token_ids[1], 70000);
    assert_string_equal(got->step->items[8]->text, text);
    /* The slow path would take twice the memory for messages and lists of pointers. */
    assert_true(arena.used_bytes < 9 * (sizeof(item) + 64) + sizeof(step) + sizeof(response) + 512);
    arena_fini(&arena);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codec_when_messages_are_usual_then_as_protobuf_c),
        cmocka_unit_test(test_codec_when_messages_are_odd_then_as_protobuf_c),
        cmocka_unit_test(test_codec_when_tag_or_length_is_long_then_as_protobuf_c),
        cmocka_unit_test(test_fill_when_numbers_are_zigzag_then_signed),
        cmocka_unit_test(test_fill_when_message_is_usual_then_all_of_it_is_one_piece),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
