#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: tools/arm64-check.sh [FOLDER]
#
# Starts the agent of what is committed on arm64 and reads an image through its mirror. QEMU emulates
# the programs (qemu-user-static); the kernel and its FUSE are this machine's. The root has Debian 13's
# packages for arm64, unpacked by this machine's dpkg and not configured, since to emulate their scripts
# takes long; acstor and blake3 are wheels. Needs root on an amd64 Debian, and tools/install.sh.
#
#   FOLDER  for the root; it stays there, and the next run uses it as it is. Without one the root is
#           removed at the end.
set -euo pipefail
# shellcheck source=tools/lib.sh
source "$(dirname "$0")/lib.sh"
RELEASE=trixie PYTHON=3.13 ARCH=arm64 MACHINE=aarch64
BINFMT=/proc/sys/fs/binfmt_misc KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
STARTED_WITHIN_S=1800
BASE=(base-files base-passwd bash coreutils dash diffutils findutils grep libc-bin sed util-linux)
LIBRARIES=(msgspec oslo.config xxhash)

# The kernel runs programs of arm64 with QEMU; clean_up takes back what this changes.
emulate() {
    command -v "qemu-$MACHINE-static" >/dev/null ||
        fail "there is no qemu-$MACHINE-static." "Run: apt-get install qemu-user-static"
    if [[ ! -e $BINFMT/register ]]; then
        mount -t binfmt_misc binfmt_misc "$BINFMT"
        mounted=1
    fi
    if [[ ! -e $BINFMT/qemu-$MACHINE ]]; then
        cat "/usr/lib/binfmt.d/qemu-$MACHINE.conf" >"$BINFMT/register"
        registered=$BINFMT/qemu-$MACHINE
    fi
}

# download NAME...: the packages and what they depend on, into the root's cache of apt.
download() {
    local mirror config=$root/apt.conf
    mirror=$(apt-get indextargets --format "\$(REPO_URI)" "Created-By: Packages" | grep "/debian/$" | head -n 1)
    mkdir -p "$root"/etc/apt/{apt.conf.d,preferences.d,sources.list.d} "$root"/var/lib/{dpkg,apt/lists/partial} \
        "$root"/var/cache/apt/archives/partial "$root"/var/log/apt
    touch "$root/var/lib/dpkg/status"
    echo "deb [signed-by=$KEYRING] $mirror $RELEASE main" >"$root/etc/apt/sources.list"
    {
        printf 'Dir "%s/"; Dir::State::status "%s/var/lib/dpkg/status";\n' "$root" "$root"
        printf 'APT::Architecture "%s"; APT::Architectures { "%s"; };\n' "$ARCH" "$ARCH"
        printf 'APT::Install-Recommends "false"; APT::Sandbox::User "root"; Acquire::Languages "none";\n'
    } >"$config"
    APT_CONFIG=$config apt-get --quiet --quiet update
    APT_CONFIG=$config apt-get --quiet --quiet --yes --download-only install "$@"
}

# unpack: base-files first, which has the links /bin and /lib; then what packages' scripts would do.
unpack() {
    local package
    for package in "$root"/var/cache/apt/archives/base-files_*.deb "$root"/var/cache/apt/archives/*.deb; do
        dpkg-deb --extract "$package" "$root"
    done
    rm -rf "$root/var/cache/apt/archives"
    cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
    cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
    cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt"
}

install_wheels() {
    local wheels=$root/root/wheels libraries=$root/usr/local/lib/python$PYTHON/dist-packages wheel
    git clone --quiet "$ROOT" "$root/root/acstor"
    "$VENV/bin/pip" --quiet wheel --no-deps --wheel-dir "$wheels" "$root/root/acstor"
    "$VENV/bin/pip" --quiet download --no-deps --only-binary :all: --platform "manylinux_2_17_$MACHINE" \
        --python-version "$PYTHON" --dest "$wheels" "$(grep '^blake3==' "$ROOT/constraints.txt")"
    mkdir -p "$libraries"
    for wheel in "$wheels"/*.whl; do
        python3 -m zipfile --extract "$wheel" "$libraries"
    done
}

# in_root COMMAND...: in mount and PID namespaces of its own; all of it ends with the command.
in_root() {
    # shellcheck disable=SC2016  # the inner shell expands these
    unshare --mount --pid --fork --kill-child bash -ec '
        cd "$0"
        mount --bind . . && cd "$0"
        mount -t proc proc proc
        mount -t devtmpfs dev dev
        mount -t tmpfs -o mode=755 run run
        exec chroot . env --ignore-environment PATH=/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8 "$@"' \
        "$root" "$@"
}

# Runs in the root.
# shellcheck disable=SC2016
CHECK='
image=7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a10 mirror=/var/lib/acstor/mirror
rm -rf /root/images /var/lib/acstor
mkdir -p /root/images /run/acstor "$mirror" /var/lib/acstor/state /var/lib/acstor/cache
chmod 700 /var/lib/acstor/state /var/lib/acstor/cache
head --bytes=3M /dev/urandom >"/root/images/$image.raw" # data that do not compress, and zeros
truncate --size=8M "/root/images/$image.raw"
prehash="import sys; from acstor_glance.cmd import prehash; sys.exit(prehash.main(sys.argv[1:]))"
python3 -c "$prehash" "/root/images/$image.raw" -o "/root/images/$image.acmap"
printf "[acstor_agent]\nhost = h1\nsources = file\npeer_listen = 127.0.0.1:17201\nmetrics_listen =\n" >/root/agent.conf
printf "[source_file]\nfolder = /root/images\n" >>/root/agent.conf
SECONDS=0
python3 -m acstor_agent.cmd.agent --config-file /root/agent.conf &
until grep " $mirror fuse" /proc/self/mounts && [[ -e $mirror/images ]]; do
    kill -0 $!
    ((SECONDS < '$STARTED_WITHIN_S'))
    sleep 1
done
echo "$(uname -m): the mirror is there after $SECONDS s"
cmp "$mirror/images/$image.raw" "/root/images/$image.raw"
echo "$(uname -m): the mirror has the bytes of the image"
kill $!
wait $! || true'

mounted='' registered='' root='' keep=${1:-}
clean_up() {
    [[ -z $registered ]] || echo -1 >"$registered"
    [[ -z $mounted ]] || umount "$BINFMT"
    [[ -z $root || -n $keep ]] || rm -rf --one-file-system "$root"
}
[[ ${1:-} != -* ]] || { usage && exit; }
require_root "an emulated root"
require_amd64
require_fuse
trap clean_up EXIT
trap 'exit 130' INT TERM HUP
[[ -x $VENV/bin/pip ]] || fail "there is no $VENV." "Run: tools/install.sh unit"
emulate
mkdir -p "$ROOT/.cache"
require_space "$ROOT/.cache" 2048 "an emulated root"
root=${keep:-$(mktemp --directory "$ROOT/.cache/arm64-XXXXXX")}
mkdir -p "$root"
if [[ ! -e $root/root/wheels ]]; then
    say "unpacking Debian's packages for $ARCH in $root"
    mapfile -t depends < <(sed --quiet 's/^ *\(python3-[a-z0-9.-]*\).*/\1/p' "$ROOT/packaging/debian/acstor-agent.depends" |
        grep --invert-match --line-regexp python3-acstor)
    download "${BASE[@]}" python3 fuse3 ca-certificates "${depends[@]}" "${LIBRARIES[@]/#/python3-}"
    unpack
    install_wheels
fi
say "starting the agent under emulation; it takes minutes"
in_root bash -ec "$CHECK"
say "$ARCH: passed"
