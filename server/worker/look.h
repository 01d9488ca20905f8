/* look.h: reads a model file's header and vocabulary on a thread of its own, while the process
 * makes its server: neither needs the other, and who wakes a parked version waits for both. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct checkpoint;
struct settings;
struct tokenizer;

struct look {
    const struct settings *settings;
    pthread_t thread;
    bool runs;
    int64_t start_ns; /* when it began */
    struct checkpoint *ckpt;
    struct tokenizer *tokenizer;
    int ckpt_rc, tokenizer_rc;
    struct error ckpt_error, tokenizer_error;
};

/* Begins to read settings->model, which it borrows until look_end(). Where there is no thread for
 * it the file is read before this returns. */
void look_begin(struct look *look, const struct settings *settings);

/* Waits for the reading to end. The status of what came of the file, *err its error: it cannot be
 * read, is no model, or is another than the one that is pinned (facts_check_digest()). look->ckpt
 * is there where this is 0; whether look->tokenizer is, tokenizer_rc says. */
int look_wait(struct look *look, struct error *err);

/* Waits if need be and closes what nobody took: whoever takes the tokenizer sets it to NULL. */
void look_end(struct look *look);
