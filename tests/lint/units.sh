#!/usr/bin/env bash
# Checks that systemd understands the units, and that their programs have the options.
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
# systemd-analyze checks every unit that it finds; only messages about our units count.
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
# The two units of the server may differ only in the lines for a takeover.
differs=$(diff <(grep -v '^#' etc/systemd/sluice-server.service) <(grep -v '^#' etc/systemd/sluice-server@.service) | grep '^[<>]' || true)
wanted='< Description=Sluice server
> Description=Sluice server %i
< ExecStart=LINE
> ExecStart=LINE
< Restart=always
> Restart=on-failure'
[ "$(sed 's/ExecStart=.*/ExecStart=LINE/' <<<"$differs")" = "$wanted" ] || { echo "sluice-server@.service: differs from sluice-server.service: $differs"; exit 1; }
plain=$(sed -n 's/^ExecStart=//p' etc/systemd/sluice-server.service)
[ "$(sed -n 's/^ExecStart=//p' etc/systemd/sluice-server@.service)" = "${plain/sluice-server /sluice-server --takeover }" ] ||
    { echo "sluice-server@.service: its ExecStart is not that of sluice-server.service and --takeover"; exit 1; }
echo "units: ok"
