#include "server/worker/place/model_reader.h"

#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/format/checkpoint.h"
#include "engine/text/tokenizer.h"
#include "server/worker/base/facts.h"
#include "server/worker/base/settings.h"

static void *read_file(void *arg)
{
    struct look *look = arg;
    look->ckpt_rc = checkpoint_open(look->settings->model, &look->ckpt, &look->ckpt_error);
    if (!look->ckpt_rc)
        look->ckpt_rc = facts_check_digest(look->ckpt, look->settings->digest, &look->ckpt_error);
    if (!look->ckpt_rc)
        look->tokenizer_rc = tokenizer_open(look->ckpt, &look->tokenizer, &look->tokenizer_error);
    const uint64_t one = 1;
    ssize_t n = look->ended_fd >= 0 ? write(look->ended_fd, &one, sizeof(one)) : 0;
    (void)n; /* an eventfd that was never read takes one */
    return NULL;
}

static void close_ended(struct look *look)
{
    if (look->ended_fd >= 0)
        close(look->ended_fd);
    look->ended_fd = -1;
}

void look_begin(struct look *look, const struct settings *settings)
{
    *look = (struct look){.settings = settings, .start_ns = clock_now_ns()};
    look->ended_fd = eventfd(0, EFD_CLOEXEC); /* without one, who waits does so to the end */
    look->runs = pthread_create(&look->thread, NULL, read_file, look) == 0;
    if (look->runs)
        return;
    read_file(look);
    close_ended(look);
}

static void join(struct look *look)
{
    if (!look->runs)
        return;
    pthread_join(look->thread, NULL);
    look->runs = false;
    close_ended(look);
}

bool look_wait_ms(struct look *look, uint32_t ms)
{
    struct pollfd ended = {.fd = look->ended_fd, .events = POLLIN};
    if (look->runs && (look->ended_fd < 0 || poll(&ended, 1, (int)ms) > 0))
        join(look);
    return !look->runs;
}

static bool is_current(const struct look *look, const struct settings *settings)
{
    struct error changed;
    return look->settings && look->ckpt && look->tokenizer && !look->ckpt_rc &&
           !look->tokenizer_rc && strcmp(look->settings->model, settings->model) == 0 &&
           strcmp(look->settings->digest, settings->digest) == 0 &&
           checkpoint_check(look->ckpt, &changed) == 0;
}

void look_renew(struct look *look, const struct settings *settings)
{
    int64_t start_ns = clock_now_ns();
    join(look);
    if (is_current(look, settings)) {
        look->settings = settings;
        look->start_ns = start_ns;
        return;
    }
    look_end(look);
    look_begin(look, settings);
}

int look_wait(struct look *look, struct error *err)
{
    join(look);
    if (look->ckpt_rc)
        *err = look->ckpt_error;
    return look->ckpt_rc;
}

void look_end(struct look *look)
{
    join(look);
    tokenizer_close(look->tokenizer);
    checkpoint_close(look->ckpt);
    look->tokenizer = NULL;
    look->ckpt = NULL;
}
