#!/usr/bin/env bash
# Which lines of the manager's objects the simulation reaches, file by file; fails where it is less than PERCENT of all of them.
#   tests/sim/coverage.sh [HISTORIES [SEED [PERCENT]]]
# A build of its own in build/coverage. Only what sluice_sim links counts: what stands below the seams (sim.h) is not there, nor what
# no history calls (main.c, settings, the metrics' page, the offline tools). Named in `beyond`, printed and not counted: what asks
# the machine itself, its folders of models (model_path.c), its CPUs (cpu_share.c), and the files beside the database (store_file.c,
# store_migrate.c). Fails below 95 percent (issue 6). What is left is mostly memory that runs short at one certain allocation, and what
# cannot happen (a transition that is refused): more histories reach a little more.
set -euo pipefail
cd "$(dirname "$0")/../.."
histories=${1:-8000} seed=${2:-1} percent=${3:-95}
beyond="model_path.c cpu_share.c store_file.c store_migrate.c"
build=build/coverage
cmake --preset coverage -DSLUICE_DEBUG_CHECKS=ON >/dev/null
cmake --build $build --target sluice_sim -- --quiet
find $build/manager -name '*.gcda' -delete
$build/bin/sluice_sim --seed "$seed" --histories "$histories"
objects=$build/manager/CMakeFiles/sluice_manager.dir
for data in $(find "$objects" -name "*.gcda"); do
    name=$(basename "$data" .gcda)
    gcov -n -o "$(dirname "$data")" "$data" 2>/dev/null | grep -A1 "^File '.*/manager/.*$name'" | sed -n 's/^Lines executed:\([0-9.]*\)% of \([0-9]*\)$/'"$name"' \1 \2/p'
done | sort | awk -v percent="$percent" -v beyond=" $beyond " '
    { reached = int($2 * $3 / 100 + 0.5); counts = !index(beyond, " " $1 " ")
      if (counts) { all += $3; of += reached }
      printf "%-22s %5d of %5d lines  %6.2f %%%s\n", $1, reached, $3, $2, counts ? "" : "  (not counted)" }
    END { share = all ? 100 * of / all : 0
          printf "%-22s %5d of %5d lines  %6.2f %%, %g are wanted\n", "all that counts", of, all, share, percent
          exit share < percent }'
