/* segments.h: splits a dimension into the 8 segments of the numerics contract; ranks hold aligned
 * runs of segments. Unit = the smallest run of whole heads (attention) or elements (MLP) that is a
 * multiple of 32; segment s = units [⌊s·U/8⌋, ⌊(s+1)·U/8⌋). A rank of tp ∈ {1, 2, 4, 8} holds
 * segments [index·8/tp, (index+1)·8/tp). Sums skip empty segments. */
#pragma once

#include <stdint.h>

enum { N_SEGMENTS = 8 };

struct segments {
    uint32_t bounds[N_SEGMENTS +
                    1];    /* element offsets into the whole dimension; bounds[8] = its length */
    uint32_t first, count; /* the segments this rank holds */
};

struct error;

/* `granule` = elements that may not be split (head_dim for attention, 1 for MLP); dim must be a
 * multiple of it. INVALID_ARGUMENT if tp is not 1, 2, 4 or 8, or if a rank would hold nothing. A
 * dimension that is no multiple of 32 ends in a shorter last unit. */
int segments_init(struct segments *seg, uint32_t dim, uint32_t granule, uint32_t tp, uint32_t index,
                  struct error *err);

/* Element range of the whole dimension that this rank holds. */
static inline uint32_t segments_begin(const struct segments *seg)
{
    return seg->bounds[seg->first];
}
static inline uint32_t segments_end(const struct segments *seg)
{
    return seg->bounds[seg->first + seg->count];
}
static inline uint32_t segments_len(const struct segments *seg)
{
    return segments_end(seg) - segments_begin(seg);
}
