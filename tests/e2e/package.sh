#!/usr/bin/env bash
# The Debian package: the test builds it from a release tree, inspects, installs and uses it as its units do. Then the
# test removes and purges the package; only the model may remain. Needs root, on a machine without Sluice. Where systemd
# is not PID 1, the test starts the units' ExecStart lines by hand, with their User and folders.
# usage: tests/e2e/package.sh [BUILD_DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath "${1:-build/release}")
model=${SLUICE_MODEL:-$(etc/fetch_model.sh | tail -n 1)}
die() { echo "package: $*" >&2; exit 1; }

[ -x "$build/bin/sluice-worker" ] || die "$build is not built"
[ "$(id -u)" -eq 0 ] || die "needs root, to install"
if dpkg-query -W sluice >/dev/null 2>&1; then die "a package sluice is installed here, or its configuration is: this test would remove it"; fi
if getent passwd sluice >/dev/null; then die "an account sluice is here already"; fi
made=(/var/lib/sluice /var/lib/sluice-server /run/sluice /etc/sluice /usr/bin/sluice /usr/bin/sluice-{manager,server,worker}
      /usr/lib/sysusers.d/sluice.conf /usr/lib/systemd/system/sluice-{manager,server,server@}.service /usr/share/doc/sluice)
for path in "${made[@]}"; do [ ! -e "$path" ] || die "$path is here already"; done
if [ -e /srv/models ]; then had_models=yes; else had_models=no; fi
put=/srv/models/package-test-$$.gguf

