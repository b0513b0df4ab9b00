#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: tools/fresh-root.sh [--keep] bookworm|trixie [unit | COMMAND...]
#        tools/fresh-root.sh --in FOLDER COMMAND...
#
# Makes a Debian of that release from nothing (debootstrap, the smallest variant: no manual pages,
# no init), clones what is committed here into it, and runs tools/demo.sh and tools/test.sh there.
# "unit" runs only the part that needs no lab; a COMMAND runs instead of them, in the clone. The
# root is left by pivot_root into mount and PID namespaces of its own, with /dev, /proc, /sys and an
# empty /run, so FUSE, mounts, namespaces and guests behave as on a machine of that release; the
# network is this machine's. Everything is removed at the end, whatever that is; only debootstrap
# stays, which is installed where it is missing.
#
#   --keep       leave the folder, and say where it is
#   --in FOLDER  run the command in a root that was kept, as it was left
set -euo pipefail
# shellcheck source=tools/lib.sh
source "$(dirname "$0")/lib.sh"
SCRIPT=$ROOT/tools/fresh-root.sh
PLACE=$ROOT/.cache/fresh-root
CLONE=/root/acstor
# On top of the smallest variant: what a machine has on which "git clone" works.
INCLUDE=ca-certificates,git

# mirrors_for RELEASE: lines "SUITE URL", the places from which apt takes this machine's release.
mirrors_for() {
    local own
    own=$(. /etc/os-release && echo "$VERSION_CODENAME")
    apt-get indextargets --format "\$(CODENAME) \$(REPO_URI)" "Created-By: Packages" |
        sed --quiet "s/^$own\\(-updates\\|-security\\)\\? /$1\\1 /p" | sort -u |
        while read -r suite url; do
            [[ $url != mirror+file:* ]] || read -r url _ <"${url#mirror+file:}"
            echo "$suite $url"
        done
}

# carry FOLDER FILE...: copy what exists of these to the same place of the root.
carry() {
    local folder=$1 file
    shift
    for file; do
        [[ ! -e $file ]] || (cd / && cp --archive --dereference --parents "${file#/}" "$folder")
    done
}

# How packages can be had here: certificates, proxies, mirrors, and where pip looks.
carry_ways_to_packages() {
    local folder=$1 word # of a variable: a file or folder that it names
    carry "$folder" /etc/resolv.conf /etc/hosts /usr/local/share/ca-certificates \
        /etc/apt/auth.conf /etc/apt/auth.conf.d \
        /etc/pip.conf "$HOME/.pip" "$HOME/.config/pip" "$HOME/.netrc"
    chroot "$folder" update-ca-certificates >/dev/null 2>&1
    for word in "${SSL_CERT_FILE:-}" "${PIP_CERT:-}" "${REQUESTS_CA_BUNDLE:-}" "${CURL_CA_BUNDLE:-}"; do
        [[ -z $word || -e $folder/$word ]] || carry "$folder" "$word"
    done
    apt-config dump | grep --extended-regexp '^Acquire::(https?|Check|Retries|Force)' \
        >"$folder/etc/apt/apt.conf.d/00carried" || true
    for word in ${PIP_FIND_LINKS:-}; do
        [[ ! -d $word ]] || carry "$folder" "$word"
    done
}

require_debootstrap() {
    command -v debootstrap >/dev/null && return
    say "installing debootstrap"
    { apt-get --yes update && apt-get --yes install --no-install-recommends debootstrap; } \
        >"$LOGS/apt.log" 2>&1 </dev/null ||
        fail "there is no debootstrap here, and it cannot be installed." \
            "Run: apt-get install debootstrap. The whole log is $LOGS/apt.log."
}

build() {
    local release=$1 folder=$2 mirrors main
    mirrors=$(mirrors_for "$release")
    main=$(awk -v suite="$release" '$1 == suite && $2 ~ /^https?:/ { print $2; exit }' <<<"$mirrors")
    [[ -n $main ]] ||
        fail "apt of this machine names no HTTP mirror from which $release could be taken." \
            "Use a Debian machine whose /etc/apt names one; see sources.list(5)."
    say "building a root of $release in $folder"
    debootstrap --variant=minbase --include="$INCLUDE" "$release" "$folder" "$main" \
        >"$LOGS/debootstrap.log" 2>&1 </dev/null || {
        tail -n 15 "$LOGS/debootstrap.log" >&2
        fail "debootstrap of $release failed." "The whole log is $LOGS/debootstrap.log."
    }
    awk '{ print "deb " $2 " " $1 " main" }' <<<"$mirrors" >"$folder/etc/apt/sources.list"
    carry_ways_to_packages "$folder"
    git clone --quiet "$ROOT" "$folder$CLONE"
    git -C "$ROOT" diff --quiet HEAD 2>/dev/null ||
        say "changes that are not committed are not in the root"
}

