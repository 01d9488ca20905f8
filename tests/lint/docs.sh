#!/usr/bin/env bash
# The docs must match the tree and the programs:
#    links      Every relative link leads to a file, and every anchor to a heading.
#    names      Every file, folder, function, option and variable in backticks exists.
#    commands   Every `sluice COMMAND` exists, and so does each option in a line that calls a program (with BIN_DIR).
#    mentions   Every docs page that any file of the tree names exists.
#    log        Every dated file in docs/log names date, commit, machine and command. Every figure of docs/log/performance.md links a record.
#    figures    A section of README.md, docs/use or docs/house with a rate (tokens/s, GB/s) links its record.
#    pages      A page of docs/house has at most 120 lines, and a picture (the glossary needs none).
# A dated file in docs/log is a record of its day, so only its links are checked.
# usage: tests/lint/docs.sh [BIN_DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
bad=0
python3 tests/lint/python/docs.py || bad=1
bin=${1:-}
if [ -z "$bin" ]; then exit $bad; fi

mapfile -t docs < <(git ls-files '*.md' | grep -vE '^(docs/log/[0-9]|tests/golden/templates/|tests/gpu/RESULTS|clients/)')
commands=$("$bin/sluice" help | sed -n '/^commands:/,/^$/p' | awk 'NF > 1 { print $1 }' | sort -u)
for word in $(grep -hv 'from sluice import' "${docs[@]}" | grep -oE '(^|[`$ ]|bin/)sluice [a-z]+' | awk '{print $2}' | sort -u); do
    grep -qx "$word" <<<"$commands help" || grep -qx "$word" <<<"$commands" || { echo "docs name \`sluice $word\`, which is no command"; bad=1; }
done
# Options in lines that call one of our programs must be in that program's help.
while IFS= read -r line; do
    program=$(grep -oE 'sluice(-server|-manager|-worker)?( [a-z]+)?( [a-z]+)?' <<<"$line" | head -n 1)
    case "$program" in
    sluice-*) help=$("$bin/${program%% *}" --help 2>&1) ;;
    "sluice "*)
        read -r _ first second <<<"$program" # a command is one word or two
        help=$("$bin/sluice" help "$first" "$second" 2>/dev/null || "$bin/sluice" help "$first" 2>&1 || true)
        ;;
    *) continue ;;
    esac
    for option in $(grep -oE -- '--[a-z][a-z-]+' <<<"$line"); do
        grep -q -- "$option" <<<"$help" || { echo "docs: $program has no $option: $line"; bad=1; }
    done
done < <(grep -hE '^(\$ )?(build/[a-z]+/bin/)?sluice(-[a-z]+)? ' "${docs[@]}")
exit $bad
