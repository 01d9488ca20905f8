/* openai_chat.h: reads a conversation as OpenAI's API has it into the proto's Chat. Plain
 * functions; any thread. Errors are as in http_body.h. */
#pragma once

#include <stdbool.h>

#include "sluice/v1/inference.pb-c.h"

struct http_body;
struct openai_ignored;

/* The list of messages. Keys of a message without effect go to `ignored`. */
int openai_chat_messages(struct http_body *body, Sluice__V1__Chat *chat,
                         struct openai_ignored *ignored);
/* The list of tools. */
int openai_chat_tools(struct http_body *body, Sluice__V1__Chat *chat);
/* "none" and "auto" are built: the tools are in the prompt, and the answer is content. */
int openai_chat_tool_choice(struct http_body *body);
/* Only the type text is built. */
int openai_chat_response_format(struct http_body *body);

/* Some templates refuse a system message that is not the first. Returns true if the chat has such a
 * message. */
bool openai_chat_may_merge(const Sluice__V1__Chat *chat);
struct arena;
/* Moves the texts of all system messages to the first message. Returns false if memory is
 * exhausted. */
bool openai_chat_merge(Sluice__V1__Chat *chat, struct arena *arena);
