/* Ranks are threads of one process. In each call, a rank copies its message into its slot, and all
 * ranks meet at a barrier. Each rank then reads all slots in the same fixed order, so every rank
 * computes the same bits. There are two sets of slots: a rank can be at most one call ahead of the
 * slowest reader. So one barrier per call is enough. Bytes per call and rank: (1 + size) ·
 * message. */
#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/system/cpu.h"
#include "kernels/comm.h"
#include "kernels/comm/comm_reduce.h"
#include "kernels/futex.h"
#include "kernels/segments.h"

enum { CACHE_LINE = 64, N_SPINS = 4000, N_SPINS_OVERCOMMITTED = 100, MAX_RANKS = N_SEGMENTS };

/* A transfer from one rank to another: the receiver copies straight from the sender's memory. */
struct mailbox {
    _Alignas(CACHE_LINE) _Atomic uint32_t full; /* 1 while a message waits */
    const void *data;
    size_t n_bytes;
};

struct group {
    uint32_t size, n_spins;
    size_t slot_bytes;
    uint8_t *slots; /* [2][size][slot_bytes] */
    size_t slots_bytes;
    _Atomic uint32_t n_members; /* the last destroyed comm frees the group */
    _Alignas(CACHE_LINE) _Atomic uint32_t n_arrived;
    _Alignas(CACHE_LINE) _Atomic uint32_t generation;
    _Atomic uint32_t n_sleeping;
    struct mailbox mail[MAX_RANKS][MAX_RANKS]; /* [from][to] */
};

struct comm_shm {
    struct comm base;
    struct group *group;
    uint32_t parity; /* 0 or 1: the slots of the next call */
};

static struct comm_shm *comm_shm(struct comm *comm)
{
    return (struct comm_shm *)comm;
}

/* Waits until *word is no longer `old`; spins first. */
static void wait_while_equal(struct group *group, _Atomic uint32_t *word, uint32_t old)
{
    for (uint32_t i = 0; i < group->n_spins; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old)
            return;
        __builtin_ia32_pause();
    }
    atomic_fetch_add(&group->n_sleeping, 1);
    while (atomic_load(word) == old)
        futex_wait(word, old);
    atomic_fetch_sub(&group->n_sleeping, 1);
}

static void change_and_wake(struct group *group, _Atomic uint32_t *word, uint32_t value)
{
    atomic_store(word, value);
    if (atomic_load(&group->n_sleeping) != 0)
        futex_wake_all(word);
}

static void barrier(struct group *group)
{
    uint32_t generation = atomic_load(&group->generation);
    if (atomic_fetch_add(&group->n_arrived, 1) + 1 == group->size) {
        atomic_store(&group->n_arrived, 0);
        change_and_wake(group, &group->generation, generation + 1);
    } else {
        wait_while_equal(group, &group->generation, generation);
    }
}

static uint8_t *slot(const struct comm_shm *comm, uint32_t rank)
{
    return comm->group->slots +
           ((size_t)comm->parity * comm->group->size + rank) * comm->group->slot_bytes;
}

static int reduce_message(struct comm *base, void *data, size_t n, enum comm_reduce how)
{
    struct comm_shm *comm = comm_shm(base);
    const uint8_t *slots[MAX_RANKS];
    uint32_t size = comm->group->size;
    assert(size > 0);
    memcpy(slot(comm, base->index), data, n * sizeof(float));
    barrier(comm->group);
    for (uint32_t r = 0; r < size; r++)
        slots[r] = slot(comm, r);
    comm_reduce_slots(data, slots, size, n, how);
    comm->parity ^= 1;
    return 0;
}

static int all_reduce(struct comm *base, struct stream *s, struct tensor *t, enum comm_reduce how)
{
    (void)s;
    return comm_reduce_pieces(base, t, how, comm_shm(base)->group->slot_bytes, reduce_message);
}

