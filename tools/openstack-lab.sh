#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: tools/openstack-lab.sh install|up|down|status [--help]
#
# A real OpenStack of released packages on this machine's loopback, as plain processes.
set -euo pipefail
# shellcheck source=tools/lib.sh
source "$(dirname "$0")/lib.sh"

require_root "the OpenStack lab"
run_module tests.lab.openstack "$@"
