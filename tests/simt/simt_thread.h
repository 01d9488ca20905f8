/* simt_thread.h: kernels/cuda/thread.h for g++: a kernel's view of its thread, with fibers of the
 * CPU as threads (simt_core.h). All 32 lanes must take part in the same exchange; otherwise the
 * process ends with a message. */
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector_functions.h>
#include <vector_types.h>

#include "tests/simt/simt_core.h"

#undef __shared__
#undef __launch_bounds__
#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __grid_constant__
/* An OS thread runs one block at a time. */
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__

#define threadIdx (simt_tls.self->thread_idx)
#define blockIdx  (simt_tls.block->block_idx)
#define blockDim  (simt_tls.block->block_dim)
#define gridDim   (simt_tls.block->grid_dim)
#define warpSize  32

#define CUDA_SHARED(name) unsigned char *const name = simt_tls.block->dynamic_shared

/* --- launches (simt_stream.cc) --- */

enum simt_order {
    SIMT_PLAIN, /* the kernel starts after the previous op */
    SIMT_WAITS, /* the same; each of its threads calls simt_op_begin() */
    /* each thread calls simt_op_begin(); a block may begin before the previous op has run */
    SIMT_OVERLAPS
};

struct simt_launch {
    const char *name;
    const void *kernel;
    enum simt_order order;
    dim3 grid_dim, block_dim;
    size_t shared_bytes;
    void *stream;
    void (*run)(const void *call);
    std::shared_ptr<const void> call;   /* the kernel's arguments */
    std::vector<const void *> pointers; /* pointers that must belong to the device */
};
int simt_queue_launch(simt_launch &&launch);
int simt_allow_shared(const void *kernel, size_t n_bytes);

template <typename T> void simt_note_pointer(std::vector<const void *> &pointers, const T &argument)
{
    if constexpr (std::is_pointer_v<T> && !std::is_function_v<std::remove_pointer_t<T>>)
        pointers.push_back((const void *)argument);
}

template <typename... Parameters, typename... Arguments>
int simt_launch_kernel(const char *name, void (*kernel)(Parameters...), enum simt_order order,
                       dim3 grid_dim, dim3 block_dim, size_t shared_bytes, void *stream,
                       Arguments &&...arguments)
{
    static_assert(sizeof...(Parameters) == sizeof...(Arguments), "a kernel's arguments");
    struct call {
        void (*kernel)(Parameters...);
        std::tuple<std::decay_t<Parameters>...> arguments;
        static void run(const void *p)
        {
            std::apply(((const call *)p)->kernel, ((const call *)p)->arguments);
        }
    };
    auto c =
        std::make_shared<call>(call{kernel, {static_cast<std::decay_t<Parameters>>(arguments)...}});
    simt_launch launch = {
        name, (const void *)kernel, order, grid_dim, block_dim, shared_bytes, stream, call::run, c,
        {}};
    std::apply([&](const auto &...a) { (simt_note_pointer(launch.pointers, a), ...); },
               c->arguments);
    return simt_queue_launch(std::move(launch));
}

#define SIMT_LAUNCH(kernel, order, grid, n_threads, shared_bytes, stream, ...)                     \
    simt_launch_kernel(#kernel, kernel, (order), (grid), (n_threads), (shared_bytes), (stream),    \
                       __VA_ARGS__)

template <typename... Parameters>
int simt_allow_shared_kernel(void (*kernel)(Parameters...), size_t n_bytes)
{
    return simt_allow_shared((const void *)kernel, n_bytes);
}
#define CUDA_ALLOW_SHARED(kernel, n_bytes) simt_allow_shared_kernel(kernel, (size_t)(n_bytes))

/* --- barriers and memory --- */

static inline void __syncthreads(void)
{
    simt_barrier();
}

static inline void __syncwarp(unsigned mask = 0xFFFFFFFFu)
{
    simt_exchange(SIMT_SYNCWARP, mask, NULL, NULL);
}

/* A fence of the CPU, because a grid's blocks run on several OS threads. */
static inline void __threadfence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void __threadfence_block(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void __nanosleep(unsigned)
{
    simt_yield();
}

[[noreturn]] static inline void __trap(void)
{
    simt_fail("__trap()");
}

template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}

template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}

template <typename T> static inline void __stcs(T *p, T x)
{
    *p = x;
}

/* --- exchanges of a warp --- */

