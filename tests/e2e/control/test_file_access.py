"""Model files that the service's account cannot read. The error names the obstacle, the account and the command that
mends it."""
import os
import pathlib
import shutil
import subprocess
import tempfile

import grpc
import pytest

import manager_program
from conftest import BIN, ROOT
from manager_program import reason

UID = 54321
TINY = ROOT / "tests/golden/tiny/q8_0.gguf"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to start programs under another user id")


@pytest.fixture
def service(stubs, monkeypatch):
    """A manager that runs under another account with its own programs, and a folder of this account with model files."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sl", dir="/tmp"))
    for name in ("sluice-manager", "sluice-worker"):
        shutil.copy2(BIN / name, folder / name)
    popen = subprocess.Popen
    monkeypatch.setattr(manager_program, "BIN", folder)
    as_another = ["/usr/bin/setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--"]
    monkeypatch.setattr(subprocess, "Popen", lambda args, **kwargs: popen(
        [*as_another, *args] if str(args[0]).startswith(str(folder)) else args, **kwargs))
    m = manager_program.Manager(folder, stubs)
    m.home = folder / "home"
    (m.home / "models").mkdir(parents=True)
    for path in (folder, m.home, m.home / "models"):
        path.chmod(0o755)
    m.file = m.home / "models/tiny.gguf"
    shutil.copy(TINY, m.file)
    os.chown(folder, UID, UID)
    yield m
    m.clean()
    shutil.rmtree(folder, ignore_errors=True)


def refused(m, *args, **kwargs):
    with pytest.raises(grpc.RpcError) as e:
        m.register(*args, **kwargs)
    assert (e.value.code(), reason(e.value)) == (grpc.StatusCode.PERMISSION_DENIED, "NO_FILE_ACCESS"), e.value
    return e.value.details()


def mended_by(text, command):
    """Asserts that the error text ends with this command, and runs the command."""
    assert text.rsplit(": ", 1)[1] == command and f"uid {UID}" in text, text
    subprocess.run(["bash", "-c", command.split("   #")[0]], check=True)


def test_what_bars_a_model_file_is_named_with_the_command_that_mends_it(service):
    """Symptom: a file with mode 0600, or 0644 below a folder with mode 0700, gave only "Permission denied"."""
    m = service
    m.up("--model-root", "", worker=m.folder / "sluice-worker")
    m.file.chmod(0o600)
    m.home.chmod(0o700)
    mended_by(refused(m, "tiny", str(m.file)), f"chmod o+x {m.home}")
    mended_by(refused(m, "tiny", str(m.file)), f"chmod o+r {m.file}")
    m.register("tiny", str(m.file))
    (m.home / "models").chmod(0o700)  # later: the worker meets it
    ended = m.end(m.load("tiny", config=m.t.ModelConfig(kv_tokens=512, n_threads=1)), 60000)
    assert (ended.state, ended.error.reason) == (m.t.OPERATION_STATE_FAILED, "NO_FILE_ACCESS"), ended
    mended_by(ended.error.message, f"chmod o+x {m.home}/models")
    m.done(m.load("tiny", config=m.t.ModelConfig(kv_tokens=512, n_threads=1)))


def test_below_a_model_root_only_what_the_caller_gave_is_named(service):
    m = service
    m.up("--model-root", m.home, worker=m.folder / "sluice-worker")
    (m.home / "models").chmod(0o700)
    text = refused(m, "tiny", "models/tiny.gguf")
    assert text.endswith(": chmod o+x models   # in the model root") and str(m.home) not in text, text
