#!/usr/bin/env bash
# The static release (cmake --preset static). Its programs need only glibc, and they serve. Each program takes at most
# 20 MB without its symbols, and so does the .tar.xz of all four. Each has its own gRPC: unpacked they take more than 20
# MB together; the test prints the total.
# usage: tests/e2e/static.sh [BUILD_DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath "${1:-build/static}")
model=${SLUICE_MODEL:-$(etc/fetch_model.sh | tail -n 1)}
most_bytes=20000000
die() { echo "static: $*" >&2; exit 1; }

work=$(mktemp -d /tmp/sl.XXXX)
clean_up() {
    local rc=$?
    [ ! -x "$work/sluice" ] || "$work/sluice" stop --state-dir "$work/state" >/dev/null 2>&1 || true
    if [ $rc -ne 0 ]; then tail -n 20 "$work"/*.log 2>/dev/null >&2 || true; fi
    rm -rf "$work"
}
trap clean_up EXIT

total=0
for program in sluice sluice-server sluice-manager sluice-worker; do
    strip -o "$work/$program" "$build/bin/$program"
    # Only glibc's own names: any other name is a library that was not linked in
    foreign=$(ldd "$work/$program" | awk '{print $1}' | grep -vE '^(linux-vdso\.so\.1|libc\.so\.6|libm\.so\.6|/lib64/ld-linux-x86-64\.so\.2)$' || true)
    [ -z "$foreign" ] || die "$program needs $foreign"
    bytes=$(stat -c %s "$work/$program")
    total=$((total + bytes))
    echo "static: $program $bytes bytes"
    [ "$bytes" -le $most_bytes ] || die "$program: $bytes bytes, more than $most_bytes"
done
# Compressed together, as users download them: the shared parts count once
archive=$(tar -C "$work" -c sluice sluice-server sluice-manager sluice-worker | xz -T1 -6 --lzma2=dict=64MiB | wc -c)
echo "static: the four together $total bytes, as one .tar.xz $archive"
[ "$archive" -le $most_bytes ] || die "the archive: $archive bytes, more than $most_bytes"
# core.c finds this function by its name; without it the server loses a twentieth of its time
nm -D "$work/sluice-server" | grep SetMutexDeadlockDetectionMode >/dev/null || die "Abseil's look-up of deadlocks stays on"

# As on another machine: the stripped copies, in their own folder
address=127.0.0.1:$((20000 + RANDOM % 10000))
"$work/sluice" serve "$model" --name smol --state-dir "$work/state" --listen $address >"$work/serve.log" 2>&1 &
serve=$!
until=$((SECONDS + 120))
until "$work/sluice" run smol "Why is the sky blue?" --server $address >"$work/answer" 2>"$work/run.log"; do
    kill -0 $serve 2>/dev/null || die "serve ended"
    [ $SECONDS -lt $until ] || die "no answer"
    sleep 0.2
done
grep -qi sky "$work/answer" || die "answer: $(cat "$work/answer")"
for pid in $serve $(pgrep -f "^$work/sluice-(server|manager|worker)"); do
    # The libraries loaded at run time: only glibc's, even those opened by name.
    maps=$(awk '$6 ~ /\.so/ {print $6}' "/proc/$pid/maps" | sort -u | grep -vE '/(libc|libm|ld-linux-x86-64|libnss_[a-z]+|libresolv)\.so\.[0-9]+$' || true)
    [ -z "$maps" ] || die "process $pid has loaded $maps"
done
"$work/sluice" stop --state-dir "$work/state" >"$work/stop.log" 2>&1 || die "stop"
wait $serve || die "serve ended with $?"
! pgrep -f "^$work/sluice" >/dev/null || die "processes are left"
echo "static: ok"
