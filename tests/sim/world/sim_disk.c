/* sim_disk.c: a file layer of SQLite with database and log in memory. The layer knows which parts
 * are synced, and fails on request. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sqlite3.h>

#include "tests/sim/sim.h"

enum { FILE_DB, FILE_WAL, FILE_OTHER, N_FILES, SECTOR = 512 };
enum { TEMPLATE_LOG, TEMPLATE_DATABASE, N_TEMPLATES };

struct image {
    unsigned char *bytes;
    size_t n, capacity;
};

/* The manager's view of a file, the durable view, and the range in which they differ. With `same`
 * the views are equal and `synced` is not filled. */
struct disk_file {
    struct image now, synced;
    bool same;
    size_t dirty_from, dirty_to;
    bool exists;
};

struct open_file {
    sqlite3_file base;
    struct disk_file *file;
};

static struct disk_file files[N_FILES];
static struct image torn[N_FILES];
/* Initial files of a history. */
static struct template
{
    struct image images[N_FILES];
    bool exists[N_FILES];
}
templates[N_TEMPLATES];
static int log_pages; /* pages of the log after which SQLite copies it to the database */
struct sim_disk_faults sim_disk_faults;

static void reserve(struct image *image, size_t n)
{
    if (n > image->capacity) {
        size_t capacity = n * 2 > 65536 ? n * 2 : 65536;
        bool in_manager = sim.in_manager;
        sim.in_manager = false;
        unsigned char *bytes = realloc(image->bytes, capacity);
        sim.in_manager = in_manager;
        if (!bytes)
            abort();
        image->bytes = bytes;
        image->capacity = capacity;
    }
}

static void resize(struct image *image, size_t n)
{
    reserve(image, n);
    if (n > image->n)
        memset(image->bytes + image->n, 0, n - image->n);
    image->n = n;
}

static void copy(struct image *to, const struct image *from)
{
    reserve(to, from->n);
    to->n = from->n;
    if (from->n)
        memcpy(to->bytes, from->bytes, from->n);
}

/* Call before a change: fills `synced` if both views are still equal. */
static void part(struct disk_file *file)
{
    if (file->same)
        copy(&file->synced, &file->now);
    file->same = false;
}

static void mark(struct disk_file *file, size_t from, size_t to)
{
    if (file->dirty_from == file->dirty_to) {
        file->dirty_from = from;
        file->dirty_to = to;
        return;
    }
    file->dirty_from = from < file->dirty_from ? from : file->dirty_from;
    file->dirty_to = to > file->dirty_to ? to : file->dirty_to;
}

/* True if this operation is the one that must fail. Writes of a dead manager also fail, because
 * their contents do not matter. */
static bool fails(void)
{
    if (sim.dead)
        return true;
    if (!sim_disk_faults.fail_in || --sim_disk_faults.fail_in)
        return false;
    if (sim_disk_faults.n_more) { /* further failures follow soon */
        sim_disk_faults.n_more--;
        sim_disk_faults.fail_in = 1 + (uint32_t)sim_below(6);
    }
    sim.stats.n_io_errors++;
    sim.io_failed = true;
    sim_trace("disk: an operation fails");
    errno = 0;
    return true;
}

static bool read_fails(void)
{
    struct sim_disk_faults *faults = &sim_disk_faults;
    if (!faults->read_fail_in || (faults->read_fail_in > 1 && --faults->read_fail_in))
        return false;
    if (--faults->n_reads == 0)
        faults->read_fail_in = 0;
    sim.stats.n_io_errors++;
    sim.io_failed = true;
    sim_trace("disk: a read fails");
    errno = 0;
    return true;
}

static int file_close(sqlite3_file *base)
{
    (void)base;
    return SQLITE_OK;
}

static int file_read(sqlite3_file *base, void *out, int n, sqlite3_int64 at)
{
    const struct image *image = &((struct open_file *)base)->file->now;
    if (sim.dead || read_fails())
        return SQLITE_IOERR_READ;
    size_t from = (size_t)at, want = (size_t)n;
    size_t have = from >= image->n ? 0 : image->n - from < want ? image->n - from : want;
    if (have)
        memcpy(out, image->bytes + from, have);
    if (have == want)
        return SQLITE_OK;
    memset((char *)out + have, 0, want - have);
    return SQLITE_IOERR_SHORT_READ;
}

