/* openai_chat.h: reads a conversation as OpenAI's API has it into the proto's Chat. Plain
 * functions; any thread. The readers are for rows of tables (http_fields.h). */
#pragma once

#include <stdbool.h>

#include "server/gateway/http/http_fields.h"
#include "sluice/v1/inference.pb-c.h"

/* The lists of messages and of tools; the place is a Sluice__V1__Chat. */
http_field_fn openai_chat_messages, openai_chat_tools;
/* "none" and "auto" are built: the tools are in the prompt, and the answer is content. */
http_field_fn openai_chat_tool_choice;
/* Only the type text is built. */
http_field_fn openai_chat_response_format;

/* Some templates refuse a system message that is not the first. Returns true if the chat has such a
 * message. */
bool openai_chat_may_merge(const Sluice__V1__Chat *chat);
struct arena;
/* Moves the texts of all system messages to the first message. Returns false if memory is
 * exhausted. */
bool openai_chat_merge(Sluice__V1__Chat *chat, struct arena *arena);
