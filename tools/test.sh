#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: tools/test.sh [lint|unit|lowest|functional|packages|nightly|all] [pytest arguments]
#
# Installs what is missing, then runs that part of the checks (without a part all of them but for
# packages, which are built and installed on clean systems, lowest, the unit tests with the lowest
# versions of all libraries, and nightly, the tests that take too long for each change).
# The last lines are pytest's; the exit status is not 0 if anything failed.
set -euo pipefail
# shellcheck source=tools/lib.sh
source "$(dirname "$0")/lib.sh"
cd "$ROOT"

FUNCTIONAL=(tests/functional tests/security tests/chaos)
OPENSTACK="openstack and not nova and not packages"
# These run after others, so that all end at about the same time.
declare -A AFTER=([security]=agents [chaos]=openstack)
LONGEST=nova # it has the processors first, so that it does not end long after the rest

part=all when="not nightly"
case ${1:-} in
    lint | unit | functional | packages | all) part=$1 && shift ;;
    nightly) part=functional when=nightly && shift ;;
    lowest) shift && exec bash tools/lowest.sh "$@" ;;
    -h | --help) usage && exit ;;
esac

case $part in
    functional | packages | all) require_lab "tools/test.sh $part" ;;
esac

declare -A beside=() installing=()
# shellcheck disable=SC2317  # called by the trap
end() {
    local pid
    [[ ${#installing[@]} -eq 0 ]] || kill "${installing[@]}" 2>/dev/null || true
    for pid in "${beside[@]}"; do
        if kill -INT -- "-$pid" 2>/dev/null; then wait "$pid" || true; fi
    done
}
trap end EXIT

# The guest image needs only the system's packages, and the virtualenv mostly one processor.
case $part in
    unit) bash tools/install.sh unit ;; # it needs no lab
    functional | all)
        bash tools/install.sh packages
        /usr/bin/python3 -m tests.lab.guest_image &
        installing[guest]=$!
        bash tools/install.sh
        ;;
    *) bash tools/install.sh ;;
esac
export PATH=$VENV/bin:$PATH
unset PYTHONDONTWRITEBYTECODE # thousands of processes would compile what they import, each for itself

# run_tests NAME [pytest arguments]: the tests of that name. Those that run side by side share neither
# a cache nor a folder of temporary files.
run_tests() {
    local paths=("${FUNCTIONAL[@]}") marks="not openstack and not packages" temporary=${TMPDIR:-/tmp}
    local side_by_side=() without=() nice=(nice -n 3) timed=not
    [[ $1 != "$LONGEST" ]] || nice=()
    [[ $part != unit ]] || timed="timed or not"
    case $1 in
        unit) paths=("${UNIT[@]}") temporary=$temporary/acstor-unit side_by_side=("${UNIT_WORKERS[@]}") ;;
        functional) paths=("${FUNCTIONAL[@]:0:1}") without=(--ignore-glob="*/test_agent*") ;;
        agents) paths=(tests/functional/test_agent*.py) temporary=/var/tmp/a ;;
        packages) paths=("${FUNCTIONAL[@]:0:1}") marks=packages ;;
        security) # sockets have short paths
            paths=(tests/security) temporary=$temporary/s without=(--ignore=tests/security/fuzz) ;;
        chaos) paths=(tests/chaos) temporary=$temporary/c ;;
        openstack) marks=$OPENSTACK temporary=/var/tmp without=(--ignore-glob="*/test_glance*") ;;
        glance) marks=$OPENSTACK temporary=/var/tmp/g paths=(tests/functional/test_glance*.py) ;;
        nova) marks="nova and not packages" temporary=/var/tmp/acstor-nova ;;
        timed) # alone; pytest imports no file without such a test
            timed=""
            [[ $part != all ]] || paths+=("${UNIT[@]}")
            mapfile -t paths < <(grep -rlE --include="test_*.py" "mark\.timed" "${paths[@]}")
            ;;
    esac
    mkdir -p "$temporary"
    marks="($marks) and $when and ($timed timed)"
    PYTEST_DEBUG_TEMPROOT=$temporary "${nice[@]}" python -m pytest -m "$marks" -o cache_dir=".pytest_cache/$1" \
        "${side_by_side[@]}" "${without[@]}" "${paths[@]}" "${@:2}"
}

