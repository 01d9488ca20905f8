/* device.h: where tensors live and work is queued: memory, streams, events, captured graphs. Two
 * implementations: the CPU (synchronous, kernels/cpu/device_cpu.c) and CUDA (own shared object,
 * opened at run time). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cpus;
struct error;
struct device; /* base struct of an implementation's own */
struct stream; /* an ordered queue of ops; on the CPU it carries the thread pool and runs each op
                  before returning */
struct event;
struct graph;
struct op_table;

/* Device memory that a driver takes for an op of a captured graph, beside what was reserved.
 * Reports of others with CUDA 12 say 10 KiB a kernel (NVIDIA/cccl pull request 3768); no driver
 * tells. */
enum { GRAPH_OP_BYTES = 16 << 10 };

struct device_memory {
    uint64_t total_bytes, free_bytes;
};

/* Who a device is, beyond its index: indices change from one start of a machine to the next. */
struct device_description {
    char name[96];              /* the product's */
    char uuid[48];              /* "GPU-..." */
    char pci_bus_id[32];        /* "00000000:3B:00.0" */
    char compute_capability[8]; /* "9.0" */
};

struct device_ops {
    const char *name; /* "cpu", "cuda" */

    /* Opens device `index`. *out_device is owned. NOT_FOUND where there is none, with what was
     * looked for. */
    int (*open)(uint32_t index, struct device **out_device, struct error *err);
    void (*close)(struct device *device);
    int (*memory)(struct device *device, struct device_memory *out_memory, struct error *err);
    /* Optional: default NULL, where topology.h tells all there is (CPU). */
    int (*describe)(struct device *device, struct device_description *out_description,
                    struct error *err);

    /* Device memory, 256-byte aligned. Synchronous. RESOURCE_EXHAUSTED names needed and free bytes.
     */
    int (*alloc)(struct device *device, size_t n_bytes, void **out_data, struct error *err);
    void (*free)(struct device *device, void *data, size_t n_bytes);

    /* Takes n_bytes at once, from which every later alloc() of this device comes until it is
     * closed: what is planned is there, and what is not planned is refused. Optional: default NULL.
     */
    int (*reserve)(struct device *device, size_t n_bytes, struct error *err);
    /* Host memory that the device copies from and to by itself, 256-byte aligned. Optional: default
     * NULL, where the device's memory is the host's. */
    int (*alloc_host)(struct device *device, size_t n_bytes, void **out_data, struct error *err);
    void (*free_host)(struct device *device, void *data, size_t n_bytes);

    /* n_threads is for the CPU (0 = all); others ignore it. *out_stream is owned. Used by one
     * thread at a time. */
    int (*stream_create)(struct device *device, uint32_t n_threads, struct stream **out_stream,
                         struct error *err);
    void (*stream_destroy)(struct stream *stream);
    /* Confines the stream's threads, but the one that uses it, to cpus[1] and on of
     * cpus[n_threads]. Optional: default NULL, where a stream has no threads. */
    int (*stream_confine)(struct stream *stream, const struct cpus *cpus, struct error *err);
    /* Waits for all queued work; returns the stream's sticky error, if any. */
    int (*stream_sync)(struct stream *stream, struct error *err);
    /* Stream-ordered copies between host and device (plain memcpy on the CPU). Host memory must
     * stay until the sync. */
    int (*upload)(struct stream *stream, void *device_dst, const void *host_src, size_t n_bytes);
    int (*download)(struct stream *stream, void *host_dst, const void *device_src, size_t n_bytes);
    /* Stream-ordered copy within the device; the ranges do not overlap. */
    int (*copy)(struct stream *stream, void *device_dst, const void *device_src, size_t n_bytes);

    /* Events: stream-ordered marks. Optional: default NULL, where every op is synchronous (CPU). */
    int (*event_create)(struct device *device, struct event **out_event, struct error *err);
    void (*event_destroy)(struct event *event);
    int (*event_record)(struct stream *stream, struct event *event);
    int (*event_wait)(struct event *event, struct error *err);

    /* Capture of a step and its replay. Optional: default NULL = the step is always run op by op.
     */
    int (*capture_begin)(struct stream *stream, struct error *err);
    int (*capture_end)(struct stream *stream, struct graph **out_graph, struct error *err);
    int (*graph_launch)(struct stream *stream, struct graph *graph);
    void (*graph_destroy)(struct graph *graph);
    /* Ops that were captured, of which each costs GRAPH_OP_BYTES. Required with capture_begin. */
    size_t (*graph_n_ops)(const struct graph *graph);
};

struct device {
    const struct device_ops *ops;
    uint32_t index;
};

/* Adjacent rows of one role (docs/house/numerics.md, numerics contract). */
struct role_run {
    uint32_t begin, n_rows;
    bool generated; /* path D: tokens that were generated; else path P: prompt tokens */
};

struct stream {
    struct device *device;
    const struct op_table *ops; /* the kernel set chosen for this stream */
    /* Of the rows that the next ops see, ascending and without gaps; read by backends whose paths P
     * and D differ in bits. n_roles 0: all rows are path D. Borrowed. */
    const struct role_run *roles;
    uint32_t n_roles;
    /* Linears take rows of both roles as one product, by path P. Attention does not: its path P
     * goes through the sequences of neighbouring rows one after the other. */
    bool mix_products;
};
