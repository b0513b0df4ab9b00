#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: tools/pip-install.sh VENV ARGUMENTS...
#
# Run VENV/bin/pip install ARGUMENTS. uv does the same in a tenth of the processor time; pip does it
# where uv is missing or fails. Modules are not compiled: most are never imported.
set -euo pipefail
# shellcheck source=tools/lib.sh
source "$(dirname "$0")/lib.sh"

UV=$VENV/bin/uv

# uv_settings: give uv the settings of pip, from the environment and files, that it does not read.
uv_settings() {
    local settings name value
    settings=$("$VENV/bin/pip" config list)
    local -A theirs=([index-url]=UV_DEFAULT_INDEX [extra-index-url]=UV_INDEX
        [trusted-host]=UV_INSECURE_HOST [cert]=SSL_CERT_FILE)
    for name in "${!theirs[@]}"; do
        value=$(sed --quiet "/^[^ ]*\.$name='\(.*\)'\$/{s//\1/p;q}" <<<"$settings")
        [[ -z $value ]] || export "${theirs[$name]}=$value"
    done
    export UV_INDEX_STRATEGY=unsafe-best-match UV_LINK_MODE=copy UV_NO_PROGRESS=1
}

venv=$1 && shift
export PIP_DISABLE_PIP_VERSION_CHECK=1
if [[ -x $UV ]] ||
    "$VENV/bin/pip" --quiet install --no-compile --constraint "$ROOT/constraints.txt" uv; then
    uv_settings
    if "$UV" pip install --python "$venv/bin/python" "$@"; then
        exit
    fi
    say "uv failed; pip installs"
fi
# Not `python -m pip`: in the checkout it takes acstor.egg-info for what is installed, and leaves the
# entry points of an older acstor in the virtualenv.
exec "$venv/bin/pip" install --no-compile "$@"
