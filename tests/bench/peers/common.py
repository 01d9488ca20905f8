"""Shared parts of a comparison: the timed work, running of programs, and places of files."""

import dataclasses
import os
import pathlib
import socket
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[3]
HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "sluice"


START_CONTEXT = 8192  # tokens of KV that a server is started with where its start is timed


class Unavailable(Exception):
    """Raised where a peer cannot be installed or cannot run a model. The text is printed as the reason."""


@dataclasses.dataclass(frozen=True)
class Work:
    """A piece of work that is timed offline: `batch` sequences of `prompt` tokens, then `gen` tokens of each. Only `phase`
    counts."""

    name: str
    phase: str  # prefill, decode
    prompt: int
    gen: int
    batch: int = 1

    def says(self):
        if self.phase == "prefill":
            return f"prefill {self.prompt}"
        if self.batch > 1:
            return f"decode, batch {self.batch}"
        return f"decode {self.gen}" + (f" at depth {self.prompt}" if self.prompt > 1 else "")


def offline_works(quick):
    gen = 32 if quick else 64
    return [
        Work("prefill-512", "prefill", 512, 2),
        Work("decode-1", "decode", 1, 128),
        Work("decode-1-at-512", "decode", 512, 128),
        Work("decode-8", "decode", 64, gen, 8),
        Work("decode-32", "decode", 64, gen, 32),
    ]


@dataclasses.dataclass(frozen=True)
class Load:
    """Closed-loop load on a server: `clients` clients, each sends its next request when its last has ended."""

    clients: int
    requests: int # requests of all clients together
    prompt: int = 128
    gen: int = 128

    def says(self):
        return f"served, {self.clients} client{'s' if self.clients > 1 else ''}"


def served_loads(quick):
    return [Load(1, 2 if quick else 4), Load(8, 16 if quick else 32), Load(32, 64 if quick else 96)]


@dataclasses.dataclass(frozen=True)
class Model:
    title: str  # sample, 1.1b
    format: str
    path: str


def run(command, timeout, **kwargs):
    """Returns the standard output of a command. Raises Unavailable with its last error message where it fails."""
    try:
        result = subprocess.run([str(w) for w in command], capture_output=True, text=True, errors="replace", timeout=timeout, **kwargs)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{pathlib.Path(str(command[0])).name}: not done after {timeout} s") from None
    except OSError as e:
        raise Unavailable(f"{command[0]}: {e.strerror}") from None
    if result.returncode != 0:
        raise Unavailable(f"{pathlib.Path(str(command[0])).name}: exit status {result.returncode}: {last_words(result.stderr or result.stdout)}")
    return result.stdout


def last_words(text, limit=300):
    """Returns the last line with an error of a program's messages, or the last line where no line has one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or "exception" in line.lower()]
    return (errors or lines or ["it said nothing"])[-1][:limit]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def memory_bytes(pid):
    """Returns the resident bytes of a process, and those without a file behind them: anonymous and shared memory."""
    fields = {}
    with open(f"/proc/{pid}/smaps_rollup") as f:
        for line in f:
            words = line.split()
            if len(words) == 3 and words[2] == "kB":
                fields[words[0].rstrip(":")] = int(words[1]) * 1024
    return fields["Rss"], fields["Pss_Anon"] + fields["Pss_Shmem"]


def end(process):
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
