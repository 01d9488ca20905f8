#!/usr/bin/env bash
# The Python tools of the tests (foreign gRPC clients, pytest) in a venv: tests/support/venv.sh DIR. Versions are pinned.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:?usage: tests/support/venv.sh DIR}
stamp=$dir/.requirements
if [ -f "$stamp" ] && cmp -s "$here/requirements.txt" "$stamp"; then
    exit 0
fi
python3 -m venv "$dir"
"$dir/bin/python" -m pip install -q --disable-pip-version-check -r "$here/requirements.txt"
cp "$here/requirements.txt" "$stamp"