work=$(mktemp -d)
theirs() { if getent passwd sluice >/dev/null; then ps -o pid= -U sluice 2>/dev/null | tr -d ' ' || true; fi; }
clean_up() { # a failing package may leave files: none of them was here before
    local rc=$?
    if dpkg-query -W sluice >/dev/null 2>&1; then dpkg -P sluice >/dev/null 2>&1 || true; fi
    if [ $rc -ne 0 ]; then tail -n 20 "$work"/*.log 2>/dev/null >&2 || true; fi
    for pid in $(theirs); do kill -KILL "$pid" 2>/dev/null || true; done
    for path in "${made[@]}"; do rm -rf "$path"; done
    if getent passwd sluice >/dev/null; then userdel sluice 2>/dev/null || true; fi
    if getent group sluice >/dev/null; then groupdel sluice 2>/dev/null || true; fi
    rm -f "$put"
    [ $had_models = yes ] || rmdir /srv/models 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT

# Package
(cd "$build" && cpack -G DEB -B "$work/out" >"$work/cpack.log" 2>&1) || die "cpack failed"
package=$(echo "$work"/out/*.deb)
version=$("$build/bin/sluice-server" --version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -n 1)
[ "$(basename "$package")" = "sluice_${version}_$(dpkg --print-architecture).deb" ] || die "name: $(basename "$package"), version $version"
[ "$(dpkg-deb -f "$package" Version)" = "$version" ] || die "version"
depends=$(dpkg-deb -f "$package" Depends)
for name in libc6 libgrpc29 libprotobuf-c1 libsqlite3-0 libseccomp2 libssl3 libpcre2-8-0 libutf8proc2 libjansson4 libev4 libinih1 libedit2; do
    grep -qE "(^|, )$name( |,|$)" <<<"$depends" || die "no dependency on $name: $depends"
done
dpkg-deb -c "$package" | awk '{print $1, $2, $6}' >"$work/contents"
grep -v ' root/root ' "$work/contents" && die "files that are not root's"
files=(etc/sluice/sluice.conf lib/systemd/system/sluice-{manager,server,server@}.service lib/sysusers.d/sluice.conf include/sluice.h lib/libsluice.so.0
       lib/pkgconfig/sluice.pc share/doc/sluice/copyright share/man/man1/sluice.1 share/man/man8/sluice-{manager,server,worker}.8
       share/bash-completion/completions/sluice share/zsh/site-functions/_sluice share/fish/vendor_completions.d/sluice.fish)
[ ! -e "$build/bin/libsluice_cuda.so" ] || files+=(lib/sluice/libsluice_cuda.so)
for file in "${files[@]}" bin/sluice bin/sluice-{manager,server,worker}; do
    case $file in etc/*) path=./$file ;; *) path=./usr/$file ;; esac
    grep -q " $path\$" "$work/contents" || die "not in the package: $path"
done
if grep -E '/(srv|var|home|root|tmp|local)/' "$work/contents"; then die "does not belong there"; fi
if [ ! -e "$build/bin/libsluice_cuda.so" ] && grep -q sluice_cuda "$work/contents"; then die "libsluice_cuda.so, which was not built"; fi
dpkg-deb -e "$package" "$work/control"
[ "$(cat "$work/control/conffiles")" = /etc/sluice/sluice.conf ] || die "conffiles"
for script in postinst prerm postrm; do sh -n "$work/control/$script"; done
size=$(stat -c %s "$package")
echo "package: $(basename "$package"), $size bytes, installed $(dpkg-deb -f "$package" Installed-Size) KiB"

# Install: all files are there and whole, the account exists, nothing is started
dpkg -i "$package" >"$work/install.log" 2>&1 || die "dpkg -i failed"
[ -z "$(dpkg -V sluice)" ] || die "dpkg -V: $(dpkg -V sluice)"
getent passwd sluice >/dev/null || die "no account"
[ "$(id -u sluice)" -lt 1000 ] || die "not an account of the system"
as() { setpriv --reuid=sluice --regid=sluice --init-groups -- "$@"; }
[ -z "$(theirs)" ] || die "started without being asked"
cmp -s LICENSE /usr/share/doc/sluice/copyright || die "copyright"
man -w 8 sluice-manager >/dev/null || die "man finds no page"
# Every setting of the sample belongs to one of the programs, and is commented out
sed -E 's/^; ([a-z_]+ = )/\1/' /etc/sluice/sluice.conf >"$work/all.conf"
grep -q '^listen = ' "$work/all.conf" || die "the sample names no settings"
for program in sluice-server sluice-manager; do
    $program show-config --origin --config "$work/all.conf" >"$work/show.log" 2>&1 || die "$program: the sample's settings: $(cat "$work/show.log")"
done

# Use
cp "$model" "$put"
unit() { sed -n "s|^$2=||p" "/usr/lib/systemd/system/$1.service"; }
port=$((20000 + RANDOM % 10000))
start() { # UNIT: starts a program as its unit does, with settings in the environment as in a drop-in
    local folder
    for folder in $(unit "$1" StateDirectory); do install -d -m 700 -o sluice -g sluice "/var/lib/$folder"; done
    for folder in $(unit "$1" RuntimeDirectory); do install -d -m 700 -o sluice -g sluice "/run/$folder"; done
    # shellcheck disable=SC2046 # the line is words
    (cd / && HOME=/nonexistent SLUICE_LISTEN=127.0.0.1:$port SLUICE_METRICS= SLUICE_HTTP_LISTEN= exec setpriv --reuid="$(unit "$1" User)" --regid=sluice \
        --init-groups -- $(unit "$1" ExecStart)) >"$work/$1.log" 2>&1 &
}
wait_for() { # SECONDS COMMAND...
    local until=$((SECONDS + $1))
    shift
    until "$@" >"$work/wait.log" 2>&1; do
        [ $SECONDS -lt $until ] || die "did not come: $*"
        sleep 0.2
    done
}
export SLUICE_MANAGER=/run/sluice/manager.sock
start sluice-manager
wait_for 60 as sluice status
start sluice-server
as sluice register smol "$(basename "$put")" >"$work/register.log" 2>&1 || die "register"
as sluice load smol >"$work/load.log" 2>&1 || die "load"
answer() { sluice run smol "Why is the sky blue?" --server "127.0.0.1:$port"; }
wait_for 120 answer
answer >"$work/answer" 2>"$work/run.log"
grep -qi sky "$work/answer" || die "no answer: $(cat "$work/answer")"
[ "$(theirs | wc -l)" -ge 3 ] || die "not manager, server and worker: $(ps -U sluice)"
others=$(ps -eo user:20,args | grep -E '[/ ]usr/bin/sluice-(server|manager|worker)' | grep -vE '^sluice |grep' || true)
[ -z "$others" ] || die "not as the account: $others"

# Upgrade: all programs continue as before; changed settings stay
before=$(theirs)
echo "; changed" >>/etc/sluice/sluice.conf
dpkg -i "$package" >"$work/upgrade.log" 2>&1 </dev/null || die "dpkg -i over itself failed"
[ "$(theirs)" = "$before" ] || die "an upgrade ended or started processes"
grep -qx "; changed" /etc/sluice/sluice.conf || die "an upgrade took the settings"
answer >"$work/answer" 2>"$work/run.log" || die "no answer after an upgrade"

# Remove: all programs end; state and settings stay
dpkg -r sluice >"$work/remove.log" 2>&1 || die "dpkg -r failed"
[ -z "$(theirs)" ] || die "processes after dpkg -r: $(ps -U sluice)"
wait
for path in /usr/bin/sluice /usr/bin/sluice-{manager,server,worker} /usr/lib/libsluice.so.0 /usr/lib/systemd/system/sluice-manager.service; do
    [ ! -e "$path" ] || die "$path after dpkg -r"
done
[ -s /var/lib/sluice/sluice.db ] && [ -s /etc/sluice/sluice.conf ] || die "dpkg -r took state or settings"

# Purge: only the model remains
dpkg -P sluice >"$work/purge.log" 2>&1 || die "dpkg -P failed"
for path in "${made[@]}"; do [ ! -e "$path" ] || die "$path after dpkg -P: $(find "$path")"; done
if getent passwd sluice >/dev/null || getent group sluice >/dev/null; then die "the account after dpkg -P"; fi
if dpkg-query -W sluice >/dev/null 2>&1; then die "dpkg still knows it"; fi
left=$(grep -v '/$' "$work/contents" | awk '{print substr($3, 2)}' | while read -r path; do [ ! -e "$path" ] || echo "$path"; done)
[ -z "$left" ] || die "after dpkg -P: $left"
cmp -s "$model" "$put" || die "the model is gone"
echo "package: ok"
