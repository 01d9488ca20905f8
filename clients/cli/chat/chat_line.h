/* chat_line.h: reads lines from a person or a pipe. A terminal gets libedit and a history file; a
 * pipe gets plain reads. A line that ends with \ continues in the next line. """ opens and closes a
 * text of several lines. Single-threaded, except that a signal handler may call chat_line_interrupt
 * and chat_line_resized. */
#pragma once

#include <stdbool.h>

#include "base/strbuf.h"

struct chat_line;
struct error;

enum chat_line_result { CHAT_LINE_TEXT, CHAT_LINE_END, CHAT_LINE_INTERRUPTED };

/* history_path NULL: no history. The caller owns *out_line. */
int chat_line_open(const char *history_path, struct chat_line **out_line, struct error *err);
void chat_line_close(struct chat_line *line); /* NULL is accepted */

bool chat_line_is_terminal(const struct chat_line *line);
/* Reads the next entry, without its last newline, into *out (cleared first). INVALID_ARGUMENT if
 * the entry is too long or not valid text. Then the entry is dropped, and the next call continues
 * after it. */
int chat_line_read(struct chat_line *line, struct strbuf *out, enum chat_line_result *out_result,
                   struct error *err);

/* Ends a waiting chat_line_read with CHAT_LINE_INTERRUPTED. */
void chat_line_interrupt(struct chat_line *line);
/* Adapts the editor to a new terminal size. */
void chat_line_resized(struct chat_line *line);
