/* device.h: memory, streams, events and captured graphs of a device. Two implementations: the CPU
 * (synchronous, kernels/cpu/device_cpu.c) and CUDA (a shared object, opened at run time). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cpus;
struct error;
struct device; /* base struct; each implementation has its own */
struct stream; /* an ordered queue of ops; on the CPU a stream has the thread pool and runs each op
                  at once */
struct event;
struct graph;
struct op_table;

/* Device memory that a driver takes for each op of a captured graph, beyond the reserved memory. No
 * driver reports the amount. Measured with CUDA 12 by another project: 10 KiB per kernel
 * (NVIDIA/cccl pull request 3768). */
enum { GRAPH_OP_BYTES = 16 << 10 };

struct device_memory {
    uint64_t total_bytes, free_bytes;
};

/* Identity of a device. The index does not identify a device, because it may change when the
 * machine restarts. */
struct device_description {
    char name[96];              /* product name */
    char uuid[48];              /* "GPU-..." */
    char pci_bus_id[32];        /* "00000000:3B:00.0" */
    char compute_capability[8]; /* "9.0" */
};

struct device_ops {
    const char *name; /* "cpu", "cuda" */

    /* Opens device `index`. *out_device is owned. NOT_FOUND if there is none; the message names the
     * device. */
    int (*open)(uint32_t index, struct device **out_device, struct error *err);
    void (*close)(struct device *device);
    int (*memory)(struct device *device, struct device_memory *out_memory, struct error *err);
    /* Optional: default NULL if topology.h describes the device (CPU). */
    int (*describe)(struct device *device, struct device_description *out_description,
                    struct error *err);

    /* Allocates device memory, 256-byte aligned. Synchronous. RESOURCE_EXHAUSTED names needed and
     * free bytes. */
    int (*alloc)(struct device *device, size_t n_bytes, void **out_data, struct error *err);
    void (*free)(struct device *device, void *data, size_t n_bytes);

    /* Reserves n_bytes at once. Until the device is closed, every later alloc() comes from this
     * reserve, and an alloc() beyond the reserve fails. So planned memory is always available.
     * Optional: default NULL. */
    int (*reserve)(struct device *device, size_t n_bytes, struct error *err);
    /* Allocates host memory that the device itself can copy from and to, 256-byte aligned.
     * Optional: default NULL if the device's memory is the host's. */
    int (*alloc_host)(struct device *device, size_t n_bytes, void **out_data, struct error *err);
    void (*free_host)(struct device *device, void *data, size_t n_bytes);

    /* n_threads is for the CPU (0 = all); other devices ignore it. *out_stream is owned. A stream
     * is used by one thread at a time. */
    int (*stream_create)(struct device *device, uint32_t n_threads, struct stream **out_stream,
                         struct error *err);
    void (*stream_destroy)(struct stream *stream);
    /* Confines the threads of the stream to cpus[n_threads]: thread i to cpus[i], from i = 1.
     * Thread 0 is the caller's and is not confined. Optional: default NULL if a stream has no
     * threads. */
    int (*stream_confine)(struct stream *stream, const struct cpus *cpus, struct error *err);
    /* Waits for all queued work. Returns the stream's error, if any; the error stays set. */
    int (*stream_sync)(struct stream *stream, struct error *err);
    /* Stream-ordered copies between host and device (plain memcpy on the CPU). Host memory must
     * stay valid until the sync. */
    int (*upload)(struct stream *stream, void *device_dst, const void *host_src, size_t n_bytes);
    int (*download)(struct stream *stream, void *host_dst, const void *device_src, size_t n_bytes);
    /* Stream-ordered copy within the device; the ranges do not overlap. */
    int (*copy)(struct stream *stream, void *device_dst, const void *device_src, size_t n_bytes);

    /* Events: stream-ordered marks. Optional: default NULL if every op is synchronous (CPU). */
    int (*event_create)(struct device *device, struct event **out_event, struct error *err);
    void (*event_destroy)(struct event *event);
    int (*event_record)(struct stream *stream, struct event *event);
    int (*event_wait)(struct event *event, struct error *err);

    /* Captures a step as a graph and launches the graph. Optional: default NULL; every step then
     * runs op by op. */
    int (*capture_begin)(struct stream *stream, struct error *err);
    int (*capture_end)(struct stream *stream, struct graph **out_graph, struct error *err);
    int (*graph_launch)(struct stream *stream, struct graph *graph);
    void (*graph_destroy)(struct graph *graph);
    /* Returns the number of captured ops; each costs GRAPH_OP_BYTES. Required with
     * capture_begin. */
    size_t (*graph_n_ops)(const struct graph *graph);
};

struct device {
    const struct device_ops *ops;
    uint32_t index;
};

/* Adjacent rows with the same role (docs/house/numerics.md, numerics contract). */
struct role_run {
    uint32_t begin, n_rows;
    bool generated; /* true: generated tokens, path D; false: prompt tokens, path P */
};

struct stream {
    struct device *device;
    const struct op_table *ops; /* the kernel set chosen for this stream */
    /* Roles of the rows that the next ops compute, ascending and without gaps. For backends whose
     * paths P and D differ in bits. n_roles 0: all rows are path D. Borrowed. */
    const struct role_run *roles;
    uint32_t n_roles;
    /* Linears compute rows of both roles in a single product, by path P. Attention keeps the roles
     * apart: its path P processes the sequences of adjacent rows one after the other. */
    bool mix_products;
    /* Linears of quantized weights compute rows of prompts in 16 bit. For backends that have such
     * products (CUDA); others ignore it. */
    bool prompts_f16;
};