static int file_write(sqlite3_file *base, const void *in, int n, sqlite3_int64 at)
{
    struct disk_file *file = ((struct open_file *)base)->file;
    size_t from = (size_t)at, to = from + (size_t)n;
    if (fails())
        return SQLITE_IOERR_WRITE;
    if (sim_disk_faults.full)
        return SQLITE_FULL;
    part(file);
    mark(file, from < file->now.n ? from : file->now.n, to);
    if (to > file->now.n)
        resize(&file->now, to);
    memcpy(file->now.bytes + from, in, (size_t)n);
    return SQLITE_OK;
}

static int file_truncate(sqlite3_file *base, sqlite3_int64 size)
{
    struct disk_file *file = ((struct open_file *)base)->file;
    size_t n = (size_t)size;
    if (fails())
        return SQLITE_IOERR_TRUNCATE;
    part(file);
    if (n < file->now.n)
        mark(file, n, file->now.n);
    resize(&file->now, n);
    return SQLITE_OK;
}

static void sync_file(struct disk_file *file)
{
    if (file->same)
        return;
    size_t from = file->dirty_from,
           to = file->dirty_to < file->now.n ? file->dirty_to : file->now.n;
    reserve(&file->synced, file->now.n);
    file->synced.n = file->now.n; /* bytes beyond the old length are in the dirty range */
    if (from < to)
        memcpy(file->synced.bytes + from, file->now.bytes + from, to - from);
    file->dirty_from = file->dirty_to = 0;
}

static int file_sync(sqlite3_file *base, int flags)
{
    struct disk_file *file = ((struct open_file *)base)->file;
    (void)flags;
    if (fails())
        return SQLITE_IOERR_FSYNC;
    sync_file(file);
    return SQLITE_OK;
}

static int file_size(sqlite3_file *base, sqlite3_int64 *out)
{
    *out = (sqlite3_int64)((struct open_file *)base)->file->now.n;
    return SQLITE_OK;
}

static int file_lock(sqlite3_file *base, int level)
{
    (void)base;
    (void)level;
    return sim_disk_faults.locked ? SQLITE_BUSY : SQLITE_OK;
}

static int file_unlock(sqlite3_file *base, int level)
{
    (void)base;
    (void)level;
    return SQLITE_OK;
}

static int file_reserved(sqlite3_file *base, int *out)
{
    (void)base;
    *out = 0;
    return SQLITE_OK;
}

static int file_control(sqlite3_file *base, int op, void *arg)
{
    (void)base;
    (void)op;
    (void)arg;
    return SQLITE_NOTFOUND;
}

static int file_sector(sqlite3_file *base)
{
    (void)base;
    return SECTOR;
}

static int file_characteristics(sqlite3_file *base)
{
    (void)base;
    return 0;
}

static const sqlite3_io_methods methods = {
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

static bool ends_with(const char *name, const char *end)
{
    size_t n = name ? strlen(name) : 0, n_end = strlen(end);
    return n >= n_end && strcmp(name + n - n_end, end) == 0;
}

static struct disk_file *find(const char *name)
{
    if (ends_with(name, "-wal"))
        return &files[FILE_WAL];
    bool is_db = ends_with(name, ".db") || ends_with(name, ".db.new");
    return &files[is_db ? FILE_DB : FILE_OTHER];
}

/* Writes a mark at the real path: the file shows that a database exists. The pages are here. */
static bool leave_mark(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool left = fd >= 0 && write(fd, "sim", 3) == 3;
    if (fd >= 0)
        close(fd);
    return left;
}

static bool is_marked; /* sim_path has the mark */

static void empty(struct disk_file *file)
{
    file->now.n = file->synced.n = 0;
    file->same = true;
    file->dirty_from = file->dirty_to = 0;
    file->exists = false;
}

/* Empties database and log, because the manager has unlinked the old file of this name. */
static bool begin_new(const char *name)
{
    empty(&files[FILE_DB]);
    empty(&files[FILE_WAL]);
    return leave_mark(name);
}

static int vfs_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *base, int flags,
                    int *out_flags)
{
    struct open_file *open = (struct open_file *)base;
    (void)vfs;
    if (sim.dead)
        return SQLITE_CANTOPEN;
    if ((flags & SQLITE_OPEN_CREATE) && ends_with(name, ".db.new") && !begin_new(name))
        return SQLITE_CANTOPEN;
    *open = (struct open_file){.base.pMethods = &methods, .file = find(name)};
    open->file->exists = true;
    if (out_flags)
        *out_flags = flags;
    return SQLITE_OK;
}

