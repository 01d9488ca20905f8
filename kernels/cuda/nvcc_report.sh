#!/bin/sh
# Runs a compilation and keeps two files beside the object for tests/lint/ptxas.sh. OBJECT.ptxas has the report of ptxas
# on each kernel (registers, shared memory, spills). OBJECT.ptx has the PTX of one architecture. All other output goes to
# its usual place. A compiler cache keeps no intermediate files, so with a cache there is no PTX.
object=
previous=
cached=
for argument in "$@"; do
    [ "$previous" = -o ] && object=$argument
    case $argument in *ccache) cached=yes ;; esac
    previous=$argument
done
errors=$(mktemp) || exit 1
kept=
trap 'rm -rf "$errors" "$kept"' EXIT
if [ -n "$object" ] && [ "$object" != /dev/null ] && [ -z "$cached" ]; then
    kept=$(mktemp -d) || exit 1
    "$@" --keep --keep-dir "$kept" 2>"$errors"
    status=$?
    newest=$(find "$kept" -name '*.ptx' | sort | tail -n 1)
    rm -f "$object.ptx"
    [ -n "$newest" ] && cp "$newest" "$object.ptx"
else
    "$@" 2>"$errors"
    status=$?
fi
reports='^ptxas info|^ptxas \. info|^ *[0-9]+ bytes (stack frame|gmem|cmem)'
[ -n "$object" ] && grep -E "$reports" "$errors" >"$object.ptxas"
grep -vE "$reports" "$errors" >&2
exit $status
