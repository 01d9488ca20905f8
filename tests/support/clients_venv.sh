#!/usr/bin/env bash
# Clients of OpenAI's API for tests/long.sh clients, in a venv: tests/support/clients_venv.sh DIR. Versions are pinned.
# Each package is installed alone, so that the others work without it. DIR/missing names a package that does not install,
# with pip's last line. The venv takes 7 GB, because guidellm needs torch.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:?usage: tests/support/clients_venv.sh DIR}
stamp=$dir/.requirements
if [ -f "$stamp" ] && cmp -s "$here/clients-requirements.txt" "$stamp" && [ ! -s "$dir/missing" ]; then
    exit 0
fi
python3 -m venv "$dir"
: >"$dir/missing"
while read -r package; do
    "$dir/bin/python" -m pip install -q --disable-pip-version-check "$package" >"$dir/pip.log" 2>&1 ||
        echo "${package%%[[=]*}: $(tail -n 1 "$dir/pip.log")" | tee -a "$dir/missing" >&2
done <"$here/clients-requirements.txt"
cp "$here/clients-requirements.txt" "$stamp"
