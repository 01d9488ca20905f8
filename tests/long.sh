#!/usr/bin/env bash
# Long tests: they take longer than every commit can wait for. Each part takes at most 60 minutes. Run them before an
# issue is resolved; results go to docs/log.
#
#   tests/long.sh PART...      sim tidy sanitizers tsan fuzz accuracy simt load plumbing faults store malloc package quickstart
#                              clients tokenizers models models-random states bench page peers shapes, or all
set -uo pipefail
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"; }
case ${1:-} in
"") usage >&2; exit 2 ;;
-h | --help) usage; exit ;;
esac
cd "$(dirname "$0")/.."
root=$PWD
failed=0
passed=0
run() {
    local name=$1
    shift
    echo "== $name"
    local started=$SECONDS
    if "$@"; then passed=$((passed + 1)); echo "== ok $name ($((SECONDS - started)) s)"; else failed=$((failed + 1)); echo "== FAIL $name ($((SECONDS - started)) s)"; fi
}

model=$(etc/fetch_model.sh | tail -n 1)
export SLUICE_MODEL=$model SLUICE_TEST_MODEL=$model
if [ -x /usr/local/cuda/bin/nvcc ]; then export PATH=$PATH:/usr/local/cuda/bin; fi
etc/install_deps.sh test && tests/support/venv.sh build/venv || exit 1
pytest() { # a short base folder, because the paths of its sockets have at most 107 bytes
    local base rc=0
    base=$(mktemp -d /tmp/sl.XXXX)
    build/venv/bin/python -m pytest -q -p no:cacheprovider --basetemp "$base/t" "$@" || rc=$?
    rm -rf "$base"
    return $rc
}
build() { cmake --preset "$1" >/dev/null && cmake --build "build/$1" -- --quiet; }

part_sim() { # histories of the manager's core, a million, half of them on each of two processors; SLUICE_SIM_SEED: of the first
    local first=${SLUICE_SIM_SEED:-$((RANDOM * 100000000))}
    run "build dev" build dev
    build/dev/bin/sluice_sim --seed $((first + 50000000)) --histories 500000 >build/sim-2.log 2>&1 &
    local other=$!
    run "half a million histories from seed $first" build/dev/bin/sluice_sim --seed "$first" --histories 500000
    run "half a million more" wait $other
    cat build/sim-2.log
    run "lines of the manager's objects that histories reach" tests/sim/coverage.sh 8000 "$first"
}

part_tidy() { # clang-tidy with the analyzer at its default depth
    run "build dev" build dev
    run "clang-tidy" tests/lint/tidy.sh build/dev
}

# Address + undefined behaviour sanitizers over every unit test and every end-to-end test. Every fourth case of the
# kernels' grids runs, and every sixteenth on the emulated GPU. Whole grids take hours under the sanitizers; `accuracy`
# and `simt` run them whole.
part_sanitizers() {
    run "configure asan" cmake --preset asan -DSLUICE_PLAIN_KERNELS=OFF -DSLUICE_SIMT=ON
    run "build asan" build asan
    SLUICE_TEST_STEP=4 run "unit tests under ASan + UBSan" ctest --test-dir build/asan --output-on-failure --timeout 1500 -j 3 \
        -LE "model|accuracy|simt"
    # The leak sanitizer cannot read the thread-local storage of modules that the emulator loads.
    LSAN_OPTIONS=use_tls=0:print_suppressions=0 SLUICE_TEST_STEP=16 run "the CUDA backend in the emulated GPU under ASan + UBSan" \
        ctest --test-dir build/asan --output-on-failure --timeout 1500 -j 2 -L simt
    run "configure asan for whole programs" cmake --preset asan -DSLUICE_PLAIN_KERNELS=ON
    run "build asan for whole programs" build asan
    run "unit tests with the sample model under ASan + UBSan" ctest --test-dir build/asan --output-on-failure --timeout 1500 -j 2 \
        -L "model|accuracy"
    # A program that a report ended is started again, and its streams continue. So reports go to files, and any file
    # fails the part.
    local reports=$root/build/asan-reports
    rm -rf "$reports" && mkdir -p "$reports"
    LSAN_OPTIONS="suppressions=$root/tests/lsan.supp:print_suppressions=0" SLUICE_BIN=$root/build/asan/bin SLUICE_TIME_SCALE=2 \
        ASAN_OPTIONS="log_path=$reports/r" UBSAN_OPTIONS="log_path=$reports/r:print_stacktrace=1" \
        run "end to end under ASan + UBSan" pytest -rs -n 2 --dist loadfile --durations=15 tests/e2e
    run "no report of ASan or UBSan" no_files "$reports"
}

