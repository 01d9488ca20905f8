#!/usr/bin/env bash
# isa.sh LIBRARY: checks which instructions each object of the kernels' library holds. An object has the instructions
# that its file name promises. Only the AMX kernels have tile instructions; the tests run those kernels over a model of
# the tiles. Code that runs before the choice of a kernel set has no AVX-512 or AMX.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
library=$(realpath "$1")
(cd "$folder" && ar x "$library")
failed=0
count() { objdump -d --no-show-raw-insn "$folder/$1" | grep -cE "[[:space:]]($2)[[:space:]]*" || true; }
expect() { # OBJECT INSTRUCTION LEAST
    n=$(count "$1" "$2")
    [ "$n" -ge "$3" ] || { echo "$1: $n times $2, at least $3 expected"; failed=1; }
}
for instruction in ldtilecfg tilerelease tilezero tileloadd tilestored tdpbsud; do
    expect linear_int_amx.c.o $instruction 1
done
# The order of operands in the wrappers is sums, activations, weights.
objdump -d --no-show-raw-insn -M intel "$folder/linear_int_amx.c.o" >"$folder/intel"
for operands in tmm0,tmm4,tmm6 tmm1,tmm4,tmm7 tmm2,tmm5,tmm6 tmm3,tmm5,tmm7; do
    grep -qE "tdpbsud +$operands\b" "$folder/intel" || { echo "linear_int_amx.c: no tdpbsud $operands"; failed=1; }
done
# The code exists 8 times: for one and two planes, for 16 and 32 rows, for lo and hi. Only code for 32 rows has tmm2.
for operands in tmm0,tmm4,tmm6=8 tmm2,tmm5,tmm6=4 tmm3,tmm5,tmm7=2; do
    n=$(grep -cE "tdpbsud +${operands%=*}\b" "$folder/intel" || true)
    [ "$n" -ge "${operands#*=}" ] || { echo "linear_int_amx.c: $n times tdpbsud ${operands%=*}, at least ${operands#*=} expected"; failed=1; }
done
# Each form S has a function of its own that multiplies codes and hands their planes to the tiles.
for type in Q5_0 Q5_1 Q2_K Q3_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 24_bits; do
    name=amx_panel_DTYPE_$type
    [ $type != 24_bits ] || name=amx_panel_24_bits
    name=$(objdump -t "$folder/linear_int_amx.c.o" | grep -oE "\b$name(\.[a-z0-9.]+)?$" | grep -v cold || true) # the compiler may add an ending
    body=$(objdump -d --no-show-raw-insn --disassemble="$name" "$folder/linear_int_amx.c.o")
    for instruction in vpmullw 'call.*amx_multiply_two'; do
        grep -qE "$instruction" <<<"$body" || { echo "linear_int_amx.c: no $instruction in $name"; failed=1; }
    done
done
# SOURCE PRODUCT OPERANDS...: an object that multiplies these tiles.
four_products() {
    local source=$1 product=$2 instruction operands
    shift 2
    for instruction in ldtilecfg tilerelease tilezero tileloadd tilestored; do
        expect "$source.o" $instruction 1
    done
    objdump -d --no-show-raw-insn -M intel "$folder/$source.o" >"$folder/intel"
    for operands in "$@"; do
        grep -qE "$product +$operands\b" "$folder/intel" || { echo "$source: no $product $operands"; failed=1; }
    done
}
two_by_two="tmm0,tmm4,tmm6 tmm1,tmm5,tmm6 tmm2,tmm4,tmm7 tmm3,tmm5,tmm7"
four_products linear_dense_amx.c tdpbf16ps $two_by_two
four_products attention_amx.c tdpbsud $two_by_two
four_products attention_bf16_amx.c tdpbf16ps tmm0,tmm4,tmm5 tmm1,tmm4,tmm6 tmm2,tmm4,tmm7 tmm3,tmm4,tmm5
for object in "$folder"/*.o; do
    name=$(basename "$object")
    case $name in
    *_amx.c.o) ;;
    *) [ "$(count "$name" 'ldtilecfg|tile[a-z]+|tdp[a-z0-9]+')" -eq 0 ] || { echo "$name: AMX in a file not named *_amx.c"; failed=1; } ;;
    esac
    case $name in
    *_amx.c.o | *_avx512.c.o) ;;
    *) ! objdump -d --no-show-raw-insn "$object" | grep '%zmm\|%k[0-7]' >/dev/null || { echo "$name: AVX-512 in a file not named for it"; failed=1; } ;;
    esac
done
exit $failed
