#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: tools/test.sh [lint|unit|functional|all] [pytest arguments]
#
# Installs what is missing, then runs that part of the checks (all of them without a part).
# The last lines are pytest's; the exit status is not 0 if anything failed.
set -euo pipefail
# shellcheck source=tools/lib.sh
source "$(dirname "$0")/lib.sh"
cd "$ROOT"

UNIT=(acstor_common acstor_agent/core acstor_decision/core acstor_simulator tests/unit tests/contract tests/security/fuzz)
FUNCTIONAL=(tests/functional tests/security tests/chaos)

part=all
case ${1:-} in
    lint | unit | functional | all) part=$1 && shift ;;
    -h | --help) sed -n '3,6s/^# \?//p' "$0" && exit ;;
esac

case $part in
    functional | all) require_lab "tools/test.sh $part" ;;
esac
case $part in
    unit) bash tools/install.sh unit ;; # it needs no lab
    *) bash tools/install.sh ;;
esac
export PATH=$VENV/bin:$PATH

status=0
case $part in
    lint | all) bash tools/lint.sh || status=$? ;;
esac
case $part in
    unit) paths=("${UNIT[@]}") ;;
    functional) paths=("${FUNCTIONAL[@]}") ;;
    all) paths=("${UNIT[@]}" "${FUNCTIONAL[@]}") ;;
    lint) exit "$status" ;;
esac
case $part in
    functional | all)
        python -m tests.lab.openstack install || say "no OpenStack: what needs it is skipped"
        python -m tests.lab.guest_image || say "no guest image: what boots a guest is skipped"
        ;;
esac
tests=0
python -m pytest "${paths[@]}" "$@" || tests=$?
if [[ $tests -eq 1 ]]; then
    # Real services and guests on two busy processors: one may miss a deadline. Both runs are shown.
    say "what failed runs once more, by itself; what fails again has failed"
    tests=0
    python -m pytest "${paths[@]}" --last-failed --last-failed-no-failures none || tests=$?
    [[ $tests -ne 0 ]] || say "FLAKY: what failed at first passed by itself; mend what is above"
fi
[[ $tests -eq 0 ]] || status=$tests
[[ $status -eq 0 ]] || say "FAILED"
exit "$status"
