#include "tests/support/fault/fault_disk.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ftw.h>
#include <sqlite3.h>

enum { SECTOR = 512, MAX_NAMES = 64, NAME_BYTES = 200 };

/* A write or, without bytes, a truncation that no sync has made durable. */
struct pending {
    int64_t offset;
    size_t n_bytes;
    uint8_t *bytes;
};

struct file {
    uint8_t *durable;
    size_t n_durable;
    struct pending *pending;
    size_t n_pending;
    bool name_with_sync; /* a new log or journal: SQLite syncs its folder with it */
};

struct name {
    char text[NAME_BYTES]; /* relative to the folder; empty: none */
    struct file *file;
};

struct names {
    struct name list[MAX_NAMES];
};

/* A change of a name: `to` gets the file of `from`. Empty `from`: the file is new; empty `to`: the
 * name is removed. */
struct renaming {
    char from[NAME_BYTES], to[NAME_BYTES];
    struct file *file;
};

static struct {
    pthread_mutex_t mutex;
    char folder[PATH_MAX];
    struct names now, durable;
    struct renaming log[1024];
    size_t n_log;
    uint64_t random;
    enum fault fault;
    uint64_t at, n_times, n;
    bool struck, off;
    sqlite3_vfs *real;
    struct file *files[4096]; /* all files of the run, kept to free them at the end */
    size_t n_files;
} disk = {.mutex = PTHREAD_MUTEX_INITIALIZER};

struct handle {
    sqlite3_file base; /* first */
    struct file *file; /* NULL: a temporary file, which may vanish */
    sqlite3_file *real;
};

/* -- the model ----------------------------------------------------------------------------------
 */

static uint64_t next_random(void)
{ /* splitmix64, Steele et al., 2014 */
    uint64_t z = (disk.random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void *must(void *memory)
{
    assert(memory);
    return memory;
}

static struct file *new_file(void)
{
    assert(disk.n_files < sizeof(disk.files) / sizeof(disk.files[0]));
    return disk.files[disk.n_files++] = must(calloc(1, sizeof(struct file)));
}

static struct name *find_name(struct names *names, const char *text)
{
    for (size_t i = 0; i < MAX_NAMES; i++)
        if (strcmp(names->list[i].text, text) == 0)
            return &names->list[i];
    return NULL;
}

static void set_name(struct names *names, const char *text, struct file *file)
{
    struct name *name = find_name(names, text);
    if (!name && file) {
        name = must(find_name(names, ""));
        snprintf(name->text, sizeof(name->text), "%s", text);
    }
    if (name) {
        name->file = file;
        if (!file)
            name->text[0] = '\0';
    }
}

static void apply_renaming(struct names *names, const struct renaming *renaming)
{
    if (renaming->from[0])
        set_name(names, renaming->from, NULL);
    if (renaming->to[0])
        set_name(names, renaming->to, renaming->file);
}

static void log_renaming(const char *from, const char *to, struct file *file)
{
    assert(disk.n_log < sizeof(disk.log) / sizeof(disk.log[0]));
    struct renaming *renaming = &disk.log[disk.n_log++];
    memset(renaming, 0, sizeof(*renaming));
    snprintf(renaming->from, sizeof(renaming->from), "%s", from);
    snprintf(renaming->to, sizeof(renaming->to), "%s", to);
    renaming->file = file;
    apply_renaming(&disk.now, renaming);
}

/* Returns true if the name lies in the folder (a relative name, empty for the top). */
static bool lies_in(const char *name, const char *folder)
{
    const char *slash = strrchr(name, '/');
    size_t n = slash ? (size_t)(slash - name) : 0;
    return name[0] && n == strlen(folder) && strncmp(name, folder, n) == 0;
}

static void sync_names(const char *folder)
{
    size_t n_left = 0;
    for (size_t i = 0; i < disk.n_log; i++) {
        struct renaming *renaming = &disk.log[i];
        if (lies_in(renaming->from, folder) || lies_in(renaming->to, folder))
            apply_renaming(&disk.durable, renaming);
        else
            disk.log[n_left++] = *renaming;
    }
    disk.n_log = n_left;
}

static void sync_folder_of(const char *name)
{
    const char *slash = strrchr(name, '/');
    char folder[NAME_BYTES];
    snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - name) : 0, name);
    sync_names(folder);
}

