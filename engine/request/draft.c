#include "engine/request/draft.h"

#include <stdlib.h>
#include <string.h>

#include "engine/request/sequence.h"

/* Initial trust of prompt lookup, by length of the match. */
static const float first_trust[DRAFT_MAX_MATCH + 1] = {0,    0.1f,  0.25f, 0.45f, 0.6f,
                                                       0.7f, 0.75f, 0.8f,  0.85f};

/* Initial trust of a draft model's token, by its probability in eighths. Greedy sampling, and
 * sampling by temperature, where both models draw with the same random number. */
static const float first_trust_greedy[DRAFT_MAX_MATCH] = {0.3f, 0.4f, 0.5f, 0.6f,
                                                          0.7f, 0.8f, 0.9f, 0.95f};
static const float first_trust_drawn[DRAFT_MAX_MATCH] = {0.5f, 0.5f, 0.55f, 0.6f,
                                                         0.7f, 0.8f, 0.9f,  0.95f};
#define FIRST_HOPE 0.7f

/* weight of the old trust against one new observation */
enum { FIRST_WEIGHT = 2, MOST_WEIGHT = 8 };

bool draft_create(struct draft **out_draft)
{
    struct draft *d = calloc(1, sizeof(*d));
    if (!d)
        return false;
    for (uint32_t i = 0; i <= DRAFT_MAX_MATCH; i++)
        d->trust[i] = first_trust[i];
    *out_draft = d;
    return true;
}

bool draft_create_by_model(bool drawn, struct draft **out_draft)
{
    struct draft *d = calloc(1, sizeof(*d));
    if (!d)
        return false;
    d->by_model = true;
    d->model.hope = FIRST_HOPE;
    for (uint32_t i = 0; i < DRAFT_MAX_MATCH; i++)
        d->trust[i] = drawn ? first_trust_drawn[i] : first_trust_greedy[i];
    *out_draft = d;
    return true;
}

void draft_destroy(struct draft *d)
{
    free(d);
}

/* Entries of the index for each run length. */
static uint32_t places_for(uint32_t n_tokens)
{
    uint32_t n = 64;
    while (n < n_tokens && n < DRAFT_LARGEST_INDEX)
        n *= 2;
    return n;
}

uint32_t draft_index_len(uint32_t n_tokens)
{
    return DRAFT_LOOKUP * places_for(n_tokens);
}

/* The index entry of the n tokens before position `end`. Different runs may share an entry: readers
 * compare the tokens. */
static uint32_t *entry_of(const struct draft *d, const struct sequence *seq, uint32_t end,
                          uint32_t n)
{
    uint32_t h = 0;
    for (uint32_t i = 1; i <= n; i++)
        h = (h ^ sequence_token(seq, end - i)) * 2654435769u + (h >> 15);
    h ^= h >> 16;
    return d->index + (size_t)(n - 1) * (d->index_mask + 1) + (h & d->index_mask);
}

/* Records that the token at `position` follows the runs before it. */
static void record_position(struct draft *d, const struct sequence *seq, uint32_t position)
{
    for (uint32_t n = 1; n <= DRAFT_LOOKUP && n <= position; n++)
        *entry_of(d, seq, position, n) = position;
}

/* How many tokens before `position` equal those before `end`. position < end. */
static uint32_t match_before(const struct sequence *seq, uint32_t position, uint32_t end)
{
    uint32_t n = 0;
    while (n < DRAFT_MAX_MATCH && n < position &&
           sequence_token(seq, position - 1 - n) == sequence_token(seq, end - 1 - n))
        n++;
    return n;
}

/* Predicts the next token: finds an earlier place with the tokens before `end`. The longest run
 * wins, then the latest place. */
static void look_up(struct draft *d, const struct sequence *seq, uint32_t end)
{
    d->next = d->n_match = 0;
    for (uint32_t n = DRAFT_LOOKUP < end ? DRAFT_LOOKUP : end; n > 0; n--) {
        uint32_t position = *entry_of(d, seq, end, n);
        uint32_t n_match = position ? match_before(seq, position, end) : 0;
        if (n_match < n)
            continue;
        d->next = position;
        d->n_match = n_match;
        return;
    }
}

