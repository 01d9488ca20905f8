/* device_spec.h: describes a group of devices in a word, so that a plan needs no such devices:
 * "8xh100", "2x8xh200", "4xcpu:read=12G". The kinds have typical figures, and a word may replace
 * each of them. Pure; any thread.
 *
 *     [[MACHINES x] COUNT x] KIND [: KEY=VALUE]...
 *
 * COUNT is GPUs of each machine, or cores of a CPU. Default: 1 GPU, or all cores of this machine.
 * A value may end in K, M, G, T or P (powers of 1000). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;

enum { DEVICE_SPEC_MAX_DEVICES = 1024, DEVICE_SPEC_NAME_BYTES = 64 };

/* Bytes, bytes per second, operations per second (a multiplication and an addition are two), and
 * seconds. 0: not known. */
struct device_spec {
    char name[DEVICE_SPEC_NAME_BYTES]; /* key name=, else the word before the first ':' */
    const char *kind;                  /* "h100"; a constant */
    bool is_gpu;
    uint32_t n_machines;
    uint32_t n_devices;    /* GPUs of a machine, or cores; 0: all cores of this machine */
    double memory_bytes;   /* memory=: of a GPU, or of the CPU's machine */
    double read_bytes_s;   /* read=: what a GPU or a core reads when it generates tokens */
    double shared_bytes_s; /* shared=: what all cores of the machine read together; GPUs: 0 */
    double ops_s;          /* compute=: of a GPU or a core, in long prompts */
    double link_bytes_s;   /* link=: what a rank sends to the ranks of its machine */
    double latency_s;      /* latency=: of a sum over the ranks of a machine; given in µs */
    double net_bytes_s;    /* net=: between machines */
    double net_latency_s;  /* netlatency=: in µs */
    double step_s;         /* step=: a step beside its layers; given in µs */
};

/* Reads a word of n bytes. INVALID_ARGUMENT (field "groups") names the word, the bad part, and
 * what is allowed. */
int device_spec_parse(const char *word, size_t n, struct device_spec *out, struct error *err);
/* True if the word names a kind, like "8xh100" or "cpu"; it may have other faults. */
bool device_spec_is_description(const char *word, size_t n);
/* Returns the kind of a product, "h100" for "NVIDIA H100 80GB HBM3"; NULL if no kind is like it. */
const char *device_spec_kind_of(const char *product);
