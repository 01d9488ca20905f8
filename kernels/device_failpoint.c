#include "kernels/device_failpoint.h"

#if SLUICE_DEBUG_CHECKS
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "kernels/device_fault.h"

int device_failpoint(struct error *err)
{
    const char *path = getenv("SLUICE_DEVICE_FAULT");
    char text[16] = "";
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n <= 0 || unlink(path) != 0) /* another process was faster */
        return 0;
    int code = (int)strtol(text, NULL, 10);
    error_set(err, STATUS_INTERNAL, "cuda:0: queued work: injected error (%d)", code);
    return error_reason(err, device_fault_reason(device_fault_of_cuda(code)));
}
#else
typedef int device_failpoint_is_empty_in_this_build;
#endif
