#include "server/gateway/dispatch/idle_client.h"

#include "base/clock.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/base/limits.h"
#include "server/gateway/relay/relay_private.h"
#include "server/gateway/replicas/link.h"

enum { AT_ONCE = 64 };

struct still_list {
    struct relay *relays[AT_ONCE];
    uint32_t n;
    int64_t awake_ns;
};

/* Under the relay's lock: true if the request waits for its client to act. While best_of choices
 * are compared, missing credit does not stop the request. */
static bool is_client_idle(const struct relay *relay)
{
    bool no_credit = relay_lacks_credit(relay);
    if (!relay->sink || relay->end_sent || relay->closed)
        return false;
    if (relay->ended)
        return !relay->outcome.status && no_credit;
    if (relay->pauses & RELAY_PAUSE_CLIENT)
        return true;
    return no_credit ? !relay_holds_back(relay) : relay->pauses && !relay->put_ns;
}

/* Under the relay's lock: true if the client has been idle for longer than max_pause_ms. */
static bool is_over(struct relay *relay, int64_t awake_ns)
{
    uint64_t n_sent = relay_n_sent(relay);
    bool still = is_client_idle(relay);
    if (!still || !relay->still_ns || n_sent != relay->still_n_sent) {
        relay->still_ns = still ? awake_ns : 0;
        relay->still_n_sent = n_sent;
    }
    int64_t limit_ns = (int64_t)relay->shared->limits->max_pause_ms * NS_PER_MS;
    return still && awake_ns - relay->still_ns > limit_ns;
}

static void collect(void *ctx, struct relay *relay)
{
    struct still_list *list = ctx;
    pthread_mutex_lock(&relay->lock);
    bool over = list->n < AT_ONCE && is_over(relay, list->awake_ns);
    pthread_mutex_unlock(&relay->lock);
    if (!over)
        return;
    relay_retain(relay);
    list->relays[list->n++] = relay;
}

/* Under the relay's lock: fills the error of a request whose client was idle for too long. */
static void fill_error(const struct relay *relay, struct error *err)
{
    const char *how = relay->pauses & RELAY_PAUSE_CLIENT ? "paused by its client"
                      : relay_lacks_credit(relay)        ? "without credit"
                                                  : "paused because its client does not read";
    uint64_t n_sent = relay_n_sent(relay);
    error_set(err, STATUS_DEADLINE_EXCEEDED,
              "%s for longer than %llu ms, limit max_pause; tokens sent: %llu", how,
              (unsigned long long)relay->shared->limits->max_pause_ms, (unsigned long long)n_sent);
    error_reason(err, REASON_PAUSED_TOO_LONG);
    error_tokens_sent(err, n_sent);
}

static void end(struct relay *relay, int64_t awake_ns)
{
    struct error err;
    pthread_mutex_lock(&relay->lock);
    bool over = is_over(relay, awake_ns);
    if (over) {
        fill_error(relay, &err);
        relay_fix_outcome(relay, &err);
        relay->outcome = err; /* a complete answer that waits for credit had outcome OK */
        relay->forgotten = true;
    }
    pthread_mutex_unlock(&relay->lock);
    if (!over)
        return;
    counters_refusal(relay->shared->counters, LIMIT_PAUSE);
    link_leave(relay);
    relay_tell(relay);
}

void idle_client_tick(struct relay_shared *shared, int64_t awake_ns)
{
    struct still_list list = {.n = AT_ONCE, .awake_ns = awake_ns};
    while (list.n == AT_ONCE) {
        list.n = 0;
        registry_each(&shared->registry, collect, &list);
        for (uint32_t i = 0; i < list.n; i++) {
            end(list.relays[i], awake_ns);
            relay_release(list.relays[i]);
        }
    }
}
