#!/usr/bin/env bash
# Code that nvcc alone compiles computes no index. Index code is offsets into memory, subscripts, strides, the map from
# threads to data, and arithmetic of numbers. Index code lives in functions of the headers beside, which also compile as
# C, where unit tests run them. The rule covers .cu files, launchers included. The rule also covers headers of GPU code
# (CUDA_DEVICE, ATTENTION_METHOD, a template). This code has
#
#   1. no binary * / % << >> & ^ | and no assignment by one of them. Exceptions: a loop that halves its counter
#      ("NAME = NAME / 2;" as its first value, "NAME /= 2)" as its step), and |=, which gathers bits
#   2. no operator within [...], except within (...) of a call
#   3. no sum or difference of three terms, and none with threadIdx, blockIdx, blockDim or gridDim: an offset is
#      "pointer + name" or "pointer + function(names)"
#
# Comments, strings and preprocessor lines do not count. The lint relies on clang-format: a binary operator stands
# between spaces or ends its line, a unary operator does neither.
#
# usage: index.sh [FILE...]
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
if [ $# -eq 0 ]; then
    mapfile -t headers < <(git ls-files 'kernels/cuda/*.h' | xargs grep -lE '^ *(template <|CUDA_DEVICE |ATTENTION_METHOD )')
    mapfile -t kernels < <(git ls-files 'kernels/cuda/*.cu')
    set -- "${kernels[@]}" "${headers[@]}"
fi
awk '
    function fail(what) { printf "%s:%d: %s: %s\n", FILENAME, FNR, what, shown; bad = 1 }

    # The line without comments, strings and directives; a comment or a directive may continue on the next line.
    function code_of(s,    out, i) {
        if (!in_comment && (in_directive || s ~ /^ *#/)) { in_directive = s ~ /\\$/; return "" }
        while (length(s)) {
            if (in_comment) {
                if (!(i = index(s, "*/"))) break
                s = substr(s, i + 2); in_comment = 0
            } else if ((i = index(s, "/*"))) {
                out = out substr(s, 1, i - 1); s = substr(s, i + 2); in_comment = 1
            } else { sub(/\/\/.*/, "", s); out = out s; s = "" }
        }
        gsub(/"([^"\\]|\\.)*"/, "\"\"", out)
        gsub(/\047([^\047\\]|\\.)+\047/, "0", out)
        return out
    }

    # Calls (innermost first) become names, after a check of the text between their brackets.
    function look(s,    at, inner, before, terms) {
        while (match(s, /[(\[][^()\[\]]*[)\]]/)) {
            at = RSTART; inner = substr(s, RSTART + 1, RLENGTH - 2); before = substr(s, 1, at - 1)
            if (substr(s, at, 1) == "[" && inner ~ / [-+] /) fail("an operator in a subscript")
            pieces(inner)
            inner = substr(s, at, 1) == "[" ? "@" : before ~ /[A-Za-z0-9_>@$]$/ ? "$" : inner # a call, or a group
            s = before inner substr(s, at + RLENGTH)
        }
        pieces(s)
    }

    # Each piece between commas and the like is one expression.
    function pieces(s,    n, part, i, terms) {
        n = split(s, part, /[,;?{}]| : | [-+]?= | [=!<>]=? | [<>]= | && | \|\| |return /)
        for (i = 1; i <= n; i++) {
            terms = part[i]
            if (gsub(/ [-+] /, "&", terms) > 1) fail("a sum of three terms")
            if (terms ~ / [-+] / && terms ~ /(threadIdx|blockIdx|blockDim|gridDim)/) fail("a sum with a launch index")
        }
    }

    FNR == 1 { in_comment = in_directive = statement_at = 0; statement = ""; n_files++ }
    {
        shown = $0; sub(/^ +/, "", shown)
        code = code_of($0)
        if (code ~ /^ *$/) next
        plain = code
        gsub(/[A-Za-z_]+ \/ 2;/, ";", plain); gsub(/[a-z_]+ \/= 2\)/, ")", plain); gsub(/ \|= /, " = ", plain)
        gsub(/ && | \|\| /, " , ", plain); gsub(/(&&|\|\|)$/, ",", plain)
        if (plain ~ /[^ (,] ([*\/%&^|]|<<|>>)=? / || plain ~ /[^ (,] ([*\/%&^|]|<<|>>)=?$/) fail("an operator of an index")
        statement = statement " " code
        if (code ~ /[;{}] *$/ || code ~ /:$/) { gsub(/ +/, " ", statement); look(statement); statement = "" }
    }
    END {
        if (!n_files) { print "index: no files"; bad = 1 }
        if (!bad) printf "index: %d files compute none\n", n_files
        exit bad
    }' "$@"
