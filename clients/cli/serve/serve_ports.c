#include "clients/cli/serve/serve_ports.h"

#include <errno.h>
#include <stdio.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/system/shell_word.h"
#include "clients/cli/serve/stray_processes.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/port_owner.h"
#include "proto/rpc/server/listeners.h"

/* Adds "ADDRESS (--FLAG) by PROGRAM, pid N" to the list of busy ports. Returns the pid, 0 if this
 * user may not inspect the process. */
static pid_t add_busy(const char *flag, const char *address, unsigned port, struct strbuf *list)
{
    char name[PORT_OWNER_NAME] = "";
    long pid = port_owner(port, name);
    strbuf_printf(list, "%s%s (%s) by ", list->n_bytes ? "; " : "", address, flag);
    if (pid)
        strbuf_printf(list, "%s, pid %ld", name, pid);
    else
        strbuf_add_str(list, "a process of another user");
    return (pid_t)pid;
}

/* Writes the advice for busy ports. `flags`: the options to change. `holder`: a process that has
 * one of the ports. */
static void advise_ports(struct cli *cli, const char *flags, pid_t holder)
{
    char state[1024];
    struct strbuf text;
    strbuf_init(&text, sizeof(cli->advice) - 1);
    strbuf_printf(&text, "choose %s, or stop that ", flags);
    if (holder > 0 && stray_state_dir(holder, state, sizeof(state))) {
        strbuf_add_str(&text, "Sluice: sluice stop --state-dir ");
        shell_word_add(&text, state);
    } else {
        strbuf_add_str(&text, "program");
    }
    snprintf(cli->advice, sizeof(cli->advice), "%s", strbuf_str(&text));
    strbuf_fini(&text);
}

int serve_ports_check(struct cli *cli, struct error *err)
{
    const struct cli_settings *set = &cli->settings;
    struct rpc_addresses http;
    const char *ports[3 + RPC_MAX_ADDRESSES][2] = {{"--listen", set->listen},
                                                   {"--metrics", set->metrics},
                                                   {"--manager-metrics", set->manager_metrics}};
    struct strbuf list, flags;
    pid_t holder = 0;
    int rc = rpc_listeners_split("--http-listen", set->http_listen, &http, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < http.n; i++) {
        ports[3 + i][0] = "--http-listen";
        ports[3 + i][1] = http.list[i];
    }
    strbuf_init(&list, ERROR_MESSAGE_BYTES - 32);
    strbuf_init(&flags, 0);
    for (size_t i = 0; i < 3 + http.n; i++) {
        unsigned port;
        int err_no;
        if (!port_owner_probe(ports[i][1], &port, &err_no) || err_no != EADDRINUSE)
            continue;
        strbuf_printf(&flags, "%s%s ADDR:PORT", flags.n_bytes ? " and " : "", ports[i][0]);
        pid_t pid = add_busy(ports[i][0], ports[i][1], port, &list);
        holder = holder ? holder : pid;
    }
    if (list.n_bytes) {
        error_set(err, STATUS_ALREADY_EXISTS, "ports in use: %s", strbuf_str(&list));
        rc = error_reason(err, REASON_ADDRESS_IN_USE);
        advise_ports(cli, strbuf_str(&flags), holder);
    }
    strbuf_fini(&list);
    strbuf_fini(&flags);
    return rc;
}
