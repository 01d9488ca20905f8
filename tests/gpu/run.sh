#!/usr/bin/env bash
# The CUDA backend on a machine that has a GPU and nothing else: driver, CUDA libraries, no network, no compiler.
#
#     tests/gpu/run.sh package [DIR]    on a build machine: release build in DIR (build/gpu) with its libraries, and DIR.tar.gz
#     tests/gpu/run.sh STAGE [DIR]      on the GPU machine: ops, model, memory, faults, serve or bench (each at most 8 minutes)
#     tests/gpu/run.sh profile [DIR]    Nsight Compute's report on FORMATS (q4_0): profile.ncu-rep beside RESULTS.md
#     tests/gpu/run.sh session [DIR]    for a card that is lent for minutes: SLUICE_GPU_SESSION_S seconds (420), in parts
#     tests/gpu/run.sh all [DIR]        all stages but profile and session (at most 25 minutes)
#     tests/gpu/run.sh join FILE...     merges the RESULTS.md of several runs; the last run of a stage counts
#     tests/gpu/run.sh programs         prints the tests of each stage: STAGE SECONDS PROGRAM PATTERN VARIABLES...
#
# A stage writes its section of RESULTS.md beside this script, or in $OUT; the other sections stay. A missing feature of the machine
# is a "skip" with its reason; any other problem fails. The package carries this script. On the emulated GPU (tests/simt) set
# SLUICE_TEST_EMULATED_GPU=1 and SLUICE_CUDA_MODULE. The bench is small there. SLUICE_GPU_STAGE_S and SLUICE_GPU_ALL_S set its
# time, SLUICE_TEST_STEP and SLUICE_TEST_JOBS shorten the tests. SLUICE_GPU_BUILD=BUILD packs an existing build.
# Tests of a stage run side by side, one to two processors each (SLUICE_GPU_JOBS: how many). Tests of "memory" run alone, because
# they measure all of the GPU's memory. CMAKE_CUDA_ARCHITECTURES chooses the GPUs; default 9.0 (H100, H200); 80-real is for 8.x.
# Each architecture takes 11 to 12 MB, and two would be too large.
# "session" runs the parts of session_parts in order. Each part has a process and a log of its own in $OUT, 8 files at most. A
# part that fails or takes too long leaves the others their time. A short table comes last. SLUICE_GPU_SESSION_PARTS chooses
# parts by number ("4 5"). SLUICE_GPU_CHANGED names a file of lines like those of stage "session" in programs, and
# SLUICE_GPU_SWITCHES a file of lines like those of switches. SLUICE_GPU_BEST has variables for the parts models and sanitizer.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
stage=${1:-}
if [ -x "$here/bin/bench_cuda" ]; then # within a package
    root=$here
    dir=${2:-$here}
else
    root=$(cd "$here/../.." && pwd)
    dir=${2:-$root/build/gpu}
fi
most_bytes=$((48 << 20)) # most bytes of the archive: 64 MiB may travel, with 16 MiB of other files
stage_s=${SLUICE_GPU_STAGE_S:-480}
all_s=${SLUICE_GPU_ALL_S:-1500}
emulated=${SLUICE_TEST_EMULATED_GPU:-}

usage() {
    sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
    exit 2
}

