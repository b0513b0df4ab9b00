#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: tools/paper.sh [S0|S1|S2|S3|S4|all] [--quick] [arguments of evaluation.papers; --help lists them]
#
# Installs what is missing, runs the tables and figures of the papers as far as two cores carry them,
# draws them, and writes a page for each paper with its numbers beside ours.  Stopped, the same command
# goes on where it was.
set -euo pipefail
# shellcheck source=tools/lib.sh
source "$(dirname "$0")/lib.sh"

require_lab "tools/paper.sh"
run_module evaluation.papers "$@"
