/* fake_worker.c: a sluice-worker without an engine, for tests of the manager and of the data
 * plane's plumbing. The command line, the launch record and the service are those of sluice-worker.
 * Serve echoes the prompt (echo_serve.h). The "model" file is a script, a text of words:
 *
 *     rate=N            tokens per second and stream (default 20); 0: streams stay silent
 *     slots=N           step frames per token time (default 1: all streams in one)
 *     load_ms=N         time from start to READY (default 100), in ten steps of progress
 *     bytes=N           packed bytes it claims (default 1000000)
 *     crash_ms=N        dies by SIGABRT this long after its start
 *     fail=STATUS       ends after the load with an exit report whose error has this gRPC code
 *     fail_ms=N         with fail: ends this long after its start
 *     fault=N           ends this long after READY as if its device had failed
 *     fault_class=N     with fault: the sluice.worker.v1.DeviceFault; happens once (FILE.faulted)
 *     silent            never opens its socket
 *     stubborn          ignores Shutdown and SIGTERM
 *     queued            reports waiting requests without progress; with `moves` progress grows
 *     fails_and_stays   reports FAILED after the load, and does not end
 *     packs=N           bytes of the inherited memory once it is sealed
 *     packs_not         neither packs into the inherited memory nor reports it
 *     drain_ms=N        time to end on request
 *     gpu=N             bytes of GPU memory that it plans and takes (default: bytes)
 *     taking_ms=N       takes GPU memory this long after its start (default 0)
 *     answers=N         answered requests per second since READY that it reports
 *     failing=N         failed requests per second since READY that it reports
 *     ttft_ms=N         with answers: time to first token that it reports
 *     slow_percent=N    also reports single times: this share took slow_ms=N
 *     context=N         context length that inspect reports
 *     protocol=N        speaks version N of the protocol alone (default 1)
 *     protocol_ms=N     with protocol: from this long after its start, and 1 before
 *     looks_not         ignores the protocol versions of its peers
 *     wakes=HOW         on Wake while parked: no (unknown call), never (no answer), dies
 *     keeps_not         on KeepWeights on a GPU: fails for want of memory
 *     keeps_not=rN      the same for that replica alone
 *     keeps_slow=N      time that KeepWeights takes
 *     keeps_held        KeepWeights takes until the script no longer has this word
 *     keeps_for=N       frees a kept copy after this time while it serves (default 10000)
 *     bad               inspect finds a broken file
 *     slow_tool         one-shot modes never end
 *     crash_tool        one-shot modes die
 *
 * The keeps_ words are read at the time of the call, the others at the start. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/launch/launch_record.h"
#include "proto/rpc/server/call.h"
#include "proto/rpc/server/server.h"
#include "sluice/worker/v1/report.pb-c.h"
#include "sluice/worker/v1/worker.pb-c.h"
#include "tests/support/fake/fake_packed.h"
#include "tests/support/fake/fake_script.h"
#include "tests/support/load/echo_serve.h"

enum { MAX_WATCHES = 16, N_STEPS = 10, TURN_MS = 10, MAX_PENDING_BYTES = 64 << 20 };

static const char *socket_path, *exit_path, *replica_id, *epoch_text, *model_path, *packed_text;
static const char *cpus_text, *first_devices;
static const char *_Atomic devices_text; /* devices at the start, or from the last Wake */
static _Atomic int64_t started_ns;       /* time of the start, or of the last Wake */
static _Atomic bool draining, shutting_down;
static _Atomic bool
    has_served; /* a Serve stream was opened: request counts are real from then on */
static _Atomic uint32_t n_finished, n_ended;
static struct echo *echo;
static const char numerics_id[] = "fake/1";
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct rpc_call *watches[MAX_WATCHES]; /* under the mutex */

