#!/usr/bin/env bash
# Plain words (docs/house/glossary.md has the terms): comments, docs, help texts, errors and commit subjects keep four
# rules:
#
# - opening: no sentence begins with Who, What, Whether, Whoever, Of, One, Such, Nobody or It.
# - length: a sentence has at most 20 words in a comment, 25 in a doc or a text that the programs print.
# - cell: a table cell in a doc has at most 40 words.
# - subject: the subject of a commit after the first that counts has at most 72 characters.
#
# tests/lint/words_exceptions.txt holds, for a file, how many breaches it may still have. The numbers may only shrink.
#
# usage: tests/lint/words.sh [--list] [PATH...]    --list prints every breach below the paths; --count the breaches per file
set -euo pipefail
cd "$(dirname "$0")/../.."
exec python3 tests/lint/python/words.py "$@"
