#!/usr/bin/env bash
# Functions that are banned in the product (CONTRIBUTING.md says what to use instead), and unfinished work.
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
exit $bad