static void sync_all_names(void)
{
    disk.durable = disk.now;
    disk.n_log = 0;
}

static void set_size(struct file *file, size_t n_bytes)
{
    if (n_bytes > file->n_durable) {
        file->durable = must(realloc(file->durable, n_bytes));
        memset(file->durable + file->n_durable, 0, n_bytes - file->n_durable);
    }
    file->n_durable = n_bytes;
}

/* Makes pending writes durable. Each pending sector survives with probability of_8 / 8. */
static void settle(struct file *file, unsigned of_8)
{
    for (size_t i = 0; i < file->n_pending; i++) {
        struct pending *p = &file->pending[i];
        if (!p->bytes && next_random() % 8 < of_8)
            set_size(file, (size_t)p->offset);
        for (size_t at = 0, n; p->bytes && at < p->n_bytes; at += n) {
            size_t where = (size_t)p->offset + at;
            n = SECTOR - where % SECTOR;
            if (n > p->n_bytes - at)
                n = p->n_bytes - at;
            if (next_random() % 8 >= of_8)
                continue;
            if (where + n > file->n_durable)
                set_size(file, where + n);
            memcpy(file->durable + where, p->bytes + at, n);
        }
        free(p->bytes);
    }
    file->n_pending = 0;
}

static void add_pending(struct file *file, int64_t offset, const void *bytes, size_t n_bytes)
{
    if (!file)
        return;
    if ((file->n_pending & (file->n_pending + 1)) == 0)
        file->pending =
            must(realloc(file->pending, (file->n_pending + 1) * 2 * sizeof(*file->pending)));
    struct pending *p = &file->pending[file->n_pending++];
    *p = (struct pending){.offset = offset, .n_bytes = n_bytes};
    if (bytes)
        memcpy(p->bytes = must(malloc(n_bytes ? n_bytes : 1)), bytes, n_bytes);
}

/* -- faults -------------------------------------------------------------------------------------
 */

enum what { IS_WRITE, IS_SYNC, IS_NAME, IS_READ };

/* Counts one operation. Returns the fault that it must suffer, or FAULT_NONE. Call under the lock.
 */
static enum fault strike(enum what what)
{
    if (disk.off)
        return FAULT_EIO;
    if (disk.fault == FAULT_NONE || (what == IS_READ) != (disk.fault == FAULT_READ) ||
        (disk.fault == FAULT_FULL && what != IS_WRITE) ||
        (disk.fault == FAULT_SYNC_FULL && what != IS_SYNC)) {
        if (disk.fault == FAULT_NONE && what != IS_READ)
            disk.n++;
        return FAULT_NONE;
    }
    disk.n++;
    if (disk.n < disk.at || disk.n - disk.at >= disk.n_times)
        return FAULT_NONE;
    disk.struck = true;
    disk.off = disk.fault == FAULT_CUT;
    return disk.fault;
}

static int failed(enum fault fault, int code)
{
    errno = fault == FAULT_FULL || fault == FAULT_SYNC_FULL ? ENOSPC : EIO;
    return fault == FAULT_FULL ? SQLITE_FULL : code;
}

/* -- SQLite's files -----------------------------------------------------------------------------
 */

static sqlite3_file *real_of(sqlite3_file *file)
{
    return ((struct handle *)file)->real;
}

static int file_close(sqlite3_file *base)
{
    struct handle *handle = (struct handle *)base;
    int rc = handle->real->pMethods ? handle->real->pMethods->xClose(handle->real) : SQLITE_OK;
    return rc;
}

static int file_read(sqlite3_file *file, void *out, int n, sqlite3_int64 offset)
{
    pthread_mutex_lock(&disk.mutex);
    enum fault fault = strike(IS_READ);
    pthread_mutex_unlock(&disk.mutex);
    if (fault != FAULT_NONE)
        return failed(fault, SQLITE_IOERR_READ);
    return real_of(file)->pMethods->xRead(real_of(file), out, n, offset);
}

