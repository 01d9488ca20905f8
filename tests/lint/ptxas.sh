#!/usr/bin/env bash
# Checks the compiled CUDA kernels against the plans in their sources. Lines in kernels/cuda/*.h and *.cu:
#
#   ptxas: FILE.cu KERNEL [on ARCH] registers N [shared N] [stack N] [spill N]
#                                          limits of every instance, on every architecture (or on ARCH alone): registers,
#                                          bytes of shared memory, bytes of the stack frame (0), and bytes of spill
#                                          stores and loads (0)
#   ptx: FILE.cu KERNEL INSTRUCTION        KERNEL's PTX holds that text
#
# KERNEL is an extended regular expression that (mangled) names match. Every kernel must have a line.
#
# usage: ptxas.sh BUILD_DIR [NVCC]
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
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

# plans WORD: "PATH FILE.cu KERNEL ..." of all its lines
plans() {
    grep -HoE "\b$1: [a-z0-9_]+\.cu .*" $(git ls-files "kernels/cuda/*.h" "kernels/cuda/*.cu") | sed "s/:$1: */ /; s, *\*/\$,,"
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

for source in $(git ls-files "kernels/cuda/*.cu"); do
    file=${source##*/}
    report=$objects/${source#kernels/cuda/}.o.ptxas
    if [ -s "$report" ]; then
        kernels_of "$report" >"$scratch/$file.kernels"
    else
        fail "$source: no report of ptxas in $report"
        : >"$scratch/$file.kernels"
    fi
done

: >"$scratch/planned"
while read -r header file kernel rest; do
    n=$((n + 1))
    found=$(grep -E -- "^[^ ]*($kernel)[^ ]* " "$scratch/$file.kernels" || true)
    if [ -z "$found" ]; then
        fail "$header: $file has no kernel \"$kernel\""
        continue
    fi
    echo "$found" | awk -v plan="$rest" -v header="$header" -v planned="$scratch/planned" '
        BEGIN {
            most["registers"] = 255; most["shared"] = 49152; most["stack"] = most["spill"] = 0
            n = split(plan, word, " ")
            for (i = 1; i < n; i += 2) {
                if (word[i] != "on" && !(word[i] in most)) { print header ": \"" word[i] "\" is no limit"; bad = 1 }
                if (word[i] == "on") arch = word[i + 1]
                else most[word[i]] = word[i + 1] + 0
            }
            if (n % 2) { print header ": \"" plan "\" is no list of limits"; bad = 1 }
        }
        arch != "" && $2 != arch { next }
        { if (arch == "") print $1 >> planned }
        $5 > most["registers"] || $6 > most["shared"] || $3 > most["stack"] || $4 > most["spill"] {
            printf "%s: %s on %s: %d registers, %d shared, %d stack, %d spilled; planned %d, %d, %d, %d\n", header, $1, $2, $5, $6,
                $3, $4, most["registers"], most["shared"], most["stack"], most["spill"]
            bad = 1
        }
        END { exit bad }' >&2 || failed=1
done < <(plans ptxas)

sort -u -o "$scratch/planned" "$scratch/planned"
for kernels in "$scratch"/*.kernels; do
    while read -r name; do
        fail "kernels/cuda/$(basename "$kernels" .kernels): nothing is planned for $name"
    done < <(cut -d ' ' -f 1 "$kernels" | sort -u | comm -23 - "$scratch/planned")
done

# The PTX comes from the build where the build had no compiler cache. Otherwise nvcc makes the PTX here, several files
# at once. The PTX is kept until the object is made again.
make_ptx() {
    local source ptx
    source=$(git ls-files "kernels/cuda/$1" "kernels/cuda/*/$1")
    ptx=$objects/${source#kernels/cuda/}.o.ptx
    if [ ! -s "$ptx" ] || [ "${ptx%.ptx}" -nt "$ptx" ]; then
        "$nvcc" -std=c++17 --fmad=false -I. -arch=compute_90a -ptx "$source" -o "$ptx.new" && mv "$ptx.new" "$ptx" || rm -f "$ptx"
    fi
}
export -f make_ptx
export objects nvcc
plans ptx | cut -d ' ' -f 2 | sort -u | xargs -P "$(nproc)" -I FILE bash -c 'make_ptx FILE'

while read -r header file kernel instruction; do
    n=$((n + 1))
    ptx=$(find "$objects" -name "$file.o.ptx")
    if [ ! -s "$ptx" ]; then
        fail "$header: $file: no PTX"
        continue
    fi
    awk -v kernel="$kernel" -v text="$instruction" '
        /\.entry/ { inside = $0 ~ kernel; known = known || inside }
        inside && index($0, text) { found = 1 }
        END { exit !(found && known) }' "$ptx" || fail "$header: $file: no \"$instruction\" in a kernel \"$kernel\""
done < <(plans ptx)

# The rule of kernels.sh, here in PTX: a kernel waits before it touches memory that ops write. Weights may
# be fetched before the wait (cp.async.*.shared.global).
for ptx in $(find "$objects" -name "*.ptx"); do
    [ -s "$ptx" ] || continue
    awk '
        /\.entry/ { waits = told = 0; name = $0; sub(/.*\.entry /, "", name); sub(/\(.*/, "", name) }
        /griddepcontrol\.wait/ { waits = 1 }
        /(^|[^a-z])(ld|st|red|atom)\.global/ && !waits && !told { print name ": touches memory before it waits for the ops before it"; told = bad = 1 }
        END { exit bad }' "$ptx" >&2 || failed=1
done

[ $n -gt 0 ] || fail "nothing in kernels/cuda plans anything"
[ $failed -eq 0 ] && echo "$n plans hold"
exit $failed
