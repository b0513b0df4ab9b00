# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the scripts of this folder share: messages and the checks of the machine.
# Source it; it changes nothing by itself.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2034  # for the scripts that source this one
VENV=$ROOT/.venv LOGS=$ROOT/.cache/logs
# shellcheck disable=SC2034
UNIT=(tests/unit tests/contract tests/security/fuzz)
# For each processor two workers, since half of a unit test's time is waiting; each of them takes 5 s to
# import all tests. Neighbours in a file stay together, so what a worker has made for one is there for
# the next.
# shellcheck disable=SC2034
UNIT_WORKERS=(-n "$((2 * $(nproc) < 16 ? 2 * $(nproc) : 16))" --dist worksteal)

say() { printf 'acstor: %s\n' "$*" >&2; }

# fail WHAT REMEDY: one line for each, then out.
fail() {
    printf 'acstor: error: %s\n' "$1" >&2
    printf '        %s\n' "${2:?}" >&2
    exit 1
}

# usage: the comment at the top of the script.
usage() { sed --quiet '3,/^[^#]/s/^# \?//p' "$ROOT/tools/$(basename "$0")"; }

# logged LOG REMEDY COMMAND...: the command's output goes to the log; its end is shown on failure.
logged() {
    local log=$LOGS/$1 remedy=$2
    shift 2
    "$@" >>"$log" 2>&1 </dev/null || {
        tail -n 15 "$log" >&2
        fail "this failed: $*" "$remedy The whole log is $log."
    }
}

# pbr takes the version from git; a tarball, or a clone that git refuses to read, has none.
set_version() {
    git -C "$ROOT" rev-parse HEAD >/dev/null 2>&1 || export PBR_VERSION=${PBR_VERSION:-0.0.1}
}

# run_module MODULE [arguments]: installs what is missing, then runs a module of the checkout.
run_module() {
    cd "$ROOT" || exit
    bash tools/install.sh
    export PATH=$VENV/bin:$PATH
    exec python -m "$@"
}

require_root() {
    [[ $EUID -eq 0 ]] || fail "$1 needs root." "Run it again with sudo, or as root."
}

require_amd64() {
    [[ $(uname -m) == x86_64 ]] ||
        fail "this machine is $(uname -m); packages and guests are made for x86_64 (amd64) only." \
            "Use an x86_64 machine."
}

# kernel_is_at_least MAJOR MINOR
kernel_is_at_least() {
    local release major minor
    release=$(uname -r)
    IFS=.- read -r major minor _ <<<"$release"
    ((major > $1 || (major == $1 && ${minor//[^0-9]/} >= $2)))
}

require_kernel() {
    kernel_is_at_least 5 4 ||
        fail "Linux $(uname -r) is too old: the FUSE mirror needs 5.4." \
            "Use a newer kernel; 6.9 or newer also lets a worker take over from a dead one."
    kernel_is_at_least 6 9 ||
        say "Linux $(uname -r): take-over after a worker's death needs 6.9, so a dead worker means" \
            "read errors for its guests here, and the tests of take-over are skipped."
}

require_fuse() {
    [[ -c /dev/fuse ]] || modprobe fuse 2>/dev/null || true
    [[ -c /dev/fuse ]] ||
        fail "there is no /dev/fuse." \
            "Load the module (modprobe fuse); in a container, pass the device (--device /dev/fuse)."
    # A container may show the device and still forbid it.
    (: <>/dev/fuse) 2>/dev/null ||
        fail "/dev/fuse cannot be opened." "Allow the device in the container's device rules."
}

# require_space FOLDER MIB WHAT
require_space() {
    local free_mib
    free_mib=$(df --output=avail --block-size=1M "$1" | tail -n 1)
    ((free_mib >= $2)) ||
        fail "$3 needs $2 MiB free below $1, and there are ${free_mib// /}." "Make room there."
}

# What the lab can do only on a whole machine: said before anything is installed.
require_lab() {
    require_root "$1"
    require_amd64
    require_kernel
    require_fuse
    local have_mib=0
    if [[ -d $ROOT/.cache ]]; then
        have_mib=$(du --summarize --block-size=1M "$ROOT/.cache" | cut -f 1)
    fi
    require_space "$ROOT" "$((have_mib >= 3072 ? 2048 : 5120 - have_mib))" "$1"
}