static int file_write(sqlite3_file *base, const void *bytes, int n, sqlite3_int64 offset)
{
    struct handle *handle = (struct handle *)base;
    int n_done = n;
    pthread_mutex_lock(&disk.mutex);
    enum fault fault = strike(IS_WRITE);
    if (fault == FAULT_EIO || fault == FAULT_FULL || fault == FAULT_SYNC_FULL)
        n_done = 0;
    else if (fault == FAULT_TORN)
        n_done = (int)(next_random() % (unsigned)(n + 1)); /* a part of the write, or all of it */
    if (n_done)
        add_pending(handle->file, offset, bytes, (size_t)n_done);
    pthread_mutex_unlock(&disk.mutex);
    int rc =
        n_done ? handle->real->pMethods->xWrite(handle->real, bytes, n_done, offset) : SQLITE_OK;
    return fault == FAULT_NONE ? rc : failed(fault, SQLITE_IOERR_WRITE);
}

static int file_truncate(sqlite3_file *base, sqlite3_int64 n_bytes)
{
    struct handle *handle = (struct handle *)base;
    pthread_mutex_lock(&disk.mutex);
    enum fault fault = strike(IS_WRITE);
    if (fault == FAULT_NONE || fault == FAULT_CUT)
        add_pending(handle->file, n_bytes, NULL, 0);
    pthread_mutex_unlock(&disk.mutex);
    return fault == FAULT_NONE ? handle->real->pMethods->xTruncate(handle->real, n_bytes)
                               : failed(fault, SQLITE_IOERR_TRUNCATE);
}

static int file_sync(sqlite3_file *base, int flags)
{
    struct handle *handle = (struct handle *)base;
    (void)flags;
    pthread_mutex_lock(&disk.mutex);
    enum fault fault = strike(IS_SYNC);
    if (handle->file && fault != FAULT_CUT && !disk.off) {
        settle(handle->file, fault == FAULT_NONE ? 8 : 4);
        for (size_t i = 0; fault == FAULT_NONE && handle->file->name_with_sync && i < MAX_NAMES;
             i++)
            if (disk.now.list[i].file == handle->file)
                sync_folder_of(disk.now.list[i].text);
    }
    pthread_mutex_unlock(&disk.mutex);
    return fault == FAULT_NONE ? SQLITE_OK : failed(fault, SQLITE_IOERR_FSYNC);
}

static int file_size(sqlite3_file *file, sqlite3_int64 *out)
{
    return real_of(file)->pMethods->xFileSize(real_of(file), out);
}

static int file_lock(sqlite3_file *file, int level)
{
    return real_of(file)->pMethods->xLock(real_of(file), level);
}

static int file_unlock(sqlite3_file *file, int level)
{
    return real_of(file)->pMethods->xUnlock(real_of(file), level);
}

static int file_reserved(sqlite3_file *file, int *out)
{
    return real_of(file)->pMethods->xCheckReservedLock(real_of(file), out);
}

static int file_control(sqlite3_file *file, int op, void *arg)
{
    return op == SQLITE_FCNTL_SIZE_HINT || op == SQLITE_FCNTL_CHUNK_SIZE
               ? SQLITE_NOTFOUND
               : real_of(file)->pMethods->xFileControl(real_of(file), op, arg);
}

static int file_sector(sqlite3_file *file)
{
    (void)file;
    return SECTOR;
}

