#include "clients/cli/bench/bench_prompts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/error.h"
#include "base/utf8.h"
#include "clients/cli/bench/bench_random.h"

enum { MAX_LINES = 1 << 20, MAX_LINE_BYTES = 4 << 20 };

struct line {
    char *text;          /* owned */
    uint32_t max_tokens; /* 0: random */
};

struct bench_prompts {
    struct bench_prompts_config config;
    struct line *lines; /* owned */
    uint64_t n_lines, capacity;
};

static int out_of_memory(struct error *err)
{
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for the prompts");
}

/* Appends a line. Takes ownership of the text, also on failure. */
static int add_line(struct bench_prompts *p, char *text, uint32_t max_tokens, struct error *err)
{
    if (text && p->n_lines == p->capacity) {
        uint64_t capacity = p->capacity ? 2 * p->capacity : 64;
        struct line *grown = realloc(p->lines, capacity * sizeof(*grown));
        if (!grown) {
            free(text);
            return out_of_memory(err);
        }
        p->lines = grown;
        p->capacity = capacity;
    }
    if (!text)
        return out_of_memory(err);
    p->lines[p->n_lines++] = (struct line){text, max_tokens};
    return 0;
}

/* Parses {"prompt": TEXT, "max_tokens": N}. max_tokens may be absent; other keys are ignored. */
static int parse_object(struct bench_prompts *p, const char *line, size_t n, uint64_t number,
                        struct error *err)
{
    const char *path = p->config.path;
    json_error_t why;
    json_t *object = json_loadb(line, n, 0, &why);
    const json_t *text = object ? json_object_get(object, "prompt") : NULL;
    const json_t *max = object ? json_object_get(object, "max_tokens") : NULL;
    int rc;
    if (!object)
        rc = error_set(err, STATUS_INVALID_ARGUMENT,
                       "--prompts: %s: line %" PRIu64 ": is no JSON object: %.80s", path, number,
                       why.text);
    else if (!json_is_string(text) || !json_string_length(text))
        rc = error_set(err, STATUS_INVALID_ARGUMENT,
                       "--prompts: %s: line %" PRIu64 ": \"prompt\" is no text", path, number);
    else if (max && (!json_is_integer(max) || json_integer_value(max) < 1 ||
                     json_integer_value(max) > INT32_MAX))
        rc = error_set(err, STATUS_INVALID_ARGUMENT,
                       "--prompts: %s: line %" PRIu64
                       ": \"max_tokens\" is no whole number from 1 to %d",
                       path, number, INT32_MAX);
    else
        rc = add_line(p, strdup(json_string_value(text)),
                      max ? (uint32_t)json_integer_value(max) : 0, err);
    json_decref(object);
    return rc;
}

static int parse_line(struct bench_prompts *p, bool json, const char *line, size_t n,
                      uint64_t number, struct error *err)
{
    size_t offset;
    const char *why = NULL;
    if (n > MAX_LINE_BYTES)
        why = "is longer than 4 MiB";
    else if (memchr(line, '\0', n))
        why = "has a NUL byte";
    else if (!utf8_valid(line, n, &offset))
        why = "is not UTF-8";
    else if (p->n_lines == MAX_LINES)
        why = "is beyond the limit of 1048576 prompts";
    if (why)
        return error_set(err, STATUS_INVALID_ARGUMENT, "--prompts: %s: line %" PRIu64 ": %s",
                         p->config.path, number, why);
    return json ? parse_object(p, line, n, number, err) : add_line(p, strndup(line, n), 0, err);
}

static int read_file(struct bench_prompts *p, struct error *err)
{
    const char *path = p->config.path;
    size_t n_path = strlen(path), capacity = 0;
    bool json = n_path > 6 && strcmp(path + n_path - 6, ".jsonl") == 0;
    char *line = NULL;
    ssize_t n;
    FILE *file = fopen(path, "re");
    int rc = file ? 0 : error_errno(err, errno, "--prompts: %s", path);
    errno = 0;
    for (uint64_t number = 1; !rc && (n = getline(&line, &capacity, file)) >= 0; number++) {
        while (n && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            n--;
        if (n)
            rc = parse_line(p, json, line, (size_t)n, number, err);
    }
    if (!rc && ferror(file))
        rc = error_errno(err, errno, "--prompts: %s", path);
    if (!rc && !p->n_lines)
        rc = error_set(err, STATUS_INVALID_ARGUMENT, "--prompts: %s: the file has no prompt", path);
    free(line);
    if (file)
        fclose(file);
    return rc;
}

int bench_prompts_create(const struct bench_prompts_config *config,
                         struct bench_prompts **out_prompts, struct error *err)
{
    struct bench_prompts *p = calloc(1, sizeof(*p));
    if (!p)
        return out_of_memory(err);
    p->config = *config;
    int rc = config->path[0] ? read_file(p, err) : 0;
    if (rc)
        bench_prompts_destroy(p);
    else
        *out_prompts = p;
    return rc;
}

void bench_prompts_destroy(struct bench_prompts *prompts)
{
    if (!prompts)
        return;
    for (uint64_t i = 0; i < prompts->n_lines; i++)
        free(prompts->lines[i].text);
    free(prompts->lines);
    free(prompts);
}

uint64_t bench_prompts_n_lines(const struct bench_prompts *prompts)
{
    return prompts->n_lines;
}

/* Picks a token id from the middle of the vocabulary, because special tokens are at both ends. */
static uint32_t draw_id(const struct bench_prompts *p, struct bench_random *random)
{
    uint32_t skip = p->config.vocab_size / 8;
    return (uint32_t)bench_random_between(random, skip, p->config.vocab_size - 1 - skip);
}

void bench_prompts_get(const struct bench_prompts *p, uint64_t index, uint32_t *room,
                       struct bench_prompt *out_prompt)
{
    const struct bench_prompts_config *c = &p->config;
    struct bench_random random, shared;
    bench_random_init(&random, c->seed, index + 1);
    bench_random_init(&shared, c->seed, 0);
    uint64_t n = bench_random_between(&random, c->n_tokens.min, c->n_tokens.max);
    uint64_t max = bench_random_between(&random, c->max_tokens.min, c->max_tokens.max);
    *out_prompt = (struct bench_prompt){.max_tokens = (uint32_t)max};
    if (p->n_lines) {
        const struct line *line = &p->lines[index % p->n_lines];
        out_prompt->text = line->text;
        if (line->max_tokens)
            out_prompt->max_tokens = line->max_tokens;
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        room[i] = draw_id(p, i < c->n_shared ? &shared : &random);
    out_prompt->ids = room;
    out_prompt->n_ids = (uint32_t)n;
}
