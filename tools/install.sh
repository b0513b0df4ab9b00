#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: tools/install.sh [unit|packages]
#
# Install what acstor needs: the packages of bindep.txt, and a virtualenv .venv with the
# versions of constraints.txt.  Safe to run again; a second run only looks.  "unit" leaves the
# packages of the lab out: what is there is enough for the unit tests.  "packages" makes no virtualenv.
set -euo pipefail
# shellcheck source=tools/lib.sh
source "$(dirname "$0")/lib.sh"

POLICY=/usr/sbin/policy-rc.d # Debian's own switch: exit status 101 forbids to start services

missing_packages() {
    local wanted installed distribution
    distribution=$(sed -n 's/^ID=//p' /etc/os-release)
    wanted=$(awk -v part="$part" -v distribution="$distribution" '!/^#/ && NF &&
        (part != "unit" || !/ lab]/) && (distribution == "debian" || !/platform:debian/) { print $1 }' \
        "$ROOT/bindep.txt" | sort --unique)
    installed=$(dpkg-query --show --showformat='${db:Status-Status} ${Package}\n' |
        awk '$1 == "installed" { print $2 }' | sort -u)
    comm -23 <(echo "$wanted") <(echo "$installed")
}

forbid_services() {
    [[ ! -e $POLICY ]] || grep -q "acstor's" "$POLICY" || return 0 # somebody else decides
    trap 'rm -f "$POLICY"' EXIT
    printf "#!/bin/sh\n# acstor's, while it installs packages\nexit 101\n" >"$POLICY"
    chmod 755 "$POLICY"
}

install_packages() {
    local missing
    mapfile -t missing < <(missing_packages)
    [[ ${#missing[@]} -gt 0 ]] || return 0
    require_root "the installation of packages (${missing[*]})"
    require_space /var 2048 "the installation of packages"
    say "installing ${#missing[@]} packages: ${missing[*]}"
    local remedy="Is the network up, and does /etc/apt/sources.list name a mirror that can be reached \
(on Ubuntu with the component universe)?"
    local apt=(apt-get --yes -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
    export DEBIAN_FRONTEND=noninteractive
    : >"$LOGS/apt.log"
    forbid_services
    logged apt.log "$remedy" "${apt[@]}" update
    logged apt.log "$remedy" "${apt[@]}" install --no-install-recommends "${missing[@]}"
    keep_services_off "${missing[@]}"
}

# keep_services_off PACKAGE...: the lab starts its own, so those just installed do not start at boot.
keep_services_off() {
    command -v systemctl >/dev/null || return 0
    local package units
    for package; do
        case $package in
            ceph-common) units=(ceph.target rbdmap.service) ;;
            ceph-mon) units=(ceph-mon.target ceph-crash.service) ;; # the latter is of ceph-base
            ceph-osd) units=(ceph-osd.target) ;;
            etcd-server) units=(etcd.service) ;;
            nginx-light) units=(nginx.service) ;;
            postgresql) units=(postgresql.service) ;;
            rabbitmq-server) units=(rabbitmq-server.service) ;;
            openssh-server) units=(ssh.service) ;;
            libvirt-daemon-system) units=(libvirtd.service) ;;
            *) continue ;;
        esac
        systemctl disable "${units[@]}" >>"$LOGS/apt.log" 2>&1 || true
    done
}

require_python() {
    /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "$(/usr/bin/python3 --version) is too old: acstor needs Python 3.11 or newer." \
            "Use Debian 12, Debian 13 or Ubuntu 24.04."
}

# Everything that decides what is in the virtualenv, its own place included.
venv_key() {
    {
        echo "$ROOT"
        /usr/bin/python3 --version
        cat "$ROOT/constraints.txt" "$ROOT/pyproject.toml" "$ROOT/setup.cfg" \
            "$ROOT/acstor_policies/pyproject.toml"
    } | sha256sum
}

venv_is_ours() {
    local theirs ours
    ours="$VENV $(/usr/bin/python3 -c 'import sys; print(sys.version_info[:2])')"
    theirs=$("$VENV/bin/python" -c 'import sys; print(sys.prefix, sys.version_info[:2])' 2>&1) &&
        [[ $theirs == "$ours" ]]
}

install_venv() {
    local key stamp=$VENV/.acstor-installed
    key=$(venv_key)
    [[ -e $stamp && $(<"$stamp") == "$key" ]] && return
    require_space "$ROOT" 1024 "the virtualenv"
    say "installing the virtualenv $VENV"
    : >"$LOGS/pip.log"
    venv_is_ours ||
        logged pip.log "Is python3-venv installed?" /usr/bin/python3 -m venv --clear "$VENV"
    set_version
    logged pip.log "Is the network up? Behind a mirror or proxy, set PIP_INDEX_URL or HTTPS_PROXY." \
        bash "$ROOT/tools/pip-install.sh" "$VENV" --constraint "$ROOT/constraints.txt" \
        --editable "${ROOT}[agent,checkpoint,decision,glance,nova,osc,simulator,tracing,test,doc]" \
        --editable "$ROOT/acstor_policies"
    echo "$key" >"$stamp"
}

part=${1:-all}
case $part in
    all | unit | packages) ;;
    *) fail "there is no part '$part' to install." "$(usage)" ;;
esac
require_amd64
command -v apt-get >/dev/null ||
    fail "there is no apt-get here." "Use Debian 12, Debian 13 or Ubuntu 24.04."
mkdir -p "$LOGS"
exec 9<"$ROOT/bindep.txt"
flock 9 # two scripts of one checkout may start together
install_packages
require_python
[[ $part != packages ]] || exit 0
install_venv
