#include "server/worker/place/model_reader.h"

#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "server/worker/base/facts.h"
#include "server/worker/base/settings.h"

static void *read_file(void *arg)
{
    struct model_reader *reader = arg;
    reader->ckpt_rc = checkpoint_open(reader->settings->model, &reader->ckpt, &reader->ckpt_error);
    if (!reader->ckpt_rc)
        reader->ckpt_rc =
            facts_check_digest(reader->ckpt, reader->settings->digest, &reader->ckpt_error);
    if (!reader->ckpt_rc)
        reader->tokenizer_rc =
            tokenizer_open(reader->ckpt, &reader->tokenizer, &reader->tokenizer_error);
    if (reader->tokenizer) /* rows of the vocabulary without a token are not loaded */
        checkpoint_set_n_tokens(reader->ckpt, tokenizer_info(reader->tokenizer)->vocab_size);
    const uint64_t one = 1;
    ssize_t n = reader->ended_fd >= 0 ? write(reader->ended_fd, &one, sizeof(one)) : 0;
    (void)n; /* the first write to an eventfd cannot fail */
    return NULL;
}

static void close_ended(struct model_reader *reader)
{
    if (reader->ended_fd >= 0)
        close(reader->ended_fd);
    reader->ended_fd = -1;
}

void model_reader_begin(struct model_reader *reader, const struct settings *settings)
{
    *reader = (struct model_reader){.settings = settings, .start_ns = clock_now_ns()};
    reader->ended_fd = eventfd(0, EFD_CLOEXEC); /* -1: waits last until the file is read */
    reader->runs = pthread_create(&reader->thread, NULL, read_file, reader) == 0;
    if (reader->runs)
        return;
    read_file(reader);
    close_ended(reader);
}

static void join(struct model_reader *reader)
{
    if (!reader->runs)
        return;
    pthread_join(reader->thread, NULL);
    reader->runs = false;
    close_ended(reader);
}

bool model_reader_wait_ms(struct model_reader *reader, uint32_t ms)
{
    struct pollfd ended = {.fd = reader->ended_fd, .events = POLLIN};
    if (reader->runs && (reader->ended_fd < 0 || poll(&ended, 1, (int)ms) > 0))
        join(reader);
    return !reader->runs;
}

static bool is_current(const struct model_reader *reader, const struct settings *settings)
{
    struct error changed;
    return reader->settings && reader->ckpt && reader->tokenizer && !reader->ckpt_rc &&
           !reader->tokenizer_rc && strcmp(reader->settings->model, settings->model) == 0 &&
           strcmp(reader->settings->digest, settings->digest) == 0 &&
           checkpoint_check(reader->ckpt, &changed) == 0;
}

void model_reader_renew(struct model_reader *reader, const struct settings *settings)
{
    int64_t start_ns = clock_now_ns();
    join(reader);
    if (is_current(reader, settings)) {
        reader->settings = settings;
        reader->start_ns = start_ns;
        return;
    }
    model_reader_end(reader);
    model_reader_begin(reader, settings);
}

int model_reader_wait(struct model_reader *reader, struct error *err)
{
    join(reader);
    if (reader->ckpt_rc)
        *err = reader->ckpt_error;
    return reader->ckpt_rc;
}

void model_reader_end(struct model_reader *reader)
{
    join(reader);
    tokenizer_close(reader->tokenizer);
    checkpoint_close(reader->ckpt);
    reader->tokenizer = NULL;
    reader->ckpt = NULL;
}