part_tsan() { # threads: runtime, thread pool, collectives, engine, and the programs together
    run "configure tsan" cmake --preset tsan -DSLUICE_PLAIN_KERNELS=OFF
    run "build tsan" build tsan
    TSAN_OPTIONS="suppressions=$root/tests/tsan.supp history_size=4" run "unit tests under TSan" \
        ctest --test-dir build/tsan --output-on-failure --timeout 1500 -R 'test_(rpc|kernels_(thread|comm)|engine_(engine|scheduler|executor|rank)|manager|worker|gateway|http|base_metrics)' -LE 'model|accuracy'
    run "configure tsan for whole programs" cmake --preset tsan -DSLUICE_PLAIN_KERNELS=ON
    run "build tsan for whole programs" build tsan
    # A program with a report and one without look the same from outside. So each program with a report ends with 66 and
    # leaves its report in a file. The test of failing allocations states why it is skipped: the sanitizer has its own
    # allocator. Tests of resident bytes leave the sanitizer's bytes out. All tests wait longer (SLUICE_TIME_SCALE,
    # tests/e2e/conftest.py).
    local reports=$root/build/tsan-reports
    rm -rf "$reports" && mkdir -p "$reports"
    # The sanitizer writes a file to TMPDIR when a program starts. A one-shot worker may write no file and would end. So
    # TMPDIR does not exist.
    SLUICE_BIN=$root/build/tsan/bin SLUICE_TIME_SCALE=5 TMPDIR=/nonexistent \
        TSAN_OPTIONS="suppressions=$root/tests/tsan.supp history_size=4 log_path=$reports/r" \
        run "end to end under TSan" pytest -rs -n 2 --dist loadfile --durations=15 tests/e2e
    run "no report of TSan" no_files "$reports"
}