static int vfs_delete(sqlite3_vfs *vfs, const char *name, int sync)
{
    struct disk_file *file = find(name);
    (void)vfs;
    (void)sync;
    if (fails())
        return SQLITE_IOERR_DELETE;
    empty(file);
    return SQLITE_OK;
}

static int vfs_access(sqlite3_vfs *vfs, const char *name, int flags, int *out)
{
    (void)vfs;
    (void)flags;
    *out = find(name)->exists;
    return SQLITE_OK;
}

static int vfs_path(sqlite3_vfs *vfs, const char *name, int n, char *out)
{
    (void)vfs;
    snprintf(out, (size_t)n, "%s", name);
    return SQLITE_OK;
}

static int vfs_random(sqlite3_vfs *vfs, int n, char *out)
{
    (void)vfs;
    for (int i = 0; i < n; i++)
        out[i] = (char)sim_below(256);
    return n;
}

static int vfs_sleep(sqlite3_vfs *vfs, int us)
{
    (void)vfs;
    return us;
}

static int vfs_time(sqlite3_vfs *vfs, double *out)
{
    (void)vfs;
    *out = 2460000.5;
    return SQLITE_OK;
}

static int vfs_error(sqlite3_vfs *vfs, int n, char *out)
{
    (void)vfs;
    (void)n;
    (void)out;
    return 0;
}

/* Sets log_pages for a connection. SQLite's default of 1,000 pages is more than most histories
 * write. */
static int configure(sqlite3 *db, const char **message, const struct sqlite3_api_routines *unused)
{
    (void)message;
    (void)unused;
    return sqlite3_wal_autocheckpoint(db, log_pages);
}

int sim_disk_install(void)
{
    static sqlite3_vfs vfs = {
        .iVersion = 1,
        .szOsFile = sizeof(struct open_file),
        .mxPathname = 512,
        .zName = "sim",
        .xOpen = vfs_open,
        .xDelete = vfs_delete,
        .xAccess = vfs_access,
        .xFullPathname = vfs_path,
        .xRandomness = vfs_random,
        .xSleep = vfs_sleep,
        .xCurrentTime = vfs_time,
        .xGetLastError = vfs_error,
    };
    sqlite3_config(SQLITE_CONFIG_SINGLETHREAD);
    sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
    if (sim_pool_install() != SQLITE_OK)
        return -1;
    log_pages = 1000;
    return sqlite3_vfs_register(&vfs, 1) == SQLITE_OK &&
                   sqlite3_auto_extension((void (*)(void))configure) == SQLITE_OK
               ? 0
               : -1;
}

static void keep(struct template *template)
{
    for (int i = 0; i < N_FILES; i++) {
        copy(&template->images[i], &files[i].now);
        template->exists[i] = files[i].exists;
    }
}

/* Keeps the database as a template. The log would hold all writes, which each start reads. A
 * database with small pages has more writes that can fail, and less to copy. */
