#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: tools/demo.sh [arguments of tests.lab.demo; --help lists them]
#
# Installs what is missing, boots one Debian image on several hosts at once, then brings traffic to one
# of them. --compare boots by full copy and by qcow2 over HTTP as well.
set -euo pipefail
# shellcheck source=tools/lib.sh
source "$(dirname "$0")/lib.sh"

require_lab "tools/demo.sh"
run_module tests.lab.demo "$@"
