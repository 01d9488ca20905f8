/* stream_cpu.h: a CPU stream: the base stream, a thread team and fixed scratch. With the scratch no
 * op allocates. Used by one thread at a time, like every stream. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/device.h"
#include "kernels/thread_pool.h"

/* Scratch per member, for an expanded weight panel or an attention tile. Pages are allocated at the
 * first touch. */
enum { STREAM_SCRATCH_BYTES = 8 << 20 };

struct stream_cpu {
    struct stream base;
    struct thread_pool *pool;
    uint8_t *scratch; /* [pool size][STREAM_SCRATCH_BYTES], 64-byte aligned */
    size_t scratch_bytes;
};

static inline struct stream_cpu *stream_cpu(struct stream *s)
{
    return (struct stream_cpu *)s;
}

static inline void *stream_scratch(const struct stream_cpu *s, uint32_t member)
{
    return s->scratch + (size_t)member * STREAM_SCRATCH_BYTES;
}
