/* comm.h: collective operations between the ranks of a model. Implementations: threads of one
 * process over shared memory (kernels/comm/comm_shm.c), and none (size 1). Each rank calls from its
 * own thread with its own struct comm. All ranks make the same calls in the same order. Sums keep
 * the numerics contract. Sums of i32 are exact in any order. The f32 sums follow the fixed binary
 * tree over 8 segments. Each rank contributes its aligned subtree (sizes 1, 2, 4, 8). */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct error;
struct stream;
struct tensor;

enum comm_reduce {
    COMM_SUM_I32,      /* exact */
    COMM_SUM_TREE_F32, /* ((r0+r1)+(r2+r3))+((r4+r5)+(r6+r7)), up to `size` ranks */
    COMM_MAX_F32,
};

struct comm {
    const struct comm_ops *ops;
    uint32_t index, size;
};

struct comm_ops {
    const char *name;
    void (*destroy)(struct comm *comm);
    /* In place on every rank: afterwards t (I32 or F32, as the reduction demands) is equal on all
     * ranks. Stream-ordered. */
    int (*all_reduce)(struct comm *comm, struct stream *s, struct tensor *t, enum comm_reduce how);
    /* dst[size × n_bytes] receives each rank's n_bytes in rank order. Stream-ordered. */
    int (*all_gather)(struct comm *comm, struct stream *s, void *dst, const void *src,
                      size_t n_bytes);
    /* Point to point between pipeline stages. Stream-ordered. */
    int (*send)(struct comm *comm, struct stream *s, uint32_t to, const void *src, size_t n_bytes);
    int (*recv)(struct comm *comm, struct stream *s, uint32_t from, void *dst, size_t n_bytes);
};

/* Makes `size` (1, 2, 4 or 8) communicators for threads of this process. The size of the largest
 * message is max_bytes. The caller owns out_comms[size] and destroys each with comm_destroy() after
 * all ranks have stopped. */
int comm_shm_create(uint32_t size, size_t max_bytes, struct comm *out_comms[], struct error *err);
void comm_destroy(struct comm *comm);

/* Wrappers. With size 1 (or comm NULL) a reduction does nothing, and all_gather copies. */
int comm_all_reduce(struct comm *comm, struct stream *s, struct tensor *t, enum comm_reduce how);
int comm_all_gather(struct comm *comm, struct stream *s, void *dst, const void *src,
                    size_t n_bytes);