static uint64_t start_ticks(void)
{
    char text[1024] = "";
    FILE *file = fopen("/proc/self/stat", "re");
    size_t n = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
    text[n] = '\0';
    if (file)
        fclose(file);
    const char *at = strrchr(text, ')');
    for (int field = 2; field < 22 && at; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

/* -- serve ----------------------------------------------------------------------------------------
 */

static Sluice__Worker__V1__DeviceFault lost_by;

static void leave(Sluice__Worker__V1__ExitCause cause, int code, const char *text, int exit_status)
{
    Sluice__Worker__V1__ExitReport report = SLUICE__WORKER__V1__EXIT_REPORT__INIT;
    Sluice__V1__Error problem = SLUICE__V1__ERROR__INIT;
    char temporary[256];
    report.replica_id = fake_word(replica_id);
    report.epoch = strtoull(epoch_text, NULL, 10);
    report.pid = (uint32_t)getpid();
    report.cause = cause;
    report.device_fault = lost_by;
    report.n_finished = has_served ? n_finished : 3;
    report.n_ended = n_ended;
    problem.code = code;
    problem.message = fake_word(text);
    if (code)
        report.error = &problem;
    size_t n = protobuf_c_message_get_packed_size(&report.base);
    uint8_t *bytes = malloc(n ? n : 1);
    snprintf(temporary, sizeof(temporary), "%s.tmp", exit_path);
    FILE *file = bytes ? fopen(temporary, "we") : NULL;
    if (file) {
        protobuf_c_message_pack(&report.base, bytes);
        fwrite(bytes, 1, n, file);
        fclose(file);
        (void)rename(temporary, exit_path);
    }
    _exit(exit_status);
}

static int64_t age_ms(void)
{
    return (clock_now_ns() - started_ns) / NS_PER_MS;
}

static uint32_t own_protocol(void)
{
    return age_ms() >= fake_number("protocol_ms=", 0) ? (uint32_t)fake_number("protocol=", 1) : 1;
}

static _Atomic bool parked; /* started with --parked, and not yet woken */

static bool is_on_gpu(void)
{
    return devices_text && strncmp(devices_text, "cuda", 4) == 0;
}

static Sluice__Worker__V1__WorkerState state_now(void)
{
    int64_t load_ms = fake_number("load_ms=", 100);
    if (draining || shutting_down)
        return SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_DRAINING;
    if (parked)
        return SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_PARKED;
    if (age_ms() < load_ms * 9 / 10 || fake_packed_is_due() ||
        (fake_number("fail=", 0) && !fake_number("fail_ms=", 0)))
        return SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_LOADING;
    if (fake_has("fails_and_stays") && age_ms() >= load_ms)
        return SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_FAILED;
    return age_ms() < load_ms ? SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_WARMING
                              : SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_READY;
}

/* Reports the counts that the script claims. */
static void claim_answers(Sluice__Worker__V1__WorkerCounters *counters,
                          Sluice__Worker__V1__Histogram *prefill, uint64_t *n_first)
{
    int64_t ms = age_ms() - fake_number("load_ms=", 100);
    uint64_t n_ok = ms > 0 ? (uint64_t)(ms * fake_number("answers=", 0) / 1000) : 0;
    uint64_t n_failed = ms > 0 ? (uint64_t)(ms * fake_number("failing=", 0) / 1000) : 0;
    counters->n_ok_requests += n_ok;
    counters->n_failed_requests += n_failed;
    *n_first = n_ok + n_failed;
    *prefill = (Sluice__Worker__V1__Histogram)SLUICE__WORKER__V1__HISTOGRAM__INIT;
    prefill->kind = SLUICE__WORKER__V1__HISTOGRAM_KIND__HISTOGRAM_KIND_PREFILL_SECONDS;
    prefill->n_counts = 1;
    prefill->sum = (double)*n_first * (double)fake_number("ttft_ms=", 0) / 1e3;
}

enum { N_BOUNDS = 20 }; /* 1 ms, 2 ms, ... */

/* Reports the same as times of single requests: ttft_ms for all but the slow ones. The sum includes
 * the slow ones. */
static void claim_times(Sluice__Worker__V1__Histogram *first,
                        Sluice__Worker__V1__Histogram *prefill, double bounds[N_BOUNDS],
                        uint64_t counts[N_BOUNDS + 1])
{
    uint64_t n = prefill->counts[0], n_slow = n * (uint64_t)fake_number("slow_percent=", 0) / 100;
    double quick_s = (double)fake_number("ttft_ms=", 0) / 1e3;
    double slow_s = (double)fake_number("slow_ms=", 0) / 1e3;
    *first = (Sluice__Worker__V1__Histogram)SLUICE__WORKER__V1__HISTOGRAM__INIT;
    first->kind = SLUICE__WORKER__V1__HISTOGRAM_KIND__HISTOGRAM_KIND_FIRST_TOKEN_SECONDS;
    for (int i = 0; i < N_BOUNDS; i++) {
        bounds[i] = 1e-3 * (double)(1 << i);
        bool quick = quick_s <= bounds[i] && (i == 0 || quick_s > bounds[i - 1]);
        bool slow = slow_s <= bounds[i] && (i == 0 || slow_s > bounds[i - 1]);
        counts[i] = (quick ? n - n_slow : 0) + (slow ? n_slow : 0);
    }
    counts[N_BOUNDS] = 0;
    prefill->sum += (double)n_slow * (slow_s - quick_s);
    first->bounds = bounds;
    first->n_bounds = N_BOUNDS;
    first->counts = counts;
    first->n_counts = N_BOUNDS + 1;
}

static void send_status(struct rpc_call *call)
{
    Sluice__Worker__V1__WorkerStatus status = SLUICE__WORKER__V1__WORKER_STATUS__INIT;
    Sluice__V1__RankProgress rank = SLUICE__V1__RANK_PROGRESS__INIT, *ranks[1] = {&rank};
    Sluice__V1__DeviceMemory memory = SLUICE__V1__DEVICE_MEMORY__INIT, *memories[1] = {&memory};
    static char pack[] = "pack";
    char device[64] = "cpu:0";
    if (parked && is_on_gpu()) /* a parked worker holds no GPU memory */
        snprintf(device, sizeof(device), "cpu");
    else if (devices_text && strchr(devices_text, ':'))
        snprintf(device, sizeof(device), "%.*s", (int)strcspn(devices_text, ","), devices_text);
    Sluice__Worker__V1__Load load = SLUICE__WORKER__V1__LOAD__INIT;
    Sluice__Worker__V1__WorkerCounters counters;
    char id[64];
    uint64_t total = (uint64_t)fake_number("bytes=", 1000000);
    int64_t load_ms = fake_number("load_ms=", 100);
    uint64_t step = (uint64_t)(load_ms ? age_ms() * N_STEPS / load_ms : N_STEPS);
    snprintf(id, sizeof(id), "%s", replica_id);
    rank.stage = pack;
    rank.bytes_total = total;
    rank.bytes_done = step >= N_STEPS ? total : total * step / N_STEPS;
    memory.device = device;
    memory.weight_bytes = memory.expected_bytes = total;
    if (device[1] == 'u') { /* "cuda:0" */
        memory.expected_bytes = (uint64_t)fake_number("gpu=", (long)total);
        memory.after_bytes = age_ms() >= fake_number("taking_ms=", 0) ? memory.expected_bytes : 0;
    }
    status.state = state_now();
    status.replica_id = id;
    status.cpus = fake_word(cpus_text ? cpus_text : "");
    status.numerics_id = fake_word(numerics_id);
    status.pid = (uint32_t)getpid();
    status.start_ticks = start_ticks();
    status.epoch = strtoull(epoch_text, NULL, 10);
    /* A peer that agreed on a protocol before keeps that protocol. */
    status.protocol_min = status.protocol_max = fake_has("looks_not") ? own_protocol() : 1;
    status.n_ranks = status.n_memory = 1;
    status.ranks = ranks;
    status.memory = memories;
    Sluice__Worker__V1__PackedMemory packed_rows[FAKE_MAX_RANKS], *packed_list[FAKE_MAX_RANKS];
    fake_packed_tell(&status, packed_rows, packed_list);
    echo_fill_load(echo, &load);
    if (fake_has("queued")) {
        load.n_ready = load.n_running = 1;
        load.progress = fake_has("moves") ? (uint64_t)age_ms() : 1;
    }
    echo_fill_counters(echo, &counters);
    Sluice__Worker__V1__Histogram prefill, first, *histograms[] = {&prefill, &first};
    double bounds[N_BOUNDS];
    uint64_t n_first, counts[N_BOUNDS + 1];
    claim_answers(&counters, &prefill, &n_first);
    prefill.counts = &n_first;
    counters.histograms = histograms;
    counters.n_histograms = 1;
    if (fake_has("slow_percent=")) {
        claim_times(&first, &prefill, bounds, counts);
        counters.n_histograms = 2;
    }
    status.load = &load;
    status.counters = &counters;
    (void)rpc_call_send(call, &status.base);
}

static void unwatch(void *arg, struct rpc_call *call)
{
    (void)arg;
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < MAX_WATCHES; i++)
        if (watches[i] == call) {
            watches[i] = NULL;
            rpc_call_release(call);
        }
    pthread_mutex_unlock(&mutex);
    struct error err;
    error_set(&err, STATUS_CANCELLED, "cancelled");
    (void)rpc_call_finish(call, &err);
}

static const struct rpc_call_events watch_events = {.on_cancel = unwatch};

static void watch_status(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__Worker__V1__WatchStatusRequest *request =
        (const Sluice__Worker__V1__WatchStatusRequest *)message;
    struct error err;
    (void)context;
    if (request->protocol_max && !fake_has("looks_not") &&
        echo_check_protocol(own_protocol(), request->protocol_min, request->protocol_max, &err)) {
        rpc_call_finish(call, &err);
        return;
    }
    rpc_call_set_events(call, &watch_events, NULL);
    pthread_mutex_lock(&mutex);
    size_t i = 0;
    while (i < MAX_WATCHES && watches[i])
        i++;
    if (i < MAX_WATCHES) {
        rpc_call_retain(call);
        watches[i] = call;
    }
    pthread_mutex_unlock(&mutex);
    send_status(call);
}

/* Drain and Shutdown wait for streams, which no callback may do. */
struct ending {
    struct rpc_call *call;
    uint32_t grace_ms;
    bool ends;
};

static void *end_streams(void *arg)
{
    struct ending *ending = arg;
    Sluice__Worker__V1__ShutdownResponse shutdown = SLUICE__WORKER__V1__SHUTDOWN_RESPONSE__INIT;
    Sluice__Worker__V1__DrainResponse drain = SLUICE__WORKER__V1__DRAIN_RESPONSE__INIT;
    uint32_t n_left;
    n_finished += echo_drain(echo, ending->grace_ms, &n_left);
    n_ended += n_left;
    shutdown.n_finished = drain.n_finished = has_served ? n_finished : 3;
    shutdown.n_ended = drain.n_ended = n_ended;
    (void)rpc_call_reply(ending->call, ending->ends ? &shutdown.base : &drain.base);
    rpc_call_release(ending->call);
    shutting_down = ending->ends;
    free(ending);
    return NULL;
}

static void start_ending(struct rpc_call *call, bool has_grace, uint32_t grace_ms, bool ends)
{
    struct ending *ending = calloc(1, sizeof(*ending));
    pthread_t thread;
    if (!ending)
        abort();
    rpc_call_retain(call);
    *ending = (struct ending){call, has_grace ? grace_ms : 60000, ends};
    draining = true;
    if (pthread_create(&thread, NULL, end_streams, ending) != 0)
        abort();
    pthread_detach(thread);
}

static void on_drain(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__Worker__V1__DrainRequest *request =
        (const Sluice__Worker__V1__DrainRequest *)message;
    (void)context;
    start_ending(call, request->has_grace_ms, request->grace_ms, false);
}

static void on_shutdown(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__Worker__V1__ShutdownRequest *request =
        (const Sluice__Worker__V1__ShutdownRequest *)message;
    Sluice__Worker__V1__ShutdownResponse response = SLUICE__WORKER__V1__SHUTDOWN_RESPONSE__INIT;
    (void)context;
    response.n_finished = 3;
    if (fake_has("stubborn"))
        (void)rpc_call_reply(call, &response.base);
    else
        start_ending(call, request->has_grace_ms, request->grace_ms, true);
}

static void on_wake(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__Worker__V1__WakeRequest *request =
        (const Sluice__Worker__V1__WakeRequest *)message;
    Sluice__Worker__V1__WakeResponse response = SLUICE__WORKER__V1__WAKE_RESPONSE__INIT;
    if (fake_has("wakes=dies"))
        abort();
    if (fake_has("wakes=no"))
        rpc_unimplemented(context, call, message);
    else if (fake_has("wakes=never"))
        rpc_call_retain(call);
    if (fake_has("wakes="))
        return;
    if (request->launch)
        devices_text = strdup(request->launch->devices);
    started_ns = clock_now_ns();
    parked = false;
    (void)rpc_call_reply(call, &response.base);
}

/* Tests wait for a line in FILE.asked beside the script. The file lists the id of each asked
 * replica. */
static void note_asked(void)
{
    char path[4096], line[80];
    snprintf(path, sizeof(path), "%.4000s.asked", model_path);
    int n = snprintf(line, sizeof(line), "%.70s\n", replica_id);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, line, (size_t)n) != n)
        perror(path);
    if (fd >= 0)
        close(fd);
}