# compile_tests: have one process of a clean clone compile the tests, before many import them.
compile_tests() {
    [[ ! -d tests/unit/__pycache__ ]] || return 0
    python -m pytest --collect-only --quiet -p no:cacheprovider "${UNIT[@]}" "$@" >/dev/null || true
}

# begin NAME [pytest arguments]: run the tests of that name beside what follows, in a process group of
# their own, after those that AFTER names; it is interrupted when this ends before them, and cleans up
# then.
begin() {
    local first=${beside[${AFTER[$1]:-none}]:-}
    set -m
    {
        if [[ -n $first ]]; then
            # Who starts this in the background has it ignore interrupts; this one must not.
            env --default-signal=INT tail --pid="$first" --follow /dev/null || exit
        fi
        run_tests "$@"
    } >"$LOGS/tests-$1.log" 2>&1 &
    set +m
    beside[$1]=$!
    say "the $1 tests run beside the rest; $LOGS/tests-$1.log shows how far they are"
}

# judge NAME STATUS: what failed runs once more, by itself, for real services and guests on two busy
# processors may miss a deadline. Both runs are shown; what fails again has failed.
readonly NO_TESTS=5 # pytest's status where the arguments choose none
status=0 found=no
judge() {
    local tests=$2
    if [[ $tests -eq 1 ]]; then
        say "what failed of the $1 tests runs once more, by itself; what fails again has failed"
        tests=0
        run_tests "$1" -n 0 --last-failed --last-failed-no-failures none || tests=$?
        [[ $tests -ne 0 ]] || say "FLAKY: what failed at first passed by itself; mend what is above"
    fi
    [[ $tests -eq $NO_TESTS ]] || found=yes
    [[ $tests -eq 0 || $tests -eq $NO_TESTS ]] || status=$tests
}

# Lint takes a processor, the services' installation the network, what needs an OpenStack mostly
# waits: each has others beside it.
mkdir -p "$LOGS"
last=$part last_status=0
case $part in
    functional | all)
        python -m tests.lab.openstack install &
        installing[openstack]=$!
        if [[ $when == nightly ]]; then
            python -m tests.lab.nova_releases &
            installing[releases]=$!
        fi
        ;;
esac
case $part in
    unit) compile_tests ;;
    all) compile_tests "${FUNCTIONAL[@]}" && begin unit "$@" && last=functional ;;
esac
case $part in
    lint | all) bash tools/lint.sh || status=$? ;;
esac
[[ $part != lint ]] || exit "$status"
case $part in
    functional | all)
        wait "${installing[openstack]}" || say "no OpenStack: what needs it is skipped"
        wait "${installing[guest]}" || say "no guest image: what boots a guest is skipped"
        [[ -z ${installing[releases]:-} ]] || wait "${installing[releases]}" ||
            say "no older Nova: its tests with its own libraries are skipped"
        installing=()
        for name in nova agents openstack glance chaos security; do begin "$name" "$@"; done
        ;;
esac
run_tests "$last" "$@" || last_status=$?
statuses=("$last $last_status")
for name in "${!beside[@]}"; do
    tests=0
    wait "${beside[$name]}" || tests=$?
    unset "beside[$name]"
    cat "$LOGS/tests-$name.log"
    statuses+=("$name $tests")
done
case $part in
    functional | all)
        say "the tests that measure time run by themselves"
        tests=0
        run_tests timed "$@" || tests=$?
        statuses+=("timed $tests")
        ;;
esac
for pair in "${statuses[@]}"; do
    # shellcheck disable=SC2086  # two words
    judge $pair
done
[[ $found == yes ]] || status=$NO_TESTS
[[ $status -eq 0 ]] || say "FAILED"
exit "$status"
