#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: tools/demo.sh [arguments of tests.lab.demo; --help lists them]
#
# Installs what is missing, then boots one Debian image on several hosts three ways: full copy
# first, on demand without sharing, and acstor.
set -euo pipefail
# shellcheck source=tools/lib.sh
source "$(dirname "$0")/lib.sh"
cd "$ROOT"

require_lab "tools/demo.sh"
bash tools/install.sh
export PATH=$VENV/bin:$PATH
exec python -m tests.lab.demo "$@"
