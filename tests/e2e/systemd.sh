#!/usr/bin/env bash
# The units with systemd as PID 1. A container boots this machine's own system with its own network. An overlay protects
# the system from changes. In the container the package is installed, started, hung, restarted, reloaded, replaced,
# stopped and purged while clients stream. Needs root and systemd-nspawn (package systemd-container). Fails where it
# cannot run, and prints the reason.
# usage: tests/e2e/systemd.sh [BUILD_DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath "${1:-build/release}")
model=${SLUICE_MODEL:-$(etc/fetch_model.sh | tail -n 1)}
die() { echo "systemd: $*" >&2; exit 1; }

[ "$(id -u)" -eq 0 ] || die "needs root, to boot a container"
command -v systemd-nspawn >/dev/null || die "no systemd-nspawn here (package systemd-container)"
[ -x /lib/systemd/systemd ] || die "no systemd on this machine to boot"
[ -x "$build/bin/sluice-worker" ] || die "$build is not built"
if dpkg-query -W sluice >/dev/null 2>&1 || getent passwd sluice >/dev/null; then die "a package or an account sluice is here already"; fi

work=$(mktemp -d) boot='' watcher='' leader=''
clean_up() {
    local rc=$?
    [ -z "$watcher" ] || kill "$watcher" 2>/dev/null || true
    if [ $rc -ne 0 ] && [ -n "$leader" ]; then
        inside journalctl -q --no-pager -n 60 -o short-precise -u 'sluice*' >&2 2>/dev/null || true
        tail -n 5 "$work"/*.log >&2 || true
    fi
    [ -z "$leader" ] || kill -s RTMIN+4 "$leader" 2>/dev/null || true # poweroff.target
    if [ -n "$boot" ]; then
        for _ in $(seq 100); do kill -0 "$boot" 2>/dev/null || break; sleep 0.1; done
        kill -KILL "$boot" 2>/dev/null || true
    fi
    umount -l "$work/disk/root" 2>/dev/null || true
    umount -l "$work/disk" 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT

# The machine's files, with a disk in memory above them
mkdir "$work/disk"
mount -t tmpfs tmpfs "$work/disk" || die "cannot mount a tmpfs"
mkdir "$work"/disk/{upper,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/disk/upper,workdir=$work/disk/work" "$work/disk/root" ||
    die "cannot mount an overlay of / (a kernel without overlayfs, or a file system that cannot be below one)"
root=$work/disk/root
mkdir -p "$root/srv/models"
cp "$model" "$root/srv/models/smol.gguf"
(cd "$build" && cpack -G DEB -B "$work/out" >"$work/cpack.log" 2>&1) || die "cpack failed"
cp "$work"/out/*.deb "$root/srv/sluice.deb"
# The container needs none of this machine's own services.
rm -rf "$root"/etc/systemd/system/*.wants "$root"/etc/systemd/system/*.requires
mkdir -p "$root/etc/systemd/journald.conf.d"
printf '[Journal]\nStorage=volatile\nRateLimitIntervalSec=0\n' >"$root/etc/systemd/journald.conf.d/test.conf"

systemd-nspawn --quiet --register=no --keep-unit --private-network --machine=sluice-test --directory="$root" --boot \
    systemd.unit=multi-user.target </dev/null >"$work/boot.log" 2>&1 &
boot=$!
inside() { nsenter --target "$leader" --all -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin SLUICE_MANAGER=/run/sluice/manager.sock "$@"; }
until_true() { # SECONDS WHAT COMMAND...
    local until=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >"$work/wait.log" 2>&1; do
        kill -0 "$boot" 2>/dev/null || die "the container has ended: $(tail -n 5 "$work/boot.log")"
        [ $SECONDS -lt $until ] || die "did not come: $what: $(tail -n 3 "$work/wait.log")"
        sleep 0.2
    done
}
find_leader() {
    leader=$(pgrep -P "$boot" | head -n 1)
    [ -n "$leader" ] && [ "$(cat "/proc/$leader/comm")" = systemd ]
}
until_true 30 "systemd as PID 1" find_leader
booted() { inside systemctl is-system-running | grep -E 'running|degraded' >/dev/null; }
until_true 60 "the system is up" booted
[ "$(inside readlink /proc/1/exe)" = /usr/lib/systemd/systemd ] || die "PID 1 is not systemd"
echo "systemd: $(inside systemctl --version | head -n 1) is PID 1"

# Install: the units are known, nothing is enabled or started
inside dpkg -i /srv/sluice.deb >"$work/install.log" 2>&1 || die "dpkg -i failed"
for unit in sluice-manager sluice-server; do
    [ "$(inside systemctl is-enabled $unit || true)" = disabled ] || die "$unit is enabled without being asked"
    [ "$(inside systemctl is-active $unit || true)" = inactive ] || die "$unit was started without being asked"
done
inside systemd-analyze verify --man=no /usr/lib/systemd/system/sluice-{manager,server}.service >"$work/verify.log" 2>&1 || die "systemd-analyze verify"
if grep -i sluice "$work/verify.log"; then die "systemd-analyze verify has something to say"; fi

# Start: READY and STATUS
inside systemctl enable --now --quiet sluice-manager sluice-server || die "systemctl enable --now"
show() { inside systemctl show "$1" --property "$2" --value; }
pid_of() { show "$1" MainPID; }
for unit in sluice-manager sluice-server; do
    [ "$(show $unit ActiveState)/$(show $unit SubState)" = active/running ] || die "$unit: $(show $unit ActiveState)"
    [ -n "$(show $unit StatusText)" ] || die "$unit says no STATUS"
done
as() { inside setpriv --reuid=sluice --regid=sluice --init-groups -- "$@"; }
as sluice register smol smol.gguf >"$work/register.log" 2>&1 || die "register"
as sluice load smol --threads 1 >"$work/load.log" 2>&1 || die "load"
ask() { inside sluice run smol "Why is the sky blue?" --temperature 0 --ignore-eos -n "$1"; }
until_true 60 "an answer" ask 8
ask 200 >"$work/right" 2>"$work/run.log" || die "no answer"
worker() { inside pgrep -u sluice -x sluice-worker; }
worker_pid=$(worker)

# Hardening: systemd's settings, the worker's own sandbox, and their effect
field() { inside sed -n "s/^$2:[[:space:]]*//p" "/proc/$1/status"; }
declare -A filters
# A score below 0 needs CAP_SYS_RESOURCE, which some machines take from their containers and from themselves
base=-200
[ $((0x$(field 1 CapEff) & 1 << 24)) -ne 0 ] || base=0
for name in manager server worker; do
    name_is_worker=$([ $name = worker ] && echo 1 || echo 0)
    pid=$([ $name = worker ] && echo "$worker_pid" || pid_of "sluice-$name")
    [ "$(field "$pid" NoNewPrivs)" = 1 ] || die "$name: new privileges"
    [ "$(field "$pid" Seccomp)" = 2 ] || die "$name: no filter of system calls"
    for set in CapEff CapPrm CapBnd CapAmb; do [ "$(field "$pid" $set)" = 0000000000000000 ] || die "$name: $set"; done
    [ "$(field "$pid" Uid | awk '{print $1 $2 $3 $4}')" != 0000 ] || die "$name is root"
    filters[$name]=$(field "$pid" Seccomp_filters)
    within() { inside nsenter --target "$pid" --mount -- "$@"; }
    if within touch /usr/share/x 2>/dev/null || within touch /etc/x 2>/dev/null; then die "$name could write to the system"; fi
    for home in /home /root; do [ -z "$(within ls -A $home 2>/dev/null)" ] || die "$name sees $home"; done
    within touch /tmp/of-sluice
    if inside test -e /tmp/of-sluice; then die "$name: /tmp is everybody's"; fi
    oom=$(inside cat "/proc/$pid/oom_score_adj")
    [ "$oom" = $((name_is_worker * 500 + base)) ] || die "$name: oom_score_adj $oom"
done
[ "${filters[worker]}" -gt "${filters[manager]}" ] || die "the worker has no filter of its own: ${filters[worker]} and ${filters[manager]}"
exposure() { inside systemd-analyze security --no-pager "$1" | tail -n 1 | grep -oE '[0-9]+\.[0-9]+' | head -n 1; }
for unit in sluice-manager sluice-server; do
    score=$(exposure $unit)
    awk -v s="$score" 'BEGIN { exit !(s > 0 && s < 3.5) }' || die "$unit: systemd-analyze security says $score"
    echo "systemd: $unit: exposure $score"
done

# From here on a client streams all the time, and every answer is correct
(while true; do
    if ask 200 >"$work/answer" 2>"$work/answer.log" && cmp -s "$work/answer" "$work/right"; then echo ok; else
        echo "bad: $(tail -c 200 "$work/answer.log")"
    fi
done) >"$work/answers" &
watcher=$!
n_ok() { grep -c ok "$work/answers" || true; }
more_answers() { # N: true if there are more than N correct answers
    [ "$(n_ok)" -gt "$1" ]
}
same_streams() { # WHAT: another answer came whole, no answer broke, and the worker is the same
    local n
    n=$(n_ok)
    until_true 60 "an answer after $1" more_answers "$((n + 1))"
    if grep -v ok "$work/answers"; then die "$1: an answer that was not right"; fi
    [ "$(worker)" = "$worker_pid" ] || die "$1: another worker"
}
same_streams "the start"

# Watchdog: systemd ends and restarts a hung manager. The worker lives on and is adopted
manager_pid=$(pid_of sluice-manager)
inside kill -STOP "$manager_pid"
manager_is_new() { [ "$(pid_of sluice-manager)" != "$manager_pid" ] && [ "$(show sluice-manager SubState)" = running ]; }
began=$SECONDS
until_true 120 "the watchdog" manager_is_new
inside journalctl -q --no-pager -u sluice-manager | grep "Watchdog timeout" >/dev/null || die "it was not the watchdog"
echo "systemd: a hung manager is back after $((SECONDS - began)) s (WatchdogSec=$(show sluice-manager WatchdogUSec))"
replicas() { as sluice ps --json | tr ',' '\n' | grep '"READY"\|REPLICA_STATE_READY\|"ready"' >/dev/null; }
until_true 30 "the manager has adopted the worker" replicas
same_streams "the watchdog"
# The server runs longer than its watchdog's time
alive_pid=$(pid_of sluice-server)
sleep 12
[ "$(pid_of sluice-server)" = "$alive_pid" ] || die "a server that is well was started again"

# Restart, reload, stop: no effect on the worker and its streams
inside systemctl restart sluice-manager || die "restart"
until_true 30 "the manager has adopted the worker" replicas
same_streams "a restart of the manager"
for unit in sluice-manager sluice-server; do
    pid=$(pid_of $unit)
    inside systemctl reload $unit || die "$unit: reload"
    [ "$(pid_of $unit)" = "$pid" ] && [ "$(show $unit ActiveState)" = active ] || die "$unit: reload ended it"
    inside journalctl -q --no-pager -u $unit | grep "settings reloaded" >/dev/null || die "$unit: reload read no settings"
done
same_streams "a reload"
inside systemctl stop sluice-manager || die "stop"
same_streams "a stop of the manager"
inside systemctl start sluice-manager || die "start"
until_true 30 "the manager has adopted the worker" replicas
same_streams "a start of the manager"

# A dead server is back at once. Until then its client gets errors, so no client streams now
kill "$watcher"
wait "$watcher" 2>/dev/null || true
watcher=''
server_pid=$(pid_of sluice-server)
inside kill -KILL "$server_pid"
server_is_new() { [ "$(pid_of sluice-server)" != "$server_pid" ] && [ "$(show sluice-server SubState)" = running ]; }
until_true 10 "the server is back" server_is_new
until_true 30 "it answers" ask 8

# Takeover by unit instances: b replaces a, and a ends with its streams
inside systemctl disable --now --quiet sluice-server
inside systemctl start sluice-server@a || die "sluice-server@a"
until_true 30 "a answers" ask 8
ask 200 >"$work/over" 2>"$work/over.log" &
over=$!
sleep 1
inside systemctl start sluice-server@b || die "sluice-server@b"
wait $over || die "a takeover broke a stream: $(tail -n 1 "$work/over.log")"
cmp -s "$work/over" "$work/right" || die "a takeover changed a stream"
a_has_ended() { [ "$(show sluice-server@a ActiveState)" = inactive ]; }
until_true 30 "a has ended" a_has_ended
[ "$(show sluice-server@a Result)" = success ] || die "a: $(show sluice-server@a Result)"
ask 200 >"$work/over" 2>"$work/over.log" && cmp -s "$work/over" "$work/right" || die "b does not answer"

# Purge: everything ends, and only the model remains
inside dpkg -P sluice >"$work/purge.log" 2>&1 || die "dpkg -P failed: $(tail -n 3 "$work/purge.log")"
if inside getent passwd sluice >/dev/null || inside getent group sluice >/dev/null; then die "the account after dpkg -P"; fi
if inside pgrep -f 'usr/bin/sluice-' >/dev/null; then die "processes after dpkg -P"; fi
for path in /var/lib/sluice /var/lib/sluice-server /run/sluice /etc/sluice /usr/bin/sluice /usr/lib/systemd/system/sluice-manager.service; do
    if inside test -e "$path"; then die "$path after dpkg -P"; fi
done
left=$(inside sh -c 'ls -d /etc/systemd/system/*/sluice* /var/lib/private/sluice* 2>/dev/null' || true)
[ -z "$left" ] || die "after dpkg -P: $left"
[ -z "$(inside systemctl list-units --all --no-legend --state=active,failed 'sluice*')" ] || die "units after dpkg -P"
inside cmp -s /srv/models/smol.gguf "$model" || die "the model is gone"
echo "systemd: ok, $(n_ok) answers"
