#!/usr/bin/env bash
# Tests run.sh without a GPU: its package out of a build, and stages of the package on the emulated GPU. Also tests the
# messages of a stage that exceeds its time or lacks programs.
#
#   tests/gpu/emulated.sh BUILD STAGE...
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
shift
dir=$build/gpu-emulated
export SLUICE_TEST_EMULATED_GPU=1 SLUICE_TEST_JOBS=${SLUICE_TEST_JOBS:-6} SLUICE_CUDA_MODULE=$build/simt/libsluice_cuda_simt.so SLUICE_CUDA_LIBRARY_PATH=$build/simt/lt
export SLUICE_GPU_PROBE=$build/simt/libgpu_probe_simt.so
export SLUICE_GPU_STAGE_S=${SLUICE_GPU_STAGE_S:-1800} SLUICE_GPU_ALL_S=${SLUICE_GPU_ALL_S:-7200} OUT=$dir/out TMPDIR=$dir
unset LD_LIBRARY_PATH SLUICE_TEST_FILTER
[[ " $* " != *" session "* ]] || rm -rf "$OUT" # a session's files are all
SLUICE_GPU_BUILD=$build "$here/run.sh" package "$dir" >/dev/null || exit 1
cd / || exit 1
# The session is short here: two tests, two choices of which one does not exist, and a card that is a script.
make_session() {
    mkdir -p "$dir/fake"
    printf '%s\n' 'session 60 test_gpu_cuda_device *memory_is_counted*' 'session 60 test_gpu_bits *widened*' >"$dir/changed"
    printf '%s\n' '60 products SLUICE_CUDA_PROMPTS=own,wgmma --parts linears --formats bf16 --rows 8,2048' \
        '60 broken SLUICE_CUDA_PROMPTS=own,nonsense --parts linears --formats bf16 --rows 8' >"$dir/switches"
    cat >"$dir/fake/nvidia-smi" <<'EOF'
#!/bin/sh
case "$*" in
*-lms*) while sleep 0.1; do echo "1980, 2619, 650.1, 61, 0x0000000000000004"; done ;;
*compute_cap*) echo 9.0 ;;
*) echo "fake card" ;;
esac
EOF
    chmod +x "$dir/fake/nvidia-smi"
    export SLUICE_GPU_CHANGED=$dir/changed SLUICE_GPU_SWITCHES=$dir/switches PATH=$dir/fake:$PATH SLUICE_GPU_SESSION_S=3600
}
check_session() {
    "$dir/run.sh" session >"$dir/session" && { echo "a session with a broken choice passed" && exit 1; }
    local name
    for name in card ceilings bits correctness models sanitizer; do
        grep "^| $name | [0-9]* | ok |" "$dir/session" >/dev/null || { echo "no good line of $name" && cat "$dir/session" && exit 1; }
    done
    grep "^| models | .* | 1980 (1980 to 1980) | 2619 .* power_cap in" "$dir/session" >/dev/null || { echo "no samples" && exit 1; }
    grep '^| switches | .* FAIL' "$dir/session" >/dev/null || { echo "the broken choice is no failure" && exit 1; }
    grep '^| linear bf16, 2048 rows | [0-9.]* | [0-9.]* | [0-9.]* (' "$dir/session" >/dev/null || { echo "no ratio" && exit 1; }
    grep '^bf16: wgmma SS, .* equal: yes' "$dir/session" >/dev/null || { echo "no answer about bits" && exit 1; }
    [ "$(wc -c <"$dir/session")" -lt 12000 ] || { echo "the table is too long to be seen whole" && exit 1; }
    [ "$(find "$OUT" -type f | wc -l)" -le 8 ] || { echo "more than 8 files" && exit 1; }
}
for stage in "$@"; do
    if [ "$stage" = session ]; then make_session && check_session; else "$dir/run.sh" "$stage" || exit 1; fi
done
# A section for each stage, in the stages' order, that tells what was run; one that runs again replaces its own.
wanted=$(for stage in ops model memory faults serve bench session; do [[ " $* " == *" all "* && $stage != session || " $* " == *" $stage "* ]] && echo "## $stage"; done)
[ "$(grep '^## ' "$OUT/RESULTS.md")" = "$wanted" ] || { echo "RESULTS.md has other sections than $wanted" && exit 1; }
[ "$*" = session ] || grep -q '^- ok ' "$OUT/RESULTS.md" || exit 1
grep -q "Commit: $(cat "$dir/COMMIT")" "$OUT/RESULTS.md" || exit 1
[ "$("$dir/run.sh" join "$OUT/RESULTS.md" "$OUT/RESULTS.md")" = "$(cat "$OUT/RESULTS.md")" ] || { echo "join changes it" && exit 1; }
tar -tzf "$dir.tar.gz" ./run.sh ./bin/sluice-worker ./COMMIT >/dev/null || exit 1
if SLUICE_GPU_STAGE_S=0 "$dir/run.sh" faults >"$dir/over"; then echo "a stage without time passed" && exit 1; fi
grep -q "FAIL .*not run, the stage's time is over" "$dir/over" || exit 1
grep -q "FAIL .*not run, the stage's time is over" "$OUT/RESULTS.md" || { echo "RESULTS.md does not tell of it" && exit 1; }
mv "$dir/bin/test_gpu_cuda_fault" "$dir/bin/away"
if "$dir/run.sh" faults >"$dir/lacks" 2>&1; then echo "a stage without a program passed" && exit 1; fi
grep -q "FAIL  test_gpu_cuda_fault" "$dir/lacks" || exit 1
mv "$dir/bin/away" "$dir/bin/test_gpu_cuda_fault"
[ "$(grep -c '^## faults$' "$OUT/RESULTS.md")" -eq 1 ] || { echo "RESULTS.md has a stage twice" && exit 1; }
