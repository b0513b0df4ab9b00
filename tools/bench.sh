#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: tools/bench.sh [ID...] [--results DIR] [--turns N] [--quick] [--resume]
#
# Installs what is missing, then runs those benchmarks; without an ID it lists them with their
# targets.  The last line of each is: ID value target pass|fail.  The exit status is 0 if all could
# run, whether or not they met their targets.
set -euo pipefail
# shellcheck source=tools/lib.sh
source "$(dirname "$0")/lib.sh"

run_module evaluation.bench "$@"
