/* The device's memory: host memory that is counted, poisoned and recorded. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>

#include "tests/simt/simt_runtime.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { CANARY_BYTES = 0 }; /* the sanitizer guards allocations itself */
#else
enum { CANARY_BYTES = 64 };
#endif
enum { ALIGN = 256, PAGE = 4096, POISON = 0xFF, CANARY = 0xC5 };
/* Larger allocations are mapped, and their pages are poisoned only when used. */
static const size_t mapped_from = 4u << 20, pattern_bytes = 8u << 20;

struct allocation {
    size_t n_bytes;
    enum simt_place place;
    int device;
    void *mapped; /* NULL: allocated by malloc; else the mapping with its guard pages */
    size_t mapped_bytes;
};

static struct registry {
    std::mutex lock;
    std::map<uintptr_t, allocation> all;
} *const registry = new struct registry;

/* Returns the bytes that an allocation counts: whole units of 512, as on GPUs. */
static size_t counted(size_t n_bytes)
{
    return (n_bytes + 511) / 512 * 512;
}

simt_memory simt_memory_of(const void *p)
{
    uintptr_t at = (uintptr_t)p;
    std::lock_guard<std::mutex> hold(registry->lock);
    auto after = registry->all.upper_bound(at);
    if (after == registry->all.begin())
        return {};
    auto own = std::prev(after);
    if (at > own->first + own->second.n_bytes)
        return {};
    return {own->second.place, own->second.device, own->first + own->second.n_bytes - at};
}

void simt_check_range(const char *call, const void *p, size_t n_bytes, bool is_device)
{
    simt_memory m = simt_memory_of(p);
    if (is_device && m.place == SIMT_UNKNOWN)
        simt_fail("%s: %p is no device memory", call, p);
    if (!is_device && m.place == SIMT_DEVICE && m.n_left > 0)
        simt_fail("%s: %p is device memory where the host's belongs", call, p);
    if (is_device && m.n_left < n_bytes)
        simt_fail("%s: %zu bytes at %p, whose allocation ends after %zu", call, n_bytes, p,
                  m.n_left);
}

