/* model_reader.h: reads a model file's header and vocabulary on a thread of its own, while the
 * process makes its server: neither needs the other, and who starts a version waits for both. One
 * that is parked reads them too, and has them when it is woken. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct checkpoint;
struct settings;
struct tokenizer;

struct model_reader {
    const struct settings *settings;
    pthread_t thread;
    bool runs;
    int ended_fd;     /* an eventfd, while it runs; -1: none */
    int64_t start_ns; /* when it began, or was renewed */
    struct checkpoint *ckpt;
    struct tokenizer *tokenizer;
    int ckpt_rc, tokenizer_rc;
    struct error ckpt_error, tokenizer_error;
};

/* Begins to read settings->model, which it borrows until model_reader_end(). Where there is no
 * thread for it the file is read before this returns. */
void model_reader_begin(struct model_reader *reader, const struct settings *settings);

/* Waits for the reading to end. The status of what came of the file, *err its error: it cannot be
 * read, is no model, or is another than the one that is pinned (facts_check_digest()). reader->ckpt
 * is there where this is 0; whether reader->tokenizer is, tokenizer_rc says. */
int model_reader_wait(struct model_reader *reader, struct error *err);

/* Waits so long at most for the reading to end: whether it has. */
bool model_reader_wait_ms(struct model_reader *reader, uint32_t ms);

/* Waits if need be, and reads the file again unless what was read is what `settings` ask for and
 * the file is as it was: who was parked meanwhile goes on with what it has. From here on settings
 * are borrowed in place of those given to model_reader_begin(). */
void model_reader_renew(struct model_reader *reader, const struct settings *settings);

/* Waits if need be and closes what nobody took: whoever takes the tokenizer sets it to NULL. */
void model_reader_end(struct model_reader *reader);
