#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every check that runs no code of acstor, with the tools that are first in PATH.
# All of them run; a failing one shows its output.
set -euo pipefail
# shellcheck source=tools/lib.sh
source "$(dirname "$0")/lib.sh"
cd "$ROOT"

failed=()

# check NAME COMMAND...
check() {
    local name=$1 output
    shift
    if output=$("$@" 2>&1); then
        say "lint: $name: ok"
    else
        printf '%s\n' "$output" >&2
        say "lint: $name: FAILED ($*)"
        failed+=("$name")
    fi
}

check ruff ruff check .
check format ruff format --check .
check mypy mypy
check imports lint-imports
check docs sphinx-build -E -W --keep-going -q -b html doc/source doc/build/html
if git rev-parse HEAD >/dev/null 2>&1; then
    check releasenotes reno --quiet lint
fi
if command -v shellcheck >/dev/null; then
    check shellcheck shellcheck --external-sources tools/*.sh .ci/run devstack/plugin.sh devstack/settings
fi
[[ ${#failed[@]} -eq 0 ]] || fail "lint: ${failed[*]}" "The output of each is above."