static void on_keep(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct error err;
    (void)context;
    (void)message;
    note_asked();
    if (state_now() == SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_READY) {
        fake_packed_keep(call, replica_id);
        return;
    }
    error_set(&err, STATUS_UNAVAILABLE, "the worker is not ready");
    rpc_call_finish(call, &err);
}

static void on_serve(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct error err;
    if (state_now() == SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_READY) {
        has_served = true;
        echo_serve(context, call, message);
        return;
    }
    error_set(&err, STATUS_UNAVAILABLE, "the worker is not ready");
    rpc_call_finish(call, &err);
}

static void on_tokenize(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__V1__TokenizeRequest *request = (const Sluice__V1__TokenizeRequest *)message;
    Sluice__V1__TokenizeResponse response = SLUICE__V1__TOKENIZE_RESPONSE__INIT;
    Sluice__V1__GenerateRequest prompt = SLUICE__V1__GENERATE_REQUEST__INIT;
    struct error err;
    (void)context;
    prompt.text = request->text;
    prompt.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    if (request->input_case != SLUICE__V1__TOKENIZE_REQUEST__INPUT_TEXT) {
        error_field(&err, "input", "a worker without a template takes text only");
        rpc_call_finish(call, &err);
    } else if (echo_prompt(&prompt, &response.ids, &response.n_ids, &err) != 0) {
        rpc_call_finish(call, &err);
    } else {
        rpc_call_reply(call, &response.base);
        free(response.ids);
    }
}

