#include "engine/text/source/spm_model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "engine/text/facts/text_facts.h"

/* --- the wire format of protocol buffers --- */

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

/* A message, and the field that was read last. */
struct message {
    const char *bytes;
    size_t n_bytes, at;
    size_t base; /* offset of the message in the file */
    uint32_t field, wire;
    uint64_t number;   /* varint and fixed types */
    const char *value; /* WIRE_BYTES */
    size_t n_value;
};

static bool read_varint(struct message *m, uint64_t *out)
{
    uint64_t value = 0;
    for (uint32_t shift = 0; shift < 64 && m->at < m->n_bytes; shift += 7) {
        unsigned char byte = (unsigned char)m->bytes[m->at++];
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80)) {
            *out = value;
            return true;
        }
    }
    return false;
}

static bool read_fixed(struct message *m, size_t n)
{
    m->number = 0;
    if (m->n_bytes - m->at < n)
        return false;
    for (size_t i = 0; i < n; i++)
        m->number |= (uint64_t)(unsigned char)m->bytes[m->at + i] << (8 * i);
    m->at += n;
    return true;
}

/* Reads the next field. Returns false for bytes that are no field. */
static bool read_field(struct message *m)
{
    uint64_t key, n;
    if (!read_varint(m, &key) || !(key >> 3) || key >> 3 > (1U << 29) - 1)
        return false;
    m->field = (uint32_t)(key >> 3);
    m->wire = (uint32_t)(key & 7);
    switch (m->wire) {
    case WIRE_VARINT:
        return read_varint(m, &m->number);
    case WIRE_FIXED64:
        return read_fixed(m, 8);
    case WIRE_FIXED32:
        return read_fixed(m, 4);
    case WIRE_BYTES:
        if (!read_varint(m, &n) || n > m->n_bytes - m->at)
            return false;
        m->value = m->bytes + m->at;
        m->n_value = (size_t)n;
        m->at += (size_t)n;
        return true;
    default:
        return false;
    }
}

static struct message inner(const struct message *m)
{
    return (struct message){
        .bytes = m->value, .n_bytes = m->n_value, .base = m->base + (size_t)(m->value - m->bytes)};
}

static int bad_bytes(const struct text_facts *facts, const struct message *m, const char *what,
                     struct error *err)
{
    char part[48];
    snprintf(part, sizeof(part), "offset %zu", m->base + m->at);
    return text_facts_bad(facts, part, err, "%s is damaged or of another format", what);
}

/* --- the model --- */

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_UNUSED, TYPE_BYTE };

static int read_piece(struct text_facts *facts, struct message m, struct error *err)
{
    struct text_token *t = &facts->tokens[facts->n_tokens];
    uint64_t type = TYPE_NORMAL;
    float score = 0;
    t->text = "";
    while (m.at < m.n_bytes) {
        if (!read_field(&m))
            return bad_bytes(facts, &m, "a piece", err);
        if (m.field == 1 && m.wire == WIRE_BYTES) {
            t->text = m.value;
            t->n_text = m.n_value < UINT32_MAX ? (uint32_t)m.n_value : UINT32_MAX;
        } else if (m.field == 2 && m.wire == WIRE_FIXED32) {
            uint32_t bits = (uint32_t)m.number;
            memcpy(&score, &bits, sizeof(score));
        } else if (m.field == 3 && m.wire == WIRE_VARINT) {
            type = m.number;
        }
    }
    static const uint8_t kinds[] = {
        [TYPE_NORMAL] = TOKEN_NORMAL,   [TYPE_UNKNOWN] = TOKEN_CONTROL,
        [TYPE_CONTROL] = TOKEN_CONTROL, [TYPE_USER_DEFINED] = TOKEN_USER_DEFINED,
        [TYPE_UNUSED] = TOKEN_UNUSED,   [TYPE_BYTE] = TOKEN_NORMAL};
    if (type < TYPE_NORMAL || type > TYPE_BYTE || !isfinite(score) ||
        !utf8_valid(t->text, t->n_text, NULL))
        return bad_bytes(facts, &m, "a piece", err);
    t->kind = kinds[type];
    t->flags = type == TYPE_BYTE ? TOKEN_IS_BYTE : type == TYPE_USER_DEFINED ? TOKEN_NORMALIZED : 0;
    t->score = score;
    if (type == TYPE_UNKNOWN)
        facts->unknown_id = (int32_t)facts->n_tokens;
    facts->n_tokens++;
    return 0;
}

struct specs {
    uint64_t model_type;
    bool byte_fallback, space_after, add_prefix, squeeze, escape;
    int64_t bos_id, eos_id, pad_id;
    bool has_rules; /* the normalizer has rules */
};

static int read_trainer(const struct text_facts *facts, struct message m, struct specs *specs,
                        struct error *err)
{
    while (m.at < m.n_bytes) {
        if (!read_field(&m))
            return bad_bytes(facts, &m, "the trainer's specification", err);
        if (m.wire != WIRE_VARINT)
            continue;
        switch (m.field) {
        case 3:
            specs->model_type = m.number;
            break;
        case 24:
            specs->space_after = m.number != 0;
            break;
        case 35:
            specs->byte_fallback = m.number != 0;
            break;
        case 41:
            specs->bos_id = (int32_t)m.number;
            break;
        case 42:
            specs->eos_id = (int32_t)m.number;
            break;
        case 43:
            specs->pad_id = (int32_t)m.number;
            break;
        default:
            break;
        }
    }
    return 0;
}