static int all_gather(struct comm *base, struct stream *s, void *dst, const void *src,
                      size_t n_bytes)
{
    (void)s;
    struct comm_shm *comm = comm_shm(base);
    size_t limit = comm->group->slot_bytes;
    for (size_t done = 0; done < n_bytes; done += limit) {
        size_t n = n_bytes - done < limit ? n_bytes - done : limit;
        memcpy(slot(comm, base->index), (const uint8_t *)src + done, n);
        barrier(comm->group);
        for (uint32_t r = 0; r < base->size; r++)
            memcpy((uint8_t *)dst + r * n_bytes + done, slot(comm, r), n);
        comm->parity ^= 1;
    }
    return 0;
}

static int send_message(struct comm *base, struct stream *s, uint32_t to, const void *src,
                        size_t n_bytes)
{
    (void)s;
    struct group *group = comm_shm(base)->group;
    if (to >= base->size || to == base->index)
        return STATUS_INTERNAL;
    struct mailbox *box = &group->mail[base->index][to];
    box->data = src;
    box->n_bytes = n_bytes;
    change_and_wake(group, &box->full, 1);
    wait_while_equal(group, &box->full, 1);
    return 0;
}

static int recv_message(struct comm *base, struct stream *s, uint32_t from, void *dst,
                        size_t n_bytes)
{
    (void)s;
    struct group *group = comm_shm(base)->group;
    if (from >= base->size || from == base->index)
        return STATUS_INTERNAL;
    struct mailbox *box = &group->mail[from][base->index];
    wait_while_equal(group, &box->full, 0);
    int rc = box->n_bytes == n_bytes ? 0 : STATUS_INTERNAL;
    if (rc == 0 && n_bytes > 0)
        memcpy(dst, box->data, n_bytes);
    change_and_wake(group, &box->full, 0);
    return rc;
}

static void group_release(struct group *group)
{
    if (atomic_fetch_sub(&group->n_members, 1) != 1)
        return;
    munmap(group->slots, group->slots_bytes);
    free(group);
}

static void destroy(struct comm *comm)
{
    group_release(comm_shm(comm)->group);
    free(comm);
}

static const struct comm_ops ops = {
    .name = "shm",
    .destroy = destroy,
    .all_reduce = all_reduce,
    .all_gather = all_gather,
    .send = send_message,
    .recv = recv_message,
};

static int group_create(uint32_t size, size_t max_bytes, struct group **out_group,
                        struct error *err)
{
    if (max_bytes == 0 || max_bytes > SIZE_MAX / 4 / MAX_RANKS)
        return error_set(err, STATUS_INVALID_ARGUMENT, "comm: messages of %zu bytes", max_bytes);
    struct group *group = aligned_alloc(CACHE_LINE, sizeof(*group));
    if (group == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "comm: out of memory");
    memset(group, 0, sizeof(*group));
    group->size = size;
    group->n_spins = size <= (uint32_t)cpu_count() ? N_SPINS : N_SPINS_OVERCOMMITTED;
    group->slot_bytes = (max_bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    group->slots_bytes = 2 * size * group->slot_bytes;
    void *slots = mmap(NULL, group->slots_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slots == MAP_FAILED) {
        free(group);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "comm: %zu bytes needed for slots",
                         2 * size * max_bytes);
    }
    group->slots = slots;
    *out_group = group;
    return 0;
}

int comm_shm_create(uint32_t size, size_t max_bytes, struct comm *out_comms[], struct error *err)
{
    if (size != 1 && size != 2 && size != 4 && size != 8)
        return error_set(err, STATUS_INVALID_ARGUMENT, "comm: %u ranks, limit: one of 1, 2, 4, 8",
                         size);
    struct group *group = NULL;
    struct comm_shm *comms[MAX_RANKS] = {NULL};
    int rc = group_create(size, max_bytes, &group, err);
    if (rc != 0)
        return rc;
    for (uint32_t r = 0; r < size; r++) {
        comms[r] = calloc(1, sizeof(*comms[r]));
        if (comms[r] == NULL) {
            while (r-- > 0)
                free(comms[r]);
            munmap(group->slots, group->slots_bytes);
            free(group);
            return error_set(err, STATUS_RESOURCE_EXHAUSTED, "comm: out of memory");
        }
        comms[r]->base = (struct comm){&ops, r, size};
        comms[r]->group = group;
    }
    atomic_store(&group->n_members, size);
    for (uint32_t r = 0; r < size; r++)
        out_comms[r] = &comms[r]->base;
    return 0;
}
