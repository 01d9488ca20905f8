#!/usr/bin/env bash
# Finds functions that are banned in the product (CONTRIBUTING.md has the replacements), unfinished work, and checks
# that cannot fail.
set -euo pipefail
cd "$(dirname "$0")/../.."

sources() { git ls-files -- 'base/*.[ch]' 'kernels/*.[ch]' 'engine/*.[ch]' 'proto/*.[ch]' 'server/*.[ch]' 'manager/*.[ch]' 'clients/*.[ch]' 'kernels/*.cu*'; }
bad=0
hits=$(sources | xargs -r grep -nE '(^|[^A-Za-z0-9_])(strcpy|strcat|sprintf|vsprintf|strtok|atoi|atol|atof|sscanf|alloca|system|popen|gets|usleep|sleep|vfork|fork)[[:space:]]*\(' || true)
[ -z "$hits" ] || { printf 'banned functions:\n%s\n' "$hits"; bad=1; }
hits=$(sources | xargs -r grep -nE '\b(TODO|FIXME|XXX|HACK)\b' || true)
[ -z "$hits" ] || { printf 'unfinished:\n%s\n' "$hits"; bad=1; }
hits=$(sources | xargs -r grep -nE '[^_a-zA-Z](exit|abort)[[:space:]]*\(' | grep -vE '(^|/)main[a-z_]*\.c:|proto/tools/' || true)
[ -z "$hits" ] || { printf 'libraries never exit:\n%s\n' "$hits"; bad=1; }
# A bare call of CUDA's runtime ignores the result (cuda_check(), stream_check() and cuda_note() check it).
for file in $(git ls-files -- 'kernels/cuda/*.[ch]' 'kernels/cuda/*.cu'); do
    hits=$(awk -v file="$file" '
        /^ *(\(void\) *)?cuda[A-Z][A-Za-z0-9]*\(/ && before !~ /[,(=?:&|]$/ && !/cudaGetLastError\(\);/ { print file ":" FNR ":" $0 }
        NF { before = $0 }' "$file")
    [ -z "$hits" ] || { printf 'unchecked calls of CUDA:\n%s\n' "$hits"; bad=1; }
done
# grep -q ends at its first hit, which kills the program that writes to the pipe. Under pipefail a hit then counts as a
# failure.
hits=$(git ls-files -- '*.sh' | xargs -r grep -lE '^set -[a-z]*o pipefail' | xargs -r grep -nE '[^|]\|[[:space:]]*grep -[a-zA-Z]*q' || true)
[ -z "$hits" ] || { printf 'grep -q behind a pipe, with pipefail (use grep ... >/dev/null):\n%s\n' "$hits"; bad=1; }
exit $bad
