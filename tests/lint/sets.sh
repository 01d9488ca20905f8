#!/usr/bin/env bash
# Each test of ctest is in one set:
#
# - plain: tests/run.sh runs the test in the plain build alone
# - sanitized: in the sanitized build alone
# - simt: on the emulated GPU
#
# The sanitized build has every sanitized test of the plain build.
#
# usage: tests/lint/sets.sh PLAIN_BUILD SANITIZED_BUILD
set -euo pipefail
plain=${1:?usage: sets.sh PLAIN_BUILD SANITIZED_BUILD} sanitized=${2:?usage: sets.sh PLAIN_BUILD SANITIZED_BUILD}
tests() { ctest --test-dir "$1" -N "${@:2}" | sed -nE 's/^ *Test +#[0-9]+: //p' | sort; }
bad=0
for name in $(tests "$plain" -LE '^(plain|sanitized|simt)$'; tests "$sanitized" -LE '^sanitized$'); do
    echo "sets: $name has no set, so tests/run.sh does not run it"
    bad=1
done
for name in $({ tests "$plain" -L '^plain$'; tests "$plain" -L '^sanitized$'; tests "$plain" -L '^simt$'; } | sort | uniq -d); do
    echo "sets: $name is in two sets"
    bad=1
done
for name in $(comm -23 <(tests "$plain" -L '^sanitized$') <(tests "$sanitized" -L '^sanitized$')); do
    echo "sets: $name is sanitized, but $sanitized does not have the test"
    bad=1
done
echo "sets: $(tests "$plain" -L '^plain$' | wc -l) plain, $(tests "$sanitized" | wc -l) sanitized, $(tests "$plain" -L '^simt$' | wc -l) on the emulated GPU"
exit $bad
