#!/usr/bin/env bash
# The systemd units say nothing systemd does not understand, and name options their programs have.
# usage: tests/lint/units.sh DIRECTORY_OF_PROGRAMS
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=$(realpath "${1:?usage: tests/lint/units.sh DIRECTORY_OF_PROGRAMS}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
command -v systemd-analyze >/dev/null || { echo "units: systemd-analyze is not installed (etc/install_deps.sh test)"; exit 1; }
for unit in etc/systemd/*.service; do
    sed "s|/usr/bin/|$bin/|" "$unit" >"$work/$(basename "$unit")"
done
# It looks at every unit it can find; what it says of others is not ours.
said=$(systemd-analyze verify --man=no "$work"/*.service 2>&1 | grep -F "$work" || true)
if [ -n "$said" ]; then
    echo "$said"
    exit 1
fi
for unit in etc/systemd/*.service; do
    line=$(sed -n 's|^ExecStart=/usr/bin/||p' "$unit")
    help=$("$bin/${line%% *}" --help)
    for flag in $(grep -o -- '--[a-z-]*' <<<"$line"); do
        grep -q -- "$flag " <<<"$help" || { echo "$unit: ${line%% *} has no $flag"; exit 1; }
    done
done
# Not in @system-service: without it the kernel would end every worker as it enters its sandbox.
grep -q '^SystemCallFilter=.*\bseccomp\b' etc/systemd/sluice-manager.service || { echo "sluice-manager.service: workers need the call seccomp"; exit 1; }
echo "units: ok"
