#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: tools/arm64-check.sh [FOLDER]
#
# Builds the Debian packages of what is committed for arm64, in a Debian 13 of this machine's kind.
# Then starts the package's agent on arm64 and reads an image through its mirror. QEMU emulates the
# programs (qemu-user-static); the kernel and its FUSE are this machine's. Packages are unpacked by
# this machine's dpkg and not configured, since to emulate their scripts takes long; this machine
# compiles the Python modules and pre-hashes the image, too. Needs root on an amd64 Debian, and
# tools/install.sh.
#
#   FOLDER  for the root of arm64; it stays there, and the next run uses it as it is. Without one it
#           is removed at the end.
set -euo pipefail
# shellcheck source=tools/lib.sh
source "$(dirname "$0")/lib.sh"
RELEASE=trixie ARCH=arm64 MACHINE=aarch64
BINFMT=/proc/sys/fs/binfmt_misc KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
STARTED_WITHIN_S=1800 IMAGE=7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a10
BASE=(base-files base-passwd bash coreutils dash diffutils findutils grep libc-bin sed util-linux)
PACKAGES=(acstor-agent fuse3)

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

# download FOLDER NAME...: the packages, of Debian and of the folder, and what they depend on, into the
# root's cache of apt.
download() {
    local own=$1 mirror config=$root/apt.conf
    shift
    mirror=$(apt-get indextargets --format "\$(REPO_URI)" "Created-By: Packages" | grep "/debian/$" | head -n 1)
    mkdir -p "$root"/etc/apt/{apt.conf.d,preferences.d,sources.list.d} "$root"/var/lib/{dpkg,apt/lists/partial} \
        "$root"/var/cache/apt/archives/partial "$root"/var/log/apt
    touch "$root/var/lib/dpkg/status"
    echo "deb [signed-by=$KEYRING] $mirror $RELEASE main" >"$root/etc/apt/sources.list"
    echo "deb [trusted=yes] copy:$own ./" >>"$root/etc/apt/sources.list"
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

# compile FOLDER: this machine's Python of the same release compiles the modules, in that root.
compile() {
    # shellcheck disable=SC2016  # the inner shells expand these
    unshare --mount bash -ec '
        mount --bind "$1" "$0/mnt"
        chroot "$0" sh -c "python3 -m compileall -q -s /mnt /mnt/usr/lib/python3* >/dev/null || true"' "$1" "$root"
}

# Makes the image, of data that do not compress and zeros, and its chunk map.
make_image() {
    local image=$root/root/images/$IMAGE
    mkdir -p "$root/root/images"
    head --bytes=3M /dev/urandom >"$image.raw"
    truncate --size=8M "$image.raw"
    (cd "$ROOT" && "$VENV/bin/python" -c "import sys; from acstor_glance.cmd import prehash
sys.exit(prehash.main(sys.argv[1:]))" "$image.raw" -o "$image.acmap")
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
image='$IMAGE' mirror=/var/lib/acstor/mirror
rm -rf /var/lib/acstor
mkdir -p /run/acstor "$mirror" /var/lib/acstor/state /var/lib/acstor/cache
chmod 700 /var/lib/acstor/state /var/lib/acstor/cache
printf "[acstor_agent]\nhost = h1\nsources = file\npeer_listen = 127.0.0.1:17201\nmetrics_listen =\n" >/root/agent.conf
printf "[source_file]\nfolder = /root/images\n" >>/root/agent.conf
SECONDS=0
acstor-agent --config-file /root/agent.conf &
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
if [[ ! -e $root/usr/bin/acstor-agent ]]; then
    say "building the packages for $ARCH; it takes minutes"
    packages=$(cd "$ROOT" && "$VENV/bin/python" -m tests.lab.debian_root "$RELEASE" "$ARCH")
    say "unpacking them and Debian's packages for $ARCH in $root"
    download "$packages" "${BASE[@]}" "${PACKAGES[@]}"
    unpack
    compile "${packages%/root/*}"
fi
make_image
say "starting the agent under emulation; it takes minutes"
in_root bash -ec "$CHECK"
say "$ARCH: passed"
