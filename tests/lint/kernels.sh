#!/usr/bin/env bash
# Every CUDA kernel waits for the ops before it (cuda_op_begin in thread.h) before it does anything else. Only
# declarations of shared memory, types and constants may stand before the call. Instead, a line "op begins in: FUNCTION"
# above a kernel may name a function of its file that makes the call. That function may only fetch weights before
# (*_fetch_weights).
#
# usage: kernels.sh [FILE...]
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
if [ $# -eq 0 ]; then
    mapfile -t sources < <(git ls-files 'kernels/cuda/*.h' 'kernels/cuda/*.cu')
    set -- "${sources[@]}"
fi
awk '
    # A function to which a kernel leaves the call: it makes the call, and before the call only fetches weights.
    function check_callee(name,    i, inside, open) {
        for (i = 1; i <= n; i++) {
            if (!inside && line[i] ~ ("(CUDA_DEVICE|CUDA_DEVICE void) .*" name "\\(") ) inside = 1
            if (!inside) continue
            if (line[i] ~ /^\{/) open = 1
            if (open && line[i] ~ /cuda_op_begin\(\)/) return 1
            if (open && line[i] ~ /_fetch|_read|_put|\*[a-z]+[;,)]|__ldg|load_/ && line[i] !~ /_fetch_weights/) return 0
            if (line[i] ~ /^\}/) return 0
        }
        return 0
    }
    function check_file(    i, k, in_kernel, open, callee, where, name) {
        for (i = 1; i <= n; i++) {
            if (line[i] ~ /op begins in: /) { callee = line[i]; sub(/.*op begins in: /, "", callee); sub(/[^a-z_].*/, "", callee) }
            if (line[i] ~ /__global__/ && line[i] !~ /^ \*|^\/\*|^#/) {
                in_kernel = 1; open = 0; where = i; n_kernels++
                if (callee != "") {
                    if (!check_callee(callee)) { printf "%s:%d: %s() does not wait for the ops before it, or not first\n", file, i, callee; bad = 1 }
                    in_kernel = 0
                }
                callee = ""
                continue
            }
            if (!in_kernel) continue
            if (line[i] ~ /^\{/) { open = 1; continue }
            if (!open) continue
            if (line[i] ~ /^    cuda_op_begin\(\);/) { in_kernel = 0; continue }
            if (line[i] ~ /^    (CUDA_SHARED\(|__shared__ |constexpr |typedef )/ || line[i] ~ /^#if/) continue
            printf "%s:%d: this kernel does something before cuda_op_begin(): %s\n", file, where, line[i]
            bad = 1; in_kernel = 0
        }
    }
    FNR == 1 { if (n) check_file(); n = 0; file = FILENAME }
    { line[++n] = $0 }
    END {
        check_file()
        if (!n_kernels) { print "kernels: none found"; bad = 1 }
        if (!bad) printf "kernels: %d wait for the ops before them\n", n_kernels
        exit bad
    }' "$@"