struct simt_word {
    uint64_t value, result;
    uint32_t source; /* lane */
};

void simt_complete_shuffle(void *const operands[SIMT_WARP], uint32_t lanes);
void simt_complete_ballot(void *const operands[SIMT_WARP], uint32_t lanes);
void simt_complete_sum(void *const operands[SIMT_WARP], uint32_t lanes);
void simt_complete_max(void *const operands[SIMT_WARP], uint32_t lanes);
void simt_complete_min(void *const operands[SIMT_WARP], uint32_t lanes);

template <typename T>
static inline T simt_shuffle(enum simt_exchange_kind kind, unsigned mask, T x, uint32_t source)
{
    static_assert(sizeof(T) <= 8 && std::is_arithmetic_v<T>, "a shuffle moves one number");
    simt_word word = {0, 0, source};
    memcpy(&word.value, &x, sizeof(x));
    simt_exchange(kind, mask, &word, simt_complete_shuffle);
    memcpy(&x, &word.result, sizeof(x));
    return x;
}

template <typename T> static inline T __shfl_sync(unsigned mask, T x, int lane, int width = 32)
{
    unsigned w = (unsigned)width, base = simt_tls.self->lane & ~(w - 1);
    return simt_shuffle(SIMT_SHFL, mask, x, base | ((unsigned)lane & (w - 1)));
}

template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T x, int lane_mask, int width = 32)
{
    unsigned own = simt_tls.self->lane, from = own ^ (unsigned)lane_mask, w = (unsigned)width;
    return simt_shuffle(SIMT_SHFL_XOR, mask, x, from > (own | (w - 1)) ? own : from);
}

template <typename T>
static inline T __shfl_down_sync(unsigned mask, T x, unsigned delta, int width = 32)
{
    unsigned own = simt_tls.self->lane, last = own | ((unsigned)width - 1);
    return simt_shuffle(SIMT_SHFL_DOWN, mask, x, own + delta > last ? own : own + delta);
}

template <typename T>
static inline T __shfl_up_sync(unsigned mask, T x, unsigned delta, int width = 32)
{
    unsigned own = simt_tls.self->lane, first = own & ~((unsigned)width - 1);
    return simt_shuffle(SIMT_SHFL_UP, mask, x, own < first + delta ? own : own - delta);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    simt_word word = {predicate != 0, 0, 0};
    simt_exchange(SIMT_BALLOT, mask, &word, simt_complete_ballot);
    return (unsigned)word.result;
}

static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}

static inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, !predicate) == 0;
}

/* Reduces 32-bit integers over the lanes of `mask`. */
template <typename T> static inline T simt_reduce(unsigned mask, T x, simt_complete *complete)
{
    static_assert(sizeof(T) == 4 && std::is_integral_v<T>, "of 32-bit integers");
    simt_word word = {(uint64_t)(int64_t)x, 0, 0}; /* keeps the order of signed and unsigned */
    simt_exchange(SIMT_REDUCE, mask, &word, complete);
    return (T)word.result;
}

template <typename T> static inline T __reduce_add_sync(unsigned mask, T x)
{
    return simt_reduce(mask, x, simt_complete_sum);
}

template <typename T> static inline T __reduce_max_sync(unsigned mask, T x)
{
    return simt_reduce(mask, x, simt_complete_max);
}

template <typename T> static inline T __reduce_min_sync(unsigned mask, T x)
{
    return simt_reduce(mask, x, simt_complete_min);
}

/* --- atomics --- */

template <typename T> static inline T atomicAdd(T *p, T x)
{
    static_assert(std::is_integral_v<T>, "float sums in no fixed order have no fixed bits");
    return __atomic_fetch_add(p, x, __ATOMIC_RELAXED);
}

template <typename T> static inline T atomicSub(T *p, T x)
{
    return __atomic_fetch_sub(p, x, __ATOMIC_RELAXED);
}

template <typename T> static inline T atomicOr(T *p, T x)
{
    return __atomic_fetch_or(p, x, __ATOMIC_RELAXED);
}

template <typename T> static inline T atomicAnd(T *p, T x)
{
    return __atomic_fetch_and(p, x, __ATOMIC_RELAXED);
}

template <typename T> static inline T atomicExch(T *p, T x)
{
    T old;
    __atomic_exchange(p, &x, &old, __ATOMIC_RELAXED);
    return old;
}

