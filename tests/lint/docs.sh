#!/usr/bin/env bash
# README and docs must match the programs: every `sluice COMMAND`, every long option of a program and every file they name must exist.
# usage: tests/lint/docs.sh BIN_DIR
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=${1:?usage: tests/lint/docs.sh BIN_DIR}
docs=(README.md SECURITY.md CONTRIBUTING.md docs/*.md)
bad=0
commands=$("$bin/sluice" help | sed -n '/^commands:/,/^$/p' | awk 'NF > 1 { print $1 }' | sort -u)
for word in $(grep -hoE '(^|[`$ ]|bin/)sluice [a-z]+' "${docs[@]}" | awk '{print $2}' | sort -u); do
    grep -qx "$word" <<<"$commands help" || grep -qx "$word" <<<"$commands" || { echo "docs name \`sluice $word\`, which is no command"; bad=1; }
done
# Options in lines that call one of our programs must be in that program's help.
while IFS= read -r line; do
    program=$(grep -oE 'sluice(-server|-manager|-worker)?( [a-z]+)?( [a-z]+)?' <<<"$line" | head -n 1)
    case "$program" in
    sluice-*) help=$("$bin/${program%% *}" --help 2>&1) ;;
    "sluice "*)
        read -r _ first second <<<"$program" # a command is one word or two
        help=$("$bin/sluice" help "$first" "$second" 2>/dev/null || "$bin/sluice" help "$first" 2>&1)
        ;;
    *) continue ;;
    esac
    for option in $(grep -oE -- '--[a-z][a-z-]+' <<<"$line"); do
        grep -q -- "$option" <<<"$help" || { echo "docs: $program has no $option: $line"; bad=1; }
    done
done < <(grep -hE '^(\$ )?(build/[a-z]+/bin/)?sluice(-[a-z]+)? ' "${docs[@]}")
for file in $(grep -hoE '`[a-z_]+/[A-Za-z0-9_./-]+\.(c|h|sh|proto|md|py|json|supp|txt)`' "${docs[@]}" | tr -d '`' | sort -u); do
    [ -e "$file" ] || { echo "docs name $file, which does not exist"; bad=1; }
done
exit $bad
