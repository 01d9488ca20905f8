/* Streams, events and launches (captured graphs: simt_graph.cc). Each stream is an OS thread that
 * runs its queue in order. Only explicit waits wait for a stream. A copy of pageable memory is as
 * asynchronous as a copy of pinned memory. Both buffers must live until a wait for the stream. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <chrono>
#include <map>

#include "tests/simt/simt_early.h"
#include "tests/simt/simt_processor.h"
#include "tests/simt/simt_queue.h"
#include "tests/simt/simt_runtime.h"
#include "tests/simt/simt_thread.h"

/* The state of an event. The state stays while a stream still has to pass the event, even after
 * cudaEventDestroy(). */
struct mark {
    std::mutex lock; /* all below */
    std::condition_variable changed;
    uint64_t n_recorded = 0, n_passed = 0;
    std::chrono::steady_clock::time_point when;
    std::shared_ptr<capture> captured; /* the capture in which the event was recorded */
    cudaStream_t on = NULL;            /* with `captured`: the stream of the record */
    size_t n_ops = 0;                  /* with `captured`: the stream's ops before the record */
};

struct CUevent_st {
    std::shared_ptr<mark> state;
    bool timed;
};

/* --- queues --- */

/* A queued kernel. A block of the kernel may have begun early. */
struct queued_kernel {
    std::shared_ptr<simt_op> op;
    simt_grid grid;
    simt_early *early = NULL; /* created when needed; owned */
    bool has_begun = false;
    uint64_t begun = 0; /* number of the early block */

    void set(std::shared_ptr<simt_op> to)
    {
        const simt_launch *l = to->launch.get();
        op = std::move(to);
        has_begun = false;
        grid = {l->name,      l->run,          l->call.get(),         l->grid_dim,
                l->block_dim, l->shared_bytes, l->order != SIMT_PLAIN};
    }

    void begin(uint64_t turn)
    {
        if (early == NULL)
            early = simt_early_create();
        begun = turn % ((uint64_t)grid.grid_dim.x * grid.grid_dim.y * grid.grid_dim.z);
        simt_early_begin(early, &grid, begun);
        has_begun = true;
    }

    /* Lets the early block continue: the previous op has ended or will not run. */
    void release()
    {
        if (has_begun)
            simt_early_release(early);
    }

    void run(bool rest)
    {
        if (rest)
            simt_run_grid(&grid, has_begun ? &begun : NULL);
        if (has_begun)
            simt_early_join(early);
        has_begun = false;
    }
};

static bool fails_here(simt_device *device);
static bool may_overlap(const std::shared_ptr<simt_op> &op, const std::shared_ptr<simt_op> &next);

/* `kernels` holds the kernel of the op and, if begun, of the next op. The two entries alternate. */
static void run_op(cudaStream_t s, const std::shared_ptr<simt_op> &op,
                   const std::shared_ptr<simt_op> &next, queued_kernel kernels[2], uint64_t turn)
{
    queued_kernel *own = &kernels[turn % 2], *after = &kernels[(turn + 1) % 2];
    bool runs = op->kind == simt_op::MARK || s->device->failed.load() == 0;
    if (op->kind != simt_op::KERNEL) {
        if (runs)
            op->run(s->device);
        return;
    }
    if (own->op != op)
        own->set(op);
    if (next != NULL && may_overlap(op, next)) {
        after->set(next);
        after->begin(turn);
    }
    own->run(runs && !fails_here(s->device));
    own->op.reset();
    after->release();
}

static void run_stream(cudaStream_t s)
{
    queued_kernel kernels[2];
    uint64_t turn = 0;
    simt_tls.device = s->device->index;
    std::unique_lock<std::mutex> hold(s->lock);
    for (;;) {
        s->changed.wait(hold, [s] { return s->stop || !s->queue.empty(); });
        if (s->queue.empty())
            break;
        std::shared_ptr<simt_op> op = std::move(s->queue.front());
        s->queue.pop_front();
        std::shared_ptr<simt_op> next = s->queue.empty() ? NULL : s->queue.front();
        hold.unlock();
        run_op(s, op, next, kernels, turn++);
        op.reset();
        next.reset();
        hold.lock();
        s->n_done++;
        s->changed.notify_all();
    }
    hold.unlock();
    for (queued_kernel &k : kernels)
        simt_early_destroy(k.early);
    simt_processor_destroy(simt_tls.processor);
    simt_tls.processor = NULL;
}