template <typename T> static inline T atomicCAS(T *p, T wanted, T x)
{
    __atomic_compare_exchange_n(p, &wanted, x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return wanted;
}

template <typename T> static inline T atomicMax(T *p, T x)
{
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (old < x &&
           !__atomic_compare_exchange_n(p, &old, x, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return old;
}

template <typename T> static inline T atomicMin(T *p, T x)
{
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (x < old &&
           !__atomic_compare_exchange_n(p, &old, x, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return old;
}

/* --- numbers --- */

template <typename To, typename From> static inline To simt_bits(From x)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To y;
    memcpy(&y, &x, sizeof(y));
    return y;
}

static inline unsigned __float_as_uint(float x)
{
    return simt_bits<unsigned>(x);
}

static inline int __float_as_int(float x)
{
    return simt_bits<int>(x);
}

static inline float __uint_as_float(unsigned x)
{
    return simt_bits<float>(x);
}

static inline float __int_as_float(int x)
{
    return simt_bits<float>(x);
}

static inline long long __double_as_longlong(double x)
{
    return simt_bits<long long>(x);
}

static inline double __longlong_as_double(long long x)
{
    return simt_bits<double>(x);
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}

static inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}

static inline int __clzll(long long x)
{
    return x == 0 ? 64 : __builtin_clzll((unsigned long long)x);
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

static inline unsigned __brev(unsigned x)
{
    unsigned y = 0;
    for (int i = 0; i < 32; i++)
        y |= (x >> i & 1) << (31 - i);
    return y;
}

/* Byte i of the result is byte s_i of the eight of (x, y); bit 3 of s_i gives the byte's sign. */
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    uint64_t bytes = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; i++) {
        unsigned s = selector >> (4 * i), byte = (unsigned)(bytes >> (8 * (s & 7))) & 0xFF;
        result |= (s & 8 ? (byte & 0x80 ? 0xFFu : 0u) : byte) << (8 * i);
    }
    return result;
}

static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift)
{
    return (unsigned)(((uint64_t)hi << 32 | lo) >> (shift & 31));
}

static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift)
{
    return (unsigned)(((uint64_t)hi << 32 | lo) << (shift & 31) >> 32);
}

static inline int __mulhi(int x, int y)
{
    return (int)((int64_t)x * y >> 32);
}

static inline unsigned __umulhi(unsigned x, unsigned y)
{
    return (unsigned)((uint64_t)x * y >> 32);
}

static inline float __fmaf_rn(float x, float y, float z)
{
    return fmaf(x, y, z);
}

static inline float __fadd_rn(float x, float y)
{
    return x + y;
}

static inline float __fsub_rn(float x, float y)
{
    return x - y;
}

static inline float __fmul_rn(float x, float y)
{
    return x * y;
}

static inline float __fdiv_rn(float x, float y)
{
    return x / y;
}

static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}

static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}

static inline double __fma_rn(double x, double y, double z)
{
    return fma(x, y, z);
}

/* The GPU's conversions to integers saturate, and NaN is 0. */
static inline int __float2int_rn(float x)
{
    return x != x ? 0 : x >= 0x1p31f ? INT32_MAX : x < -0x1p31f ? INT32_MIN : (int)rintf(x);
}

static inline int __float2int_rz(float x)
{
    return x != x ? 0 : x >= 0x1p31f ? INT32_MAX : x < -0x1p31f ? INT32_MIN : (int)x;
}

static inline unsigned __float2uint_rn(float x)
{
    return !(x > 0.0f) ? 0 : x >= 0x1p32f ? UINT32_MAX : (unsigned)rintf(x);
}

static inline float __int2float_rn(int x)
{
    return (float)x;
}

static inline float __uint2float_rn(unsigned x)
{
    return (float)x;
}

template <typename X, typename Y> static inline std::common_type_t<X, Y> min(X x, Y y)
{
    using both = std::common_type_t<X, Y>;
    if constexpr (std::is_floating_point_v<both>)
        return fmin((both)x, (both)y);
    else
        return (both)y < (both)x ? (both)y : (both)x;
}

template <typename X, typename Y> static inline std::common_type_t<X, Y> max(X x, Y y)
{
    using both = std::common_type_t<X, Y>;
    if constexpr (std::is_floating_point_v<both>)
        return fmax((both)x, (both)y);
    else
        return (both)x < (both)y ? (both)y : (both)x;
}
