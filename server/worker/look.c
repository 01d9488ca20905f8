#include "server/worker/look.h"

#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "engine/format/checkpoint.h"
#include "engine/format/tokenizer.h"
#include "server/worker/facts.h"
#include "server/worker/settings.h"

static void *read_file(void *arg)
{
    struct look *look = arg;
    look->ckpt_rc = checkpoint_open(look->settings->model, &look->ckpt, &look->ckpt_error);
    if (!look->ckpt_rc)
        look->ckpt_rc = facts_check_digest(look->ckpt, look->settings->digest, &look->ckpt_error);
    if (!look->ckpt_rc)
        look->tokenizer_rc = tokenizer_open(look->ckpt, &look->tokenizer, &look->tokenizer_error);
    return NULL;
}

void look_begin(struct look *look, const struct settings *settings)
{
    *look = (struct look){.settings = settings, .start_ns = clock_now_ns()};
    look->runs = pthread_create(&look->thread, NULL, read_file, look) == 0;
    if (!look->runs)
        read_file(look);
}

static void join(struct look *look)
{
    if (look->runs)
        pthread_join(look->thread, NULL);
    look->runs = false;
}

bool look_wait_ms(struct look *look, uint32_t ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += ms % 1000 * NS_PER_MS;
    until.tv_sec += ms / 1000 + until.tv_nsec / NS_PER_S;
    until.tv_nsec %= NS_PER_S;
    if (look->runs && pthread_timedjoin_np(look->thread, NULL, &until) == 0)
        look->runs = false;
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
