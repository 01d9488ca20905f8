/* model_reader.h: reads a model file's header and vocabulary on its own thread while the process
 * creates its server. A start takes the longer of the two times. A parked process reads them,
 * too, and has them ready for its wake. Main thread. */
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
    int ended_fd;     /* eventfd that the thread signals at its end; -1: none */
    int64_t start_ns; /* time of the last begin or renew */
    struct checkpoint *ckpt;
    struct tokenizer *tokenizer;
    int ckpt_rc, tokenizer_rc;
    struct error ckpt_error, tokenizer_error;
};

/* Starts to read settings->model; `settings` are borrowed until model_reader_end(). If no thread
 * can be started, the file is read before the return. */
void model_reader_begin(struct model_reader *reader, const struct settings *settings);

/* Waits for the thread and returns the file's status: unreadable, not a model, or not the pinned
 * file (facts_check_digest()). 0: reader->ckpt is open, and tokenizer_rc is the status of
 * reader->tokenizer. */
int model_reader_wait(struct model_reader *reader, struct error *err);

/* Waits at most `ms` for the thread. True if the thread has finished. */
bool model_reader_wait_ms(struct model_reader *reader, uint32_t ms);

/* Waits for the thread. Reads the file again if `settings` name another model, or the file has
 * changed. From now on these settings are borrowed in place of the earlier ones. */
void model_reader_renew(struct model_reader *reader, const struct settings *settings);

/* Waits for the thread and closes checkpoint and tokenizer. A caller that takes the tokenizer
 * sets reader->tokenizer to NULL first. */
void model_reader_end(struct model_reader *reader);
