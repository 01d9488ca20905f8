#include "base/settings/setting_names.h"

#include <stdint.h>
#include <string.h>

#include "base/settings/load_settings.h"
#include "base/settings/near_name.h"

enum { SERVER = 1, MANAGER = 2, WORKER = 4, CLI = 8, ANY = SERVER | MANAGER | WORKER | CLI };

struct name {
    const char *name;
    unsigned programs;
};

/* Printed by tests/e2e/setting_names.py; tests/e2e/cli/test_config.py checks that the table is
 * current. Names in load_settings.c are not repeated here. */
static const struct name names[] = {
    {"all", CLI},
    {"allow-plaintext-keys", SERVER | CLI},
    {"api-key", CLI},
    {"api-key-file", CLI},
    {"batch", WORKER | CLI},
    {"chat", WORKER | CLI},
    {"chat-template-file", WORKER},
    {"clear", CLI},
    {"clients", CLI},
    {"connect-timeout", MANAGER},
    {"crash-limit", MANAGER},
    {"crash-window", MANAGER},
    {"depth", WORKER | CLI},
    {"detokenize", CLI},
    {"device-group", WORKER},
    {"devices", WORKER | CLI},
    {"digest", WORKER},
    {"draft-always", WORKER | CLI},
    {"drain-grace", SERVER | MANAGER | WORKER | CLI},
    {"duration", CLI},
    {"epoch", WORKER},
    {"event-retention", MANAGER},
    {"evict", CLI},
    {"exit-report", WORKER},
    {"expires", CLI},
    {"follow", CLI},
    {"frequency-penalty", CLI},
    {"from", CLI},
    {"generate", WORKER | CLI},
    {"gpu-held", WORKER},
    {"gpu-promised", WORKER},
    {"grace", CLI},
    {"group", CLI},
    {"groups", CLI},
    {"handshake-timeout", SERVER},
    {"http", CLI},
    {"http-body-budget", SERVER},
    {"http-idle-timeout", SERVER},
    {"http-listen", SERVER | CLI},
    {"http-open-metrics", SERVER | CLI},
    {"http-origins", SERVER | CLI},
    {"http-strict", SERVER | CLI},
    {"ids", WORKER},
    {"ignore-eos", CLI},
    {"interval", CLI},
    {"json", CLI},
    {"keep-cache", CLI},
    {"keepalive-time", SERVER},
    {"keepalive-timeout", SERVER},
    {"keys-file", SERVER | CLI},
    {"kill-grace", MANAGER},
    {"latest", CLI},
    {"launch-fd", WORKER},
    {"listen", SERVER | CLI},
    {"listen-unix", SERVER},
    {"load-timeout", MANAGER},
    {"lock-file", SERVER},
    {"log-format", SERVER | MANAGER | WORKER | CLI},
    {"log-level", SERVER | MANAGER | WORKER | CLI},
    {"manage-group", MANAGER},
    {"manage-keys-file", MANAGER},
    {"manage-listen", MANAGER},
    {"manage-tls-cert", MANAGER},
    {"manage-tls-client-auth", MANAGER},
    {"manage-tls-client-ca", MANAGER},
    {"manage-tls-client-role", MANAGER},
    {"manage-tls-key", MANAGER},
    {"manager", SERVER | CLI},
    {"manager-metrics", CLI},
    {"max-allowed-ids", SERVER},
    {"max-answer-bytes", SERVER},
    {"max-bad-word-bytes", SERVER},
    {"max-bad-words", SERVER},
    {"max-calls", SERVER},
    {"max-choices", SERVER},
    {"max-concurrent", SERVER},
    {"max-connection-requests", SERVER},
    {"max-connections", SERVER},
    {"max-error-rate", CLI},
    {"max-frame-bytes", WORKER},
    {"max-logit-bias", SERVER},
    {"max-message-bytes", SERVER | WORKER},
    {"max-messages", SERVER},
    {"max-metadata-bytes", SERVER},
    {"max-open-operations", MANAGER},
    {"max-pause", SERVER},
    {"max-pending-bytes", SERVER},
    {"max-pending-tokens", SERVER},
    {"max-queued", SERVER},
    {"max-reattach-window", SERVER},
    {"max-replay-bytes", SERVER},
    {"max-replicas", MANAGER},
    {"max-resets", SERVER},
    {"max-stop-bytes", SERVER},
    {"max-stop-ids", SERVER},
    {"max-stop-strings", SERVER},
    {"max-stream-pending-bytes", SERVER},
    {"max-stream-requests", SERVER},
    {"max-streams", SERVER},
    {"max-template-output-bytes", WORKER},
    {"max-template-steps", WORKER},
    {"max-tokens", WORKER | CLI},
    {"max-tools", SERVER},
    {"max-top-n", SERVER},
    {"max-ttft-ms", CLI},
    {"max-ttft-ratio", CLI},
    {"max-wait", CLI},
    {"memory-budget", MANAGER},
    {"memory-limit", WORKER},
    {"memory-promised", WORKER},
    {"metadata", WORKER},
    {"metrics", SERVER | MANAGER | WORKER | CLI},
    {"metrics-aliases", SERVER | CLI},
    {"min-answers", CLI},
    {"min-p", WORKER | CLI},
    {"min-tokens", CLI},
    {"model", WORKER},
    {"model-root", MANAGER | CLI},
    {"name", WORKER | CLI},
    {"no-bos", CLI},
    {"no-history", CLI},
    {"no-http", CLI},
    {"no-sandbox", WORKER},
    {"no-wait", CLI},
    {"once", CLI},
    {"open", CLI},
    {"operation", CLI},
    {"output", CLI},
    {"packed-fds", WORKER},
    {"parked", WORKER},
    {"pieces", CLI},
    {"placement", MANAGER},
    {"plan", WORKER},
    {"pp", WORKER | CLI},
    {"presence-penalty", CLI},
    {"priority", CLI},
    {"progress", WORKER},
    {"prompt", WORKER | CLI},
    {"prompt-tokens", CLI},
    {"prompts", CLI},
    {"rate", CLI},
    {"raw", WORKER | CLI},
    {"refresh", CLI},
    {"repetition-penalty", WORKER | CLI},
    {"repetitions", WORKER | CLI},
    {"replica", WORKER | CLI},
    {"replica-wait", SERVER},
    {"replicas", WORKER | CLI},
    {"request-id", CLI},
    {"request-threads", WORKER},
    {"request-timeout", SERVER},
    {"requests", CLI},
    {"require-answers", CLI},
    {"restart-backoff-initial", MANAGER},
    {"restart-backoff-max", MANAGER},
    {"resume-timeout", SERVER},
    {"role", CLI},
    {"routes-file", SERVER},
    {"rpc-threads", SERVER},
    {"run-dir", MANAGER},
    {"seed", WORKER | CLI},
    {"server", CLI},
    {"server-name", CLI},
    {"shared-prefix", CLI},
    {"slo-e2e-ms", CLI},
    {"slo-itl-ms", CLI},
    {"slo-ttft-ms", CLI},
    {"slow-reader-timeout", SERVER | MANAGER},
    {"socket", MANAGER | WORKER},
    {"special", WORKER | CLI},
    {"split-depth", WORKER},
    {"split-groups", WORKER},
    {"split-pp", WORKER},
    {"split-requests", WORKER},
    {"split-tp", WORKER},
    {"stall-timeout", SERVER | MANAGER},
    {"state-dir", MANAGER | CLI},
    {"stats", WORKER | CLI},
    {"step", CLI},
    {"steps", CLI},
    {"sticky", CLI},
    {"stop", WORKER | CLI},
    {"stop-workers-on-exit", MANAGER},
    {"suffix", CLI},
    {"system", WORKER | CLI},
    {"takeover", SERVER},
    {"takeover-timeout", SERVER},
    {"temperature", WORKER | CLI},
    {"template", CLI},
    {"tensors", WORKER},
    {"text", WORKER},
    {"timeout", CLI},
    {"tls", CLI},
    {"tls-ca", CLI},
    {"tls-cert", SERVER | CLI},
    {"tls-client-auth", SERVER | CLI},
    {"tls-client-ca", SERVER | CLI},
    {"tls-client-cert", CLI},
    {"tls-client-key", CLI},
    {"tls-key", SERVER | CLI},
    {"to", CLI},
    {"tool-timeout", MANAGER},
    {"top-k", WORKER | CLI},
    {"top-p", WORKER | CLI},
    {"tp", WORKER | CLI},
    {"ttft-quantile", CLI},
    {"type", CLI},
    {"typical-p", CLI},
    {"url", CLI},
    {"validate-only", CLI},
    {"verbose", CLI},
    {"verify", WORKER | CLI},
    {"version", CLI},
    {"version-id", WORKER},
    {"vocab-size", CLI},
    {"warmup", CLI},
    {"weights-held", WORKER},
    {"weights-shared", WORKER},
    {"worker", MANAGER},
};

