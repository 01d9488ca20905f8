#include "proto/launch/launch_record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "proto/rpc/message/message.h"

/* Seals of every launch record. The kernel may add F_SEAL_EXEC (sysctl vm.memfd_noexec). */
enum { SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE };

static int check_size(uint64_t n_bytes, struct error *err)
{
    if (n_bytes > 0 && n_bytes <= LAUNCH_RECORD_MAX_BYTES)
        return 0;
    return error_field(err, "size", "a launch record has 1 to %d bytes, not %llu",
                       LAUNCH_RECORD_MAX_BYTES, (unsigned long long)n_bytes);
}

/* --- writing --- */

static int write_all(int fd, const uint8_t *bytes, size_t n_bytes, struct error *err)
{
    for (size_t n_done = 0; n_done < n_bytes;) {
        ssize_t n = write(fd, bytes + n_done, n_bytes - n_done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return error_errno(err, n < 0 ? errno : ENOSPC, "launch record");
        n_done += (size_t)n;
    }
    return 0;
}

/* A memfd is memory, but RLIMIT_FSIZE bounds a memfd like a file. So the soft limit is the hard
 * limit during the write. */
static int write_lifted(int fd, const void *bytes, size_t n_bytes, struct error *err)
{
    struct rlimit limit;
    bool is_low = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < limit.rlim_max;
    struct rlimit lifted = {limit.rlim_max, limit.rlim_max};
    if (is_low && setrlimit(RLIMIT_FSIZE, &lifted) != 0)
        return error_errno(err, errno, "launch record: RLIMIT_FSIZE");
    int rc = write_all(fd, bytes, n_bytes, err);
    if (is_low)
        setrlimit(RLIMIT_FSIZE, &limit);
    return rc;
}

static int fill(int fd, const void *bytes, size_t n_bytes, int min_fd, int *out_fd,
                struct error *err)
{
    int rc = write_lifted(fd, bytes, n_bytes, err);
    if (rc)
        return rc;
    if (fcntl(fd, F_ADD_SEALS, SEALS) != 0)
        return error_errno(err, errno, "launch record: seals");
    int high = fcntl(fd, F_DUPFD_CLOEXEC, min_fd);
    if (high < 0)
        return error_errno(err, errno, "launch record: descriptor");
    *out_fd = high;
    return 0;
}

int launch_record_seal(const launch_record *record, int min_fd, int *out_fd, struct error *err)
{
    void *bytes;
    size_t n_bytes;
    int rc = rpc_message_pack(&record->base, &bytes, &n_bytes, err);
    if (rc)
        return rc;
    if (check_size(n_bytes, err) != 0) {
        free(bytes);
        return err->status;
    }
    int fd = memfd_create("sluice-launch", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        rc = error_errno(err, errno, "launch record: memfd_create");
    else
        rc = fill(fd, bytes, n_bytes, min_fd, out_fd, err);
    if (fd >= 0)
        close(fd);
    free(bytes);
    return rc;
}

/* --- reading --- */

static int check(int fd, size_t *out_n_bytes, struct error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return error_field(err, "descriptor", "%d is not open", fd);
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0)
        return error_field(err, "memfd", "descriptor %d is a file of another kind", fd);
    if ((seals & SEALS) != SEALS)
        return error_field(err, "seals", "descriptor %d has 0x%x, and a launch record needs 0x%x",
                           fd, (unsigned)seals, (unsigned)SEALS);
    if (check_size((uint64_t)st.st_size, err) != 0)
        return err->status;
    *out_n_bytes = (size_t)st.st_size;
    return 0;
}

/* The size is sealed, so a short read is a failure of the kernel. Reads at offsets, because the
 * process that sealed the memfd shares its file position. */
static int read_all(int fd, uint8_t *bytes, size_t n_bytes, struct error *err)
{
    for (size_t n_done = 0; n_done < n_bytes;) {
        ssize_t n = pread(fd, bytes + n_done, n_bytes - n_done, (off_t)n_done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return error_errno(err, n < 0 ? errno : EIO, "descriptor %d", fd);
        n_done += (size_t)n;
    }
    return 0;
}

int launch_record_read(int fd, launch_record **out_record, struct error *err)
{
    ProtobufCMessage *message = NULL;
    size_t n_bytes = 0;
    int rc = check(fd, &n_bytes, err);
    if (rc)
        return rc;
    uint8_t *bytes = malloc(n_bytes);
    if (!bytes)
        return error_no_memory(err);
    rc = read_all(fd, bytes, n_bytes, err);
    if (!rc)
        rc = rpc_message_parse(&sluice__worker__v1__launch__descriptor, bytes, n_bytes, &message,
                               err);
    free(bytes);
    if (!rc)
        *out_record = (launch_record *)message;
    return rc;
}

launch_record *launch_record_copy(const launch_record *record)
{
    void *bytes;
    size_t n_bytes;
    struct error err;
    ProtobufCMessage *copy = NULL;
    if (rpc_message_pack(&record->base, &bytes, &n_bytes, &err) != 0)
        return NULL;
    (void)rpc_message_parse(&sluice__worker__v1__launch__descriptor, bytes, n_bytes, &copy, &err);
    free(bytes);
    return (launch_record *)copy;
}

void launch_record_free(launch_record *record)
{
    if (record)
        rpc_message_free(&record->base);
}
