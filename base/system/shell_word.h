/* shell_word.h: quotes words for a shell, for commands that a user pastes. */
#pragma once

struct strbuf;

/* Appends `word`, in single quotes if a shell (POSIX, 2.2.2) would interpret any of its
 * characters. */
void shell_word_add(struct strbuf *out, const char *word);
