/* sim_odd.c: wrong or unusual requests. They are refused with a reason, and nothing changes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manager/base/message.h"
#include "tests/sim/sim.h"

/* -- any field of any request ---------------------------------------------------------------------
 */

static void set_odd_number(void *at, ProtobufCType type)
{
    static const uint64_t odd[] = {0, 1, 3, 40, UINT32_MAX, UINT64_MAX};
    uint64_t u64 = odd[sim_below(sizeof(odd) / sizeof(odd[0]))];
    uint32_t u32 = (uint32_t)u64;
    double real = u64 == 40 ? (double)NAN : (double)u64 - 1;
    protobuf_c_boolean yes = u64 % 2 == 1;
    switch (type) {
    case PROTOBUF_C_TYPE_UINT32:
        memcpy(at, &u32, sizeof(u32));
        break;
    case PROTOBUF_C_TYPE_UINT64:
        memcpy(at, &u64, sizeof(u64));
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        memcpy(at, &real, sizeof(real));
        break;
    case PROTOBUF_C_TYPE_BOOL:
        memcpy(at, &yes, sizeof(yes));
        break;
    default:
        break;
    }
}

static void set_odd_text(void *at)
{
    static const char *const odd[] = {"", "7", "nobody", "-", "../..", "no\nname", "park", "fp8"};
    char text[400];
    char *field;
    size_t i = sim_below(sizeof(odd) / sizeof(odd[0]) + 1);
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    memcpy(&field, at, sizeof(field));
    if (!message_set(&field, i < sizeof(odd) / sizeof(odd[0]) ? odd[i] : text))
        abort();
    memcpy(at, &field, sizeof(field));
}

/* True for fields that sim_odd() leaves as they are. A long grace would let a history wait for a
 * hung worker. */
static bool is_to_stay(const char *name)
{
    return strcmp(name, "request_id") == 0 || strcmp(name, "grace_ms") == 0;
}

void sim_odd(ProtobufCMessage *message)
{
    const ProtobufCMessageDescriptor *descriptor = message->descriptor;
    const ProtobufCFieldDescriptor *field = &descriptor->fields[sim_below(descriptor->n_fields)];
    char *at = (char *)message + field->offset;
    protobuf_c_boolean yes = 1;
    if (field->label == PROTOBUF_C_LABEL_REPEATED || (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) ||
        is_to_stay(field->name))
        return;
    if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
        ProtobufCMessage *part;
        memcpy(&part, at, sizeof(part));
        if (!part && !(part = message_new(field->descriptor)))
            abort();
        memcpy(at, &part, sizeof(part));
        sim_odd(part);
        return;
    }
    if (field->type == PROTOBUF_C_TYPE_STRING)
        set_odd_text(at);
    else
        set_odd_number(at, field->type);
    if (field->quantifier_offset)
        memcpy((char *)message + field->quantifier_offset, &yes, sizeof(yes));
}

/* -- a request of one kind ------------------------------------------------------------------------
 */

static void set_long(char **field, size_t n)
{
    char *text = malloc(n + 1);
    if (!text)
        abort();
    memset(text, 'x', n);
    text[n] = '\0';
    if (!message_set(field, text))
        abort();
    free(text);
}

void sim_odd_config(pb_config *config)
{
    switch (sim_below(10)) {
    case 0:
        config->has_idle_after_ms = 1;
        config->idle_after_ms = 1 + (uint32_t)sim_below(999);
        break;
    case 1:
        if (!message_set(&config->idle_action, "park"))
            abort();
        break;
    case 2:
        config->has_max_batch_tokens = config->max_batch_tokens = 1;
        break;
    case 3:
        config->has_max_total_tokens = config->max_total_tokens = 1;
        break;
    case 4:
        config->has_kv_bytes = config->has_kv_tokens = 1;
        config->kv_bytes = config->kv_tokens = 4096;
        break;
    case 5:
        config->has_max_draft_tokens = 1;
        config->max_draft_tokens = 17;
        break;
    case 6:
        set_long(&config->draft_model, 5000);
        break;
    case 7:
        set_long(&config->cpus, 5000);
        break;
    case 8:
        set_long(&config->chat_template, (1 << 20) + 1);
        break;
    default:
        config->has_context_length = 1;
        config->context_length = 8192; /* the model's trained context has 4096 tokens */
    }
}

static void add_label(Sluice__Manager__V1__RegisterModelVersionRequest *registration, size_t n_key)
{
    typedef Sluice__Manager__V1__RegisterModelVersionRequest__LabelsEntry entry;
    entry *label = MESSAGE_NEW(
        entry, sluice__manager__v1__register_model_version_request__labels_entry__descriptor);
    if (!label || !message_append(&registration->n_labels, &registration->labels, label))
        abort();
    set_long(&label->key, n_key);
    set_long(&label->value, 3);
}

/* Sets fields of a registration that are odd, or valid and rarely used. */
void sim_odd_registration(Sluice__Manager__V1__RegisterModelVersionRequest *registration)
{
    static const char *const digests[] = {
        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210", "no digest"};
    switch (sim_below(6)) {
    case 0:
        set_long(&registration->path, 5000);
        break;
    case 1:
        for (size_t n = 1 + sim_below(3) * 40; n > 0; n--)
            add_label(registration, 1 + sim_below(9));
        break;
    case 2:
        add_label(registration, sim_below(2) * 1000);
        break;
    case 3:
        registration->config =
            MESSAGE_NEW(pb_config, sluice__manager__v1__model_config__descriptor);
        if (!registration->config)
            abort();
        sim_odd_config(registration->config);
        break;
    case 4:
        message_clear(&registration->version);
        break;
    default:
        if (!message_set(&registration->expected_digest, digests[sim_below(3)]))
            abort();
    }
}

void sim_odd_steps(Sluice__Manager__V1__UpdateModelVersionRequest *update)
{
    static const uint32_t odd[] = {50, 20, 101, 60};
    size_t n = sim_chance(20) ? 200 : 1 + sim_below(3);
    update->steps = calloc(n, sizeof(*update->steps));
    if (!update->steps)
        abort();
    for (size_t i = 0; i < n; i++)
        update->steps[i] = odd[(sim.history_seed + i) % 4];
    update->n_steps = n;
}

size_t sim_odd_devices(const char *out[2])
{
    static const char *const odd[][2] = {
        {"cpu:0-1", NULL},  {"cuda:0,1", NULL}, {"cpu:1-0", NULL},    {"cpu:0", "cuda:0"},
        {"cpu:0", "cpu:0"}, {"GPU 0", NULL},    {"cuda:0;1", NULL},   {"cpu:", NULL},
        {"cpu:0-", NULL},   {"cuda:7", NULL},   {"cpu:0-9999", NULL}, {"0", NULL},
        {NULL, NULL}};
    const char *const *chosen = odd[sim_below(sizeof(odd) / sizeof(odd[0]))];
    size_t n = 0;
    for (; n < 2 && chosen[n]; n++)
        out[n] = chosen[n];
    return n;
}