static int read_normalizer(const struct text_facts *facts, struct message m, struct specs *specs,
                           struct error *err)
{
    while (m.at < m.n_bytes) {
        if (!read_field(&m))
            return bad_bytes(facts, &m, "the normalizer's specification", err);
        if (m.field == 2 && m.wire == WIRE_BYTES)
            specs->has_rules = m.n_value > 0;
        else if (m.field == 3 && m.wire == WIRE_VARINT)
            specs->add_prefix = m.number != 0;
        else if (m.field == 4 && m.wire == WIRE_VARINT)
            specs->squeeze = m.number != 0;
        else if (m.field == 5 && m.wire == WIRE_VARINT)
            specs->escape = m.number != 0;
    }
    return 0;
}

static int read_model(struct text_facts *facts, struct message *m, struct specs *specs,
                      struct error *err)
{
    int rc = 0;
    while (m->at < m->n_bytes && !rc) {
        if (!read_field(m))
            return bad_bytes(facts, m, "the model", err);
        if (m->wire != WIRE_BYTES)
            continue;
        if (m->field == 1)
            rc = read_piece(facts, inner(m), err);
        else if (m->field == 2)
            rc = read_trainer(facts, inner(m), specs, err);
        else if (m->field == 3)
            rc = read_normalizer(facts, inner(m), specs, err);
    }
    return rc;
}

/* Counts the pieces, so that the array is allocated once. */
static int count_pieces(const struct text_facts *facts, struct message m, uint64_t *out_n,
                        struct error *err)
{
    uint64_t n = 0;
    while (m.at < m.n_bytes) {
        if (!read_field(&m))
            return bad_bytes(facts, &m, "the model", err);
        n += m.field == 1 && m.wire == WIRE_BYTES;
    }
    if (n < 1 || n > TOKENIZER_MAX_VOCAB)
        return text_facts_bad(facts, "pieces", err, "%" PRIu64 " pieces, expected 1 to %d", n,
                              TOKENIZER_MAX_VOCAB);
    *out_n = n;
    return 0;
}

static int check_specs(const struct text_facts *facts, const struct specs *specs, struct error *err)
{
    static const char *const types[] = {"", "Unigram", "BPE", "Word", "Char"};
    if (specs->model_type != 2)
        return text_facts_unbuilt(facts, "trainer_spec.model_type", err,
                                  "%s is not built, only BPE is; use a model with BPE",
                                  specs->model_type < 5 ? types[specs->model_type] : "the type");
    if (specs->has_rules)
        return text_facts_unbuilt(facts, "normalizer_spec.precompiled_charsmap", err,
                                  "rules of normalization are not built; use a model without");
    if (specs->space_after || !specs->escape)
        return text_facts_unbuilt(facts,
                                  specs->escape ? "trainer_spec.treat_whitespace_as_suffix"
                                                : "normalizer_spec.escape_whitespaces",
                                  err, "this setting is not built; use a model without");
    return 0;
}

static int32_t checked_id(const struct text_facts *facts, int64_t id)
{
    return id >= 0 && id < facts->n_tokens ? (int32_t)id : TOKENIZER_NO_ID;
}

bool spm_model_is(const char *bytes, size_t n_bytes)
{
    struct message m = {.bytes = bytes, .n_bytes = n_bytes};
    if (!read_field(&m) || m.field != 1 || m.wire != WIRE_BYTES)
        return false;
    struct message piece = inner(&m);
    return read_field(&piece) && piece.field == 1 && piece.wire == WIRE_BYTES;
}

int spm_model_read(const char *bytes, size_t n_bytes, struct text_facts *facts, struct error *err)
{
    struct message m = {.bytes = bytes, .n_bytes = n_bytes};
    struct specs specs = {.model_type = 1,
                          .add_prefix = true,
                          .squeeze = true,
                          .escape = true,
                          .bos_id = 1,
                          .eos_id = 2,
                          .pad_id = -1};
    uint64_t n = 0;
    int rc = count_pieces(facts, m, &n, err);
    if (rc)
        return rc;
    facts->tokens = arena_calloc(&facts->arena, n, sizeof(*facts->tokens));
    if (!facts->tokens)
        return text_facts_no_memory(err);
    facts->model = "sentencepiece";
    facts->tokens_key = "pieces";
    rc = read_model(facts, &m, &specs, err);
    if (!rc)
        rc = check_specs(facts, &specs, err);
    if (rc)
        return rc;
    facts->order = TEXT_MERGES_SCORED;
    facts->spelling = TEXT_SPELLS_MARKS;
    facts->by_characters = facts->fuse_unknown = true;
    facts->byte_fallback = specs.byte_fallback;
    facts->strips_space = specs.add_prefix;
    facts->bos_id = checked_id(facts, specs.bos_id);
    facts->eos_id = checked_id(facts, specs.eos_id);
    facts->padding_id = checked_id(facts, specs.pad_id);
    facts->add_bos = facts->bos_id != TOKENIZER_NO_ID;
    text_facts_add_end(facts, facts->eos_id);
    return text_facts_add_marks(facts, specs.add_prefix, specs.squeeze, err);
}
