#!/usr/bin/env bash
# Runs buf lint over proto/ (rules: proto/buf.yaml). Runs buf breaking against the last commits that changed a .proto
# file, and against the first commit that counts. So what was once on main stays compatible. The program comes from PyPI
# at a pinned version into build/lint-venv, once. Needs the history: a shallow clone is refused.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=1.75.0
n_commits=12
first=a6f1539 # main when compatibility became a promise
venv=build/lint-venv
buf=$PWD/$venv/bin/buf

if [[ ! -x $buf || $("$buf" --version 2>&1) != "$version" ]]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps "buf-bin==$version"
fi

(
    cd proto
    "$buf" lint
    "$buf" build -o /dev/null
)
echo "buf lint: ok"

git rev-parse --git-dir >/dev/null 2>&1 || { echo "buf breaking: this is no git checkout, so nothing says what was promised before" >&2; exit 1; }
[ "$(git rev-parse --is-shallow-repository)" = false ] ||
    { echo "buf breaking: the clone is shallow; fetch the history (git fetch --unshallow)" >&2; exit 1; }
git cat-file -e "$first^{commit}" 2>/dev/null || { echo "buf breaking: commit $first is not in this clone" >&2; exit 1; }
mapfile -t commits < <(git log "-$n_commits" --format=%H "$first.." -- 'proto/*.proto')
commits+=("$(git rev-parse "$first")")
old=$(mktemp -d)
trap 'rm -rf "$old"' EXIT
for commit in "${commits[@]}"; do
    rm -rf "$old/proto"
    git archive "$commit" proto | tar -x -C "$old"
    # The message SamplingDefaults lived for a day, in no release.
    [ ! -e "$old/proto/sluice/v1/inspection.proto" ] ||
        sed -i '/^message SamplingDefaults/,/^}/d; /SamplingDefaults sampling = 17;/d' "$old/proto/sluice/v1/inspection.proto"
    (cd proto && "$buf" breaking --against "$old/proto") ||
        { echo "buf breaking: not compatible with $(git log -1 --format='%h %s' "$commit")" >&2; exit 1; }
done
echo "buf breaking: ok against ${#commits[@]} commits, the oldest $(git log -1 --format='%h of %cs' "${commits[-1]}")"
