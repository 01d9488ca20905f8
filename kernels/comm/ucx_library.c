#include "kernels/comm/ucx_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include <ucs/debug/log_def.h>

#include "base/error.h"
#include "base/log.h"

#define FILE_NAME "libucp.so.0"

/* The first version whose calls all have the form "nbx". */
enum { MIN_MAJOR = 1, MIN_MINOR = 11, MAX_LOG_BYTES = 400 };

/* UCX writes to standard output by default. Causes are in the errors; its lines are for debugging.
 * Only the last words before an abort go where UCX wants them, too. */
__attribute__((format(printf, 6, 0))) static ucs_log_func_rc_t
take_log(const char *file, unsigned line, const char *function, ucs_log_level_t level,
         const ucs_log_component_config_t *component, const char *format, va_list args)
{
    char text[MAX_LOG_BYTES];
    va_list copy;
    (void)file;
    (void)line;
    (void)component;
    va_copy(copy, args);
    vsnprintf(text, sizeof(text), format, copy);
    va_end(copy);
    log_debug(LOG_EVENT("ucx"), LOG_STR("function", function), LOG_STR("message", text));
    return level == UCS_LOG_LEVEL_FATAL ? UCS_LOG_FUNC_RC_CONTINUE : UCS_LOG_FUNC_RC_STOP;
}

static int find(void *handle, const char *symbol, void *out_function, struct error *err)
{
    void *address = dlsym(handle, symbol);
    if (!address)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "UCX: " FILE_NAME " has no function %s; install the package libucx0, "
                         "version %d.%d or later",
                         symbol, MIN_MAJOR, MIN_MINOR);
    *(void **)out_function = address;
    return 0;
}

static int load(struct ucx_library *out_library, struct error *err)
{
    struct ucx_library library;
    void *handle = dlopen(FILE_NAME, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "ranks on several machines need UCX: %s; install the package libucx0",
                         dlerror());
    int rc = 0;
#define UCX_FIND(name) rc = rc ? rc : find(handle, "ucp_" #name, (void *)&library.name, err);
    UCX_FUNCTIONS(UCX_FIND)
#undef UCX_FIND
    rc = rc ? rc : find(handle, "ucs_status_string", (void *)&library.status_string, err);
    __typeof__(ucs_log_push_handler) *push_handler = NULL;
    rc = rc ? rc : find(handle, "ucs_log_push_handler", (void *)&push_handler, err);
    if (!rc) {
        unsigned major = 0, minor = 0, release = 0;
        library.get_version(&major, &minor, &release);
        if (major != MIN_MAJOR || minor < MIN_MINOR)
            rc = error_set(err, STATUS_FAILED_PRECONDITION,
                           "UCX %u.%u.%u is installed; ranks on several machines need %d.%d or "
                           "later, below %d",
                           major, minor, release, MIN_MAJOR, MIN_MINOR, MIN_MAJOR + 1);
    }
    if (rc) {
        dlclose(handle);
        return rc;
    }
    push_handler(take_log);
    *out_library = library;
    return 0;
}

const struct ucx_library *ucx_library_open(struct error *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct ucx_library library;
    static bool is_open;
    pthread_mutex_lock(&lock);
    if (!is_open)
        is_open = load(&library, err) == 0;
    bool found = is_open;
    pthread_mutex_unlock(&lock);
    return found ? &library : NULL;
}
