#!/usr/bin/env bash
# README's first command on a copy of the tree that has never been built; then again, which must take under 15 s.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git ls-files -z | grep -zv '^tests/golden/' | xargs -0 cp --parents -t "$work" 2>/dev/null
cd "$work"
export SLUICE_STATE=$work/state SLUICE_LISTEN=127.0.0.1:$((20000 + RANDOM % 20000))
etc/quickstart.sh "Why is the sky blue?" --once 2>&1 | tee first.txt
grep -qi sky first.txt
! grep 'warning:' first.txt || exit 1
started=$SECONDS
etc/quickstart.sh "Why is the sky blue?" --once | tee second.txt
grep -qi sky second.txt
took=$((SECONDS - started))
echo "second run: $took s"
[ $took -lt 15 ]