# "@best" stands for the variables of best. Every test of tests/gpu belongs to a line of its program whose pattern matches the test (tests/gpu/stages.sh checks
# that).
programs() {
    cat <<'EOF'
ops     120 test_gpu_cuda_device    *
ops     120 test_gpu_cuda_ops       *
ops      60 test_gpu_cuda_overlap   *
ops     180 test_gpu_cuda_dense     *           SLUICE_CUDA_PROMPTS=own SLUICE_CUDA_FP8=own
ops      60 test_gpu_cuda_fused     *
ops     180 test_gpu_cuda_quant     *
ops     120 test_gpu_cuda_quant_ops *
ops      60 test_gpu_cuda_widen     *           SLUICE_CUDA_PROMPTS=own
ops      60 test_gpu_cuda_widen     *           SLUICE_CUDA_PROMPTS=wgmma
ops      60 test_gpu_cuda_widen     *parts*     SLUICE_CUDA_PROMPTS=wgmma SLUICE_CUDA_JOIN=off
ops      60 test_gpu_cuda_dense     *parts*     SLUICE_CUDA_PROMPTS=wgmma SLUICE_CUDA_JOIN=off
ops     180 test_gpu_cuda_attention *           SLUICE_CUDA_ATTENTION=mma
ops      60 test_gpu_cuda_attention *_p_*       SLUICE_CUDA_ATTENTION=wgmma
ops      90 test_gpu_cuda_attention *near_f64   SLUICE_CUDA_ATTENTION=wgmma
ops      60 test_gpu_cuda_attention *masked*    SLUICE_CUDA_ATTENTION=wgmma
ops     120 test_gpu_cuda_latent    *
ops     120 test_gpu_cuda_sample    *
ops     120 test_gpu_cuda_experts   *
ops      60 test_gpu_cuda_heads     *
ops     120 test_gpu_cuda_recurrent *
ops     180 test_gpu_cuda_dense     *           SLUICE_CUDA_PROMPTS=wgmma SLUICE_CUDA_FP8=wgmma
ops      60 test_gpu_cuda_fused     *           SLUICE_CUDA_FETCH=engine SLUICE_CUDA_PROMPTS=wgmma
ops      90 test_gpu_cuda_dense     *           SLUICE_TEST_KIND=f16,bf16 SLUICE_CUDA_FETCH=engine SLUICE_CUDA_PROMPTS=wgmma
ops     180 test_gpu_cuda_dense     *chosen_product* SLUICE_CUDA_PROMPTS=cublaslt
ops      60 test_gpu_bits           *
ops      60 test_gpu_cuda_cublaslt  *           SLUICE_CUDA_PROMPTS=cublaslt
model   240 test_gpu_cuda_model     *logits*
model   240 test_gpu_cuda_model     *families*
model   240 test_gpu_cuda_model     *bits*
model   240 test_gpu_cuda_model     *layers*
model   120 test_gpu_decoder_recurrent *
model   180 test_gpu_cuda_model_formats *
model   120 test_gpu_cuda_model_tokens *
memory  300 test_gpu_cuda_model     *memory*
memory  120 test_gpu_cuda_model     *captured*
memory  120 test_gpu_cuda_model     *graphs*
memory  120 test_gpu_cuda_model_ahead *
faults  120 test_gpu_cuda_model     *refused*
faults  180 test_gpu_cuda_fault     *
serve   300 test_gpu_engine         *64_alone*
serve   120 test_gpu_engine         *resume_goes_on*
serve   120 test_gpu_engine_longrope *at_once
serve   180 test_gpu_engine_states  *
session  60 test_gpu_cuda_ops       *
session  60 test_gpu_cuda_quant_ops *
session  60 test_gpu_cuda_attention *teams*
session  30 test_gpu_cuda_sample    *greedy*
session  60 test_gpu_cuda_recurrent *
session  60 test_gpu_cuda_latent    *
session  60 test_gpu_cuda_heads     *
session  60 test_gpu_cuda_dense     *gated*     @best
session  60 test_gpu_cuda_fused     *
session  60 test_gpu_cuda_attention *all_shapes* SLUICE_CUDA_ATTENTION=wgmma
session  60 test_gpu_cuda_attention *_p_*       SLUICE_CUDA_ATTENTION=wgmma
session  60 test_gpu_cuda_attention *masked*    SLUICE_CUDA_ATTENTION=wgmma
session  60 test_gpu_cuda_dense     *keep_*     SLUICE_TEST_KIND=f8 SLUICE_CUDA_FP8=wgmma
session  60 test_gpu_cuda_dense     *ranks_have* SLUICE_TEST_KIND=f8 SLUICE_CUDA_FP8=wgmma
session  60 test_gpu_cuda_dense     *keep_*     SLUICE_TEST_KIND=bf16 SLUICE_CUDA_FETCH=engine SLUICE_CUDA_PROMPTS=wgmma
session  60 test_gpu_cuda_widen     *           @best
session  60 test_gpu_cuda_fused     *gated*     SLUICE_CUDA_FETCH=engine SLUICE_CUDA_PROMPTS=wgmma
session  60 test_gpu_cuda_dense     *parts*     @best
session  60 test_gpu_cuda_model     *bits*      @best
session  60 test_gpu_cuda_model     *logits*    @best
session  60 test_gpu_cuda_model_formats *       @best
session  60 test_gpu_cuda_model_tokens *        @best
session  60 test_gpu_decoder_recurrent *        @best
EOF
}

# Choices that "session" measures in turn: SECONDS NAME VARIABLE=a,b OPTIONS of bench_cuda. Together they take the part's time.
# "@old" is the bench of the older package that SLUICE_GPU_OLD names when this one is made.
switches() {
    cat <<'EOF'
25 quantized-prompts SLUICE_BENCH_PROMPTS=exact,f16 --parts linears --formats q4_k,q8_0 --rows 128,2048
25 attention   SLUICE_CUDA_ATTENTION=mma,wgmma --parts attention-prompt --kv bf16,f8_e4m3
25 decode      SLUICE_CUDA_DECODE=warps,teams --parts attention-decode --kv f8_e4m3,i8
15 fp8         SLUICE_CUDA_FP8=own,wgmma --parts linears --formats fp8 --rows 128,2048
30 fused       SLUICE_BENCH_PROGRAM=@old, --parts prefill,decode --models bf16 --layers 8
15 rows        SLUICE_BENCH_PROGRAM=@old, --parts rows
15 fetch       SLUICE_CUDA_FETCH=threads,engine --parts prefill --models bf16 --layers 8
15 join        SLUICE_CUDA_JOIN=off,parts --parts prefill --models bf16 --layers 4
15 fp8-prefill SLUICE_CUDA_FP8=own,wgmma --parts prefill --models fp8 --layers 4
EOF
}