# fails if there is a report, and prints the reports. A process killed at the start of a report leaves an empty file.
no_files() {
    [ -z "$(find "$1" -type f -size +0)" ] || { head -n 60 "$1"/*; return 1; }
}

part_fuzz() { # ≥ 60 s and ≥ 10⁵ runs each; then a planted bug must be found
    run "configure fuzz" cmake --preset fuzz -DSLUICE_TESTS=OFF
    run "build fuzz" cmake --build build/fuzz --target fuzzers -- --quiet
    local target
    for target in build/fuzz/bin/fuzz_*; do run "$(basename "$target")" tests/fuzz/run_one.sh "$target" 60 100000; done
    run "planted bug" tests/fuzz/seeded_bug.sh
}

part_accuracy() { # logits, perplexity, KL and greedy agreement on the sample model; every case of the kernels' grids
    run "build dev" build dev
    run "kernels, whole grids" ctest --test-dir build/dev --output-on-failure --timeout 1500 -j 2 -R test_kernels -LE "simt|model|accuracy"
    run "accuracy" build/dev/bin/accuracy
    run "engine on the sample model" ctest --test-dir build/dev --output-on-failure -L model
}

part_simt() { # the CUDA backend for every architecture; its tests on the emulated GPU with threads in several orders
    run "configure all architectures" cmake --preset dev -DSLUICE_CUDA=REQUIRED "-DCMAKE_CUDA_ARCHITECTURES=80-real;89-real;90a-real;90-virtual"
    run "build all architectures" cmake --build build/dev -- --quiet
    run "what the compiler made of the kernels" tests/lint/ptxas.sh build/dev
    local order
    for order in 1 2 3; do SIMT_SHUFFLE=$order run "kernels and models, order $order" ctest --test-dir build/dev --output-on-failure --timeout 1500 -j 2 -L simt; done
    SIMT_COMPUTE=80 run "kernels on compute capability 8.0" ctest --test-dir build/dev --output-on-failure --timeout 1500 -j 2 -L simt -R "cuda_(dense|quant|device)"
    SLUICE_TEST_SEED=$RANDOM run "kernels with other numbers" ctest --test-dir build/dev --output-on-failure --timeout 1500 -j 2 -L simt -R "cuda_(ops|dense|quant|attention|device)"
    SLUICE_TEST_STEP=50 run "what a machine with a GPU runs" tests/gpu/emulated.sh build/dev all
    run "the package for it, at most 48 MiB" tests/gpu/run.sh package
    SLUICE_CUDA_MODULE=$root/build/dev/simt/libsluice_cuda_simt.so SIMT_DEVICE_BYTES=1073741824 run "the whole of it, as on a machine with a GPU" \
        python3 tests/gpu/plane.py --bin build/dev/bin --model tests/golden/tiny/q4_1.gguf --memory 256M --streams 8 --cycles 3 --tokens 128
    SLUICE_BIN=$root/build/dev/bin SIMT_SHUFFLE=4 run "served, in another order" pytest tests/e2e/gpu/test_gpu.py tests/e2e/gpu/test_devices.py
}

part_load() { # real timers and load over the real programs
    run "build dev" build dev
    export SLUICE_BIN=$root/build/dev/bin SLUICE_LONG=1
    for round in 1 2 3 4 5; do run "faults, round $round" pytest tests/e2e/faults/test_faults.py; done
    run "load" pytest -s tests/e2e/long/long_load.py
    run "plans; loads and unloads; a memory cgroup" pytest tests/e2e/control/test_plan.py tests/e2e/control/test_memory_limit.py
}

other_long() { # the tests marked "long" of files that part_faults and part_malloc do not run whole; there may be none
    local rc=0
    pytest -m long tests/e2e --ignore tests/e2e/control/test_traffic.py --ignore-glob "*/faults/test_fault_*.py" \
        --ignore-glob "*/faults/test_malloc*.py" --ignore tests/e2e/api/test_wire.py --ignore tests/e2e/faults/test_resume.py \
        --ignore tests/e2e/faults/test_seeded_bugs.py || rc=$?
    [ $rc -eq 5 ] || return $rc # no test was collected
}

part_faults() { # the fault suite with real timers and load L of 32 streams, invariants checked; every kind of request outlives its worker
    run "build dev" build dev
    SLUICE_BIN=$root/build/dev/bin SLUICE_LONG=1 run "traffic, updates" pytest -s tests/e2e/control/test_traffic.py
    SLUICE_BIN=$root/build/dev/bin SLUICE_LONG=1 run "fault suite" pytest -s tests/e2e/faults/test_fault_suite.py tests/e2e/faults/test_fault_clients.py
    SLUICE_BIN=$root/build/dev/bin SLUICE_LONG=1 run "faults of the control plane" pytest -s tests/e2e/faults/test_fault_control.py tests/e2e/faults/test_fault_manager.py tests/e2e/faults/test_fault_beside.py
    SLUICE_BIN=$root/build/dev/bin SLUICE_LONG=1 run "clients on raw sockets" pytest -s tests/e2e/api/test_wire.py
    local round
    for round in 1 2 3; do SLUICE_BIN=$root/build/dev/bin SLUICE_LONG=1 run "resumes, round $round" pytest tests/e2e/faults/test_resume.py; done
    SLUICE_BIN=$root/build/dev/bin SLUICE_LONG=1 run "planted bugs" pytest tests/e2e/faults/test_seeded_bugs.py
    SLUICE_BIN=$root/build/dev/bin SLUICE_LONG=1 run "other tests marked long" other_long
}

part_store() { # the state database on a disk that fails at every step, and 2,000 power cuts; another seed each time, which is printed
    run "build dev" build dev
    local seed=${SLUICE_SEED:-$RANDOM$RANDOM}
    SLUICE_CUTS=2000 SLUICE_SEED=$seed run "failures and power cuts, seed $seed" build/dev/bin/test_manager_store_faults
    run "planted bugs" ctest --test-dir build/dev --output-on-failure -R test_manager_store_faults_sees
    SLUICE_BIN=$root/build/dev/bin run "the file" pytest tests/e2e/control/test_state_file.py
}

part_malloc() { # every allocation of every call of server, worker and manager fails once; the tests wait more than they work
    run "build dev" build dev
    SLUICE_BIN=$root/build/dev/bin SLUICE_LONG=1 run "failed allocations" pytest -rA -n 4 --dist load tests/e2e/faults/test_malloc.py tests/e2e/faults/test_malloc_worker.py
}

part_plumbing() { # 1,000 streams × 20 tokens/s for ten minutes, 10,000 idle ones, as users run it
    run "configure release" cmake --preset release -DSLUICE_TESTS=ON
    run "build release" cmake --build build/release -- --quiet
    SLUICE_BIN=$root/build/release/bin run "plumbing" pytest -s tests/e2e/long/long_plumbing.py
}

# The Debian package: installed and removed (as root), also with systemd as PID 1. The static release, and TLS with its
# own libssl.
part_package() {
    run "configure release" cmake --preset release
    run "build release" cmake --build build/release -- --quiet
    run "Debian package" tests/e2e/package.sh build/release
    run "its units, with systemd as PID 1" tests/e2e/systemd.sh build/release
    run "build static" build static
    run "static release" tests/e2e/static.sh build/static
    SLUICE_BIN=$root/build/static/bin run "static release, end to end" pytest tests/e2e/api/test_tls.py tests/e2e/api/test_smoke.py
}

part_quickstart() { # README's first command from nothing but the tree, as on a machine without a CUDA compiler, then with the one that is here
    CUDACXX=/bin/false run "quickstart without a CUDA compiler" tests/e2e/quickstart.sh
    run "quickstart" tests/e2e/quickstart.sh
}

part_clients() { # langchain, llama-index, litellm, guidellm, aiperf and lm-eval against a running server
    run "build dev" build dev
    run "packages of the clients" tests/support/clients_venv.sh build/clients-venv
    SLUICE_BIN=$root/build/dev/bin run "clients of OpenAI's API" pytest -rs tests/e2e/long/long_clients.py
}

part_tokenizers() { # ids and texts of 65 tokenizers on 2,000 strings each, by tokenizers, sentencepiece, tiktoken, mistral-common
    run "build dev" build dev
    run "tokenizers" tests/golden/regen.sh --tokenizers "$root/build/dev/bin/tokenizer_ids"
}

part_models() { # real models through the whole stack: answers, perplexity beside llama.cpp, greedy tokens of transformers
    run "configure release" cmake --preset release -DSLUICE_TESTS=ON
    run "build release" cmake --build build/release -- --quiet
    run "real models" build/venv/bin/python tests/models/fetch.py
    run "packages of the reference" tests/golden/regen.sh --venv
    run "llama.cpp" tests/bench/peers/llama_cpp.sh
    SLUICE_BIN=$root/build/release/bin run "real models, served" pytest -s tests/e2e/long/long_models.py
}

# Random models of each family, with every option of the config class changed, against transformers. The seeds are printed;
# SLUICE_SEED is the first.
part_models-random() {
    run "build dev" build dev
    local first=${SLUICE_SEED:-$RANDOM} round
    for round in 0 1 2 3 4; do
        run "random models, seed $((first + round))" tests/golden/regen.sh --models "$root/build/dev/bin/model_logits" --all --seed $((first + round))
    done
}

# Recurrent layers under fire: 5,000 random schedules on real models, and 100,000 on an oracle of states.
part_states() {
    run "build dev" build dev
    SLUICE_SCHEDULES=5000 SLUICE_SEED=${SLUICE_SEED:-$RANDOM} run "answers under fire" build/dev/bin/test_engine_engine_fire
    SLUICE_SCHEDULES=100000 run "slots of states" build/dev/bin/test_engine_scheduler_states
}

part_bench() { # figures for docs/log
    run "build release" build release
    run "release benches" cmake --preset release -DSLUICE_TESTS=ON
    run "build benches" cmake --build build/release -- --quiet
    run "kernels" build/release/bin/bench_kernels
    run "engine" build/release/bin/bench_engine
}

part_page() { # the page of GET / in headless Chromium; look at the pictures
    run "build dev" build dev
    run "Chromium" etc/install_deps.sh browser
    SLUICE_BIN=$root/build/dev/bin SLUICE_SHOTS=$root/build/page-shots run "page" pytest tests/e2e/long/long_page.py
    echo "pictures: $root/build/page-shots"
}

part_peers() { # other engines on the same models, run in turn; the table for docs/log
    run "peers" tests/bench/peers.sh --json build/peers.json
}

part_shapes() { # other families beside llama.cpp, and the load of a folder beside that of a GGUF file; tables for docs/log
    run "peers, shapes of other families" tests/bench/peers.sh --models --json build/shapes.json
    run "loads of a folder and of a GGUF file" build/venv/bin/python tests/bench/load_time.py
}

parts=("$@")
[ "$1" = all ] && parts=(sim tidy sanitizers tsan fuzz accuracy simt load plumbing faults store malloc package quickstart clients tokenizers models models-random states bench page peers shapes)
for part in "${parts[@]}"; do
    declare -F "part_$part" >/dev/null || { echo "no part $part" >&2; exit 2; }
    started=$SECONDS
    "part_$part"
    echo "part $part: $((SECONDS - started)) s, commit $(git rev-parse --short HEAD), $(date -u +%F)"
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
