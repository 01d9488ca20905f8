#!/usr/bin/env bash
# clang-format 14 must have nothing to change.
set -euo pipefail
cd "$(dirname "$0")/../.."
git ls-files -- '*.c' '*.h' '*.cc' | xargs -r clang-format-14 --dry-run -Werror
