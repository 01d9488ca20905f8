/* chat_log.h: the messages of a conversation, as a request's Chat and as JSON. Single-threaded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "sluice/v1/inference.pb-c.h"

struct error;

struct chat_log {
    Sluice__V1__ChatMessage **messages; /* user and assistant alternate; owned */
    size_t n_messages;
};

void chat_log_clear(struct chat_log *log); /* also the destructor */
/* RESOURCE_EXHAUSTED if memory is exhausted. */
int chat_log_add(struct chat_log *log, const char *role, const char *content, struct error *err);
void chat_log_drop_last(struct chat_log *log);
/* Drops the oldest question and its answer. False if only the last question is left. */
bool chat_log_drop_oldest(struct chat_log *log);
/* True if the last message is a question without an answer. */
bool chat_log_is_open(const struct chat_log *log);

/* Builds the Chat of the conversation, with an optional system message first (NULL or empty: none).
 * The caller frees the array `out_chat->messages` only; the messages are borrowed. */
int chat_log_chat(const struct chat_log *log, Sluice__V1__ChatMessage *system,
                  Sluice__V1__Chat *out_chat, struct error *err);

/* Writes {"model", "messages": [{"role", "content"}]} to a new file with mode 0600. ALREADY_EXISTS
 * if the file exists. */
int chat_log_save(const struct chat_log *log, const char *model, const char *system,
                  const char *path, struct error *err);
