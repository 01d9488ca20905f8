#include "clients/cli/chat/chat_line.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <histedit.h>
#include <langinfo.h>
#include <libgen.h>

#include "base/error.h"
#include "base/utf8.h"
#include "clients/cli/shell/cli.h"

enum { HISTORY_ENTRIES = 1000, LOCK_TRIES = 50, LOCK_TRY_MS = 20 };
enum { BYTE_END = -1, BYTE_INTERRUPTED = -2 };

struct chat_line {
    EditLine *editor; /* NULL: not a terminal */
    History *history;
    const char *history_path; /* borrowed; NULL: none */
    const char *prompt;
    int signal_pipe[2]; /* bytes from signal handlers: 'i' interrupt, 'w' window size */
    bool interrupted;
    size_t n_waiting; /* bytes in the terminal's queue from before the prompt, not read yet */
    size_t n_queued;  /* number of leading `bytes` from before the prompt */
    size_t n_read, n_used;
    unsigned char bytes[4096];
};

/* --- bytes --- */

static void read_signal_pipe(struct chat_line *line)
{
    char c;
    while (read(line->signal_pipe[0], &c, 1) == 1)
        if (c == 'i')
            line->interrupted = true;
        else if (line->editor)
            el_resize(line->editor);
}

static int next_byte(struct chat_line *line)
{
    while (line->n_used == line->n_read) {
        struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                                {.fd = line->signal_pipe[0], .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return BYTE_END;
        if (fds[1].revents)
            read_signal_pipe(line);
        if (line->interrupted)
            return BYTE_INTERRUPTED;
        if (!fds[0].revents)
            continue;
        ssize_t n = read(STDIN_FILENO, line->bytes, sizeof(line->bytes));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return BYTE_END;
        line->n_read = (size_t)n;
        line->n_used = 0;
        line->n_queued = line->n_waiting < line->n_read ? line->n_waiting : line->n_read;
        line->n_waiting -= line->n_queued;
    }
    return line->bytes[line->n_used++];
}

/* True for a Ctrl-D that was typed while an answer ran. Outside raw mode the terminal queues Ctrl-D
 * as a zero byte. A zero byte typed at the prompt is Ctrl-@ or Ctrl-Space, which the editor
 * handles. */
static bool is_queued_end(EditLine *editor, const struct chat_line *line, int byte)
{
    if (byte != 0 || line->n_used > line->n_queued)
        return false;
    const LineInfo *info = el_line(editor);
    return info->lastchar == info->buffer;
}

/* Reads a character for libedit. Returns 1, 0 at the end, -1 to give up the line. Invalid UTF-8
 * becomes U+FFFD. */
static int next_character(EditLine *editor, wchar_t *out)
{
    void *data = NULL;
    char text[4];
    size_t n = 0;
    uint32_t code;
    el_get(editor, EL_CLIENTDATA, &data);
    do {
        int byte = next_byte(data);
        if (byte < 0)
            return byte == BYTE_END ? 0 : -1;
        if (n == 0 && is_queued_end(editor, data, byte))
            return 0;
        text[n++] = (char)byte;
    } while (n < sizeof(text) && utf8_incomplete_tail(text, n) == n);
    *out = utf8_decode(text, n, &code) ? (wchar_t)code : 0xFFFD;
    return 1;
}

void chat_line_interrupt(struct chat_line *line)
{
    ssize_t n = write(line->signal_pipe[1], "i", 1);
    (void)n; /* a full pipe holds an interrupt already */
}

void chat_line_resized(struct chat_line *line)
{
    ssize_t n = write(line->signal_pipe[1], "w", 1);
    (void)n;
}

/* --- life --- */

static char *prompt(EditLine *editor)
{
    void *data = NULL;
    el_get(editor, EL_CLIENTDATA, &data);
    return (char *)(uintptr_t)((struct chat_line *)data)->prompt;
}

/* Answers and questions are UTF-8, independent of the locale. */
static void use_utf8(void)
{
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

static int open_editor(struct chat_line *line, struct error *err)
{
    HistEvent event;
    use_utf8();
    line->editor = el_init("sluice", stdin, isatty(STDOUT_FILENO) ? stdout : stderr, stderr);
    line->history = history_init();
    if (!line->editor || !line->history)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cannot set up the terminal");
    history(line->history, &event, H_SETSIZE, HISTORY_ENTRIES);
    history(line->history, &event, H_SETUNIQUE, 1);
    if (line->history_path && access(line->history_path, R_OK) == 0)
        history(line->history, &event, H_LOAD, line->history_path);
    el_set(line->editor, EL_CLIENTDATA, line);
    el_set(line->editor, EL_PROMPT, prompt);
    el_set(line->editor, EL_EDITOR, "emacs");
    el_set(line->editor, EL_HIST, history, line->history);
    el_set(line->editor, EL_GETCFN, next_character);
    el_set(line->editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(line->editor, NULL); /* the user's ~/.editrc */
    return 0;
}

int chat_line_open(const char *history_path, struct chat_line **out_line, struct error *err)
{
    struct chat_line *line = calloc(1, sizeof(*line));
    if (!line)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for the line editor");
    line->history_path = history_path;
    line->signal_pipe[0] = line->signal_pipe[1] = -1;
    int rc = pipe2(line->signal_pipe, O_CLOEXEC | O_NONBLOCK)
                 ? error_errno(err, errno, "cannot make a pipe")
                 : 0;
    if (!rc && isatty(STDIN_FILENO))
        rc = open_editor(line, err);
    if (rc)
        chat_line_close(line);
    else
        *out_line = line;
    return rc;
}

void chat_line_close(struct chat_line *line)
{
    if (!line)
        return;
    if (line->editor)
        el_end(line->editor);
    if (line->history)
        history_end(line->history);
    if (line->signal_pipe[0] >= 0) {
        close(line->signal_pipe[0]);
        close(line->signal_pipe[1]);
    }
    free(line);
}

bool chat_line_is_terminal(const struct chat_line *line)
{
    return line->editor != NULL;
}

/* --- entries --- */

/* Appends one line to *out, without its newline. */
static enum chat_line_result edited_line(struct chat_line *line, struct strbuf *out)
{
    int n = 0, n_waiting = 0;
    /* before the prompt, so that early input is edited too */
    el_set(line->editor, EL_PREP_TERM, 1);
    if (ioctl(STDIN_FILENO, FIONREAD, &n_waiting) == 0)
        line->n_waiting = (size_t)n_waiting;
    const char *text = el_gets(line->editor, &n);
    if (!text || n <= 0) {
        bool interrupted = line->interrupted;
        if (interrupted)
            el_reset(line->editor);
        fputc('\n', isatty(STDOUT_FILENO) ? stdout : stderr);
        return interrupted ? CHAT_LINE_INTERRUPTED : CHAT_LINE_END;
    }
    strbuf_add(out, text, (size_t)n - (text[n - 1] == '\n'));
    return CHAT_LINE_TEXT;
}

static enum chat_line_result plain_line(struct chat_line *line, struct strbuf *out)
{
    size_t before = out->n_bytes;
    int byte;
    while ((byte = next_byte(line)) >= 0 && byte != '\n')
        strbuf_add_char(out, (char)byte);
    if (byte == BYTE_INTERRUPTED)
        return CHAT_LINE_INTERRUPTED;
    return byte == BYTE_END && out->n_bytes == before ? CHAT_LINE_END : CHAT_LINE_TEXT;
}

static bool ends_with(const struct strbuf *text, size_t from, const char *end)
{
    size_t n = strlen(end);
    return text->n_bytes >= from + n && memcmp(text->data + text->n_bytes - n, end, n) == 0;
}

static void cut(struct strbuf *text, size_t n_bytes)
{
    text->n_bytes = n_bytes;
    text->data[n_bytes] = '\0';
}

/* True if the entry ends with the line that begins at `at`. `quoted`: the entry is within """.
 * Removes the quotes or the backslash. */
static bool ends_entry(struct strbuf *text, size_t at, bool *quoted)
{
    static const char quotes[] = "\"\"\"";
    bool opens = at == 0 && !*quoted && strncmp(strbuf_str(text), quotes, 3) == 0;
    if (opens) {
        strbuf_consume(text, 3);
        *quoted = true;
    }
    if (*quoted) {
        if (!ends_with(text, at, quotes))
            return false;
        cut(text, text->n_bytes - 3);
        return true;
    }
    if (!ends_with(text, at, "\\"))
        return true;
    cut(text, text->n_bytes - 1);
    return false;
}

/* Locks the history's folder and returns the file's name (owned), links resolved. Several chats
 * share the file: each adds its line to the newest content and replaces the file at once. A lock on
 * the folder leaves no lock file behind. NULL: the history cannot be saved. */
static char *lock_history(const char *path, int *out_lock)
{
    char *real = realpath(path, NULL); /* replace the link's target, not the link */
    char *name = real ? real : strdup(path);
    char *folder = name ? strdup(name) : NULL;
    const struct timespec pause = {.tv_nsec = LOCK_TRY_MS * 1000000L};
    *out_lock = folder ? open(dirname(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    free(folder);
    for (int i = 0; *out_lock >= 0 && i < LOCK_TRIES; i++) {
        if (flock(*out_lock, LOCK_EX | LOCK_NB) == 0)
            return name;
        nanosleep(&pause, NULL); /* another chat holds the lock, perhaps in a stopped process */
    }
    if (*out_lock >= 0)
        close(*out_lock);
    free(name);
    return NULL;
}

static void save_history_line(const char *path, const char *text)
{
    HistEvent event;
    int lock;
    char *name = lock_history(path, &lock);
    size_t n_fresh = name ? strlen(name) + sizeof(".new") : 0;
    char *fresh = name ? malloc(n_fresh) : NULL;
    History *all = fresh ? history_init() : NULL;
    if (all) {
        snprintf(fresh, n_fresh, "%s.new", name);
        unlink(fresh); /* left by a chat that was killed */
        history(all, &event, H_SETSIZE, HISTORY_ENTRIES);
        history(all, &event, H_SETUNIQUE, 1);
        if (access(name, R_OK) == 0)
            history(all, &event, H_LOAD, name);
        history(all, &event, H_ENTER, text);
        mode_t before = umask(0077);
        if (history(all, &event, H_SAVE, fresh) < 0 || rename(fresh, name) != 0)
            unlink(fresh);
        umask(before);
        history_end(all);
    }
    if (name)
        close(lock);
    free(fresh);
    free(name);
}

static void add_to_history(struct chat_line *line, const char *text)
{
    HistEvent event;
    if (!line->history || !text[0])
        return;
    history(line->history, &event, H_ENTER, text);
    if (line->history_path)
        save_history_line(line->history_path, text);
}

int chat_line_read(struct chat_line *line, struct strbuf *out, enum chat_line_result *out_result,
                   struct error *err)
{
    bool quoted = false;
    enum chat_line_result result;
    strbuf_clear(out);
    read_signal_pipe(line);
    line->interrupted = false; /* an earlier Ctrl-C was meant for the answer */
    line->prompt = ">>> ";
    for (;;) {
        size_t at = out->n_bytes;
        result = line->editor ? edited_line(line, out) : plain_line(line, out);
        if (result != CHAT_LINE_TEXT || ends_entry(out, at, &quoted))
            break;
        strbuf_add_char(out, '\n');
        line->prompt = "... ";
    }
    if (result == CHAT_LINE_END && out->n_bytes)
        result = CHAT_LINE_TEXT; /* the input ended within the entry */
    *out_result = result;
    if (result != CHAT_LINE_TEXT)
        return 0;
    if (strbuf_failed(out))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "the text is too long; send at most %d bytes", CLI_TEXT_MAX_BYTES);
    int rc = cli_check_text("the text", strbuf_str(out), out->n_bytes, err);
    if (!rc)
        add_to_history(line, strbuf_str(out));
    return rc;
}
