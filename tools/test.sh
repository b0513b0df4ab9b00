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
        python -m tests.lab.guest_image &
        guest=$!
        python -m tests.lab.openstack install || say "no OpenStack: what needs it is skipped"
        wait "$guest" || say "no guest image: what boots a guest is skipped"
        ;;
esac

# run_tests EXPRESSION [pytest arguments]: the tests with, or without, the mark "openstack". Two runs
# of pytest side by side share neither a cache nor a folder of temporary files.
run_tests() {
    local cache=.pytest_cache/${1// /-} temporary=${TMPDIR:-/tmp}
    [[ $1 != openstack ]] || temporary=/var/tmp
    PYTEST_DEBUG_TEMPROOT=$temporary python -m pytest -m "$1" -o cache_dir="$cache" "${paths[@]}" "${@:2}"
}

# judge EXPRESSION STATUS: what failed runs once more, by itself, for real services and guests on two
# busy processors may miss a deadline. Both runs are shown; what fails again has failed.
judge() {
    local tests=$2
    if [[ $tests -eq 1 ]]; then
        say "what failed runs once more, by itself; what fails again has failed"
        tests=0
        run_tests "$1" --last-failed --last-failed-no-failures none || tests=$?
        [[ $tests -ne 0 ]] || say "FLAKY: what failed at first passed by itself; mend what is above"
    fi
    [[ $tests -eq 0 || $tests -eq $NO_TESTS ]] || status=$tests
}

# What needs an OpenStack mostly waits, so it runs beside all the rest.
readonly NO_TESTS=5 # pytest's status where the arguments choose none
side='' side_status=0 main_status=0
case $part in
    functional | all)
        run_tests openstack "$@" >"$LOGS/tests-openstack.log" 2>&1 &
        side=$!
        say "the tests that need an OpenStack run beside these; $LOGS/tests-openstack.log shows how far they are"
        ;;
esac
run_tests "not openstack" "$@" || main_status=$?
if [[ -n $side ]]; then
    wait "$side" || side_status=$?
    cat "$LOGS/tests-openstack.log"
    judge openstack "$side_status"
fi
judge "not openstack" "$main_status"
[[ $main_status -ne $NO_TESTS || $side_status -ne $NO_TESTS ]] || status=$NO_TESTS
[[ $status -eq 0 ]] || say "FAILED"
exit "$status"
