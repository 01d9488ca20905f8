"""Load over the real programs (tests/long.sh load): 64 clients at once, compared with the same requests
alone. Then a storm of cancels follows. The script prints figures and asserts only the promises."""
import random
import threading
import time
from conftest import patience

import grpc
import psutil

WORDS = "cats dogs rivers trains paint bread snow salt wind stone glass iron maps clocks boats seeds".split()


def make(served, i):
    return served.request("smol", f"Tell me about {WORDS[i % 16]}. " * (1 + i % 7), max_tokens=16 + i % 48,
                          temperature=0.5 * (i % 3), seed=i, ignore_eos=True)


def test_64_clients_get_what_each_gets_alone(served):
    requests = [make(served, i) for i in range(64)]
    started = time.monotonic()
    alone = [served.generate(r) for r in requests]
    alone_s = time.monotonic() - started
    together = [None] * 64

    def one(i):
        together[i] = served.generate(requests[i])

    threads = [threading.Thread(target=one, args=(i,)) for i in range(64)]
    started = time.monotonic()
    [t.start() for t in threads]
    [t.join() for t in threads]
    together_s = time.monotonic() - started
    n = sum(len(a[1]) for a in alone)
    print(f"\n{n} tokens: one at a time {n / alone_s:.0f} tokens/s, 64 at once {n / together_s:.0f} tokens/s")
    assert [t[:2] for t in together] == [a[:2] for a in alone]


def test_a_thousand_random_cancels_leave_nothing_behind(served):
    (worker,) = served.children("sluice-worker")
    served.generate(make(served, 1))
    before = psutil.Process(worker)
    rss, fds, threads = before.memory_info().rss, before.num_fds(), before.num_threads()
    rng = random.Random(5)
    counts = {"cancelled": 0, "finished": 0, "refused": 0}
    lock = threading.Lock()

    def client(k):
        for _ in range(1000 // 50):
            call = served.inference.Generate(served.request("smol", "word " * rng.randrange(1, 400), max_tokens=200,
                                                            ignore_eos=True))
            stop_after, outcome = rng.choice([0, 0, 1, 1, 2, 5, 20]), "finished"
            try:
                if stop_after == 0:
                    time.sleep(rng.random() * 0.2)  # cancels must reach calls at any stage
                    call.cancel()
                for n, _ in enumerate(call):
                    if n >= stop_after:
                        call.cancel()
            except grpc.RpcError as e:
                outcome = "cancelled" if e.code() == grpc.StatusCode.CANCELLED else "refused"
                assert e.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED), e
            with lock:
                counts[outcome] += 1

    clients = [threading.Thread(target=client, args=(k,)) for k in range(50)]
    [c.start() for c in clients]
    [c.join() for c in clients]
    print(f"\n{counts}")
    assert sum(counts.values()) == 1000 and counts["cancelled"] >= 600
    with grpc.insecure_channel(f"unix:{next(served.state.glob('run/replica-*/worker.sock'))}") as channel:
        stub = served.stubs.worker_grpc.WorkerStub(channel)
        told = stub.WatchStatus(served.stubs.worker.WatchStatusRequest(protocol_min=1, protocol_max=1), timeout=patience(20))
        load = next(status.load for status in told if status.load.n_running == status.load.n_queued == 0)
    assert load.free_kv_tokens == load.total_kv_tokens, (load.free_kv_tokens, load.total_kv_tokens)
    after = psutil.Process(worker)
    print(f"worker RSS {rss >> 20} -> {after.memory_info().rss >> 20} MiB, fds {fds} -> {after.num_fds()}")
    assert after.num_fds() <= fds + 8 and after.num_threads() <= threads + 4
