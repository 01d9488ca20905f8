"""Replicas of a version by number: scaling, draining, restarting, cancelling, standing still, shared weights; and the
events that tell of it. Fake workers first (tests/support/fake_worker.c), the real ones at the end."""
import os
import signal
import sqlite3
import threading
import time

import grpc
import psutil
import pytest

from test_manager import C, Manager, fails, manager, retry, settle  # noqa: F401 (fixtures)


def watch_events(manager, from_seq=0, timeout=20):
    return manager.rpc.WatchEvents(manager.m.WatchEventsRequest(from_seq=from_seq), timeout=timeout)


class Events:
    """Follows the events from a number on, over restarts of the manager, as a client should: from the last one seen + 1."""

    def __init__(self, manager, from_seq=1):
        self.manager, self.seen, self.next = manager, [], from_seq
        self.lock = threading.Condition()
        self.over = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.over:
            try:
                for message in watch_events(self.manager, self.next):
                    with self.lock:
                        for event in message.events:
                            assert event.seq == self.next, (event.seq, self.next)
                            self.seen.append(event)
                            self.next += 1
                        self.lock.notify_all()
            except (grpc.RpcError, ValueError):
                time.sleep(0.02)

    def wait(self, kind, count=1, seconds=8, **fields):
        def matching():
            return [e for e in self.seen if e.type == kind and all(getattr(e, k) == v for k, v in fields.items())]
        with self.lock:
            assert self.lock.wait_for(lambda: len(matching()) >= count, seconds), (kind, fields, [e.type for e in self.seen])
            return matching()[-1]


# -- events


def test_events_are_gapless_over_restarts_of_the_manager(manager):
    manager.up()
    manager.script("a", "load_ms=30")
    manager.register("a")
    events = Events(manager)
    manager.done(manager.load("a"))
    events.wait("operation.done")
    manager.kill()
    manager.up()
    manager.done(manager.unload("a"))
    manager.term()
    manager.up()
    manager.done(manager.load("a"))
    events.wait("operation.done", 3)
    last = manager.status().last_event_seq
    manager.wait(lambda: events.next == last + 1, 5, "all have come")
    assert [e.seq for e in events.seen] == list(range(1, last + 1))
    assert events.seen[0].type == "model.registered" or events.seen[0].type.startswith("device"), events.seen[0]
    many = [watch_events(manager, 1) for _ in range(40)]  # each gets the same, the older part from the store
    for watch in many:
        seqs = []
        for message in watch:
            seqs += [e.seq for e in message.events]
            if seqs[-1] >= last:
                break
        assert seqs == list(range(1, len(seqs) + 1))
        watch.cancel()
    live = watch_events(manager)
    time.sleep(0.2)
    manager.unload("a")
    assert next(live).events[0].seq > last
    events.over = True


def test_events_that_are_not_kept_are_out_of_range(manager):
    manager.up()
    manager.script("a", "load_ms=30")
    manager.register("a")
    manager.done(manager.load("a"))
    last = manager.status().last_event_seq
    assert manager.status().first_event_seq == 1
    fails(C.OUT_OF_RANGE, lambda: next(watch_events(manager, last + 100)), why="EVENTS_TO_COME")
    manager.term()
    with sqlite3.connect(manager.state / "sluice.db") as db:
        db.execute("DELETE FROM event WHERE seq < 4")
    db.close()
    manager.up()
    assert manager.status().first_event_seq == 4
    assert "oldest is 4" in fails(C.OUT_OF_RANGE, lambda: next(watch_events(manager, 3)), why="EVENTS_GONE")
    assert next(watch_events(manager, 4)).events[0].seq == 4