# Variables for the parts "models" and "sanitizer" and for "@best": the choices that should be the fastest, a line each.
best() {
    cat <<'EOF'
SLUICE_CUDA_ATTENTION=wgmma
SLUICE_CUDA_FP8=wgmma
SLUICE_CUDA_DECODE=teams
SLUICE_BENCH_PROMPTS=f16
SLUICE_CUDA_JOIN=parts
EOF
}

best_variables() { if [ -n "${SLUICE_GPU_BEST+set}" ]; then echo "$SLUICE_GPU_BEST"; else best | tr '\n' ' '; fi; }

# The parts of "session": NUMBER SECONDS NAME, in the order of what would be lost if the time ended.
session_parts() {
    cat <<'EOF'
1  15 card
2  30 ceilings
3  20 bits
4  80 correctness
5 180 switches
6 110 models
7  40 sanitizer
EOF
}

# --- the package ---

# Copies the libraries that programs of the package need besides the C library.
copy_libraries() {
    local program
    for program in "$dir"/bin/*; do
        ldd "$program" | awk '$3 ~ /^\// {print $3}'
    done | sort -u | grep -vE '/(libc|libm|libdl|libpthread|librt|ld-linux[^/]*)\.so' | while read -r library; do
        cp -L "$library" "$dir/lib/"
    done
}

# Checks that the package's programs, and their libraries, open only the package's libraries and the C library.
needs_nothing_else() {
    local program others failed=0
    for program in "$dir"/bin/*; do
        others=$(ldd "$program" | grep -vE "linux-vdso|/(libc|libm|libdl|libpthread|librt|ld-linux[^/]*)\.so" | grep -vF "=> $dir/bin/../lib/" || true)
        [ -z "$others" ] || { echo "$program needs what the package lacks: $others" >&2; failed=1; }
    done
    return $failed
}

build_all() {
    cmake -S "$root" -B "$1" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSLUICE_CUDA=REQUIRED -DSLUICE_SIMT=OFF -DSLUICE_STATIC_GRPC=ON \
        -DCMAKE_CUDA_ARCHITECTURES="${CMAKE_CUDA_ARCHITECTURES:-90a-real}" >/dev/null
    cmake --build "$1" --target gpu_package
}

package() {
    set -e
    local build=${SLUICE_GPU_BUILD:-$root/build/gpu-build} n program
    [ -n "${SLUICE_GPU_BUILD:-}" ] || build_all "$build"
    rm -rf "$dir"
    mkdir -p "$dir/bin" "$dir/lib" "$dir/tests/golden"
    dir=$(cd "$dir" && pwd)
    for program in $(programs | awk '{print $3}' | sort -u) bench_cuda bench_between sluice-worker; do
        cp "$build/bin/$program" "$dir/bin/"
    done
    for program in libsluice_cuda.so libgpu_probe.so; do
        [ ! -e "$build/bin/$program" ] || cp "$build/bin/$program" "$dir/lib/"
    done
    cp -r "$root/tests/golden/tiny" "$dir/tests/golden/"
    cp "$root/tests/gpu/run.sh" "$root"/tests/gpu/bench/bench_*.py "$dir/"
    if [ -n "${SLUICE_GPU_OLD:-}" ]; then # an older package, for "@old" in switches
        mkdir -p "$dir/old"
        cp -r "$SLUICE_GPU_OLD/lib" "$dir/old/"
        mkdir "$dir/old/bin"
        cp "$SLUICE_GPU_OLD/bin/bench_cuda" "$dir/old/bin/"
        # shellcheck disable=SC2016 # for the script
        printf '%s\n' '#!/bin/sh' 'here=$(cd "$(dirname "$0")" && pwd)' \
            'SLUICE_CUDA_MODULE=$here/lib/libsluice_cuda.so exec "$here/bin/bench_cuda" "$@"' >"$dir/old/bench"
        chmod +x "$dir/old/bench"
    fi
    copy_libraries
    strip "$dir"/bin/* "$dir"/lib/*.so*
    git -C "$root" describe --always --dirty >"$dir/COMMIT" 2>/dev/null || echo unknown >"$dir/COMMIT"
    sed -n 's/^SLUICE_CUBLASLT_NAME:.*=//p' "$build/CMakeCache.txt" >"$dir/CUBLASLT"
    needs_nothing_else
    du -sb "$dir"/bin/* "$dir"/lib/* "$dir/tests" | sort -rn
    tar -C "$dir" -czf "$dir.tar.gz" .
    n=$(stat -c %s "$dir.tar.gz")
    echo "$dir: $(du -sb "$dir" | cut -f1) bytes; $dir.tar.gz: $n of at most $most_bytes"
    if [ "$n" -gt "$most_bytes" ] && [ -z "$emulated" ]; then # a shared build is larger
        echo "more than $most_bytes bytes" >&2
        exit 1
    fi
}

# --- running ---

failed=0
results=""  # RESULTS.md
section="" # lines of the running stage so far
stage_end=0
say() {
    printf '%s\n' "$*"
    if [ -n "$section" ]; then printf -- '- %s\n' "$*" >>"$section"; fi
}

# run NAME SECONDS COMMAND...: runs a command for at most SECONDS, and not beyond the stage's end.
run() {
    local name=$1 seconds=$2 began=$SECONDS rc left=$((stage_end - SECONDS))
    shift 2
    if [ -n "$emulated" ]; then seconds=$stage_s; fi
    if [ "$left" -lt "$seconds" ]; then seconds=$left; fi
    if [ "$seconds" -le 0 ]; then
        say "FAIL  $name: not run, the stage's time is over"
        failed=1
        return
    fi
    timeout -k 10 "$seconds" "$@"
    rc=$?
    if [ $rc -eq 0 ]; then
        say "ok    $name ($((SECONDS - began)) s)"
    elif [ $rc -eq 124 ] || [ $rc -eq 137 ]; then
        say "FAIL  $name: ended after $((SECONDS - began)) s"
        failed=1
    else
        say "FAIL  $name: status $rc after $((SECONDS - began)) s"
        failed=1
    fi
}

# The tests of a stage, side by side. Nothing may read this loop's input.
run_tests() {
    local of seconds program pattern variables n=0 list=${2:-programs} at_once=${SLUICE_GPU_JOBS:-$((($(nproc) + 1) / 2))} pids=() pid logs
    logs=$(mktemp -d) || exit 1
    if [ "$1" = memory ] || [ "$at_once" -lt 1 ]; then at_once=1; fi
    while read -r of seconds program pattern variables; do
        [ "$of" = "$1" ] || continue
        n=$((n + 1))
        variables=${variables//@best/$(best_variables)}
        if [[ $variables == *=wgmma ]] && lacks_wgmma; then
            say "skip  $program $variables: this card is not of compute capability 9.0"
            continue
        fi
        if [[ $variables == *=cublaslt ]] && [ -z "$cublaslt" ]; then
            say "skip  $program $variables: no $(cublaslt_name) on this machine"
            continue
        fi
        while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do wait -n; done
        (
            failed=0
            # shellcheck disable=SC2086 # variables are words
            run "$program $pattern $variables" "$seconds" env $variables SLUICE_TEST_FILTER="$pattern" "$dir/bin/$program" >"$logs/$n" 2>&1
            cat "$logs/$n" # at once: a stage may be ended from outside
            exit $failed
        ) </dev/null &
        pids+=($!)
    done < <($list)
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
    rm -rf "$logs"
    if [ $n -eq 0 ]; then
        say "FAIL  $1: none of its tests was run"
        failed=1
    fi
}

cublaslt_name() { cat "$dir/CUBLASLT" 2>/dev/null || echo libcublasLt.so; }

# Prints the folder of cuBLASLt where there is one: in the toolkit, in the system, or in a Python package.
find_cublaslt() {
    local name folder
    name=$(cublaslt_name)
    {
        printf '%s\n' "${SLUICE_CUDA_LIBRARY_PATH:-}" | tr ':' '\n'
        printf '%s\n' /usr/local/cuda/lib64 /usr/local/cuda*/lib64 /usr/local/cuda*/targets/*/lib /usr/lib/x86_64-linux-gnu
        if command -v ldconfig >/dev/null; then ldconfig -p | awk -v name="$name" '$1 == name { sub("/[^/]*$", "", $NF); print $NF }'; fi
        python3 -c 'import glob, site, sys
for path in sys.path + site.getsitepackages(): print(*glob.glob(path + "/nvidia/*/lib"), sep="\n")' 2>/dev/null
    } | while read -r folder; do
        if [ -n "$folder" ] && [ -e "$folder/$name" ]; then echo "$folder" && break; fi
    done
}