# What a login has, and what the environment says of the ways to packages.
environment() {
    printf '%s\0' HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    env --null | grep --null-data --extended-regexp \
        '^(PIP_[A-Z_]+|[a-z]+_proxy|[A-Z]+_PROXY|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE)=' || true
}

# room FOLDER COMMAND...: process 1 of the new namespaces; makes FOLDER the root and runs the command.
room() {
    local folder=$1 variables
    shift
    mapfile -d '' -t variables < <(environment)
    mount --bind "$folder" "$folder"
    mount -t proc proc "$folder/proc"
    mount --rbind /sys "$folder/sys"
    mount -t devtmpfs dev "$folder/dev"
    mkdir --parents "$folder"/dev/{pts,shm}
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$folder/dev/pts"
    mount -t tmpfs -o mode=1777 shm "$folder/dev/shm"
    mount -t tmpfs -o mode=755 run "$folder/run"
    mkdir --parents "$folder"/run/{lock,former}
    cd "$folder"
    pivot_root . run/former
    # shellcheck disable=SC2016  # the inner shell expands these
    exec env --ignore-environment "${variables[@]}" /bin/bash -c '
        umount --lazy /run/former && rmdir /run/former && cd "$0" || exit 1
        # Not exec: process 1 collects the orphans of the others.
        "$@"
        exit $?' "$CLONE" "$@"
}

# run_in FOLDER COMMAND...: dies with this script, and all its processes and mounts with it.
run_in() {
    set -m # a group of its own: ^C reaches this script, which ends the room
    setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child bash "$SCRIPT" --room "$@" \
        </dev/null &
    set +m
    room_pid=$!
    local status=0
    wait "$room_pid" || status=$?
    room_pid=
    return "$status"
}

room_pid='' made=''
clean_up() {
    [[ -z $room_pid ]] || kill -KILL "$room_pid" 2>/dev/null || true
    wait
    if [[ -n $made && -n $keep ]]; then
        say "the root is kept: tools/fresh-root.sh --in $made COMMAND... runs in it"
    elif [[ -n $made ]]; then
        rm -rf --one-file-system "$made"
    fi
}

usage() { sed -n '3,16s/^# \?//p' "$SCRIPT"; }

keep=''
case ${1:-} in
    --room)
        shift
        room "$@"
        ;;
    --in)
        [[ $# -gt 2 && -d $2$CLONE ]] || fail "there is no root ${2:-}, or no command." "$(usage)"
        require_root "a root"
        trap clean_up EXIT
        trap 'exit 130' INT TERM HUP
        status=0
        run_in "$(realpath "$2")" "${@:3}" || status=$?
        exit "$status"
        ;;
    --keep) keep=1 && shift ;;
esac
release=${1:-}
case $release in
    bookworm | trixie) shift ;;
    -h | --help) usage && exit ;;
    *) fail "there is no release '$release' to build." "$(usage)" ;;
esac
case ${1:-} in
    '') commands=("tools/demo.sh && tools/test.sh") needed_mib=16384 ;;
    unit) commands=("tools/test.sh $*") needed_mib=5120 ;;
    *) commands=("$(printf '%q ' "$@")") needed_mib=16384 ;;
esac

require_root "a fresh root"
require_amd64
mkdir --parents "$PLACE" "$LOGS"
require_debootstrap
require_space "$PLACE" "$needed_mib" "a fresh root"
trap clean_up EXIT
trap 'exit 130' INT TERM HUP
made=$(mktemp --directory "$(realpath "$PLACE")/$release-XXXXXX")
chmod 755 "$made"
build "$release" "$made"
for command in "${commands[@]}"; do
    say "in the root of $release: $command"
    run_in "$made" bash -c "$command" || fail "$release: this failed in a fresh root: $command" \
        "What it printed is above; --keep leaves the root to look at."
done
say "$release: passed in a fresh root"
