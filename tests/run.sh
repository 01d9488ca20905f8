#!/usr/bin/env bash
# Every test, with shortened timers: at most 18 minutes on 2 quiet cores. The script installs what is missing, builds,
# tests, and ends with `N passed, N failed`.
#
#   tests/run.sh            everything
#   tests/run.sh PART...    some parts: lint unit asan simt e2e
#
# A missing prerequisite fails the run, and so does a skipped test. Up to three tests that fail beside others run once more, alone.
# The end of the run names each of them: such a test has too little patience and must be mended.
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(lint unit asan simt e2e)
for part in "${parts[@]}"; do
    case $part in
    lint | unit | asan | simt | e2e) ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"; exit ;;
    *) echo "tests/run.sh: no part $part; the parts are lint unit asan simt e2e" >&2; exit 2 ;;
    esac
done
logs=$root/build/test-logs
mkdir -p "$logs"
passed=0
failed=0
again=() # tests that passed only in their second run
n_again=0
most_again=3
started=$SECONDS

say() { printf '[%4ds] %s\n' $((SECONDS - started)) "$*"; }

echo "parts: ${parts[*]}; all five take about 16 minutes on 2 cores, a third of it the build; logs: $logs; Ctrl-C ends the run"
trap 'say "interrupted: $passed passed, $failed failed so far"; exit 130' INT TERM