card() {
    if command -v nvidia-smi >/dev/null 2>&1; then
        nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null || echo unknown
    else
        echo "unknown, no nvidia-smi"
    fi
}

lacks_wgmma() {
    local has
    has=$(card compute_cap | head -n 1)
    [ -z "$emulated" ] && [[ $has =~ ^[0-9]+\.[0-9]$ ]] && [ "$has" != 9.0 ]
}

prepare() {
    [ -x "$dir/bin/bench_cuda" ] || { echo "$dir has no package: tests/gpu/run.sh package" >&2; exit 1; }
    # Libraries of the package are for its programs alone: "$dir/lib" is in their run path (tests/gpu/CMakeLists.txt).
    export SLUICE_CUDA_MODULE=${SLUICE_CUDA_MODULE:-$dir/lib/libsluice_cuda.so}
    export SLUICE_TEST_SOURCE_DIR=$dir SLUICE_TEST_DEVICE=cuda:0
    [ -r "$SLUICE_CUDA_MODULE" ] || { echo "$SLUICE_CUDA_MODULE is missing" >&2; exit 1; }
    # compute-sanitizer, nvidia-smi, ncu
    PATH=$PATH:/usr/local/cuda/bin:/usr/local/nvidia/bin:$(printf '%s:' /opt/nvidia/nsight-compute/*)
    cublaslt=$(find_cublaslt)
    if [ -n "$cublaslt" ]; then export SLUICE_CUDA_LIBRARY_PATH=$cublaslt; fi
}

open_results() {
    local where
    for where in "${OUT:-$here}" "${TMPDIR:-/tmp}"; do
        results=$where/RESULTS.md
        if mkdir -p "$where" 2>/dev/null && { : >>"$results"; } 2>/dev/null; then return; fi
    done
    echo "RESULTS.md can be written nowhere: set OUT" >&2
    exit 1
}

# Sections of FILE..., of each stage the last.
join() {
    awk -v stages="ops model memory faults serve bench profile session" '
        BEGIN { n = split(stages, stage, " "); for (i = 1; i <= n; i++) known["## " stage[i]] = 1 }
        FNR == 1 { at = "" }
        $0 in known { at = $0; text[at] = "" }
        at != "" { text[at] = text[at] $0 "\n" }
        END {
            print "# The CUDA backend on a GPU\n\nWritten by `tests/gpu/run.sh`; a figure is a median."
            for (i = 1; i <= n; i++)
                if (("## " stage[i]) in text) {
                    sub(/\n+$/, "\n", text["## " stage[i]])
                    printf "\n%s", text["## " stage[i]]
                }
        }' "$@"
}

begin_section() {
    section=$(mktemp) || exit 1
    {
        echo "## $1"
        echo
        echo "Device: ${emulated:+emulated, so its figures mean nothing; }$(card name,driver_version,memory.total,memory.used,temperature.gpu)."
        echo "Date: $(date -u +%Y-%m-%d). Commit: $(cat "$dir/COMMIT" 2>/dev/null || echo unknown)."
        echo "cuBLASLt: ${cublaslt:-none}."
        echo
    } >"$section"
    head -n 5 "$section" | tail -n 3
}

# Writes the stage's section into RESULTS.md, also where a signal ends the stage.
end_section() {
    [ -n "$section" ] || return
    join "$results" "$section" >"$section.all" && cat "$section.all" >"$results"
    rm -f "$section" "$section.all"
    section=""
}

ops() {
    local tool # a short set: every kernel once, on small shapes
    run_tests ops
    if ! command -v compute-sanitizer >/dev/null; then
        say "skip  compute-sanitizer: not on this machine"
        return
    fi
    for tool in memcheck racecheck synccheck; do
        run "compute-sanitizer $tool" 120 compute-sanitizer --tool $tool --error-exitcode 9 "$dir/bin/bench_cuda" --small --once \
            --parts linears,rows,paths,attention,sampler --directory "${TMPDIR:-/tmp}"
    done
}

# Registers, stalls and shares of peak of a format's linears at 1 to 2048 rows.
profile() {
    if ! command -v ncu >/dev/null; then
        say "skip  profile: no ncu on this machine"
        return
    fi
    run "profile of ${FORMATS:-q4_0}" 240 ncu -f -o "$(dirname "$results")/profile" --set detailed --import-source no \
        -k "regex:linear_quant|dense_decode|dense_prompt|dense_wgmma" "$dir/bin/bench_cuda" --once --parts linears \
        --formats "${FORMATS:-q4_0}"
}

model() { run_tests model; }

memory() {
    say "memory used before any context: $(card memory.used)"
    run_tests memory
    say "memory used afterwards: $(card memory.used)"
}

faults() { run_tests faults; }

# Compares the ids of one answer over different steps: chunks, cache blocks, room for other sequences, drafts.
same_ids() {
    local prompt="abc defg hi abc defg hi abc defg hi" first="" now words n=24
    [ -z "${SLUICE_TEST_EMULATED_GPU:-}" ] || n=6
    for words in "" "--prefill-chunk-tokens 5" "--max-concurrent 16 --max-batch-tokens 32" "--speculate 4" "--prefix-cache=false"; do
        # shellcheck disable=SC2086 # words
        now=$("$dir/bin/sluice-worker" generate "$dir/tests/golden/tiny/$1.gguf" "$prompt" --raw --ids --max-tokens $n --temperature 0 \
            --devices cuda:0 --kv-tokens 2048 $words) || return 1
        [ -n "$first" ] || first=$now
        if [ -z "$now" ] || [ "$now" != "$first" ]; then
            echo "with \"$words\": $now" | tr '\n' ' '
            echo "without: $first" | tr '\n' ' '
            return 1
        fi
    done
}

serve() {
    local format
    run_tests serve
    export dir
    export -f same_ids
    for format in q4_1 bf16 q8_0; do run "sluice-worker generate, $format" 100 bash -c 'same_ids "$0"' $format; done
    run "sluice-worker bench" 100 "$dir/bin/sluice-worker" bench "$dir/tests/golden/tiny/q8_0.gguf" --devices cuda:0 --prompt 16 \
        --generate 4 --repetitions 1 --text
}

bench() {
    local scratch="${TMPDIR:-/tmp}" small=() shown by
    # `timeout` runs no shell functions, so this is a command: it also appends standard output to the section.
    shown=(bash -o pipefail -c '"$@" | tee -a "$0"' "$section")
    if [ -n "$emulated" ]; then small=(--small); fi
    # Runs the bench in parts, the most requested first. All parts share the time of the stage; a part that fails or
    # takes long leaves the others their time.
    bench_part "the 8B shape" 110 --parts models
    bench_part "kernels" 70 --parts linears,rows,attention,sampler
    between "$scratch/between.$$.gguf" "${small[@]}"
    beside
    for by in own cublaslt wgmma; do # products of prompts
        if [ $by = wgmma ] && lacks_wgmma; then continue; fi
        if [ $by = cublaslt ] && [ -z "$cublaslt" ]; then continue; fi
        export SLUICE_CUDA_PROMPTS=$by
        bench_part "prompts by $by" 28 --parts paths,models --models bf16
    done
    unset SLUICE_CUDA_PROMPTS
    bench_part "packing and loads" 60 --parts pack,load
}

# bench_part NAME SECONDS OPTIONS...: bench_cuda, in bench()'s words.
bench_part() {
    local name=$1 seconds=$2
    shift 2
    printf '\n### %s\n\n' "${name^}" >>"$section"
    run "bench, $name" "$seconds" "${shown[@]}" "$dir/bin/bench_cuda" "${small[@]}" "$@" --directory "$scratch"
}

beside() {
    printf '\n### Transformers\n\n' >>"$section"
    if ! command -v python3 >/dev/null; then
        say "skip  transformers: no python3 here"
    elif ! python3 -c 'import torch, transformers' 2>/dev/null; then
        say "skip  transformers: Python here has no torch and transformers"
    elif [ -n "$emulated" ]; then
        say "skip  transformers: no emulated GPU is theirs"
    else
        run "transformers on the same card" 100 "${shown[@]}" python3 "$here/bench_transformers.py"
    fi
}

# Measures how long the device waits for the host between steps: a tiny model, then the 8B shape. Other arguments are
# options of bench_cuda.
between() {
    local big=$1 tokens=(64 128) shown
    shift
    shown=(bash -o pipefail -c '"$@" | sed "s/^/    /" | tee -a "$0"' "$section")
    if [ -n "$emulated" ]; then tokens=(2 4); fi
    printf '\n### Host time between steps (at most 30 us is the goal)\n\nA tiny model, then the 8B shape:\n\n' >>"$section"
    run "between steps, tiny" 15 "${shown[@]}" "$dir/bin/bench_between" "$dir/tests/golden/tiny/q4_1.gguf" cuda:0 "${tokens[@]}"
    if "$dir/bin/bench_cuda" "$@" --write q8_0 "$big"; then
        run "between steps, 8B" 40 "${shown[@]}" "$dir/bin/bench_between" "$big" cuda:0 "${tokens[@]}"
    else
        say "FAIL  between steps, 8B: no model file"
        failed=1
    fi
    rm -f "$big"
}

# --- the session ---

# Prints the lines of a table; from a file if a variable names one.
changed() {
    if [ -n "${SLUICE_GPU_CHANGED:-}" ]; then grep -vE '^ *(#|$)' "$SLUICE_GPU_CHANGED"; else programs; fi
}
choices() {
    if [ -n "${SLUICE_GPU_SWITCHES:-}" ]; then grep -vE '^ *(#|$)' "$SLUICE_GPU_SWITCHES"; else switches; fi
}

# part_NAME: what a part does, in a process of its own. Its output is the part's log. The part's limit does not reach
# programs that timeout or run() starts, so these end at stage_end.

part_card() {
    local scratch="${TMPDIR:-/tmp}"
    card name,driver_version,memory.total,pstate,clocks.max.sm,clocks.max.memory,power.limit,temperature.gpu,ecc.mode.current,mig.mode.current
    echo "commit $(cat "$dir/COMMIT" 2>/dev/null), $(nproc) processors, kernel $(uname -r), $(df -h "$scratch" | awk 'END { print $4 }') free in $scratch"
    if command -v nvcc >/dev/null; then nvcc --version | tail -n 2 | head -n 1; fi
    if ! command -v ncu >/dev/null; then
        echo "counters: no ncu on this machine"
    elif timeout 9 ncu --clock-control none --metrics sm__cycles_elapsed.max -c 1 "$dir/bin/bench_cuda" --small --once \
        --no-ceilings --parts rows >"$scratch/ncu.$$" 2>&1 && grep sm__cycles_elapsed "$scratch/ncu.$$"; then
        echo "counters: ncu reads them"
    else
        echo "counters: ncu does not read them: $(grep -m 1 -E '==ERROR==|Error' "$scratch/ncu.$$" || tail -n 1 "$scratch/ncu.$$")"
    fi
    rm -f "$scratch/ncu.$$"
}

part_ceilings() {
    "$dir/bin/bench_cuda" "${small[@]}" --parts ceilings --ceilings "$SLUICE_GPU_CEILINGS" || failed=1
    if [ -n "$emulated" ]; then
        echo "torch: no emulated GPU is PyTorch's"
    elif ! command -v python3 >/dev/null; then
        echo "torch: no python3 here"
    else
        timeout $((stage_end - SECONDS)) python3 "$here/bench_ceilings.py" 2>&1 || echo "torch: ended with status $?"
    fi
}

part_bits() { "$dir/bin/test_gpu_bits" || failed=1; }

part_correctness() { run_tests session changed; }

part_switches() {
    local seconds name choice options left
    while read -r seconds name choice options; do
        echo "### $name"
        if [[ $choice == *@old* ]] && [ ! -x "$dir/old/bench" ]; then
            echo "skip  $name: the package has no older build"
            continue
        fi
        choice=${choice//@old/$dir/old/bench}
        left=$((stage_end - SECONDS))
        if [ -n "$emulated" ] || [ "$left" -lt "$seconds" ]; then seconds=$left; fi
        # shellcheck disable=SC2086 # options are words
        run "$name" "$seconds" "$dir/bin/bench_cuda" "${small[@]}" --ab "$choice" --most $((seconds - 2)) $options </dev/null
    done < <(choices)
}

part_models() {
    local variables format formats=(bf16 q4_k fp8 q8_0)
    variables=$(best_variables)
    if [ -n "$emulated" ]; then formats=(bf16); fi
    echo "with ${variables:-no variable}"
    for format in "${formats[@]}"; do # a process each: a kernel that fails ends its process
        # shellcheck disable=SC2086 # variables are words
        run "8B $format" $((stage_end - SECONDS)) env $variables "$dir/bin/bench_cuda" "${small[@]}" --parts models --models "$format" \
            --ceilings "$SLUICE_GPU_CEILINGS" --warm 300 --directory "${TMPDIR:-/tmp}"
    done
}

# racecheck reports accesses of the kernel attention_team that a common barrier separates. The tool also reports 20 lines that are right
# by inspection (docs/log/2026-11-27-gpu-h200.md). So racecheck leaves attention_team out.
part_sanitizer() {
    local tool variables skipped
    variables=$(best_variables)
    if ! command -v compute-sanitizer >/dev/null; then
        echo "skip  compute-sanitizer: not on this machine"
        return
    fi
    for tool in memcheck racecheck; do
        skipped=()
        if [ $tool = racecheck ]; then skipped=(--kernel-name-exclude kernel_substring=attention_team); fi
        # shellcheck disable=SC2086 # variables are words
        run "compute-sanitizer $tool" 20 env $variables compute-sanitizer --tool $tool "${skipped[@]}" --error-exitcode 9 "$dir/bin/bench_cuda" \
            --small --once --no-ceilings --parts linears,attention,rows --directory "${TMPDIR:-/tmp}"
    done
}

# The card's clocks, power, temperature and reasons to be slower, five times a second, into FILE.
samples=""
start_samples() {
    local reasons
    : >"$1"
    command -v nvidia-smi >/dev/null || return 0
    for reasons in clocks_event_reasons.active clocks_throttle_reasons.active; do
        if nvidia-smi --query-gpu=$reasons --format=csv,noheader >/dev/null 2>&1; then break; fi
    done
    stdbuf -oL nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu,$reasons --format=csv,noheader,nounits \
        -lms 200 >"$1" 2>/dev/null &
    samples=$!
}

stop_samples() {
    if [ -n "$samples" ]; then kill "$samples" && wait "$samples"; fi 2>/dev/null
    samples=""
}

# column FILE NUMBER: prints "median (least to most)" of a column, without samples of an idle card.
column() {
    grep -vE '0x0*1 *$' "$1" | cut -d, -f"$2" | tr -d ' ' | grep -E '^[0-9.]+$' | sort -n | awk '
        { v[NR] = $1 }
        END { if (NR) printf "%.0f (%.0f to %.0f)", v[int((NR + 1) / 2)], v[1], v[NR]; else printf "-" }'
}

# Reasons to be slower, with how many samples had them.
reasons_of() {
    local count mask bit names text=""
    while read -r count mask; do
        names=""
        [[ $mask =~ ^0x[0-9a-fA-F]+$ ]] || continue
        for bit in 4:power_cap 8:slowdown 32:thermal 64:thermal_slowdown 128:power_brake; do
            if ((mask & ${bit%%:*})); then names+="${names:+ }${bit##*:}"; fi
        done
        if [ -n "$names" ]; then text+="${text:+; }$names in $count"; fi
    done < <(cut -d, -f5 "$1" | tr -d ' ' | sort | uniq -c)
    echo "${text:-none} of $(wc -l <"$1")"
}

# Prints the lines of a part's log that go into the table: at most $3 characters a line, $4 in all.
essentials() {
    case $1 in
    card | ceilings) grep -vE '^$|^samples|^[0-9]+, [0-9]+, ' "$2" ;;
    bits) grep -E '^bits|FAILED|error:' "$2" | sed 's/^bits  //' ;;
    correctness) # failures first
        grep -E '^FAIL |: error: |^ERROR|^\[  FAILED' "$2"
        grep -E '^(ok|skip) ' "$2" | sed 's/SLUICE_//g' | cut -c1-80
        ;;
    switches) grep -E '^(FAIL|skip|SLUICE|###|\| [^-])|^bench_cuda' "$2" | grep -v '^| call' | sed 's/; ratio a.*//' ;;
    models) grep -E '^(\||with|A step|bench_cuda|FAIL)' "$2" | sed 's/ts=20.*//' | awk '!seen[$0]++' ;;
    sanitizer) grep -E '^(ok|FAIL|skip) |SUMMARY|^========= (Invalid|Error|Race)' "$2" ;;
    esac | cut -c1-"$3" | head -c "$4"
}