static int file_characteristics(sqlite3_file *file)
{
    (void)file;
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

/* Version 1 has no shared memory. So opening a database without exclusive locking fails. */
static const sqlite3_io_methods file_methods = {
    .iVersion = 1,
    .xClose = file_close,
    .xRead = file_read,
    .xWrite = file_write,
    .xTruncate = file_truncate,
    .xSync = file_sync,
    .xFileSize = file_size,
    .xLock = file_lock,
    .xUnlock = file_unlock,
    .xCheckReservedLock = file_reserved,
    .xFileControl = file_control,
    .xSectorSize = file_sector,
    .xDeviceCharacteristics = file_characteristics,
};

/* -- SQLite's names -----------------------------------------------------------------------------
 */

/* Returns the path relative to the folder; NULL for a path outside. */
static const char *relative(const char *path)
{
    size_t n = strlen(disk.folder);
    if (!path || strncmp(path, disk.folder, n) != 0 || (path[n] != '/' && path[n] != '\0'))
        return NULL;
    return path[n] ? path + n + 1 : "";
}

static int vfs_open(sqlite3_vfs *vfs, const char *path, sqlite3_file *base, int flags, int *out)
{
    struct handle *handle = (struct handle *)base;
    const char *name = relative(path);
    int rc = SQLITE_OK;
    (void)vfs;
    memset(handle, 0, sizeof(*handle));
    handle->real = (sqlite3_file *)(handle + 1);
    pthread_mutex_lock(&disk.mutex);
    struct name *known = name ? find_name(&disk.now, name) : NULL;
    bool is_new = name && !known && (flags & SQLITE_OPEN_CREATE);
    enum fault fault = is_new ? strike(IS_NAME) : disk.off ? FAULT_EIO : FAULT_NONE;
    if (fault != FAULT_NONE) {
        rc = failed(fault, SQLITE_CANTOPEN);
    } else {
        rc = disk.real->xOpen(disk.real, path, handle->real, flags, out);
        if (rc == SQLITE_OK && is_new) {
            handle->file = new_file();
            handle->file->name_with_sync =
                flags & (SQLITE_OPEN_WAL | SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_SUPER_JOURNAL);
            log_renaming("", name, handle->file);
        } else if (rc == SQLITE_OK && known) {
            handle->file = known->file;
        }
        base->pMethods = handle->real->pMethods ? &file_methods : NULL;
    }
    pthread_mutex_unlock(&disk.mutex);
    return rc;
}

static int vfs_delete(sqlite3_vfs *vfs, const char *path, int sync)
{
    const char *name = relative(path);
    (void)vfs;
    pthread_mutex_lock(&disk.mutex);
    struct name *known = name ? find_name(&disk.now, name) : NULL;
    enum fault fault = known ? strike(IS_NAME) : disk.off ? FAULT_EIO : FAULT_NONE;
    int rc = SQLITE_OK;
    if (known && (fault == FAULT_NONE || fault == FAULT_CUT))
        log_renaming(name, "", known->file);
    if (fault == FAULT_NONE) {
        rc = disk.real->xDelete(disk.real, path, 0);
        if (sync && name)
            sync_folder_of(name);
    } else {
        rc = failed(fault, SQLITE_IOERR_DELETE);
    }
    pthread_mutex_unlock(&disk.mutex);
    return rc;
}

static int vfs_access(sqlite3_vfs *vfs, const char *path, int flags, int *out)
{
    (void)vfs;
    return disk.real->xAccess(disk.real, path, flags, out);
}

static int vfs_full_path(sqlite3_vfs *vfs, const char *path, int n_out, char *out)
{
    (void)vfs;
    return disk.real->xFullPathname(disk.real, path, n_out, out);
}

static int vfs_randomness(sqlite3_vfs *vfs, int n, char *out)
{
    (void)vfs;
    return disk.real->xRandomness(disk.real, n, out);
}

static int vfs_sleep(sqlite3_vfs *vfs, int us)
{
    (void)vfs;
    return us;
}

static int vfs_time(sqlite3_vfs *vfs, double *out)
{
    (void)vfs;
    return disk.real->xCurrentTime(disk.real, out);
}

static int vfs_last_error(sqlite3_vfs *vfs, int n, char *out)
{
    (void)vfs;
    (void)n;
    (void)out;
    return errno;
}

static sqlite3_vfs vfs = {
    .iVersion = 1,
    .mxPathname = PATH_MAX,
    .zName = "fault_disk",
    .xOpen = vfs_open,
    .xDelete = vfs_delete,
    .xAccess = vfs_access,
    .xFullPathname = vfs_full_path,
    .xRandomness = vfs_randomness,
    .xSleep = vfs_sleep,
    .xCurrentTime = vfs_time,
    .xGetLastError = vfs_last_error,
};

/* -- the code's own calls -----------------------------------------------------------------------
 */

int __real_rename(const char *from, const char *to);
int __real_unlink(const char *path);
int __real_fsync(int fd);
int __wrap_rename(const char *from, const char *to);
int __wrap_unlink(const char *path);
int __wrap_fsync(int fd);
ssize_t __real_pwrite(int fd, const void *bytes, size_t n_bytes, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t n_bytes, off_t offset);

/* Returns the file of that name. A file that was written without SQLite enters the model here, and
 * is not durable. */
static struct name *adopt(const char *name, const char *path)
{
    struct name *known = name && name[0] ? find_name(&disk.now, name) : NULL;
    struct stat st;
    if (known || !name || !name[0] || stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return known;
    struct file *file = new_file();
    uint8_t *bytes = must(malloc((size_t)st.st_size + 1));
    FILE *in = must(fopen(path, "rb"));
    size_t n = fread(bytes, 1, (size_t)st.st_size, in);
    fclose(in);
    add_pending(file, 0, bytes, n);
    free(bytes);
    log_renaming("", name, file);
    return find_name(&disk.now, name);
}

static int refuse(enum fault fault)
{
    failed(fault, 0);
    return -1;
}

int __wrap_rename(const char *from, const char *to)
{
    pthread_mutex_lock(&disk.mutex);
    const char *old_name = relative(from), *new_name = relative(to);
    struct name *known = adopt(old_name, from);
    enum fault fault = known ? strike(IS_NAME) : FAULT_NONE;
    if (known && (fault == FAULT_NONE || fault == FAULT_CUT))
        log_renaming(old_name, new_name, known->file);
    int rc = fault == FAULT_NONE ? __real_rename(from, to) : refuse(fault);
    pthread_mutex_unlock(&disk.mutex);
    return rc;
}

int __wrap_unlink(const char *path)
{
    pthread_mutex_lock(&disk.mutex);
    const char *name = relative(path);
    struct name *known = name ? find_name(&disk.now, name) : NULL;
    enum fault fault = known ? strike(IS_NAME) : FAULT_NONE;
    if (known && (fault == FAULT_NONE || fault == FAULT_CUT))
        log_renaming(name, "", known->file);
    int rc = fault == FAULT_NONE ? __real_unlink(path) : refuse(fault);
    pthread_mutex_unlock(&disk.mutex);
    return rc;
}

static void path_of(int fd, char out[PATH_MAX])
{
    char link[64];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    out[n > 0 ? n : 0] = '\0';
}

ssize_t __wrap_pwrite(int fd, const void *bytes, size_t n_bytes, off_t offset)
{
    char path[PATH_MAX];
    size_t n_done = n_bytes;
    path_of(fd, path);
    pthread_mutex_lock(&disk.mutex);
    const char *name = relative(path);
    struct name *known = name && name[0] ? find_name(&disk.now, name) : NULL;
    enum fault fault = known ? strike(IS_WRITE) : FAULT_NONE;
    if (fault == FAULT_FULL)
        fault = FAULT_NONE;
    if (fault == FAULT_EIO)
        n_done = 0;
    else if (fault == FAULT_TORN)
        n_done = next_random() % (n_bytes + 1);
    if (known && n_done)
        add_pending(known->file, offset, bytes, n_done);
    pthread_mutex_unlock(&disk.mutex);
    ssize_t rc = n_done ? __real_pwrite(fd, bytes, n_done, offset) : 0;
    return fault == FAULT_NONE ? rc : refuse(fault);
}

int __wrap_fsync(int fd)
{
    char path[PATH_MAX];
    path_of(fd, path);
    pthread_mutex_lock(&disk.mutex);
    const char *name = relative(path);
    struct name *known = adopt(name, path);
    enum fault fault = name ? strike(IS_SYNC) : FAULT_NONE;
    if (known && fault != FAULT_CUT && !disk.off)
        settle(known->file, fault == FAULT_NONE ? 8 : 4);
    else if (fault == FAULT_NONE && name)
        sync_names(name);
    pthread_mutex_unlock(&disk.mutex);
    if (fault != FAULT_NONE)
        return refuse(fault);
    return name ? 0 : __real_fsync(fd);
}

/* -- life ---------------------------------------------------------------------------------------
 */

static void full_path(const char *name, char out[PATH_MAX + NAME_BYTES])
{
    snprintf(out, PATH_MAX + NAME_BYTES, "%s/%s", disk.folder, name);
}

static void write_file(const char *name, const struct file *file)
{
    char path[PATH_MAX + NAME_BYTES];
    full_path(name, path);
    FILE *out = must(fopen(path, "wb"));
    if (file->n_durable && fwrite(file->durable, 1, file->n_durable, out) != file->n_durable)
        abort();
    fclose(out);
}

static void forget(void)
{
    for (size_t i = 0; i < disk.n_files; i++) {
        struct file *file = disk.files[i];
        for (size_t k = 0; k < file->n_pending; k++)
            free(file->pending[k].bytes);
        free(file->pending);
        free(file->durable);
        free(file);
    }
    disk.n_files = disk.n_log = 0;
    memset(&disk.now, 0, sizeof(disk.now));
    memset(&disk.durable, 0, sizeof(disk.durable));
}

static int load_file(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)ftw;
    if (type != FTW_F)
        return 0;
    struct name *name = must(adopt(relative(path), path));
    settle(name->file, 8);
    return 0;
}

void fault_disk_begin(const char *folder, uint64_t seed)
{
    if (!disk.real) {
        disk.real = sqlite3_vfs_find(NULL);
        vfs.szOsFile = (int)sizeof(struct handle) + disk.real->szOsFile;
    }
    forget();
    snprintf(disk.folder, sizeof(disk.folder), "%s", folder);
    disk.random = seed;
    nftw(folder, load_file, 16, FTW_PHYS);
    sync_all_names();
    fault_disk_plan(FAULT_NONE, 0, 0);
    sqlite3_vfs_register(&vfs, 1);
}

void fault_disk_end(void)
{
    sqlite3_vfs_unregister(&vfs);
    forget();
    disk.folder[0] = '\0';
}

void fault_disk_plan(enum fault fault, uint64_t at, uint64_t n_times)
{
    pthread_mutex_lock(&disk.mutex);
    disk.fault = fault;
    disk.at = at;
    disk.n_times = n_times;
    disk.n = 0;
    disk.struck = disk.off = false;
    pthread_mutex_unlock(&disk.mutex);
}

uint64_t fault_disk_n(void)
{
    pthread_mutex_lock(&disk.mutex);
    uint64_t n = disk.n;
    pthread_mutex_unlock(&disk.mutex);
    return n;
}

bool fault_disk_struck(void)
{
    pthread_mutex_lock(&disk.mutex);
    bool struck = disk.struck;
    pthread_mutex_unlock(&disk.mutex);
    return struck;
}

uint64_t fault_disk_random(uint64_t n)
{
    pthread_mutex_lock(&disk.mutex);
    uint64_t value = next_random() % n;
    pthread_mutex_unlock(&disk.mutex);
    return value;
}

static int remove_file(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)ftw;
    if (type == FTW_F)
        __real_unlink(path);
    return 0;
}

void fault_disk_cut(void)
{
    static const unsigned shares[] = {0, 2, 4, 6, 7, 8};
    size_t n_log = disk.n_log ? next_random() % (disk.n_log + 1) : 0;
    for (size_t i = 0; i < n_log; i++)
        apply_renaming(&disk.durable, &disk.log[i]);
    nftw(disk.folder, remove_file, 16, FTW_PHYS);
    disk.n_log = 0;
    for (size_t i = 0; i < disk.n_files; i++)
        settle(disk.files[i], shares[next_random() % (sizeof(shares) / sizeof(shares[0]))]);
    disk.now = disk.durable;
    for (size_t i = 0; i < MAX_NAMES; i++)
        if (disk.now.list[i].text[0])
            write_file(disk.now.list[i].text, disk.now.list[i].file);
    fault_disk_plan(FAULT_NONE, 0, 0);
}
