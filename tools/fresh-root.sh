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
ROOTS=$ROOT/.cache/fresh-root
CLONE=/root/acstor
# On top of the smallest variant: what a machine has on which "git clone" works.
INCLUDE=ca-certificates,git

# mirrors_for RELEASE: lines "SUITE URL", from which apt takes this machine's release.
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

# copy_files FOLDER FILE...: copy those that exist to the same path in the root.
copy_files() {
    local folder=$1 file
    shift
    for file; do
        [[ ! -e $file ]] || (cd / && cp --archive --dereference --parents "${file#/}" "$folder")
    done
}

# How packages are fetched here: certificates, proxies, mirrors, and pip's indexes.
copy_package_settings() {
    local folder=$1 word # of a variable: a file or folder that it names
    copy_files "$folder" /etc/resolv.conf /etc/hosts /usr/local/share/ca-certificates \
        /etc/apt/auth.conf /etc/apt/auth.conf.d \
        /etc/pip.conf "$HOME/.pip" "$HOME/.config/pip" "$HOME/.netrc"
    chroot "$folder" update-ca-certificates >/dev/null 2>&1
    for word in "${SSL_CERT_FILE:-}" "${PIP_CERT:-}" "${REQUESTS_CA_BUNDLE:-}" "${CURL_CA_BUNDLE:-}"; do
        [[ -z $word || -e $folder/$word ]] || copy_files "$folder" "$word"
    done
    apt-config dump | grep --extended-regexp '^Acquire::(https?|Check|Retries|Force)' \
        >"$folder/etc/apt/apt.conf.d/00copied" || true
    for word in ${PIP_FIND_LINKS:-}; do
        [[ ! -d $word ]] || copy_files "$folder" "$word"
    done
}

require_debootstrap() {
    command -v debootstrap >/dev/null && return
    say "installing debootstrap"
    : >"$LOGS/apt.log"
    logged apt.log "Is the network up?" apt-get --yes update
    logged apt.log "Run: apt-get install debootstrap." \
        apt-get --yes install --no-install-recommends debootstrap
}

build() {
    local release=$1 folder=$2 mirrors main
    mirrors=$(mirrors_for "$release")
    main=$(awk -v suite="$release" '$1 == suite && $2 ~ /^https?:/ { print $2; exit }' <<<"$mirrors")
    [[ -n $main ]] ||
        fail "apt of this machine names no HTTP mirror from which $release could be taken." \
            "Use a Debian machine whose /etc/apt names one; see sources.list(5)."
    say "building a root of $release in $folder"
    : >"$LOGS/debootstrap.log"
    logged debootstrap.log "Can the mirror be reached?" \
        debootstrap --variant=minbase --include="$INCLUDE" "$release" "$folder" "$main"
    awk '{ print "deb " $2 " " $1 " main" }' <<<"$mirrors" >"$folder/etc/apt/sources.list"
    copy_package_settings "$folder"
    git clone --quiet "$ROOT" "$folder$CLONE"
    git -C "$ROOT" diff --quiet HEAD 2>/dev/null ||
        say "changes that are not committed are not in the root"
}

# The variables of a login, and those about fetching packages.
environment() {
    printf '%s\0' HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    env --null | grep --null-data --extended-regexp \
        '^(PIP_[A-Z_]+|[a-z]+_proxy|[A-Z]+_PROXY|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE)=' || true
}

# namespace_init FOLDER COMMAND...: process 1 of the new namespaces; makes FOLDER the root and runs
# the command.
namespace_init() {
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
    set -m # a group of its own: ^C reaches this script, which ends the namespaces
    setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child bash "$SCRIPT" --init "$@" \
        </dev/null &
    set +m
    init_pid=$!
    local status=0
    wait "$init_pid" || status=$?
    init_pid=
    return "$status"
}

init_pid='' made=''
clean_up() {
    [[ -z $init_pid ]] || kill -KILL "$init_pid" 2>/dev/null || true
    wait
    if [[ -n $made && -n $keep ]]; then
        say "the root is kept: tools/fresh-root.sh --in $made COMMAND... runs in it"
    elif [[ -n $made ]]; then
        rm -rf --one-file-system "$made"
    fi
}

keep=''
case ${1:-} in
    --init)
        shift
        namespace_init "$@"
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
mkdir --parents "$ROOTS" "$LOGS"
require_debootstrap
require_space "$ROOTS" "$needed_mib" "a fresh root"
trap clean_up EXIT
trap 'exit 130' INT TERM HUP
made=$(mktemp --directory "$(realpath "$ROOTS")/$release-XXXXXX")
chmod 755 "$made"
build "$release" "$made"
for command in "${commands[@]}"; do
    say "in the root of $release: $command"
    run_in "$made" bash -c "$command" || fail "$release: this failed in a fresh root: $command" \
        "What it printed is above; --keep leaves the root to look at."
done
say "$release: passed in a fresh root"