static void wait_stream(cudaStream_t s)
{
    std::unique_lock<std::mutex> hold(s->lock);
    uint64_t wanted = s->n_queued;
    s->changed.wait(hold, [s, wanted] { return s->n_done >= wanted; });
}

static cudaStream_t make_stream(simt_device *device, bool blocking)
{
    cudaStream_t s = new CUstream_st;
    s->device = device;
    s->blocking = blocking;
    s->worker = std::thread(run_stream, s);
    return s;
}

bool simt_is_default(cudaStream_t s)
{
    return s == NULL || s == cudaStreamLegacy || s == cudaStreamPerThread;
}

/* The stream that a handle names. */
static cudaStream_t resolve(cudaStream_t s)
{
    if (!simt_is_default(s))
        return s;
    simt_device *device = simt_current_device();
    std::lock_guard<std::mutex> hold(device->lock);
    if (device->default_stream == NULL)
        device->default_stream = make_stream(device, false);
    return device->default_stream;
}

static std::vector<cudaStream_t> streams_of(simt_device *device, bool only_blocking)
{
    std::vector<cudaStream_t> found;
    std::lock_guard<std::mutex> hold(device->lock);
    for (cudaStream_t s : device->streams)
        if (!only_blocking || s->blocking)
            found.push_back(s);
    if (!only_blocking && device->default_stream != NULL)
        found.push_back(device->default_stream);
    return found;
}

void simt_drain(simt_device *device)
{
    for (cudaStream_t s : streams_of(device, false))
        wait_stream(s);
}

bool simt_breaks_capture(void)
{
    struct capture *c = (struct capture *)simt_tls.capture;
    if (c != NULL)
        c->broken = true;
    return c != NULL;
}

cudaError_t simt_queue_ops(cudaStream_t handle, const std::vector<std::shared_ptr<simt_op>> &ops)
{
    cudaStream_t s = resolve(handle);
    if (s->captured == NULL && simt_check_device(s->device) != cudaSuccess)
        return simt_check_device(s->device);
    if (simt_is_default(handle)) {
        if (simt_breaks_capture())
            return simt_error(cudaErrorStreamCaptureImplicit);
        for (cudaStream_t other : streams_of(s->device, true))
            wait_stream(other);
    } else if (s->blocking && s->device->default_stream != NULL) {
        wait_stream(s->device->default_stream);
    }
    std::lock_guard<std::mutex> hold(s->lock);
    if (s->captured != NULL) {
        if (s->captured->broken)
            return simt_error(cudaErrorStreamCaptureInvalidated);
        branch &own = s->captured->branches[s];
        own.n_ops += ops.size();
        own.joined = false;
        s->captured->ops.insert(s->captured->ops.end(), ops.begin(), ops.end());
        return cudaSuccess;
    }
    s->queue.insert(s->queue.end(), ops.begin(), ops.end());
    s->n_queued += ops.size();
    s->changed.notify_all();
    return cudaSuccess;
}

static cudaError_t queue_op(cudaStream_t s, enum simt_op::kind kind,
                            std::function<void(simt_device *)> run)
{
    return simt_queue_ops(s, {std::make_shared<simt_op>(simt_op{kind, std::move(run), NULL})});
}

/* --- launches --- */

static std::mutex allowed_lock;
/* most shared bytes by device and kernel */
static std::map<std::pair<int, const void *>, size_t> *allowed;

static size_t allowed_shared(int device, const void *kernel)
{
    std::lock_guard<std::mutex> hold(allowed_lock);
    auto found = allowed != NULL ? allowed->find({device, kernel}) : decltype(allowed->end()){};
    return allowed != NULL && found != allowed->end() ? found->second : 48 << 10;
}

