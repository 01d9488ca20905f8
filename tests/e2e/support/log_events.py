"""The names of log events that end-to-end tests wait for or count, and the reader of log lines.

test_log_events.py checks that each name stands in the sources. A change of a name needs the same commit in both places."""
import json
import re

CALL_DENIED = "call denied"
CERTIFICATE = "certificate"
CPUS_SHARED = "CPUs are shared"
DEVICE_FAILED = "device failed"
ENGINE_FAILED = "engine failed"
KEY_REVOKED_UNSAVED = "key revoked in memory only"
KEYS_NOT_RELOADED = "API keys not reloaded"
KEYS_RELOADED = "API keys reloaded"
LOAD_FAILED = "load failed"
LOCK_FILE_RENEWED = "lock file created again"
MODEL_PARTS_NOT_USED = "model parts are not used"
NO_GPU_FIGURES = "no figures of GPUs"
NOT_HANDED_OVER = "not handed over"
NOT_TAKEN_OVER = "not taken over"
PACKED_NOT_TAKEN_OVER = "packed weights not taken over"
READY = "ready"
REPLICA_ENDED = "replica ended"
REPLICA_LINKED = "replica linked"
REPLICA_LOST = "replica lost"
REQUEST = "request"
REQUEST_REFUSED = "request refused"
SERVING = "serving"
SETTINGS_NOT_RELOADED = "settings not reloaded"
SETTINGS_RELOADED = "settings reloaded"
SIGNAL = "signal"
SLOW_READER_ENDED = "slow reader ended"
TLS_NOT_RELOADED = "TLS files not reloaded"
TLS_RELOADED = "TLS files reloaded"
UNSAVED_ROWS_LOST = "unsaved rows lost"
WEIGHTS_KEPT = "weights kept"
WEIGHTS_MAPPED = "weights mapped"
WEIGHTS_NOT_SHARED = "weights not shared"
WOKEN = "woken"

PAIR = re.compile(r'([\w.]+)=("(?:[^"\\]|\\.)*"|\S*)')


def parse(line):
    """Returns the fields of a line, key=value or JSON; {} if the line is no log line."""
    if line.startswith("{"):
        return {k: str(v) for k, v in json.loads(line).items()}
    return {key: json.loads(value) if value.startswith('"') else value for key, value in PAIR.findall(line)} if line.startswith("ts=") else {}


def logged(text, event, **fields):
    """Returns the lines of the event whose fields have these values, as dictionaries."""
    lines = [parse(line) for line in text.splitlines() if event in line]
    return [f for f in lines if f.get("event") == event and all(f.get(k) == str(v) for k, v in fields.items())]
