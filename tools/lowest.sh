#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: tools/lowest.sh [pytest arguments]
#
# Run the unit tests with the lowest version of each library that pyproject.toml allows, in a
# virtualenv of its own. What libraries need themselves is as new as these allow.
set -euo pipefail
# shellcheck source=tools/lib.sh
source "$(dirname "$0")/lib.sh"
cd "$ROOT"

FOLDER=$ROOT/.cache/lowest

key=$(/usr/bin/python3 --version | cat - pyproject.toml acstor_policies/pyproject.toml | sha256sum)
if [[ ! -e $FOLDER/installed || $(<"$FOLDER/installed") != "$key" ]]; then
    say "installing the lowest versions in $FOLDER"
    require_space "$ROOT" 2048 "the virtualenv of the lowest versions"
    rm -rf "$FOLDER"
    /usr/bin/python3 -m venv "$FOLDER/uv"
    "$FOLDER/uv/bin/pip" --quiet install uv
    uv=$FOLDER/uv/bin/uv
    set_version
    "$uv" --quiet venv --seed --python /usr/bin/python3 "$FOLDER/venv"
    "$uv" --quiet pip compile pyproject.toml --python "$FOLDER/venv/bin/python" --all-extras \
        --resolution lowest-direct --output-file "$FOLDER/versions.txt"
    "$uv" --quiet pip install --python "$FOLDER/venv/bin/python" \
        --requirements "$FOLDER/versions.txt"
    "$uv" --quiet pip install --python "$FOLDER/venv/bin/python" --no-deps "$ROOT" \
        --editable "$ROOT/acstor_policies"
    echo "$key" >"$FOLDER/installed"
fi
say "the versions are in $FOLDER/versions.txt"
export PATH=$FOLDER/venv/bin:$PATH
exec python -m pytest -m "not openstack and not packages" -o cache_dir=.pytest_cache/lowest \
    "${UNIT_WORKERS[@]}" "${UNIT[@]}" "$@"
