#!/usr/bin/env bash
# Whether the compiled CUDA kernels are what their headers plan. Lines in kernels/cuda/*.h:
#
#   ptxas: FILE.cu KERNEL registers N [shared N] [stack N]   every instance, on every architecture, takes at most so
#                                                            many; nothing is spilled beyond `stack` bytes (0)
#   ptx: FILE.cu KERNEL INSTRUCTION                          KERNEL's PTX holds that text
#
# KERNEL is a part of the (mangled) name. usage: ptxas.sh BUILD_DIR [NVCC]
set -uo pipefail
cd "$(dirname "$0")/../.."
build=${1:?usage: ptxas.sh BUILD_DIR [NVCC]}
nvcc=${2:-nvcc}
objects=$build/kernels/cuda/CMakeFiles/sluice_cuda.dir
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
n=0

fail() {
    echo "$*" >&2
    failed=1
}

# name architecture stack spills registers shared, a line per kernel and architecture
kernels_of() {
    awk '
        /Compiling entry function/ { split($0, q, "\047"); name = q[2]; arch = q[4] }
        /bytes stack frame/ { stack = $1; spill = $5 + $9 }
        /Used [0-9]+ registers/ {
            registers = 0; shared = 0
            for (i = 1; i <= NF; i++) {
                if ($(i + 1) ~ /^registers/) registers = $i
                if ($(i + 2) ~ /^smem/) shared = $i
            }
            if (name != "") print name, arch, stack + 0, spill + 0, registers, shared
            name = ""
        }' "$1"
}

while read -r header file kernel rest; do
    header=${header%%:*}
    n=$((n + 1))
    report=$objects/$file.o.ptxas
    if [ ! -s "$report" ]; then
        fail "$header: $file: no report of ptxas in $report"
        continue
    fi
    limits=$(echo "$rest" | awk '{ l["registers"] = 255; l["shared"] = 49152; l["stack"] = 0
        for (i = 1; i < NF; i += 2) if ($i ~ /^(registers|shared|stack)$/) l[$i] = $(i + 1); print l["registers"], l["shared"], l["stack"] }')
    found=$(kernels_of "$report" | grep -F -- "$kernel" || true)
    if [ -z "$found" ]; then
        fail "$header: $file has no kernel \"$kernel\""
        continue
    fi
    echo "$found" | awk -v limits="$limits" -v header="$header" '
        BEGIN { split(limits, l, " ") }
        $5 > l[1] || $6 > l[2] || $3 > l[3] || $4 > l[3] {
            printf "%s: %s on %s: %d registers, %d shared, %d stack, %d spilled; planned %d, %d, %d\n", header, $1, $2, $5, $6, $3, $4, l[1], l[2], l[3]
            bad = 1
        }
        END { exit bad }' >&2 || failed=1
done < <(grep -HoE 'ptxas: [a-z0-9_]+\.cu .*' kernels/cuda/*.h | sed 's/:ptxas: */: /')

while read -r header file kernel instruction; do
    header=${header%%:*}
    instruction=${instruction%% \*/}
    n=$((n + 1))
    ptx=$objects/$file.o.ptx # of the build, where no compiler cache stood before it
    [ -s "$ptx" ] || ptx=$scratch/$file.ptx
    if [ ! -f "$ptx" ] && ! "$nvcc" -std=c++17 --fmad=false -I. -arch=compute_90a -ptx "kernels/cuda/$file" -o "$ptx"; then
        fail "$header: $file: no PTX"
        continue
    fi
    awk -v kernel="$kernel" -v text="$instruction" '
        /\.entry/ { inside = index($0, kernel) > 0; known = known || inside }
        inside && index($0, text) { found = 1 }
        END { exit !(found && known) }' "$ptx" || fail "$header: $file: no \"$instruction\" in a kernel \"$kernel\""
done < <(grep -HoE 'ptx: [a-z0-9_]+\.cu .*' kernels/cuda/*.h | sed 's/:ptx: */: /')

[ $n -gt 0 ] || fail "no header of kernels/cuda plans anything"
[ $failed -eq 0 ] && echo "$n plans hold"
exit $failed
