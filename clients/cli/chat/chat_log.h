/* chat_log.h: a conversation: its messages, as a request's Chat and as JSON. One thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "sluice/v1/inference.pb-c.h"

struct error;

struct chat_log {
    Sluice__V1__ChatMessage **messages; /* user and assistant in turn; owned */
    size_t n_messages;
};

void chat_log_clear(struct chat_log *log); /* also the destructor */
/* RESOURCE_EXHAUSTED without memory. */
int chat_log_add(struct chat_log *log, const char *role, const char *content, struct error *err);
void chat_log_drop_last(struct chat_log *log);
/* The oldest question and its answer. False where only the last question is left. */
bool chat_log_drop_oldest(struct chat_log *log);
/* Whether the last message waits for an answer. */
bool chat_log_is_open(const struct chat_log *log);

/* The conversation after an optional system message (NULL or empty: none). *out_chat is owned: free
 * its `messages` array alone. */
int chat_log_chat(const struct chat_log *log, Sluice__V1__ChatMessage *system,
                  Sluice__V1__Chat *out_chat, struct error *err);

/* Writes {"model", "messages": [{"role", "content"}]} to a new file of mode 0600. ALREADY_EXISTS
 * where there is one. */
int chat_log_save(const struct chat_log *log, const char *model, const char *system,
                  const char *path, struct error *err);
