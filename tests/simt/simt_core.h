/* simt_core.h: runs GPU threads on the CPU. A few OS threads run a grid's blocks, each block on one
 * OS thread. The threads of a block are fibers that take turns. A fiber runs until it waits for
 * others, at a barrier or in an exchange of its warp. Kernels use simt_thread.h and simt_ptx.h. The
 * host uses the interface of the CUDA runtime (simt_device.cc, simt_memory.cc, simt_stream.cc,
 * simt_graph.cc). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <vector>
#include <vector_types.h>

enum { SIMT_WARP = 32, SIMT_MAX_THREADS = 1024, SIMT_MAX_WARPS = SIMT_MAX_THREADS / SIMT_WARP };
/* Largest operand B of a multiplication: elements along k, and columns. */
enum { SIMT_WGMMA_K = 32, SIMT_WGMMA_N = 256 };

struct simt_early;
struct simt_fiber;
struct simt_processor;

/* A kernel with its arguments; borrowed until simt_run_grid returns. */
struct simt_grid {
    const char *name; /* name of the kernel, for messages */
    void (*run)(const void *arguments);
    const void *arguments;
    dim3 grid_dim, block_dim;
    size_t shared_bytes; /* dynamic */
    bool waits;          /* each thread of the kernel must call simt_op_begin() */
};

/* Runs all blocks of a grid and returns. Leaves out block *begun, which has begun elsewhere (NULL:
 * none). Any thread. Misuse ends the process with a message. */
void simt_run_grid(const struct simt_grid *grid, const uint64_t *begun);

/* 16 bytes on their way into shared memory (cp.async). */
struct simt_copy {
    void *to;
    unsigned char bytes[16];
};

enum simt_state {
    SIMT_RUNS,
    SIMT_AT_BARRIER,
    SIMT_IN_EXCHANGE,
    SIMT_HELD,
    SIMT_SLEEPS,
    SIMT_ENDED
};

/* A GPU thread of the current block. */
struct simt_thread {
    uint3 thread_idx;
    unsigned index, warp, lane;
    struct simt_processor *processor;
    struct simt_fiber *fiber; /* NULL: not begun, or ended */
    enum simt_state state;
    const char *sleeps_for;          /* SIMT_SLEEPS: the reason */
    bool op_begun;                   /* called simt_op_begin() */
    std::vector<simt_copy> copies;   /* copies under way, oldest first */
    std::vector<size_t> copy_groups; /* number of copies in each committed group */
    size_t n_grouped;                /* number of copies in committed groups */
    /* places in dynamic shared memory of finished copies without a fence for wgmma */
    std::vector<uint32_t> unfenced;
    std::vector<const uint64_t *> new_barriers;        /* not yet visible to the copy engine */
    bool wgmma_fenced;                                 /* simt_wgmma.cc */
    std::vector<struct simt_wgmma_call *> wgmma_calls; /* owned; not done, oldest first */
};

/* A barrier of some warps with a number (simt_barrier.cc). */
struct simt_named_barrier {
    unsigned n_threads; /* threads that the present round needs; 0: no round */
    unsigned n_arrived;
    uint64_t round;
};

/* A tile on its way into shared memory (simt_tma.cc). */
struct simt_tile {
    unsigned char *to;
    uint64_t *barrier;
    std::vector<unsigned char> bytes;
};

/* The last operand B that simt_wgmma.cc multiplied, as numbers. The other warps of a warpgroup
 * multiply the same one. */
struct simt_columns {
    uint32_t kind;                               /* columns and format; 0: none yet */
    uint64_t sum;                                /* checksum of the operand's bytes */
    double numbers[SIMT_WGMMA_K * SIMT_WGMMA_N]; /* [k][n] */
    bool is_finite;                              /* no number is infinite or NaN */
};

/* State that all threads of the block share. */
struct simt_block {
    uint3 block_idx;
    dim3 block_dim, grid_dim;
    unsigned char *dynamic_shared;
    size_t dynamic_shared_bytes;
    simt_named_barrier named[16];
    std::vector<simt_tile> tiles; /* under way, oldest first */
    struct simt_columns columns;
};

/* All that this module keeps per OS thread. The rest of its thread-local memory are the kernels'
 * __shared__ variables, which are poisoned before each block. */
struct simt_tls {
    struct simt_thread *self; /* NULL outside kernels */
    struct simt_block *block;
    struct simt_processor *processor;
    int device, last_error; /* device and last error of the runtime */
    void *capture;
};
extern __thread struct simt_tls simt_tls;

/* Kinds of exchange in a warp; messages use the same words. */
enum simt_exchange_kind {
    SIMT_SYNCWARP,
    SIMT_SHFL,
    SIMT_SHFL_UP,
    SIMT_SHFL_DOWN,
    SIMT_SHFL_XOR,
    SIMT_BALLOT,
    SIMT_MATCH,
    SIMT_REDUCE,
    SIMT_MMA_BF16,
    SIMT_MMA_F16,
    SIMT_MMA_E4M3,
    SIMT_MMA_S8,
    SIMT_MMA_U8S8,
    SIMT_LDMATRIX,
    SIMT_LDMATRIX_TRANS,
    SIMT_WGMMA,
    SIMT_WGMMA_WAIT,
    SIMT_N_EXCHANGES
};

/* Waits until all lanes of the warp have arrived, each with its operand. The last lane calls
 * complete(operands of all lanes, mask of the lanes that exist). */
typedef void simt_complete(void *const operands[SIMT_WARP], uint32_t lanes);
void simt_exchange(enum simt_exchange_kind kind, uint32_t mask, void *operand,
                   simt_complete *complete);
void simt_barrier(void);
/* Waits for the op before this one, where the block is early (simt_early.h). */
void simt_op_begin(void);
/* Lets others run first. */
void simt_yield(void);
/* Waits for the next simt_wake(). The caller then checks its condition again. `reason` (static)
 * names the wait in the message of a deadlock. */
void simt_sleep(const char *reason);
/* Wakes all threads of the block that sleep. */
void simt_wake(void);

/* Returns true if the n bytes at p are this block's shared memory, static or dynamic. */
bool simt_is_shared(const void *p, size_t n);

/* Notes that the calling thread's copy of 16 bytes to shared memory has ended, without a fence for
 * wgmma yet. */
void simt_note_copy(const void *to);
/* Fences all copies of the calling thread for wgmma. */
void simt_fence_copies(void);
/* Returns a thread of this block whose copy to these 16 bytes of dynamic shared memory ended
 * without a fence for wgmma. NULL: none. `piece` is 16-byte aligned. */
const struct simt_thread *simt_unfenced(const unsigned char *piece);
/* Returns true if any thread of this block has such copies anywhere in shared memory. */
bool simt_any_unfenced(void);

/* Returns true if a thread of this block has made the barrier and not made it visible to the copy
 * engine. */
bool simt_is_new_barrier(const uint64_t *barrier);

/* Ends the process; the message names kernel, block and thread. */
[[noreturn]] void simt_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
