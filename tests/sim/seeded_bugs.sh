#!/usr/bin/env bash
# I10: the simulation sees a bug planted for each invariant that it checks (base/seeded_bug.h), and names the invariant.
set -uo pipefail
sim=${1:?usage: seeded_bugs.sh SLUICE_SIM}
failed=0
for bug in I1_acknowledges_before_commit I1_forgets_the_request I2_forgets_replica I2_leaves_an_operation_open I2_skips_a_state \
    I2_counts_its_own_pause I5_keeps_a_promise I6_starts_a_second_worker I7_routes_the_unloaded I8_loses_an_event \
    I7_routes_the_parked I2_takes_back_both_versions I2_keeps_the_old_traffic I2_parks_the_busy I2_parks_what_is_not_kept \
    I2_misses_a_hold_that_ended; do
    said=$(SLUICE_SEEDED_BUG=$bug "$sim" --histories 4000)
    rc=$?
    # The bug drops rows of replicas. A check finds a lost row (I1), or a replica whose state cannot be recorded (I2).
    wanted=${bug%%_*}
    [ "$bug" = I2_forgets_replica ] && wanted="I[12]"
    if [ $rc -eq 1 ] && grep -q "^BROKEN.*: $wanted: " <<<"$said"; then
        echo "seen: $bug: $(grep BROKEN <<<"$said")"
    else
        echo "NOT SEEN: $bug (exit status $rc): $said"
        failed=1
    fi
done
exit $failed