int simt_allow_shared(const void *kernel, size_t n_bytes)
{
    int most = 0;
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, simt_tls.device);
    if (n_bytes > (size_t)most)
        return simt_error(cudaErrorInvalidValue);
    std::lock_guard<std::mutex> hold(allowed_lock);
    if (allowed == NULL)
        allowed = new std::map<std::pair<int, const void *>, size_t>;
    (*allowed)[{simt_tls.device, kernel}] = n_bytes;
    return cudaSuccess;
}

/* SIMT_FAIL="n:code": launch number n, counted from 1 over all devices, fails its device. */
static bool fails_here(simt_device *device)
{
    static std::atomic<long> n_launches{0};
    static const char *const text = getenv("SIMT_FAIL");
    long n = ++n_launches, wanted = 0;
    int code = 0;
    if (text == NULL)
        return false;
    char *end = NULL;
    wanted = strtol(text, &end, 10);
    code = *end == ':' ? (int)strtol(end + 1, NULL, 10) : 0;
    if (code == 0)
        simt_fail("SIMT_FAIL=%s: a launch's number and a cudaError's are needed, n:code", text);
    if (n != wanted)
        return false;
    device->failed.store(code);
    return true;
}

/* Returns true if the ops may overlap. With SIMT_FAIL they may not: an early op would continue
 * with data that were never written. */
static bool may_overlap(const std::shared_ptr<simt_op> &op, const std::shared_ptr<simt_op> &next)
{
    static const bool none = getenv("SIMT_FAIL") != NULL;
    return !none && op->kind == simt_op::KERNEL && next->kind == simt_op::KERNEL &&
           next->launch->order == SIMT_OVERLAPS && next != op;
}

/* SIMT_OVERLAP=refuse: acts as a driver that refuses overlapping launches, above all in captured
 * graphs. */
static bool refuses(const simt_launch &l)
{
    static const char *const text = getenv("SIMT_OVERLAP");
    return l.order == SIMT_OVERLAPS && text != NULL && strcmp(text, "refuse") == 0;
}

static bool dims_fit(const simt_launch &l)
{
    uint64_t n = (uint64_t)l.block_dim.x * l.block_dim.y * l.block_dim.z;
    return n > 0 && n <= SIMT_MAX_THREADS && l.block_dim.z <= 64 && l.grid_dim.x > 0 &&
           l.grid_dim.x <= INT32_MAX && l.grid_dim.y > 0 && l.grid_dim.y <= 65535 &&
           l.grid_dim.z > 0 && l.grid_dim.z <= 65535;
}

int simt_queue_launch(simt_launch &&launch)
{
    cudaStream_t s = resolve((cudaStream_t)launch.stream);
    if (!dims_fit(launch))
        return cudaErrorInvalidConfiguration;
    if (s->device != simt_current_device())
        return cudaErrorInvalidResourceHandle;
    if (launch.shared_bytes > allowed_shared(s->device->index, launch.kernel))
        return cudaErrorInvalidValue;
    for (size_t i = 0; i < launch.pointers.size(); i++) {
        const void *p = launch.pointers[i];
        if (p != NULL && simt_memory_of(p).place == SIMT_UNKNOWN)
            simt_fail("launch of %s: pointer %zu of its arguments, %p, is no device memory",
                      launch.name, i + 1, p);
    }
    if (refuses(launch))
        return cudaErrorNotSupported;
    cudaStream_t handle = (cudaStream_t)launch.stream;
    auto op = std::make_shared<simt_op>(simt_op{simt_op::KERNEL, {}, NULL});
    op->launch = std::make_shared<const simt_launch>(std::move(launch));
    cudaError_t code = simt_queue_ops(handle, {op});
    simt_tls.last_error = cudaSuccess; /* CUDA_LAUNCH returns the error and resets it */
    return code;
}

/* --- copies --- */

