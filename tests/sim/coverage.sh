#!/usr/bin/env bash
# Prints which lines of the manager's objects the simulation reaches, file by file. Fails below PERCENT of all lines.
#   tests/sim/coverage.sh [HISTORIES [SEED [PERCENT]]]
#
# The build is in build/coverage. Only objects that sluice_sim links count. Objects below the seams (sim.h) are not
# linked. Objects that no history calls are not linked either: main.c, settings, the metrics' page, the offline tools.
# The list `beyond` names files that are printed and not counted, because they read the machine itself. These read
# folders of models (model_path.c), CPUs (cpu_share.c) or files beside the database (file.c, migrate.c).
# PERCENT is 95 by default (issue 6). Most of the other lines handle a failed allocation at a certain place, or cannot run (a refused
# transition). More histories reach a few more lines.
set -euo pipefail
cd "$(dirname "$0")/../.."
histories=${1:-8000} seed=${2:-1} percent=${3:-95}
beyond="model_path.c cpu_share.c file.c migrate.c"
build=build/coverage
cmake --preset coverage -DSLUICE_DEBUG_CHECKS=ON >/dev/null
cmake --build $build --target sluice_sim -- --quiet
find $build/manager -name '*.gcda' -delete
$build/bin/sluice_sim --seed "$seed" --histories "$histories"
objects=$build/manager/CMakeFiles/sluice_manager.dir
for data in $(find "$objects" -name "*.gcda"); do
    name=$(basename "$data" .gcda)
    gcov -n -o "$(dirname "$data")" "$data" 2>/dev/null | grep -A1 "^File '.*/manager/.*/$name'" | sed -n 's/^Lines executed:\([0-9.]*\)% of \([0-9]*\)$/'"$name"' \1 \2/p'
done | sort | awk -v percent="$percent" -v beyond=" $beyond " '
    { reached = int($2 * $3 / 100 + 0.5); counts = !index(beyond, " " $1 " ")
      if (counts) { all += $3; of += reached }
      printf "%-22s %5d of %5d lines  %6.2f %%%s\n", $1, reached, $3, $2, counts ? "" : "  (not counted)" }
    END { share = all ? 100 * of / all : 0
          printf "%-22s %5d of %5d lines  %6.2f %%, %g are wanted\n", "all that counts", of, all, share, percent
          exit share < percent }'
