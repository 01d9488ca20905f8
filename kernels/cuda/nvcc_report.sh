#!/bin/sh
# Runs a compilation and keeps beside the object what tests/lint/ptxas.sh looks at: what ptxas tells of each kernel
# (registers, shared memory, spills; OBJECT.ptxas) and the PTX of one architecture (OBJECT.ptx). Everything else goes
# where it would have gone. A compiler cache keeps no intermediate files: behind one there is no PTX.
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
