#include "clients/cli/chat/chat_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "base/error.h"

static void free_message(Sluice__V1__ChatMessage *message)
{
    free(message->content);
    free(message);
}

void chat_log_clear(struct chat_log *log)
{
    for (size_t i = 0; i < log->n_messages; i++)
        free_message(log->messages[i]);
    free(log->messages);
    *log = (struct chat_log){0};
}

int chat_log_add(struct chat_log *log, const char *role, const char *content, struct error *err)
{
    Sluice__V1__ChatMessage **grown =
        realloc(log->messages, (log->n_messages + 1) * sizeof(*grown));
    Sluice__V1__ChatMessage *message = calloc(1, sizeof(*message));
    char *copy = strdup(content);
    if (grown)
        log->messages = grown;
    if (!grown || !message || !copy) {
        free(message);
        free(copy);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for the conversation");
    }
    sluice__v1__chat_message__init(message);
    message->role = (char *)(uintptr_t)role;
    message->content = copy;
    log->messages[log->n_messages++] = message;
    return 0;
}

void chat_log_drop_last(struct chat_log *log)
{
    if (log->n_messages)
        free_message(log->messages[--log->n_messages]);
}

bool chat_log_is_open(const struct chat_log *log)
{
    return log->n_messages && strcmp(log->messages[log->n_messages - 1]->role, "user") == 0;
}

bool chat_log_drop_oldest(struct chat_log *log)
{
    if (log->n_messages < 3)
        return false;
    free_message(log->messages[0]);
    free_message(log->messages[1]);
    log->n_messages -= 2;
    memmove(log->messages, log->messages + 2, log->n_messages * sizeof(*log->messages));
    return true;
}

int chat_log_chat(const struct chat_log *log, Sluice__V1__ChatMessage *system,
                  Sluice__V1__Chat *out_chat, struct error *err)
{
    Sluice__V1__ChatMessage **messages = calloc(log->n_messages + 1, sizeof(*messages));
    size_t n = 0;
    if (!messages)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for the conversation");
    if (system && system->content[0])
        messages[n++] = system;
    for (size_t i = 0; i < log->n_messages; i++)
        messages[n++] = log->messages[i];
    *out_chat = (Sluice__V1__Chat)SLUICE__V1__CHAT__INIT;
    out_chat->messages = messages;
    out_chat->n_messages = n;
    return 0;
}

static json_t *message_json(const char *role, const char *content)
{
    return json_pack("{s:s,s:s}", "role", role, "content", content);
}

int chat_log_save(const struct chat_log *log, const char *model, const char *system,
                  const char *path, struct error *err)
{
    json_t *messages = json_array();
    if (system[0])
        json_array_append_new(messages, message_json("system", system));
    for (size_t i = 0; i < log->n_messages; i++)
        json_array_append_new(messages,
                              message_json(log->messages[i]->role, log->messages[i]->content));
    json_t *whole = json_pack("{s:s,s:o}", "model", model, "messages", messages);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int rc = 0;
    if (fd < 0)
        rc = errno == EEXIST
                 ? error_set(err, STATUS_ALREADY_EXISTS,
                             "%s exists already; give another name or remove the file", path)
                 : error_errno(err, errno, "cannot write %s", path);
    else if (!whole || json_dumpfd(whole, fd, JSON_INDENT(2)) != 0 || write(fd, "\n", 1) != 1)
        rc = error_set(err, STATUS_UNAVAILABLE, "cannot write %s", path);
    if (fd >= 0 && close(fd) != 0 && !rc)
        rc = error_errno(err, errno, "cannot write %s", path);
    json_decref(whole);
    return rc;
}
