/* comm.h: collective operations between the ranks of one model. Implementations: threads of one
 * process over shared memory (kernels/comm/comm_shm.c), NCCL (later), and none (size 1). Each rank
 * calls from its own thread with its own struct comm; calls match in order on all ranks. Sums keep
 * the numerics contract: i32 sums are exact in any order; f32 sums follow the fixed binary tree
 * over 8 segments, of which a rank contributes its aligned subtree (sizes 1, 2, 4, 8). */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct error;
struct stream;
struct tensor;

enum comm_reduce {
    COMM_SUM_I32,      /* exact */
    COMM_SUM_TREE_F32, /* ((r0+r1)+(r2+r3))+((r4+r5)+(r6+r7)), as far as size reaches */
    COMM_MAX_F32,
};

struct comm {
    const struct comm_ops *ops;
    uint32_t index, size;
};

struct comm_ops {
    const char *name;
    void (*destroy)(struct comm *comm);
    /* In place on every rank: t (I32 or F32 as the reduction says) ends equal everywhere.
     * Stream-ordered. */
    int (*all_reduce)(struct comm *comm, struct stream *s, struct tensor *t, enum comm_reduce how);
    /* dst[size × n_bytes] receives each rank's n_bytes in rank order. Stream-ordered. */
    int (*all_gather)(struct comm *comm, struct stream *s, void *dst, const void *src,
                      size_t n_bytes);
    /* Point to point between pipeline stages. Stream-ordered. */
    int (*send)(struct comm *comm, struct stream *s, uint32_t to, const void *src, size_t n_bytes);
    int (*recv)(struct comm *comm, struct stream *s, uint32_t from, void *dst, size_t n_bytes);
};

/* A group of `size` (1, 2, 4 or 8) communicators for threads of this process; max_bytes is the
 * largest message. out_comms[size] are owned, each destroyed by comm_destroy() after all ranks have
 * stopped. */
int comm_shm_create(uint32_t size, size_t max_bytes, struct comm *out_comms[], struct error *err);
void comm_destroy(struct comm *comm);

/* Wrappers: size 1 (or comm NULL) does nothing but what the result demands (all_gather copies). */
int comm_all_reduce(struct comm *comm, struct stream *s, struct tensor *t, enum comm_reduce how);
int comm_all_gather(struct comm *comm, struct stream *s, void *dst, const void *src,
                    size_t n_bytes);
