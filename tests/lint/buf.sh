#!/usr/bin/env bash
# buf lint over proto/ (rules: proto/buf.yaml). The program comes from PyPI at a pinned version into
# build/lint-venv, once.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=1.75.0
venv=build/lint-venv
buf=$venv/bin/buf

if [[ ! -x $buf || $("$buf" --version 2>&1) != "$version" ]]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps "buf-bin==$version"
fi

cd proto
"../$buf" lint
"../$buf" build -o /dev/null
echo "buf lint: ok"