static void check_copy(const char *call, const void *to, const void *from, size_t to_bytes,
                       size_t from_bytes, enum cudaMemcpyKind kind)
{
    if (kind == cudaMemcpyDefault)
        return;
    simt_check_range(call, to, to_bytes,
                     kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice);
    simt_check_range(call, from, from_bytes,
                     kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice);
}

extern "C" {

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    if (n_bytes == 0)
        return cudaSuccess;
    check_copy("cudaMemcpyAsync", to, from, n_bytes, n_bytes, kind);
    return queue_op(s, simt_op::COPY, [=](simt_device *) { memmove(to, from, n_bytes); });
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind)
{
    cudaError_t code = cudaMemcpyAsync(to, from, n_bytes, kind, NULL);
    return code != cudaSuccess ? code : cudaStreamSynchronize(NULL);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t n_bytes,
                                cudaStream_t s)
{
    return cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDeviceToDevice, s);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t s)
{
    if (width == 0 || height == 0)
        return cudaSuccess;
    if (width > to_pitch || width > from_pitch)
        return simt_error(cudaErrorInvalidPitchValue);
    check_copy("cudaMemcpy2DAsync", to, from, to_pitch * (height - 1) + width,
               from_pitch * (height - 1) + width, kind);
    return queue_op(s, simt_op::COPY, [=](simt_device *) {
        for (size_t row = 0; row < height; row++)
            memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    });
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                         size_t width, size_t height, enum cudaMemcpyKind kind)
{
    cudaError_t code = cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, NULL);
    return code != cudaSuccess ? code : cudaStreamSynchronize(NULL);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t n_bytes, cudaStream_t s)
{
    if (n_bytes == 0)
        return cudaSuccess;
    simt_check_range("cudaMemsetAsync", to, n_bytes, true);
    return queue_op(s, simt_op::COPY, [=](simt_device *) { memset(to, value, n_bytes); });
}

cudaError_t cudaMemset(void *to, int value, size_t n_bytes)
{
    cudaError_t code = cudaMemsetAsync(to, value, n_bytes, NULL);
    return code != cudaSuccess ? code : cudaStreamSynchronize(NULL);
}

cudaError_t cudaMallocAsync(void **out, size_t n_bytes, cudaStream_t handle)
{
    cudaStream_t s = resolve(handle);
    if (s->captured != NULL) {
        s->captured->broken = true;
        return simt_error(cudaErrorStreamCaptureUnsupported);
    }
    if (simt_check_device(s->device) != cudaSuccess)
        return simt_check_device(s->device);
    wait_stream(s); /* first the stream frees what its queue frees */
    return simt_error(simt_allocate_device(s->device, out, n_bytes));
}

cudaError_t cudaFreeAsync(void *p, cudaStream_t s)
{
    if (p == NULL)
        return cudaSuccess;
    if (simt_memory_of(p).place != SIMT_DEVICE)
        return simt_error(cudaErrorInvalidValue);
    return queue_op(s, simt_op::MARK, [p](simt_device *) { simt_free_device(p); });
}

