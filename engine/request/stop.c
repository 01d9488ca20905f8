#include "engine/request/stop.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

struct stop_string {
    char *text;
    uint32_t n_bytes;
    uint16_t *fail; /* Knuth–Morris–Pratt: longest proper border of text[0..i] */
};

struct stop_set {
    struct stop_string strings[STOP_MAX_STRINGS];
    uint32_t n;
    bool include_stop;
};

/* Text that may begin a stop string is held until it matches or cannot match any more. */
struct stop_matcher {
    const struct stop_set *set;
    uint16_t state[STOP_MAX_STRINGS]; /* bytes of each string matched so far */
    char *held; /* text not yet released, behind n_out bytes of the last call */
    size_t n_held, capacity, n_out;
    struct stop_unit *units; /* the first n_units_out were given out by the last call */
    size_t n_units, n_units_out, units_capacity;
    bool ended;
};

static void set_fail_table(struct stop_string *s)
{
    uint16_t k = 0;
    s->fail[0] = 0;
    for (uint32_t i = 1; i < s->n_bytes; i++) {
        while (k && s->text[i] != s->text[k])
            k = s->fail[k - 1];
        if (s->text[i] == s->text[k])
            k++;
        s->fail[i] = k;
    }
}

int stop_set_create(const char *const *strings, uint32_t n, bool include_stop,
                    struct stop_set **out_set, struct error *err)
{
    struct stop_set *set = calloc(1, sizeof(*set));
    if (!set)
        goto no_memory;
    set->n = n < STOP_MAX_STRINGS ? n : STOP_MAX_STRINGS;
    set->include_stop = include_stop;
    for (uint32_t i = 0; i < set->n; i++) {
        struct stop_string *s = &set->strings[i];
        s->n_bytes = (uint32_t)strlen(strings[i]);
        s->text = strdup(strings[i]);
        s->fail = calloc(s->n_bytes ? s->n_bytes : 1, sizeof(*s->fail));
        if (!s->text || !s->fail)
            goto no_memory;
        set_fail_table(s);
    }
    *out_set = set;
    return 0;
no_memory:
    stop_set_destroy(set);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %u stop strings", n);
}

void stop_set_destroy(struct stop_set *set)
{
    if (!set)
        return;
    for (uint32_t i = 0; i < set->n; i++) {
        free(set->strings[i].text);
        free(set->strings[i].fail);
    }
    free(set);
}

const char *stop_set_string(const struct stop_set *set, uint32_t i)
{
    return set->strings[i].text;
}

int32_t stop_set_find(const struct stop_set *set, const char *bytes, size_t n_bytes)
{
    for (uint32_t i = 0; set && i < set->n; i++)
        if (set->strings[i].n_bytes == n_bytes && memcmp(set->strings[i].text, bytes, n_bytes) == 0)
            return (int32_t)i;
    return -1;
}

/* Held text is shorter than a stop string plus the text of one token. So the first allocation is
 * nearly always the last. */
enum { FIRST_HELD_BYTES = 2 * STOP_MAX_BYTES + 512, FIRST_UNITS = STOP_MAX_BYTES + 8 };

int stop_matcher_create(const struct stop_set *set, struct stop_matcher **out_matcher,
                        struct error *err)
{
    struct stop_matcher *m = calloc(1, sizeof(*m));
    if (!m)
        goto no_memory;
    m->set = set;
    m->capacity = FIRST_HELD_BYTES;
    m->units_capacity = FIRST_UNITS;
    m->held = malloc(m->capacity);
    m->units = malloc(m->units_capacity * sizeof(*m->units));
    if (!m->held || !m->units)
        goto no_memory;
    *out_matcher = m;
    return 0;
no_memory:
    stop_matcher_destroy(m);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a stop matcher");
}

void stop_matcher_destroy(struct stop_matcher *m)
{
    if (!m)
        return;
    free(m->held);
    free(m->units);
    free(m);
}

/* Removes from the buffers the text and units that the last call released. */
static void drop_released(struct stop_matcher *m)
{
    if (m->n_units_out) {
        m->n_units -= m->n_units_out;
        memmove(m->units, m->units + m->n_units_out, m->n_units * sizeof(*m->units));
        m->n_units_out = 0;
    }
    if (!m->n_out)
        return;
    memmove(m->held, m->held + m->n_out, m->n_held - m->n_out);
    m->n_held -= m->n_out;
    for (size_t i = 0; i < m->n_units; i++)
        m->units[i].end -= m->n_out;
    m->n_out = 0;
}

