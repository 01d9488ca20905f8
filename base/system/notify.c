#include "base/system/notify.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"

enum { MAX_STATUS = 512, WAIT_MS = 1000 };

/* If the service manager hangs and reads nothing, the queue is full after a few messages. A plain
 * send would then block forever. */
static void send_state(const char *state, uint32_t wait_ms)
{
    const struct timeval wait = {wait_ms / 1000, (suseconds_t)(wait_ms % 1000) * 1000};
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t n_path = path ? strlen(path) : 0;
    if (n_path < 2 || n_path >= sizeof(address.sun_path) || (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(address.sun_path, path, n_path);
    if (path[0] == '@')
        address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    socklen_t n_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n_path);
    int flags = MSG_NOSIGNAL;
    if (wait_ms == 0 || setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)) != 0)
        flags |= MSG_DONTWAIT;
    (void)sendto(fd, state, strlen(state), flags, (const struct sockaddr *)&address, n_bytes);
    close(fd);
}

void notify_send(const char *state)
{
    send_state(state, WAIT_MS);
}

void notify_watchdog(void)
{
    send_state("WATCHDOG=1", 0);
}

void notify_status(const char *state, const char *format, ...)
{
    char status[MAX_STATUS], text[MAX_STATUS + 64];
    va_list args;
    va_start(args, format);
    vsnprintf(status, sizeof(status), format, args);
    va_end(args);
    for (char *c = status; *c; c++)
        *c = *c == '\n' ? ' ' : *c;
    snprintf(text, sizeof(text), "%s\nSTATUS=%s", state, status);
    notify_send(text);
}

void notify_reloading(void)
{
    char text[64];
    snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
             (uint64_t)(clock_now_ns() / NS_PER_US));
    notify_send(text);
}

uint64_t notify_watchdog_ms(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (!usec || (pid && strtoll(pid, NULL, 10) != (long long)getpid()))
        return 0;
    char *end;
    unsigned long long n = strtoull(usec, &end, 10);
    return end == usec || *end ? 0 : n / 1000;
}
