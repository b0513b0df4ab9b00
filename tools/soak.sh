#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: tools/soak.sh [--minutes N] [--hosts N] [--seed N] [--results DIR]
#
# Installs what is missing, then runs a day's churn on a real OpenStack of this machine (6 hours,
# 4 compute hosts) and says whether memory, descriptors, threads or latencies of acstor grow.
# The exit status is 0 if nothing failed and nothing grew.
set -euo pipefail
# shellcheck source=tools/lib.sh
source "$(dirname "$0")/lib.sh"

case ${1:-} in
    -h | --help) usage && exit ;;
esac
require_lab tools/soak.sh
bash "$ROOT/tools/install.sh"
export PATH=$VENV/bin:$PATH
cd "$ROOT"
python -m tests.lab.openstack install
exec python -m evaluation.soak "$@"