/* Returns a file of poison. A mapping shares its pages until a write to them. */
static int pattern_file(void)
{
    static const int fd = [] {
        int made = memfd_create("simt poison", MFD_CLOEXEC);
        void *page = made < 0 || ftruncate(made, (off_t)pattern_bytes) != 0
                         ? MAP_FAILED
                         : mmap(NULL, pattern_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
        if (page == MAP_FAILED) {
            perror("simt: no memory for poison");
            abort();
        }
        memset(page, POISON, pattern_bytes);
        munmap(page, pattern_bytes);
        return made;
    }();
    return fd;
}

static bool map_poisoned(size_t n_bytes, allocation *a)
{
    size_t pages = (n_bytes + PAGE - 1) / PAGE * PAGE;
    size_t whole = pages + 2 * PAGE; /* a guard on both sides */
    unsigned char *at = (unsigned char *)mmap(NULL, whole, PROT_NONE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return false;
    for (size_t done = 0; done < pages; done += pattern_bytes) {
        size_t take = pages - done < pattern_bytes ? pages - done : pattern_bytes;
        if (mmap(at + PAGE + done, take, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, pattern_file(), 0) == MAP_FAILED) {
            munmap(at, whole);
            return false;
        }
    }
#ifdef __SANITIZE_ADDRESS__
    ASAN_POISON_MEMORY_REGION(at + PAGE + n_bytes, pages - n_bytes);
#endif
    a->mapped = at;
    a->mapped_bytes = whole;
    return true;
}

static unsigned char *take_memory(size_t n_bytes, allocation *a)
{
    void *p = NULL;
    if (n_bytes >= mapped_from)
        return map_poisoned(n_bytes, a) ? (unsigned char *)a->mapped + PAGE : NULL;
    if (posix_memalign(&p, ALIGN, n_bytes + CANARY_BYTES) != 0)
        return NULL;
    memset(p, POISON, n_bytes);
    memset((unsigned char *)p + n_bytes, CANARY, CANARY_BYTES);
    return (unsigned char *)p;
}

static void give_memory(unsigned char *p, const allocation &a)
{
    if (a.mapped != NULL) {
#ifdef __SANITIZE_ADDRESS__
        ASAN_UNPOISON_MEMORY_REGION(a.mapped, a.mapped_bytes);
#endif
        munmap(a.mapped, a.mapped_bytes);
        return;
    }
    for (int i = 0; i < CANARY_BYTES; i++)
        if (p[a.n_bytes + (size_t)i] != CANARY)
            simt_fail("something was written past the end of %zu bytes of device or pinned memory "
                      "at %p",
                      a.n_bytes, (void *)p);
    free(p);
}

static cudaError_t allocate(void **out, size_t n_bytes, enum simt_place place, int device)
{
    allocation a = {n_bytes, place, device, NULL, 0};
    unsigned char *p = take_memory(n_bytes, &a);
    if (p == NULL)
        return cudaErrorMemoryAllocation;
    std::lock_guard<std::mutex> hold(registry->lock);
    registry->all[(uintptr_t)p] = a;
    *out = p;
    return cudaSuccess;
}

/* Removes an allocation's record and copies the record to *out. */
static bool forget(const void *p, enum simt_place place, allocation *out)
{
    std::lock_guard<std::mutex> hold(registry->lock);
    auto own = registry->all.find((uintptr_t)p);
    if (own == registry->all.end() || own->second.place != place)
        return false;
    *out = own->second;
    registry->all.erase(own);
    return true;
}

cudaError_t simt_allocate_device(simt_device *device, void **out, size_t n_bytes)
{
    size_t n_counted = counted(n_bytes);
    {
        std::lock_guard<std::mutex> hold(device->lock);
        if (n_counted > device->total_bytes - device->used_bytes)
            return cudaErrorMemoryAllocation;
        device->used_bytes += n_counted;
    }
    cudaError_t code = allocate(out, n_bytes, SIMT_DEVICE, device->index);
    if (code != cudaSuccess) {
        std::lock_guard<std::mutex> hold(device->lock);
        device->used_bytes -= n_counted;
    }
    return code;
}

cudaError_t simt_free_device(void *p)
{
    allocation a;
    if (!forget(p, SIMT_DEVICE, &a))
        return cudaErrorInvalidValue;
    give_memory((unsigned char *)p, a);
    simt_device *device = simt_device_at(a.device);
    std::lock_guard<std::mutex> hold(device->lock);
    device->used_bytes -= counted(a.n_bytes);
    return cudaSuccess;
}

extern "C" {

cudaError_t cudaMalloc(void **out, size_t n_bytes)
{
    simt_device *device = simt_current_device();
    if (simt_breaks_capture())
        return simt_error(cudaErrorStreamCaptureUnsupported);
    if (simt_check_device(device) != cudaSuccess)
        return simt_check_device(device);
    *out = NULL;
    return n_bytes == 0 ? cudaSuccess : simt_error(simt_allocate_device(device, out, n_bytes));
}

/* Waits for the device first, as the real cudaFree() does. */
cudaError_t cudaFree(void *p)
{
    if (p == NULL)
        return cudaSuccess;
    if (simt_breaks_capture())
        return simt_error(cudaErrorStreamCaptureUnsupported);
    simt_memory m = simt_memory_of(p);
    if (m.place != SIMT_DEVICE)
        return simt_error(cudaErrorInvalidValue);
    simt_drain(simt_device_at(m.device));
    cudaError_t code = simt_free_device(p);
    return code != cudaSuccess ? simt_error(code) : simt_check_device(simt_device_at(m.device));
}

cudaError_t cudaHostAlloc(void **out, size_t n_bytes, unsigned)
{
    if (simt_breaks_capture())
        return simt_error(cudaErrorStreamCaptureUnsupported);
    *out = NULL;
    return n_bytes == 0 ? cudaSuccess : simt_error(allocate(out, n_bytes, SIMT_PINNED, 0));
}

cudaError_t cudaMallocHost(void **out, size_t n_bytes)
{
    return cudaHostAlloc(out, n_bytes, 0);
}

cudaError_t cudaFreeHost(void *p)
{
    allocation a;
    if (p == NULL)
        return cudaSuccess;
    for (int i = 0; i < simt_n_devices(); i++)
        simt_drain(simt_device_at(i));
    if (!forget(p, SIMT_PINNED, &a))
        return simt_error(cudaErrorInvalidValue);
    give_memory((unsigned char *)p, a);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *p, size_t n_bytes, unsigned)
{
    std::lock_guard<std::mutex> hold(registry->lock);
    registry->all[(uintptr_t)p] = {n_bytes, SIMT_PINNED, 0, p, 0};
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    allocation a;
    return forget(p, SIMT_PINNED, &a) ? cudaSuccess : simt_error(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void **out, void *p, unsigned)
{
    if (simt_memory_of(p).place != SIMT_PINNED)
        return simt_error(cudaErrorInvalidValue);
    *out = p;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *p)
{
    simt_memory m = simt_memory_of(p);
    memset(out, 0, sizeof(*out));
    out->type = m.place == SIMT_DEVICE   ? cudaMemoryTypeDevice
                : m.place == SIMT_PINNED ? cudaMemoryTypeHost
                                         : cudaMemoryTypeUnregistered;
    out->device = m.device;
    out->devicePointer = m.place == SIMT_UNKNOWN ? NULL : (void *)(uintptr_t)p;
    out->hostPointer = m.place == SIMT_DEVICE ? NULL : (void *)(uintptr_t)p;
    return cudaSuccess;
}

} /* extern "C" */
