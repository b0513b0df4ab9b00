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

UNIT=(acstor_common acstor_agent/core tests/unit tests/contract)
FUNCTIONAL=(tests/functional tests/chaos)

part=all
case ${1:-} in
    lint | unit | functional | all) part=$1 && shift ;;
    -h | --help) sed -n '3,6s/^# \?//p' "$0" && exit ;;
esac

case $part in
    functional | all) require_lab "tools/test.sh $part" ;;
esac
bash tools/install.sh
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
        python -m tests.lab.guest_image || say "no guest image: what boots a guest is skipped"
        ;;
esac
python -m pytest "${paths[@]}" "$@" || status=$?
[[ $status -eq 0 ]] || say "FAILED"
exit "$status"