static void update_trust(struct draft *d, uint32_t i_trust, bool right)
{
    float *trust = &d->trust[i_trust];
    uint8_t *n_seen = &d->n_seen[i_trust];
    uint32_t weight = FIRST_WEIGHT + *n_seen;
    *trust += ((right ? 1.0f : 0.0f) - *trust) / (float)(weight + 1);
    *n_seen = (uint8_t)(*n_seen + (weight + 1 < MOST_WEIGHT));
}

/* Learns if the prediction of the token at `newest` was right, records the token, and predicts the
 * next one. */
static void learn_token(struct draft *d, const struct sequence *seq, uint32_t newest)
{
    bool right = d->next && sequence_token(seq, d->next) == sequence_token(seq, newest);
    if (d->next && newest >= d->n_learned)
        update_trust(d, d->n_match, right);
    if (newest >= d->n_learned)
        d->n_learned = newest + 1;
    record_position(d, seq, newest);
    /* A long match is continued. For a short match, a better one may exist now. */
    if (right && d->n_match >= DRAFT_LOOKUP) {
        d->next++;
        d->n_match += d->n_match < DRAFT_MAX_MATCH;
        return;
    }
    look_up(d, seq, newest + 1);
}

void draft_take_place(struct draft *d, const struct sequence *seq, uint32_t *index,
                      uint32_t n_tokens)
{
    uint32_t n_prompt = seq->request->n_prompt, n_wanted = n_prompt + seq->max_ids;
    if (d->by_model)
        return;
    n_wanted = n_wanted < n_tokens ? n_wanted : n_tokens;
    d->index_mask = places_for(n_wanted) - 1;
    d->index = index;
    memset(index, 0, draft_index_len(n_wanted) * sizeof(*index));
    for (uint32_t i = 1; i < n_prompt; i++)
        record_position(d, seq, i);
    look_up(d, seq, n_prompt);
    for (uint32_t i = n_prompt; i < sequence_n_tokens(seq); i++)
        learn_token(d, seq, i);
}

void draft_leave_place(struct draft *d)
{
    d->index = NULL;
    d->next = d->n_match = 0;
}

/* Verifies the next draft of the draft model. Drafts behind a wrong one teach nothing and are
 * skipped. */
static void check_models_token(struct draft *d, uint32_t id)
{
    struct draft_by_model *m = &d->model;
    if (m->n_checked >= d->n_ids)
        return;
    bool right = d->ids[m->n_checked] == id;
    update_trust(d, m->i_trust[m->n_checked], right);
    m->n_checked = right ? m->n_checked + 1 : d->n_ids;
}

void draft_cut(struct draft *d, uint32_t n)
{
    if (!d)
        return;
    if (n < d->model.n_told + d->model.n_ahead)
        d->model.n_ahead = 0;
    if (n < d->model.n_written)
        d->model.n_written = n;
    if (n < d->model.n_marked)
        d->model.n_marked = n;
}

void draft_take_token(struct draft *d, const struct sequence *seq)
{
    uint32_t newest = sequence_n_tokens(seq) - 1;
    if (d->by_model) {
        check_models_token(d, sequence_token(seq, newest));
    } else if (d->index) {
        learn_token(d, seq, newest);
    }
}

uint32_t draft_propose(struct draft *d, const struct sequence *seq, uint32_t n_most,
                       float min_chance)
{
    uint32_t end = sequence_n_tokens(seq), n = 0;
    float chance = 1.0f;
    d->n_ids = 0;
    if (!d->next)
        return 0;
    n_most = n_most < DRAFT_MAX_TOKENS ? n_most : DRAFT_MAX_TOKENS;
    while (n < n_most) {
        uint32_t n_match = d->n_match + n, at = d->next + n;
        chance *= d->trust[n_match < DRAFT_MAX_MATCH ? n_match : DRAFT_MAX_MATCH];
        if (chance < min_chance)
            break;
        /* A match that reaches the end continues with its own drafts. */
        d->ids[n++] = at < end ? sequence_token(seq, at) : d->ids[at - end];
        if (request_is_stop_id(seq->request, d->ids[n - 1]))
            break;
    }
    d->n_ids = n;
    return n;
}
