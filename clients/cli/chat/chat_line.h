/* chat_line.h: the lines a person or a pipe types: libedit with a history file on a terminal,
 * plain lines else. A line that ends with \ goes on in the next; """ opens and closes a text of
 * several lines. One thread; chat_line_interrupt also from a signal handler. */
#pragma once

#include <stdbool.h>

#include "base/strbuf.h"

struct chat_line;
struct error;

enum chat_line_result { CHAT_LINE_TEXT, CHAT_LINE_END, CHAT_LINE_INTERRUPTED };

/* history_path: NULL keeps none. *out_line is owned. */
int chat_line_open(const char *history_path, struct chat_line **out_line, struct error *err);
void chat_line_close(struct chat_line *line); /* NULL is accepted */

bool chat_line_is_terminal(const struct chat_line *line);
/* The next entry, without its last newline, into *out (cleared first). INVALID_ARGUMENT for bytes
 * that are no text: the entry is dropped, the next call reads on. */
int chat_line_read(struct chat_line *line, struct strbuf *out, enum chat_line_result *out_result,
                   struct error *err);

/* Ends a chat_line_read that waits, with CHAT_LINE_INTERRUPTED. */
void chat_line_interrupt(struct chat_line *line);
/* The terminal has another size. */
void chat_line_resized(struct chat_line *line);