static bool append_text(struct stop_matcher *m, const char *text, size_t n_bytes, uint32_t n_ids)
{
    if (m->capacity - m->n_held < n_bytes) {
        size_t want = 2 * (m->n_held + n_bytes);
        char *held = realloc(m->held, want);
        if (!held)
            return false;
        m->held = held;
        m->capacity = want;
    }
    if (m->n_units == m->units_capacity) {
        struct stop_unit *units = realloc(m->units, 2 * m->units_capacity * sizeof(*units));
        if (!units)
            return false;
        m->units = units;
        m->units_capacity *= 2;
    }
    if (n_bytes)
        memcpy(m->held + m->n_held, text, n_bytes);
    m->n_held += n_bytes;
    if (!n_bytes && m->n_units)
        m->units[m->n_units - 1].n_ids += n_ids;
    else if (n_bytes || n_ids)
        m->units[m->n_units++] = (struct stop_unit){m->n_held, n_ids};
    return true;
}

/* Feeds the held bytes from `begin` on to the automata. Returns the stop string that ends first, or
 * -1. If several end together, the longest wins. *out_end: the byte behind it. */
static int32_t run_automata(struct stop_matcher *m, size_t begin, size_t *out_end)
{
    for (size_t at = begin; at < m->n_held; at++) {
        int32_t matched = -1;
        for (uint32_t i = 0; i < m->set->n; i++) {
            const struct stop_string *s = &m->set->strings[i];
            uint16_t k = m->state[i];
            while (k && m->held[at] != s->text[k])
                k = s->fail[k - 1];
            if (m->held[at] == s->text[k])
                k++;
            m->state[i] = k;
            if (k == s->n_bytes && (matched < 0 || s->n_bytes > m->set->strings[matched].n_bytes))
                matched = (int32_t)i;
        }
        if (matched >= 0) {
            *out_end = at + 1;
            return matched;
        }
    }
    return -1;
}

/* Gives out whole units up to `limit`. With `cut`: the text up to `limit`, and every id whose text
 * begins before it. */
static void release_units(struct stop_matcher *m, size_t limit, bool cut, struct stop_delta *out)
{
    size_t begin = 0, n = 0;
    while (n < m->n_units && (m->units[n].end <= limit || (cut && begin < limit))) {
        begin = m->units[n].end;
        out->n_released += m->units[n].n_ids;
        n++;
    }
    m->n_units_out = n;
    m->n_out = cut ? limit : begin;
    if (cut && n)
        m->units[n - 1].end = limit;
    out->text = m->held;
    out->n_bytes = m->n_out;
    out->units = m->units;
    out->n_units = n;
}

/* Feeds the held bytes from `begin` on to the automata. Releases text that can no longer belong to
 * a stop string. If a stop string matches, releases the text before it (with include_stop also the
 * string) and ends the matcher. */
static void feed_automata(struct stop_matcher *m, size_t begin, bool armed, struct stop_delta *out)
{
    size_t hold = 0, end = 0;
    if (armed) {
        out->i_matched = run_automata(m, begin, &end);
        for (uint32_t i = 0; i < m->set->n; i++)
            hold = m->state[i] > hold ? m->state[i] : hold;
    }
    if (out->i_matched < 0) {
        release_units(m, m->n_held - hold, false, out);
        return;
    }
    size_t length = m->set->strings[out->i_matched].n_bytes;
    release_units(m, m->set->include_stop ? end : end - length, true, out);
    m->ended = true;
    m->n_units = m->n_units_out;
    m->n_held = m->n_out;
}

int stop_matcher_push(struct stop_matcher *m, const char *text, size_t n_bytes, uint32_t n_ids,
                      bool armed, struct stop_delta *out_delta, struct error *err)
{
    struct stop_delta delta = {.text = m->held, .i_matched = -1};
    drop_released(m);
    if (m->ended) {
        *out_delta = delta;
        return 0;
    }
    size_t begin = m->n_held;
    if (!append_text(m, text, n_bytes, n_ids))
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %zu bytes of held text",
                         m->n_held + n_bytes);
    delta.text = m->held;
    feed_automata(m, begin, armed, &delta);
    *out_delta = delta;
    return 0;
}

void stop_matcher_replace(struct stop_matcher *m, const struct stop_set *set, bool armed,
                          struct stop_delta *out_delta)
{
    struct stop_delta delta = {.text = m->held, .i_matched = -1};
    drop_released(m);
    m->set = set;
    memset(m->state, 0, sizeof(m->state));
    if (!m->ended)
        feed_automata(m, 0, armed, &delta);
    *out_delta = delta;
}

void stop_matcher_flush(struct stop_matcher *m, struct stop_delta *out_delta)
{
    struct stop_delta delta = {.text = m->held, .i_matched = -1};
    drop_released(m);
    if (!m->ended)
        release_units(m, m->n_held, false, &delta);
    m->ended = true;
    *out_delta = delta;
}