static const struct rpc_method methods[] = {
    {"Serve", RPC_SHAPE_BIDI, on_serve},
    {"WatchStatus", RPC_SHAPE_SERVER_STREAM, watch_status},
    {"Drain", RPC_SHAPE_UNARY, on_drain},
    {"Shutdown", RPC_SHAPE_UNARY, on_shutdown},
    {"Wake", RPC_SHAPE_UNARY, on_wake},
    {"KeepWeights", RPC_SHAPE_UNARY, on_keep},
    {"Tokenize", RPC_SHAPE_UNARY, on_tokenize},
    {"Detokenize", RPC_SHAPE_UNARY, rpc_unimplemented},
    {"ApplyChatTemplate", RPC_SHAPE_UNARY, rpc_unimplemented},
};

static bool stubborn; /* from the script */

static void on_term(int signal_number)
{
    (void)signal_number;
    if (!stubborn)
        shutting_down = true;
}

/* Fails as a worker whose device failed, but only once for each script. */
static void fail_device(void)
{
    char mark[4096];
    snprintf(mark, sizeof(mark), "%.4000s.faulted", model_path);
    int fd = open(mark, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    close(fd);
    lost_by = (Sluice__Worker__V1__DeviceFault)fake_number("fault_class=", 2);
    leave(SLUICE__WORKER__V1__EXIT_CAUSE__EXIT_CAUSE_DEVICE_LOST, 14,
          "the device failed: cuda:0: queued work: injected", 81);
}

static void turn(void)
{
    struct timespec pause_time = {.tv_nsec = TURN_MS * NS_PER_MS};
    long crash_ms = fake_number("crash_ms=", -1), fail = fake_number("fail=", 0);
    nanosleep(&pause_time, NULL);
    int64_t load_ms = fake_number("load_ms=", 100);
    if (age_ms() >= load_ms * 4 / 10)
        fake_packed_fill(age_ms() >= load_ms * 9 / 10);
    if (state_now() == SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_READY)
        fake_packed_serves();
    if (crash_ms >= 0 && age_ms() >= crash_ms)
        abort();
    if (fake_has("fault=") && age_ms() >= load_ms + fake_number("fault=", 0))
        fail_device();
    if (fail && age_ms() >= fake_number("fail_ms=", load_ms))
        leave(SLUICE__WORKER__V1__EXIT_CAUSE__EXIT_CAUSE_LOAD_FAILED, (int)fail,
              "needs 5000000 bytes, 1000 are free", 1);
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < MAX_WATCHES; i++)
        if (watches[i])
            send_status(watches[i]);
    pthread_mutex_unlock(&mutex);
}

