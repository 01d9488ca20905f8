"""Wrong usage of the programs below `sluice` ends with exit status 2 and one line on standard error."""
import contextlib
import os
import pty
import subprocess

import pytest

from conftest import BIN, ROOT, model_path, names, patience


def call(program, *args, text=True):
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}  # environment variables are options too
    return subprocess.run([BIN / program, *args], capture_output=True, text=text, timeout=patience(30), env=env)


@pytest.mark.parametrize("program, args, what", [
    ("sluice-server", ["--listen", "127.0.0.1:0"], "--manager"),
    ("sluice-server", ["--surprise"], "--surprise"),
    ("sluice-worker", ["dance"], "dance"),
    ("sluice-worker", ["plan"], "--model"),
    ("sluice-worker", ["serve", "--model", "x"], "--socket"),
    ("sluice-worker", ["inspect", "a", "b"], "b"),
    ("sluice-worker", ["probe", "--log-level", "loud"], "--log-level"),
])
def test_wrong_usage_ends_with_2_and_one_line(program, args, what):
    result = call(program, *args)
    assert result.returncode == 2 and result.stdout == ""
    assert names(result.stderr, what) and result.stderr.count("\n") == 1 and result.stderr.endswith("\n"), result.stderr


@pytest.mark.parametrize("args, what", [
    (["quantize"], "UNIMPLEMENTED"),
    (["inspect", "/nonexistent.gguf", "--text"], "nonexistent.gguf"),
    (["plan", "/nonexistent.gguf", "--text"], "nonexistent.gguf"),
])
def test_a_tools_error_is_told_once(args, what):
    result = call("sluice-worker", *args)
    assert result.returncode == 1 and result.stdout == ""
    assert what in result.stderr and result.stderr.count("\n") == 1 and result.stderr.endswith("\n")


def test_a_report_carries_the_error_too():
    result = call("sluice-worker", "inspect", "/nonexistent.gguf", text=False)
    assert result.returncode == 1 and b"nonexistent.gguf" in result.stdout and b"nonexistent.gguf" in result.stderr


def test_a_plan_counts_what_is_promised_to_others():
    def plan(*args):
        return call("sluice-worker", "plan", model_path(), "--text", *args).stdout

    assert "fits: true" in plan("--kv-tokens", "4096")
    promised = plan("--kv-tokens", "4096", "--memory-promised", str(1 << 60))
    assert "fits: true" not in promised and "missing_bytes" in promised and names(promised, "promised_bytes"), promised


def test_a_report_on_a_terminal_is_text():
    terminal, other = pty.openpty()
    with subprocess.Popen([BIN / "sluice-worker", "probe"], stdout=other, stderr=subprocess.DEVNULL) as program:
        os.close(other)
        shown = b""
        with contextlib.suppress(OSError):  # the read fails once the program has closed its side
            while part := os.read(terminal, 65536):
                shown += part
        os.close(terminal)
        assert program.wait(patience(30)) == 0
    assert shown.startswith(b"probe:") and shown.isascii(), shown[:200]


@pytest.mark.parametrize("args, status", [([], 2), ([""], 2), (["--help"], 0)])
def test_the_long_tests_without_a_part_print_the_parts(args, status):
    """Symptom: tests/long.sh without a part ended with status 1, as after a failed test."""
    r = subprocess.run([ROOT / "tests/long.sh", *args], capture_output=True, text=True, timeout=patience(20))
    assert r.returncode == status, r
    assert names(r.stderr if status else r.stdout, "quickstart"), r
