#include "clients/cli/inspect/inspect_source.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "clients/cli/shell/cli.h"

bool inspect_source_is_path(const struct cli *cli)
{
    const char *word = cli_word(cli, 0);
    struct stat at;
    bool registered = cli->settings.version[0] || cli_given(cli, "group");
    return strchr(word, '/') || (!registered && lstat(word, &at) == 0);
}

void inspect_source_advise(struct cli *cli, const struct error *err)
{
    const char *next = "";
    if (err->status == STATUS_NOT_FOUND)
        next = "give the path of an existing GGUF file or model folder";
    else if (err->reason == REASON_MODEL_FILE_INVALID)
        next = "docs/use/models.md lists the files and folders that can be read";
    snprintf(cli->advice, sizeof(cli->advice), "%s", next);
}

void inspect_source_advise_call(struct cli *cli, const struct error *err)
{
    if (err->reason == REASON_MODEL_NOT_FOUND || err->reason == REASON_NOT_CONNECTED ||
        (err->status == STATUS_UNAVAILABLE && !err->reason))
        snprintf(
            cli->advice, sizeof(cli->advice),
            "\"%.200s\" is no file or folder here, so it was taken for a registered model; give a "
            "path, or a name from: sluice ls",
            cli_word(cli, 0));
}