room() {
    case $1 in
    bits) echo 110 3600 ;;
    switches) echo 150 3000 ;;
    models) echo 170 1400 ;;
    ceilings) echo 230 1300 ;;
    correctness) echo 120 2000 ;;
    *) echo 150 500 ;;
    esac
}

run_part() {
    local number=$1 seconds=$2 name=$3 left=$((stage_end - SECONDS)) log began=$SECONDS rc state=ok
    log=${results%/*}/$number-$name.txt
    if [ -n "$emulated" ]; then seconds=$stage_s; fi
    if [ "$left" -lt "$seconds" ]; then seconds=$left; fi
    if [ "$seconds" -lt 3 ]; then
        echo "| $name | 0 | not run, no time left | | | | | |" >>"$table"
        failed=1
        return
    fi
    start_samples "$table.samples"
    timeout -k 3 "$seconds" bash "$0" "part_$name" "$dir" "$seconds" >"$log" 2>&1 </dev/null
    rc=$?
    stop_samples
    if [ $rc -eq 124 ] || [ $rc -eq 137 ]; then state="ended by its limit"; elif [ $rc -ne 0 ]; then state="FAIL, status $rc"; fi
    if [ "$state" != ok ]; then failed=1; fi
    echo "| $name | $((SECONDS - began)) | $state | $(column "$table.samples" 1) | $(column "$table.samples" 2) | $(
        column "$table.samples" 3
    ) | $(column "$table.samples" 4) | $(reasons_of "$table.samples") |" >>"$table"
    { echo && echo "samples of the card: SM MHz, memory MHz, W, C, reasons" && cat "$table.samples"; } >>"$log"
    echo "part $number, $name: $state, $((SECONDS - began)) s"
}

print_table() {
    local number seconds name log
    echo "| part | s | state | SM MHz | memory MHz | W | C | slower because |"
    echo "| --- | --- | --- | --- | --- | --- | --- | --- |"
    cat "$table"
    while read -r number seconds name; do
        log=${results%/*}/$number-$name.txt
        if [ -e "$log" ] && grep -F "| $name |" "$table" >/dev/null; then
            printf '\n### %s\n\n' "$name"
            # shellcheck disable=SC2046 # two numbers
            essentials "$name" "$log" $(room "$name")
        fi
    done < <(session_parts)
    echo
}

session() {
    local number seconds name
    table=$(mktemp) || exit 1
    export SLUICE_GPU_CEILINGS=$table.ceilings # written by the part that measures the card's limits, or by the first part that needs these
    stage_end=$((SECONDS + ${SLUICE_GPU_SESSION_S:-420}))
    while read -r number seconds name; do
        if [[ " ${SLUICE_GPU_SESSION_PARTS:-1 2 3 4 5 6 7} " == *" $number "* ]]; then run_part "$number" "$seconds" "$name"; fi
    done < <(session_parts)
    print_table | tee -a "$section"
    rm -f "$table" "$table.samples" "$SLUICE_GPU_CEILINGS"
}

# run_stage NAME LATEST: runs a stage until second LATEST of the script at most.
run_stage() {
    stage_end=$((SECONDS + stage_s))
    if [ "$stage_end" -gt "$2" ]; then stage_end=$2; fi
    begin_section "$1"
    "$1"
    end_section
    echo "$1: written to $results"
}

small=()
if [ -n "$emulated" ]; then small=(--small); fi
case $stage in
package) package; exit ;;
programs) programs; exit ;;
switches) choices; exit ;;
join) shift; join "$@"; exit ;;
part_*) # a part of session: DIR SECONDS
    session_parts | awk -v name="${stage#part_}" '$3 == name { found = 1 } END { exit !found }' || usage
    prepare
    stage_end=$((SECONDS + ${3:-60}))
    export SLUICE_GPU_CEILINGS=${SLUICE_GPU_CEILINGS:-$(mktemp -u)}
    "$stage"
    exit $failed
    ;;
ops | model | memory | faults | serve | bench | profile | session | all) ;;
*) usage ;;
esac
prepare
open_results
end_tests() {
    local job
    for job in $(jobs -p); do pkill -P "$job"; kill "$job"; done 2>/dev/null
}
trap 'end_tests; end_section' EXIT
if [ "$stage" = all ]; then
    for name in ops model memory faults serve; do run_stage $name $((all_s - stage_s)); done # the bench has its time
    run_stage bench "$all_s"
else
    run_stage "$stage" $((SECONDS + stage_s))
fi
exit $failed
