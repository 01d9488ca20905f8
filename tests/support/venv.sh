#!/usr/bin/env bash
# The Python tools of the tests (foreign gRPC clients, pytest) in a venv: tests/support/venv.sh DIR. Versions are pinned.
# Packages of requirements-alone.txt are installed without their dependencies. Reason: grpcio-reflection needs a newer
# protobuf than tritonclient asks for. tritonclient works with both.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:?usage: tests/support/venv.sh DIR}
stamp=$dir/.requirements
if [ -f "$stamp" ] && cat "$here"/requirements{,-alone}.txt | cmp -s - "$stamp"; then
    exit 0
fi
python3 -m venv "$dir"
"$dir/bin/python" -m pip install -q --disable-pip-version-check -r "$here/requirements.txt"
"$dir/bin/python" -m pip install -q --disable-pip-version-check --no-deps -r "$here/requirements-alone.txt"
cat "$here"/requirements{,-alone}.txt >"$stamp"
