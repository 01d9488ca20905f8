"""The log events that tests wait for occur in the sources. A test that waits for a removed name would wait in
vain."""
import re

import log_events
from conftest import ROOT


def test_the_sources_have_every_event_that_tests_name():
    sources = "".join(p.read_text() for folder in ("base", "proto", "engine", "server", "manager") for p in (ROOT / folder).rglob("*.c"))
    events = {v for k, v in vars(log_events).items() if k.isupper() and isinstance(v, str)}
    missing = [event for event in events if not re.search(rf'"{re.escape(event)}"', sources)]
    assert events and not missing, missing


def test_each_announcement_of_serve_has_a_name():
    """An event name is a key for scripts, not a sentence. Symptom: an event was named "and more models; see `sluice ls`"."""
    events = [event for p in (ROOT / "clients/cli").rglob("*.c") for event in re.findall(r'\bannounce\([^,"]*, "([^"]*)"', p.read_text())]
    assert len(events) > 20 and not [event for event in events if not re.fullmatch("[a-z_]+", event)], events


def test_a_log_line_is_read_in_both_formats():
    text = 'ts=1 level=info program=x pid=7 event="request refused" message="a \\"b\\" c=d" n=2\n{"ts":"1","event":"request refused","n":2}\n'
    assert [line.get("message") for line in log_events.logged(text, log_events.REQUEST_REFUSED, n=2)] == ['a "b" c=d', None]
    assert not log_events.logged(text, log_events.REQUEST)