enum { N_NAMES = sizeof(names) / sizeof(names[0]) };

/* Counts the names: the rows of this file, then the rows of load_settings.h. A load setting without
 * a flag gets an empty name without programs. */
static size_t count_names(void)
{
    return N_NAMES + load_settings_count();
}

static struct name name_at(size_t i)
{
    if (i < N_NAMES)
        return names[i];
    const struct load_setting *row = load_setting_at(i - N_NAMES);
    struct name name = {row->flag ? row->flag : "", 0};
    if (row->users & (LOAD_CLI | LOAD_CLI_BENCH))
        name.programs |= CLI;
    if (row->users & (LOAD_WORKER | LOAD_WORKER_BENCH))
        name.programs |= WORKER;
    return name;
}

static unsigned program_of(const char *section)
{
    static const char *const sections[] = {"server", "manager", "worker", "cli"};
    for (size_t i = 0; section && i < sizeof(sections) / sizeof(sections[0]); i++)
        if (strcmp(section, sections[i]) == 0)
            return 1u << i;
    return ANY;
}

static char plain(char c)
{
    return c == '_' ? '-' : c;
}

bool setting_same_name(const char *key, const char *name)
{
    while (*key && plain(*key) == *name) {
        key++;
        name++;
    }
    return !*key && !*name;
}

bool setting_is_known(const char *key, const char *section)
{
    unsigned programs = program_of(section);
    for (size_t i = 0; i < count_names(); i++)
        if ((name_at(i).programs & programs) && setting_same_name(key, name_at(i).name))
            return true;
    return false;
}

const char *setting_nearest(const char *key, const char *section)
{
    unsigned programs = program_of(section);
    struct near_name near = near_name_of(key);
    for (size_t i = 0; i < count_names(); i++)
        if (name_at(i).programs & programs)
            near_name_try(&near, name_at(i).name);
    return near.name;
}
