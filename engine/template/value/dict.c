#include "engine/template/value/dict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash_map.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/limits.h"
#include "engine/template/value/list.h"
#include "engine/template/value/text.h"
#include "engine/template/value/unicode.h"
#include "engine/template/value/value.h"

enum { SMALL_DICT = 8 }; /* dicts up to this size are searched linearly, without slots */

struct dict *dict_new(struct interp *in)
{
    return interp_alloc(in, 1, sizeof(struct dict));
}

/* Equal values have equal hashes: 1, 1.0 and true are the same key. Returns false if unhashable. */
static bool hash_value(struct interp *in, struct value v, uint64_t *hash, unsigned depth)
{
    if (value_is_integral(v) ||
        (v.type == VALUE_FLOAT && floor(v.u.real) == v.u.real && fabs(v.u.real) < 9e18)) {
        int64_t i = v.type == VALUE_FLOAT ? (int64_t)v.u.real : value_integer(v);
        *hash = hash_bytes(&i, sizeof(i), *hash);
    } else if (v.type == VALUE_FLOAT) {
        *hash = hash_bytes(&v.u.real, sizeof(v.u.real), *hash);
    } else if (v.type == VALUE_BIG) { /* the hash of the double that may be equal */
        double x = strtod(v.u.text->data, NULL);
        *hash = hash_bytes(&x, sizeof(x), *hash);
    } else if (v.type == VALUE_STRING) {
        if (interp_step(in, v.u.text->n_bytes / 64))
            *hash = hash_bytes(v.u.text->data, v.u.text->n_bytes, *hash);
    } else if (v.type == VALUE_TUPLE && depth < CHAT_TEMPLATE_MAX_DEPTH) {
        for (size_t i = 0; i < v.u.list->n; i++)
            if (!interp_step(in, 1) || !hash_value(in, v.u.list->items[i], hash, depth + 1))
                return false;
    } else if (v.type == VALUE_NONE || value_is_undefined(v)) {
        *hash = hash_bytes(&v.type, 1, *hash);
    } else {
        return false;
    }
    return true;
}

/* Slot that holds `key`, or the empty slot where `key` belongs. */
static size_t find_slot(struct interp *in, const struct dict *dict, struct value key, uint64_t hash)
{
    size_t mask = dict->n_slots - 1, i = hash & mask;
    while (dict->slots[i] && interp_step(in, 1) &&
           !value_equal(in, dict->entries[dict->slots[i] - 1].key, key))
        i = (i + 1) & mask;
    return i;
}

static struct dict_entry *find_entry(struct interp *in, const struct dict *dict, struct value key,
                                     uint64_t hash)
{
    if (dict->n_slots) {
        uint32_t i = dict->slots[find_slot(in, dict, key, hash)];
        return i && interp_ok(in) ? &dict->entries[i - 1] : NULL;
    }
    for (size_t i = 0; i < dict->n; i++)
        if (value_equal(in, dict->entries[i].key, key))
            return &dict->entries[i];
    return NULL;
}

static bool dict_grow(struct interp *in, struct dict *dict)
{
    size_t capacity = dict->capacity ? dict->capacity * 2 : SMALL_DICT;
    struct dict_entry *entries = interp_alloc(in, capacity, sizeof(*entries));
    if (!entries)
        return false;
    if (dict->entries)
        memcpy(entries, dict->entries, dict->n * sizeof(*entries));
    dict->entries = entries;
    dict->capacity = capacity;
    if (capacity <= SMALL_DICT)
        return true;
    dict->n_slots = 0;
    dict->slots = interp_alloc(in, capacity * 2, sizeof(*dict->slots));
    if (!dict->slots)
        return false;
    dict->n_slots = capacity * 2;
    for (size_t i = 0; i < dict->n && interp_ok(in); i++) {
        uint64_t hash = 0;
        hash_value(in, entries[i].key, &hash, 0);
        dict->slots[find_slot(in, dict, entries[i].key, hash)] = (uint32_t)i + 1;
    }
    return interp_ok(in);
}

bool dict_set(struct interp *in, struct dict *dict, struct value key, struct value item)
{
    uint64_t hash = 0;
    if (!dict || !interp_step(in, 1))
        return false;
    if (!hash_value(in, key, &hash, 0)) {
        interp_fail(in, "unhashable type: '%s' as a dict key", value_type_name(key));
        return false;
    }
    struct dict_entry *entry = find_entry(in, dict, key, hash);
    if (entry) {
        entry->value = item;
        return interp_ok(in);
    }
    bool has_room = dict->entries && dict->n < dict->capacity;
    if (!interp_ok(in) || (!has_room && !dict_grow(in, dict)))
        return false;
    dict->entries[dict->n] = (struct dict_entry){key, item};
    dict->n++;
    if (dict->n_slots)
        dict->slots[find_slot(in, dict, key, hash)] = (uint32_t)dict->n;
    return interp_ok(in);
}

bool dict_set_str(struct interp *in, struct dict *dict, const char *key, struct value item)
{
    struct value text = text_from_str(in, key);
    return interp_ok(in) && dict_set(in, dict, text, item);
}

const struct value *dict_get(struct interp *in, const struct dict *dict, struct value key,
                             bool *out_unhashable)
{
    uint64_t hash = 0;
    bool hashable = hash_value(in, key, &hash, 0);
    if (out_unhashable)
        *out_unhashable = !hashable;
    const struct dict_entry *entry = hashable ? find_entry(in, dict, key, hash) : NULL;
    return entry ? &entry->value : NULL;
}

const struct value *dict_get_str(struct interp *in, const struct dict *dict, const char *key)
{
    size_t n_bytes = strlen(key);
    struct text text = {key, n_bytes, unicode_count(key, n_bytes), NULL};
    return dict_get(in, dict, value_text(&text), NULL);
}
