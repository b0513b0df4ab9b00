#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Remove what the scripts made: leftovers of the lab, then the virtualenv, caches and results
# inside the checkout.  Packages stay.
set -euo pipefail
# shellcheck source=tools/lib.sh
source "$(dirname "$0")/lib.sh"
cd "$ROOT"

if [[ -x $VENV/bin/python ]]; then
    "$VENV/bin/python" -c 'from tests.lab import runs; runs.sweep()'
    [[ ! -d .openstack-lab ]] || "$VENV/bin/python" -m tests.lab.openstack down --wipe
fi
if mounts=$(findmnt --raw --noheadings --output TARGET | grep -F "$ROOT/"); then
    fail "there are mounts below the checkout: ${mounts//$'\n'/ }" "Unmount them first."
fi
find . -name __pycache__ -type d -not -path './.venv*/*' -prune -exec rm -rf --one-file-system {} +
rm -rf --one-file-system .venv .venv-openstack .tox .cache results doc/build releasenotes/build build dist \
    .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache \
    acstor.egg-info tests/tempest/acstor_tempest_plugin.egg-info AUTHORS ChangeLog etc/acstor/*.conf.sample \
    doc/source/_static/*.conf.sample
say "the checkout is clean"