bool sim_disk_keep_templates(const char *path)
{
    sqlite3 *db = NULL;
    keep(&templates[TEMPLATE_LOG]);
    bool kept = sqlite3_open(path, &db) == SQLITE_OK &&
                sqlite3_exec(db,
                             "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = MEMORY;"
                             "PRAGMA temp_store = MEMORY; PRAGMA page_size = 1024; VACUUM;"
                             "PRAGMA journal_mode = WAL",
                             NULL, NULL, NULL) == SQLITE_OK;
    kept = sqlite3_close(db) == SQLITE_OK && kept;
    keep(&templates[TEMPLATE_DATABASE]);
    return kept;
}

static void put(struct disk_file *file, const struct image *image, bool exists)
{
    copy(&file->now, image);
    file->same = true;
    file->dirty_from = file->dirty_to = 0;
    file->exists = exists;
}

void sim_disk_reset(void)
{
    static const int pages[] = {1000, 1000, 200, 40};
    const struct template *template =
        &templates[sim.history_seed % 8 == 5 ? TEMPLATE_LOG : TEMPLATE_DATABASE];
    sim_disk_faults = (struct sim_disk_faults){0};
    log_pages = pages[sim_below(4)];
    for (int i = 0; i < N_FILES; i++)
        put(&files[i], &template->images[i], template->exists[i]);
    if (!is_marked && !(is_marked = leave_mark(sim_path)))
        abort();
    if (!sim_starts_from_nothing())
        return;
    unlink(sim_path);
    is_marked = false;
    for (int i = 0; i < N_FILES; i++)
        empty(&files[i]);
}

/* For each unsynced sector chooses old or new contents. Chooses the old or the new length too. */
static void tear(const struct disk_file *file, struct image *out)
{
    bool longer = sim_chance(50);
    copy(out, file->same ? &file->now : &file->synced);
    if (file->dirty_from == file->dirty_to)
        return;
    size_t n = longer ? file->now.n : file->synced.n;
    resize(out, n);
    for (size_t at = file->dirty_from / SECTOR * SECTOR; at < n && at < file->dirty_to;
         at += SECTOR) {
        size_t to = at + SECTOR < file->now.n ? at + SECTOR : file->now.n;
        to = to < n ? to : n;
        if (at < to && sim_chance(50))
            memcpy(out->bytes + at, file->now.bytes + at, to - at);
    }
}

/* Without a cut, the kernel still has the unsynced data. A cut in a later life may lose that
 * data. */
void sim_disk_crash(bool cut)
{
    for (int i = 0; cut && i < N_FILES; i++) {
        struct image whole = files[i].now; /* reuse its memory for the next torn image */
        tear(&files[i], &torn[i]);
        files[i].now = torn[i];
        torn[i] = whole;
        files[i].same = true;
        files[i].dirty_from = files[i].dirty_to = 0;
    }
}

static bool leave_nothing(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    return fd >= 0 && close(fd) == 0;
}

/* Damages the database and deletes the log, whose pages could hide the damage. So a start that
 * notices no damage has only lost the log. */
int sim_disk_damage(void)
{
    struct image *db = &files[FILE_DB].now;
    sim.damaged = true;
    switch (sim_below(db->n > 4096 ? 4 : 2)) {
    case 0:
        sim_disk_faults.locked = true;
        return STATUS_FAILED_PRECONDITION;
    case 1:
        is_marked = false;
        if (!leave_nothing(sim_path))
            abort();
        return STATUS_DATA_LOSS;
    case 2:
        empty(&files[FILE_WAL]);
        memcpy(db->bytes, "somebody's diary", 16);
        return STATUS_DATA_LOSS;
    default:
        empty(&files[FILE_WAL]);
        for (size_t at = 1024 + sim_below(db->n - 2048), n = 0; n < 1024; n++)
            db->bytes[at + n] = (unsigned char)sim_below(256);
        return STATUS_DATA_LOSS;
    }
}

void sim_disk_repair(void)
{
    sim_disk_faults.locked = sim.damaged = false;
}

uint64_t sim_disk_hash(void)
{
    uint64_t hash = 1469598103934665603ULL;
    for (size_t i = 0; i < files[FILE_DB].now.n; i++)
        hash = (hash ^ files[FILE_DB].now.bytes[i]) * 1099511628211ULL;
    return hash;
}
