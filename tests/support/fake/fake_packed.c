#include "tests/support/fake/fake_packed.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/rpc/server/call.h"
#include "tests/support/fake/fake_script.h"

enum { FIRST_FD = 3, SEALS = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK };

/* as in a real worker: a manager may fetch a reported image until then */
enum { LEASE_MS = 10000 };

static bool is_on_gpu;
static const char *script_path;
static char note[64];
static _Atomic bool mapped, whole;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* Under the mutex, as far as these change: */
static size_t n_handed;
static int handed[FAKE_MAX_RANKS];
static int kept = -1;                /* the image that this worker made */
static int64_t lease_ns, kept_until; /* kept_until: the image is kept at least until then */
static bool copies;

static bool is_sealed(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_WRITE);
}

void fake_packed_init(size_t n_fds, bool on_gpu, const char *model_path)
{
    char text[FAKE_SCRIPT_BYTES];
    is_on_gpu = on_gpu;
    script_path = model_path;
    n_handed = n_fds;
    for (size_t i = 0; i < n_handed; i++) {
        handed[i] = FIRST_FD + (int)i;
        if (!is_sealed(handed[i]))
            continue;
        ssize_t n = pread(handed[i], text, sizeof(text) - 1, 0);
        text[n > 0 ? n : 0] = '\0';
        mapped = strcmp(text, fake_script) == 0;
        if (!mapped)
            snprintf(note, sizeof(note), "packed weights: of another script");
        if (!mapped && !is_on_gpu)
            handed[i] = memfd_create("sluice-weights", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    }
}

bool fake_packed_is_due(void)
{
    return !is_on_gpu && n_handed && !mapped && !whole && !fake_has("packs_not");
}

static void fill(int fd, const char *script, size_t n)
{
    if (pwrite(fd, script, n, 0) < 0)
        perror("packed");
}

static void seal(int fd)
{
    if (fake_number("packs=", 0) && posix_fallocate(fd, 0, fake_number("packs=", 0)) != 0)
        perror("packed");
    if (fcntl(fd, F_ADD_SEALS, SEALS) != 0)
        perror("packed");
}

void fake_packed_fill(bool all)
{
    static bool began;
    size_t n = strlen(fake_script);
    if (!fake_packed_is_due() || (began && !all))
        return;
    for (size_t i = 0; i < n_handed; i++) {
        fill(handed[i], fake_script, all ? n : n / 2);
        if (all)
            seal(handed[i]);
    }
    began = true;
    whole = all;
}

/* Closes the image. Call under the mutex. */
static void let_go(void)
{
    if (kept >= 0)
        close(kept);
    kept = -1;
}

void fake_packed_serves(void)
{
    if (!is_on_gpu)
        return;
    pthread_mutex_lock(&mutex);
    while (n_handed)
        close(handed[--n_handed]);
    if (clock_now_ns() >= kept_until)
        let_go();
    pthread_mutex_unlock(&mutex);
}

void fake_packed_tell(Sluice__Worker__V1__WorkerStatus *status,
                      Sluice__Worker__V1__PackedMemory *rows,
                      Sluice__Worker__V1__PackedMemory **list)
{
    struct stat st;
    pthread_mutex_lock(&mutex);
    bool has = kept >= 0;
    const int *fds = has ? &kept : handed;
    size_t n = has ? 1 : fake_has("packs_not") ? 0 : n_handed;
    for (size_t i = 0; i < n && fstat(fds[i], &st) == 0; i++) {
        sluice__worker__v1__packed_memory__init(&rows[i]);
        rows[i].rank = (uint32_t)i;
        rows[i].fd = fds[i];
        rows[i].inode = st.st_ino;
        rows[i].bytes = (uint64_t)fake_number("bytes=", 1000000);
        rows[i].sealed = is_sealed(fds[i]);
        rows[i].mapped = mapped && !has;
        list[i] = &rows[i];
        status->n_packed = i + 1;
    }
    pthread_mutex_unlock(&mutex);
    status->packed = list;
    status->packed_note = note;
}

/* --- KeepWeights --- */

static void answer(struct rpc_call *call)
{
    Sluice__Worker__V1__KeepWeightsResponse reply = SLUICE__WORKER__V1__KEEP_WEIGHTS_RESPONSE__INIT;
    reply.bytes = (uint64_t)fake_number("bytes=", 1000000);
    (void)rpc_call_reply(call, &reply.base);
}

/* Makes the copy even when the caller is gone, as the next manager finds the copy. */
static void *copy(void *arg)
{
    struct rpc_call *call = arg;
    char script[FAKE_SCRIPT_BYTES];
    fake_read(script_path, script);
    long slow_ms = fake_number_in(script, "keeps_slow=", 0);
    const struct timespec pause = {slow_ms / 1000, slow_ms % 1000 * NS_PER_MS};
    const struct timespec tick = {0, 10 * NS_PER_MS};
    nanosleep(&pause, NULL);
    while (strstr(script, "keeps_held") || !*script) { /* empty: a test writes it just now */
        nanosleep(&tick, NULL);
        fake_read(script_path, script);
    }
    int fd = memfd_create("sluice-weights", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    fill(fd, script, strlen(script));
    seal(fd);
    pthread_mutex_lock(&mutex);
    let_go();
    kept = fd;
    lease_ns = fake_number_in(script, "keeps_for=", LEASE_MS) * NS_PER_MS;
    kept_until = clock_now_ns() + lease_ns;
    copies = false;
    pthread_mutex_unlock(&mutex);
    answer(call);
    rpc_call_release(call);
    return NULL;
}

/* Under the mutex. */
static void begin(struct rpc_call *call)
{
    pthread_t thread;
    copies = true;
    rpc_call_retain(call);
    if (pthread_create(&thread, NULL, copy, call) != 0)
        abort();
    pthread_detach(thread);
}

/* Applies to all replicas, or to the replica that the script names. */
static bool has_no_memory(const char *script, const char *replica_id)
{
    static const char word[] = "keeps_not";
    const char *at = strstr(script, word);
    size_t n = strlen(replica_id);
    if (!at || at[strlen(word)] != '=')
        return at != NULL;
    at += strlen(word) + 1;
    return strncmp(at, replica_id, n) == 0 && (at[n] == ' ' || at[n] == '\0');
}

void fake_packed_keep(struct rpc_call *call, const char *replica_id)
{
    char script[FAKE_SCRIPT_BYTES];
    struct error err = {0};
    fake_read(script_path, script);
    pthread_mutex_lock(&mutex);
    bool has = kept >= 0;
    if (!is_on_gpu) {
        error_set(&err, STATUS_FAILED_PRECONDITION, "no weights on a GPU to keep");
        error_reason(&err, REASON_NO_DEVICE_WEIGHTS);
    } else if (copies) {
        error_set(&err, STATUS_UNAVAILABLE, "the weights are being copied for another call");
        error_reason(&err, REASON_KEEPING);
    } else if (has) {
        kept_until = clock_now_ns() + lease_ns;
    } else if (has_no_memory(script, replica_id)) {
        error_set(&err, STATUS_RESOURCE_EXHAUSTED,
                  "keeping the weights takes 5000000 bytes of the machine's memory, 1000 may be "
                  "taken");
        error_reason(&err, REASON_HOST_MEMORY);
    } else {
        begin(call);
    }
    pthread_mutex_unlock(&mutex);
    if (err.status)
        rpc_call_finish(call, &err);
    else if (has)
        answer(call);
}