static int serve(void)
{
    struct rpc_service service = {.descriptor = &sluice__worker__v1__worker__descriptor,
                                  .methods = methods,
                                  .n_methods = sizeof(methods) / sizeof(methods[0])};
    struct rpc_server_config config;
    struct rpc_server *server = NULL;
    struct error err;
    started_ns = clock_now_ns();
    fake_packed_init(packed_text ? strtoul(packed_text, NULL, 10) % (FAKE_MAX_RANKS + 1) : 0,
                     is_on_gpu(), model_path);
    stubborn = fake_has("stubborn");
    signal(SIGTERM, on_term);
    const struct echo_config echoes = {
        .replica_id = replica_id,
        .model = "",
        .version = "",
        .numerics_id = numerics_id,
        .epoch = strtoull(epoch_text, NULL, 10),
        .rate = (uint32_t)fake_number("rate=", 20),
        .n_slots = (uint32_t)fake_number("slots=", 1),
        .protocol = own_protocol,
        .looks_not = fake_has("looks_not"),
    };
    if (echo_create(&echoes, &echo, &err) != 0) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    service.context = echo;
    rpc_server_config_init(&config);
    config.max_pending_bytes = config.max_message_bytes = MAX_PENDING_BYTES;
    config.services = &service;
    config.n_services = 1;
    if (!fake_has("silent") && (rpc_server_create(&config, &server, &err) != 0 ||
                                rpc_server_listen_unix(server, socket_path, &err) != 0 ||
                                rpc_server_start(server, &err) != 0)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    while (!shutting_down)
        turn();
    for (int64_t until_ms = age_ms() + fake_number("drain_ms=", 0); age_ms() < until_ms;)
        turn();
    uint32_t n_left;
    (void)echo_drain(echo, 0, &n_left);
    n_ended += n_left;
    if (server)
        rpc_server_shutdown(server, 50);
    leave(SLUICE__WORKER__V1__EXIT_CAUSE__EXIT_CAUSE_REQUESTED, 0, "", 0);
    return 0;
}

/* Reads the launch record, which lives as long as the process. The descriptor stays open, so that
 * tests can read the record too. */
static void read_record(const char *launch_fd)
{
    static char epoch[24], n_packed[24];
    static launch_record *record;
    struct error err;
    if (launch_record_read((int)strtol(launch_fd, NULL, 10), &record, &err) != 0) {
        fprintf(stderr, "%s\n", err.message);
        exit(2);
    }
    snprintf(epoch, sizeof(epoch), "%llu", (unsigned long long)record->epoch);
    snprintf(n_packed, sizeof(n_packed), "%zu", record->n_packed_fds);
    socket_path = record->socket;
    exit_path = record->exit_report;
    replica_id = record->replica;
    epoch_text = epoch;
    model_path = record->model;
    packed_text = n_packed;
    cpus_text = record->config ? record->config->cpus : "";
    first_devices = record->devices;
    parked = record->parked;
}

int main(int argc, char *argv[])
{
    const char *launch_fd = NULL;
    const char *mode = argc > 1 ? argv[1] : "";
    for (int i = 2; i + 1 < argc; i++) {
        const char **value = strcmp(argv[i], "--socket") == 0        ? &socket_path
                             : strcmp(argv[i], "--exit-report") == 0 ? &exit_path
                             : strcmp(argv[i], "--replica") == 0     ? &replica_id
                             : strcmp(argv[i], "--epoch") == 0       ? &epoch_text
                             : strcmp(argv[i], "--model") == 0       ? &model_path
                             : strcmp(argv[i], "--packed-fds") == 0  ? &packed_text
                             : strcmp(argv[i], "--cpus") == 0        ? &cpus_text
                             : strcmp(argv[i], "--devices") == 0     ? &first_devices
                             : strcmp(argv[i], "--launch-fd") == 0   ? &launch_fd
                                                                     : NULL;
        if (value)
            *value = argv[++i];
    }
    for (int i = 2; i < argc; i++)
        parked = parked || strcmp(argv[i], "--parked=true") == 0;
    if (launch_fd)
        read_record(launch_fd);
    if (model_path)
        fake_read_script(model_path);
    devices_text = first_devices;
    if (strcmp(mode, "serve") == 0 && socket_path && exit_path && replica_id && epoch_text)
        return serve();
    return fake_tool(mode);
}
