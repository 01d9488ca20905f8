#!/usr/bin/env bash
# Checks that a stage of run.sh runs every test of tests/gpu, and that every program named by a stage exists.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
failed=0
for source in test_*.c experts/test_*.c model/test_*.c probe/test_*.c recurrent/test_*.c latent/test_*.c; do
    program=$(basename "$source" .c)
    program=test_gpu_${program#test_}
    mapfile -t patterns < <(./run.sh programs | awk -v p="$program" '$3 == p && $1 != "session" {print $4}')
    while read -r name; do
        found=""
        # shellcheck disable=SC2053 # a pattern
        for pattern in "${patterns[@]}"; do if [[ $name == $pattern ]]; then found=1; fi; done
        if [ -z "$found" ]; then
            echo "$source: no stage of run.sh runs $name"
            failed=1
        fi
    done < <(tr -d '\n' <"$source" | grep -oE 'cmocka_unit_test\( *\w+' | sed 's/.*( *//')
done
while read -r program; do
    if [[ $program != test_gpu_engine* && $program != test_gpu_decoder* ]] && [ ! -e "${program/test_gpu_/test_}.c" ] &&
        ! compgen -G "*/${program/test_gpu_/test_}.c" >/dev/null; then
        echo "run.sh names $program, of which there is no source"
        failed=1
    fi
done < <(./run.sh programs | awk '{print $3}' | sort -u)
# Checks that bench_cuda --ab takes the line of each choice, and that the choices fit the part's time.
total=0
while read -r seconds name choice _; do
    if ! [[ $seconds =~ ^[0-9]+$ && -n $name && $choice =~ ^[A-Z0-9_]+=[^,]*,[^,]*$ ]]; then
        echo "run.sh switches: \"$seconds $name $choice\" is no line SECONDS NAME VARIABLE=a,b OPTIONS"
        failed=1
    else
        total=$((total + seconds))
    fi
done < <(./run.sh switches)
most=$(sed -n 's/^5 \([0-9]*\) switches$/\1/p' run.sh)
if [ "$total" -gt "${most:-0}" ]; then
    echo "run.sh switches: $total s together, and the part has ${most:-none}"
    failed=1
fi
exit $failed
