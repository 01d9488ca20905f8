#!/usr/bin/env bash
# Reasons (base/reason.h) keep five rules:
#
# - literal: no source but the table base/reason_list.h has a reason's name as a string, and none compares reasons as text.
# - used: some source gives or compares each reason; a program has each option that the next step names.
# - status: the code that gives a reason sets a status of the reason's row.
# - retry: the code that gives a reason with a retry time gives a reason whose row says that a retry may help.
# - docs: docs/use/errors.md has the rows of the table, in the same words.
#
# usage: tests/lint/reasons.sh [--docs]    --docs writes the tables of docs/use/errors.md anew
set -euo pipefail
cd "$(dirname "$0")/../.."
exec python3 tests/lint/python/reasons.py "$@"