/* --- streams --- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    simt_device *device = simt_current_device();
    if (simt_check_device(device) != cudaSuccess)
        return simt_check_device(device);
    cudaStream_t s = make_stream(device, (flags & cudaStreamNonBlocking) == 0);
    std::lock_guard<std::mutex> hold(device->lock);
    device->streams.insert(s);
    *out = s;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return cudaStreamCreateWithFlags(out, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int)
{
    return cudaStreamCreateWithFlags(out, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = *greatest = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    if (simt_is_default(s))
        return simt_error(cudaErrorInvalidResourceHandle);
    {
        std::lock_guard<std::mutex> hold(s->device->lock);
        s->device->streams.erase(s);
    }
    {
        std::lock_guard<std::mutex> hold(s->lock);
        s->stop = true;
        s->changed.notify_all();
    }
    s->worker.join();
    delete s;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    cudaStream_t s = resolve(handle);
    if (s->captured != NULL) {
        s->captured->broken = true;
        return simt_error(cudaErrorStreamCaptureUnsupported);
    }
    wait_stream(s);
    return simt_check_device(s->device);
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    cudaStream_t s = resolve(handle);
    if (simt_check_device(s->device) != cudaSuccess)
        return simt_check_device(s->device);
    std::lock_guard<std::mutex> hold(s->lock);
    return s->n_done == s->n_queued ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *context)
{
    return queue_op(s, simt_op::COPY, [=](simt_device *) { fn(context); });
}

/* --- events --- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    if (simt_check_device(simt_current_device()) != cudaSuccess)
        return simt_check_device(simt_current_device());
    *out = new CUevent_st{std::make_shared<mark>(), (flags & cudaEventDisableTiming) == 0};
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
    std::shared_ptr<mark> m = event->state;
    cudaStream_t s = resolve(handle);
    uint64_t number;
    {
        std::lock_guard<std::mutex> hold(m->lock);
        m->captured = s->captured;
        if (s->captured != NULL) {
            m->on = s;
            m->n_ops = s->captured->branches[s].n_ops;
            return cudaSuccess;
        }
        number = ++m->n_recorded;
    }
    cudaError_t code = queue_op(handle, simt_op::MARK, [m, number](simt_device *) {
        std::lock_guard<std::mutex> hold(m->lock);
        m->n_passed = number;
        m->when = std::chrono::steady_clock::now();
        m->changed.notify_all();
    });
    if (code != cudaSuccess) {
        std::lock_guard<std::mutex> hold(m->lock);
        m->n_passed = number;
        m->changed.notify_all();
    }
    return code;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t s, unsigned)
{
    return cudaEventRecord(event, s);
}

static void wait_mark(mark *m, uint64_t number)
{
    std::unique_lock<std::mutex> hold(m->lock);
    m->changed.wait(hold, [m, number] { return m->n_passed >= number; });
}

/* Joins the capture in which the event was recorded. */
static cudaError_t wait_captured(cudaStream_t s, const mark *m)
{
    if (s->captured != NULL && s->captured != m->captured)
        return simt_error(cudaErrorStreamCaptureMerge);
    s->captured = m->captured;
    branch &theirs = m->captured->branches[m->on];
    theirs.joined = theirs.joined || theirs.n_ops == m->n_ops;
    m->captured->branches[s].joined = false;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned)
{
    std::shared_ptr<mark> m = event->state;
    cudaStream_t s = resolve(handle);
    uint64_t number;
    {
        std::lock_guard<std::mutex> hold(m->lock);
        if (m->captured != NULL)
            return wait_captured(s, m.get());
        number = m->n_recorded;
    }
    if (s->captured != NULL) {
        s->captured->broken = true;
        return simt_error(cudaErrorStreamCaptureIsolation);
    }
    return queue_op(handle, simt_op::MARK,
                    [m, number](simt_device *) { wait_mark(m.get(), number); });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    uint64_t number;
    {
        std::lock_guard<std::mutex> hold(event->state->lock);
        if (event->state->captured != NULL)
            return simt_error(cudaErrorCapturedEvent);
        number = event->state->n_recorded;
    }
    wait_mark(event->state.get(), number);
    return simt_check_device(simt_current_device());
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (simt_check_device(simt_current_device()) != cudaSuccess)
        return simt_check_device(simt_current_device());
    std::lock_guard<std::mutex> hold(event->state->lock);
    if (event->state->captured != NULL)
        return simt_error(cudaErrorCapturedEvent);
    return event->state->n_passed == event->state->n_recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    if (!from->timed || !to->timed || from->state->n_recorded == 0 || to->state->n_recorded == 0)
        return simt_error(cudaErrorInvalidResourceHandle);
    if (cudaEventQuery(from) != cudaSuccess || cudaEventQuery(to) != cudaSuccess)
        return cudaErrorNotReady;
    *ms = std::chrono::duration<float, std::milli>(to->state->when - from->state->when).count();
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess;
    return (cudaError_t)simt_allow_shared(kernel, value < 0 ? SIZE_MAX : (size_t)value);
}

} /* extern "C" */
