/* shell_word.h: words as a shell takes them, for commands that a person is told to paste. */
#pragma once

struct strbuf;

/* Appends `word`, in single quotes where a shell (POSIX, 2.2.2) would read it as something else. */
void shell_word_add(struct strbuf *out, const char *word);