# check NAME COMMAND...: runs the command as one test.
check() {
    local name=$1 log=$logs/${1//[^A-Za-z0-9_.-]/_}.log
    shift
    if "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        say "ok    $name"
    else
        failed=$((failed + 1))
        say "FAIL  $name"
        tail -n 40 "$log" | sed 's/^/      /'
    fi
}

# must NAME COMMAND...: runs a prerequisite. If the prerequisite fails, the run ends.
must() {
    local name=$1 log=$logs/${1//[^A-Za-z0-9_.-]/_}.log
    shift
    say "      $name"
    if ! "$@" >"$log" 2>&1; then
        tail -n 60 "$log"
        say "FAIL  $name"
        echo "$passed passed, $((failed + 1)) failed"
        exit 1
    fi
}

# may_run_again LOG BAD: true if the BAD tests may have failed for lack of time. They are few, and no signal or
# sanitizer ended them.
may_run_again() {
    [ "$2" -ge 1 ] && [ $((n_again + $2)) -le $most_again ] && ! grep -qE '\*\*\*(Exception|Not Run|Skipped)|Sanitizer:|runtime error:' "$1"
}

# count_ctest NAME DIR ARGS...: runs ctest and counts each of its tests.
count_ctest() {
    local name=$1 dir=$2 log=$logs/${1//[^A-Za-z0-9_.-]/_}.log
    local bad_line='\*\*\*(Failed|Timeout|Exception|Not Run|Skipped)'
    shift 2
    ctest --test-dir "$dir" --output-on-failure --no-tests=error "$@" >"$log" 2>&1
    local rc=$? bad good names
    bad=$(grep -cE "$bad_line" "$log")
    good=$(grep -cE ' Passed +[0-9.]+ sec' "$log")
    if [ $rc -ne 0 ] && may_run_again "$log" "$bad"; then
        tail -n 80 "$log" | sed 's/^/      /'
        names=$(sed -nE "/$bad_line/s/^.*Test +#[0-9]+: ([^ ]+).*\$/\\1/p" "$log" | paste -sd ' ')
        say "again $name: $names"
        n_again=$((n_again + bad))
        log=$log.again
        ctest --test-dir "$dir" --output-on-failure --no-tests=error --rerun-failed >"$log" 2>&1
        rc=$?
        good=$((good + bad))
        bad=$(grep -cE "$bad_line" "$log")
        good=$((good - bad))
        if [ $rc -eq 0 ]; then again+=("$names"); fi
    fi
    passed=$((passed + good))
    failed=$((failed + bad))
    if [ $rc -ne 0 ] && [ "$bad" -eq 0 ]; then failed=$((failed + 1)); fi
    say "$([ $rc -eq 0 ] && echo ok || echo FAIL)    $name: $good passed, $bad failed"
    if [ $rc -ne 0 ]; then tail -n 80 "$log" | sed 's/^/      /'; fi
}

# run_pytest LOG ARGS...
run_pytest() {
    local log=$1 base rc
    shift
    base=$(mktemp -d /tmp/sl.XXXX) # short, because the paths of its sockets have at most 107 bytes
    build/venv/bin/python -m pytest -q -rfEs --durations=30 -p no:cacheprovider --basetemp "$base/t" "$@" >"$log" 2>&1
    rc=$?
    rm -rf "$base"
    return $rc
}

# count_in LOG WORDS: prints the sum of the counts that the last line of pytest gives for these words.
count_in() { tail -n 1 "$1" | grep -oE "[0-9]+ ($2)" | awk '{n += $1} END {print n + 0}'; }

# count_pytest NAME ARGS...
count_pytest() {
    local name=$1 log=$logs/${1//[^A-Za-z0-9_.-]/_}.log
    shift
    local rc good bad names
    run_pytest "$log" "$@"
    rc=$?
    good=$(count_in "$log" "passed")
    bad=$(count_in "$log" "failed|error|errors|skipped") # a skipped test proves nothing
    mapfile -t names < <(sed -nE '/^(FAILED|ERROR) /{s/^[A-Z]+ //; s/ - .*$//; p}' "$log" | sort -u)
    if [ $rc -ne 0 ] && [ ${#names[@]} -eq "$bad" ] && may_run_again "$log" "$bad"; then
        tail -n 120 "$log" | sed 's/^/      /'
        say "again $name: ${names[*]}"
        n_again=$((n_again + bad))
        log=$log.again
        run_pytest "$log" "${names[@]}"
        rc=$?
        good=$((good + $(count_in "$log" "passed")))
        bad=$(count_in "$log" "failed|error|errors|skipped")
        if [ $rc -eq 0 ]; then again+=("${names[@]}"); fi
    fi
    if [ "$bad" -gt 0 ]; then rc=1; fi
    passed=$((passed + good))
    failed=$((failed + bad))
    if [ $rc -ne 0 ] && [ "$bad" -eq 0 ]; then failed=$((failed + 1)); fi
    say "$([ $rc -eq 0 ] && echo ok || echo FAIL)    $name: $good passed, $bad failed"
    if [ $rc -ne 0 ]; then tail -n 120 "$log" | sed 's/^/      /'; fi
}

wants() {
    local p
    for p in "${parts[@]}"; do [ "$p" = "$1" ] && return 0; done
    return 1
}

must "install packages" etc/install_deps.sh test
must "sample model" etc/fetch_model.sh
model=$(tail -n 1 "$logs/sample_model.log")
export SLUICE_MODEL=$model SLUICE_TEST_MODEL=$model
must "python tools for tests" tests/support/venv.sh build/venv

if wants lint; then # checks that need no build
    check "lint: layers" tests/lint/layers.sh
    check "lint: promises" tests/lint/promises.sh
    check "lint: reasons" tests/lint/reasons.sh
    check "lint: banned functions" tests/lint/banned.sh
    check "lint: rooms" tests/lint/rooms.sh
    check "lint: plain words" tests/lint/words.sh
    check "lint: kernels wait for the ops before them" tests/lint/kernels.sh
    check "lint: clang-format" tests/lint/format.sh
    check "lint: buf" tests/lint/buf.sh
fi

# If there is a CUDA compiler, the run must use the compiler. The backend compiles and links in every such build, or the
# run fails.
if [ -x /usr/local/cuda/bin/nvcc ]; then export PATH=$PATH:/usr/local/cuda/bin; fi
cuda=AUTO
if [ -n "${CUDACXX:-}" ] || command -v nvcc >/dev/null; then cuda=REQUIRED; fi
# Hopper only: each of the four architectures takes more than a minute to compile. long.sh builds all.
export CUDAARCHS=90a-real
must "configure (dev)" cmake --preset dev -DSLUICE_CUDA=$cuda
must "configure (asan-shared)" cmake --preset asan-shared
check "lint: each test is in one set" tests/lint/sets.sh build/dev build/asan-shared
must "build (dev)" cmake --build build/dev --target run_targets
say "      $(grep -h 'CUDA backend' "$logs"/configure__dev_.log | sed 's/^-- //')"
emulated="" # without nvcc there is no emulated GPU, so its tests are deselected
if [ $cuda = AUTO ]; then
    emulated=" and not emulated"
    say "      NO nvcc here: the CUDA backend is neither compiled, nor held to what its kernels plan, nor run on the emulated GPU"
fi

if wants lint; then
    check "lint: systemd units" tests/lint/units.sh build/dev/bin
    check "lint: docs match the programs" tests/lint/docs.sh build/dev/bin
    # long.sh tidy checks the whole tree and lets the analyzer visit eleven times as many states.
    SLUICE_TIDY_NODES=20000 check "lint: clang-tidy" tests/lint/tidy.sh build/dev --changed
fi
# A unit test runs here or in the next part, never in both (tests/unit/CMakeLists.txt). Some tests wait more than they
# work, so one test more runs than there are processors. SLUICE_TEST_STEP selects every n-th case of the kernels' large
# grids; long.sh runs all.
if wants unit; then
    SLUICE_TEST_STEP=4 count_ctest "unit" build/dev -j $(($(nproc) + 1)) -L plain
fi
if wants asan; then
    must "build (asan-shared)" cmake --build build/asan-shared
    count_ctest "unit and fuzz corpora under ASan + UBSan" build/asan-shared -j $(($(nproc) + 1)) -L sanitized
    SLUICE_BIN=$root/build/asan-shared/bin count_pytest "smoke under ASan + UBSan" tests/e2e/api/test_smoke.py
fi
if wants simt && [ -z "$emulated" ]; then
    SLUICE_TEST_STEP=8 count_ctest "the CUDA backend on an emulated GPU" build/dev -j "$(nproc)" -L simt -LE long
fi
if wants e2e; then
    check "quickstart, with the programs of build/dev" tests/e2e/quickstart.sh build/dev
    # Most of these tests wait more than they work. So files run side by side, three per processor (SLUICE_TEST_WORKERS).
    # A test marked "alone" measures time or the machine and runs afterwards. The smoke tests have run under ASan.
    SLUICE_TEST_PIN=1 SLUICE_BIN=$root/build/dev/bin count_pytest "end to end, side by side" -n "${SLUICE_TEST_WORKERS:-$(($(nproc) * 3))}" --dist loadfile \
        --no-loadscope-reorder -m "not alone$emulated" --ignore tests/e2e/api/test_smoke.py tests/e2e
    SLUICE_BIN=$root/build/dev/bin count_pytest "end to end, alone" -m "alone$emulated" tests/e2e
fi

say "all parts done"
for name in "${again[@]}"; do say "AGAIN $name: failed at first, passed alone"; done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
